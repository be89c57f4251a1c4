"""Files of run folders, which a workload can have written: plain ones alone, no link followed, none without a limit."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """Return what a plain file holds.

    Raises:
        OSError: it is not there or cannot be read, is a link, a pipe or the like, or is larger than the limit.
    """
    fd = open_regular(path)
    try:
        if os.fstat(fd).st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {limit_bytes >> 20} MiB", str(path))
        pieces = []
        while piece := os.read(fd, 1 << 20):
            pieces.append(piece)
    finally:
        os.close(fd)
    return b"".join(pieces)


def open_regular(path: Path) -> int:
    """Return a descriptor of a plain file, for reading.

    Raises:
        OSError: it is not there or cannot be read, or is a link, a pipe or the like.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return fd


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; "" of one that cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""


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
