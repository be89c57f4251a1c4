"""What lies in folders that another user or a workload can have written to; nothing is opened and nothing raises."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path


def is_there(path: Path, *, shut: bool = False) -> bool:
    """Say whether something is at a path; `shut`, where another user keeps us from seeing it.  Nothing raises."""
    try:
        path.stat()
    except OSError as error:
        return shut and error.errno in (errno.EACCES, errno.EPERM)
    return True


def real_folders(parent: Path) -> Iterator[Path]:
    """Yield the folders in a folder, by name; links to others are none, and one that cannot be read has none."""
    try:
        with os.scandir(parent) as found:
            names = sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    yield from (parent / name for name in names)
