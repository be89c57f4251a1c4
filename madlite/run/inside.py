"""Files that a workload left: plain ones below a folder alone, wherever links would lead, and none without an end."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 64 << 20
"""More than this is no table of results."""


def open_inside(path: Path, root: Path) -> int:
    """Return a descriptor of a plain file that lies below `root`, links followed; of the one that was opened.

    Raises:
        OSError: it is not there or cannot be read, is a pipe, a device or the like, or lies elsewhere.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        if not _place(fd, path).is_relative_to(os.path.realpath(root)):
            raise OSError(errno.EXDEV, "it is a link that leads elsewhere", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_inside(path: Path, root: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a plain file below `root` holds.

    Raises:
        OSError: as `open_inside`, or it is larger than the limit.
    """
    with os.fdopen(open_inside(path, root), "rb") as file:
        large = os.fstat(file.fileno()).st_size > limit_bytes
        data = b"" if large else file.read(limit_bytes + 1)
    if large or len(data) > limit_bytes:  # it may grow meanwhile
        raise OSError(errno.EFBIG, f"it is larger than {limit_bytes >> 20} MiB", str(path))
    return data


def copy_inside(path: Path, root: Path, to: Path) -> None:
    """Copy a plain file below `root` so that a reader sees the old one or the new one.

    Raises:
        OSError: as `open_inside`, or it cannot be written; nothing half made is left.
    """
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    with os.fdopen(open_inside(path, root), "rb") as file:
        beside.unlink(missing_ok=True)  # a link of that name would be written through
        try:
            with beside.open("xb") as new:
                shutil.copyfileobj(file, new)
            with suppress(OSError):
                shutil.copystat(f"/proc/self/fd/{file.fileno()}", beside)
            beside.replace(to)
        except BaseException:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise


def _place(fd: int, path: Path) -> Path:
    """Return where an open file lies, whatever its path names by now."""
    try:
        return Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:  # no /proc
        return Path(os.path.realpath(path))
