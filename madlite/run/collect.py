"""Copy what a run left in the workspace."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_LOG = logging.getLogger(__name__)


def copy_matching(workspace: Path, patterns: Sequence[str], into: Path) -> None:
    """Copy the files below `workspace` that match a glob pattern into the folder `into`, by their own names."""
    for pattern in patterns:
        for path in sorted(workspace.glob(pattern)):
            if path.is_file() and path.parent != into:
                into.mkdir(parents=True, exist_ok=True)
                copy_whole(path, into / path.name)


def copy_whole(path: Path, to: Path) -> None:
    """Copy a file so that a reader sees the old one or the new one; what cannot be copied is logged."""
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        shutil.copy2(path, beside)
        beside.replace(to)
    except OSError as error:
        _LOG.warning("%s was not copied to %s: %s", path, to, error.strerror)
