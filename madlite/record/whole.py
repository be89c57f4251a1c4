"""Files that are written as a whole: a reader sees the old one or the new one, a kill leaves one of them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from madlite.record.locked import plain_target


def write_whole(path: Path, data: bytes, mark: str = "new") -> None:
    """Replace the file that `path` names, links followed; mode and owner of an earlier one are kept.

    Only one writer at a time, so callers hold a lock, or have a `mark` of their own: what is not whole yet has a fixed
    name beside the file, so that what a killed writer left is gone with the next.

    Raises:
        OSError: it cannot be written; what was there is as it was.
        RecordError: it is a device, a pipe or the like, which must not become a file.
    """
    target = plain_target(path)
    beside = target.with_name(f".{target.name}.{mark}")
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb") as new:
            with suppress(FileNotFoundError):
                keep_owner_and_mode(target.stat(), target, beside)
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def keep_owner_and_mode(status: os.stat_result, target: Path, beside: Path) -> None:
    """Give the file that will replace `target` its owner and mode, as far as this user may."""
    for owner in (status.st_uid, -1):
        with suppress(PermissionError):  # only root gives a file away; the group is what others write by
            os.chown(beside, owner, status.st_gid)
            break
    shutil.copystat(target, beside)  # also access lists


def sync_folder(folder: Path) -> None:
    """Make a new name in the folder survive a loss of power, where the file system can."""
    with suppress(OSError):  # some network file systems cannot, and the rows are in the file
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
