"""Files that are written as a whole: a reader sees the old one or the new one, a kill leaves one of them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from madlite.results.locked import plain_target
from madlite.safe_files import Folder, resolved


def write_whole(path: Path, data: bytes, mark: str = "new") -> None:
    """Replace the file that `path` names, links followed; mode and owner of an earlier one are kept.

    Only one writer at a time, so callers hold a lock, or have a `mark` of their own: what is not whole yet has a fixed
    name beside the file, so that what a killed writer left is gone with the next.

    Raises:
        OSError: it cannot be written; what was there is as it was.
        RecordError: it is a device, a pipe or the like, which must not become a file.
    """
    with (
        resolved(plain_target(path)) as (folder, name),
        replacing(folder, name, f".{name}.{mark}") as fd,
        os.fdopen(os.dup(fd), "wb") as new,
    ):
        new.write(data)


@contextmanager
def replacing(
    folder: Folder, name: str, beside: str, renamed: Callable[[int], None] = lambda fd: None
) -> Iterator[int]:
    """Yield a descriptor of what takes the place of a file once the block has filled it; `renamed` is called then.

    Raises:
        OSError: it cannot be written; what was there is as it was, and nothing half made is left.
    """
    folder.remove(beside)
    fd = folder.create(beside, os.O_RDWR, 0o666)
    try:
        with suppress(FileNotFoundError):
            keep_owner_and_mode(folder, name, fd)
        yield fd
        os.fsync(fd)
        folder.rename(beside, name)
        renamed(fd)
    except BaseException:
        folder.remove(beside)
        raise
    finally:
        os.close(fd)


def keep_owner_and_mode(folder: Folder, name: str, new: int) -> None:
    """Give the open file that will replace another one its owner and mode, as far as this user may.

    Raises:
        FileNotFoundError: there is none to be replaced.
    """
    old = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd)
    try:
        status = os.fstat(old)
        for owner in (status.st_uid, -1):
            with suppress(PermissionError):  # only root gives a file away; the group is what others write by
                os.fchown(new, owner, status.st_gid)
                break
        with suppress(FileNotFoundError):  # no /proc
            shutil.copystat(f"/proc/self/fd/{old}", f"/proc/self/fd/{new}")  # also access lists
        os.fchmod(new, stat.S_IMODE(status.st_mode) & 0o777)  # nobody becomes another by a table
    finally:
        os.close(old)


def sync_folder(folder: Path) -> None:
    """Make a new name in the folder survive a loss of power, where the file system can."""
    with suppress(OSError):  # some network file systems cannot, and the rows are in the file
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
