"""perf.csv held open under its lock, and what keeps it from being opened in words."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from madlite.errors import RecordError
from madlite.model import Value
from madlite.results.links import outside
from madlite.safe_files import NO_SPACE, open_plain, resolved

_SHUT = (errno.EACCES, errno.EPERM, errno.EROFS)


class Held(Value, frozen=True):
    """A file that nobody else appends to: its path with links resolved, its descriptor, and if it is new."""

    target: Path
    fd: int
    is_new: bool = False

    def is_current(self) -> bool:
        """Say whether the path still names the file that is open: a widening writer replaces it."""
        try:
            return os.path.samestat(self.target.lstat(), os.fstat(self.fd))
        except FileNotFoundError:
            return False


@contextmanager
def held(path: Path, target: Path | None = None) -> Iterator[Held]:
    """Open the file that `path` names, make it where there is none, and hold its lock.

    Raises:
        RecordError: it cannot be opened or locked, is no plain file, or is another one than `target`.
        OSError: from the body, as it comes.
    """
    while True:
        file = _opened(path, target)
        try:
            _lock(path, file.fd, fcntl.LOCK_EX)
            if file.is_current():
                yield file
                return
        finally:
            with suppress(OSError):  # unlocked aloud, for a process forked meanwhile would keep the lock
                fcntl.flock(file.fd, fcntl.LOCK_UN)
            os.close(file.fd)


@contextmanager
def looked_at(path: Path) -> Iterator[Held | None]:
    """Open the file as `held` would, without making it and without waiting; None where there is none yet."""
    target = plain_target(path)
    try:
        fd = _open(target, make=False)
    except FileNotFoundError:
        _check_folder(target.parent)
        yield None
        return
    try:
        _check_plain(path, fd)
        _lock(path, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Held(target=target, fd=fd)
    finally:
        os.close(fd)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError about `path` into a RecordError in words."""
    try:
        yield
    except OSError as error:
        raise _in_words(path, error) from error


def _opened(path: Path, expected: Path | None) -> Held:
    target = plain_target(path)
    if expected is not None and target != expected:
        what = f"{path} leads to {target} since the command began: it is not written to"
        raise RecordError(what, f"ls -l {path}   shows the link that was laid")
    while True:
        try:
            fd, is_new = _open(target, make=False), False
            break
        except FileNotFoundError:
            with suppress(FileExistsError):  # another one makes it at this moment
                fd, is_new = _open(target, make=True), True
                break
    try:
        _check_plain(path, fd)
    except BaseException:
        os.close(fd)
        raise
    return Held(target=target, fd=fd, is_new=is_new)


def plain_target(path: Path) -> Path:
    """Return the file that a path names, there or not yet: a link stays a link, and what it names is replaced.

    Raises:
        RecordError: it is a device, a pipe, a file of the kernel's, one that has no name any more, or a link out of its
            folder to what is not there.
    """
    target = Path(os.path.realpath(path))
    try:
        here = path.stat()
    except OSError:  # not there yet, or out of reach: opening it tells
        plain = True
    else:
        plain = stat.S_ISDIR(here.st_mode) or (stat.S_ISREG(here.st_mode) and target.exists())
    if not plain or target.parts[1:2] in (("proc",), ("sys",)):
        raise _no_plain_file(path)
    if outside(path) is not None and not target.exists():
        raise RecordError(f"{path} is a link to {target}, which is not there", f"-o {target}   or rm {path}")
    return target


def _open(target: Path, *, make: bool) -> int:
    with resolved(target) as (folder, name):
        return open_plain(folder, name, os.O_RDWR | os.O_APPEND | (os.O_EXCL if make else 0), make=make)


def _check_plain(path: Path, fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise _no_plain_file(path)


def _no_plain_file(path: Path) -> RecordError:
    return RecordError(f"{path} is no plain file, so it is not written to", "name a plain file: -o FILE")


def make_folder(path: Path) -> None:
    """Make the folder of a file that is to be made.

    Raises:
        RecordError: it cannot be made.
    """
    with explained(path):
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)


def _check_folder(folder: Path) -> None:
    """Check that a file can be made in a folder, and the folder where it is not there yet."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _lock(path: Path, fd: int, how: int) -> None:
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return  # only without waiting: somebody appends right now, so locks work
    except OSError as error:
        raise RecordError(
            f"{path} cannot be locked on its file system ({error.strerror}), so rows of two runs could be lost",
            "keep it on a local disk or an NFS that locks: -o /path/on/local/disk/perf.csv",
        ) from error


def _in_words(path: Path, error: OSError) -> RecordError:
    folder = Path(os.path.realpath(path)).parent
    if error.errno == errno.EISDIR:
        return RecordError(f"{path} is a folder, not a file to append rows to", f"name a file: -o {path}/perf.csv")
    if error.errno == errno.ENOTDIR:
        file = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
        return RecordError(f"{path} cannot be made: {file} is no folder", "choose another file: -o FILE")
    if error.errno == errno.ENOENT:
        return RecordError(f"{path} cannot be made: there is no folder {folder}", f"mkdir -p {folder}")
    if error.errno in _SHUT:
        return RecordError(
            f"{path} cannot be written: {error.strerror}", f"ls -ld {folder} {path}   or another file: -o FILE"
        )
    if error.errno in NO_SPACE:
        return RecordError(f"no space for a row of {path} ({error.strerror}); it is as it was", f"df -h {folder}")
    return RecordError(f"{path} cannot be written: {error.strerror or error}", "choose another file: -o FILE")
