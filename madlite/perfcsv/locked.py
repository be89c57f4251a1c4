"""perf.csv and the files beside it: opened, locked and replaced, with errors as messages."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from madlite.errors import RecordError
from madlite.files import NO_SPACE, folder_of, is_plain, is_read_only, outside, replacing_file
from madlite.model import Value
from madlite.store.locks import acquire, release

# Links among the files that madlite writes: a user or a workload may have made them.
#
# A link inside of its folder is followed.  One that leads out of it is followed to an existing results file, or to a
# side file of the same name; nothing is created outside, and no other file is overwritten.


def check_side_file(path: Path) -> None:
    """Check that a side file is no link to a file of another name outside of its folder.

    Raises:
        RecordError: it is one, and what it leads to is not overwritten.
    """
    target = outside(path)
    if target is not None and target.name != path.name:
        what = f"{path} is a link to {target}, which has another name: it is left as it is"
        raise RecordError(what, f"rm {path}")


class LockedFile(Value, frozen=True):
    """A file that nobody else appends to: its path with links resolved, its descriptor, and if it is new."""

    target: Path
    fd: int
    is_new: bool = False

    def is_current(self) -> bool:
        """Return whether the path still names the open file: a writer that adds columns replaces it."""
        try:
            return os.path.samestat(self.target.lstat(), os.fstat(self.fd))
        except FileNotFoundError:
            return False

    @contextmanager
    def replaced(self, mark: str) -> Iterator[IO[bytes]]:
        """Yield a stream whose bytes take the place of the file, as `replacing_file` does with a mark.

        The new file is locked too: the next writer uses the same mark, after this one has cleared away what it made.

        Raises:
            OSError: it cannot be written; what was there is as it was.
        """
        with replacing_file(self.target, mark) as new:
            acquire(new.fileno(), None)
            yield new


@contextmanager
def locked(path: Path, target: Path | None = None) -> Iterator[LockedFile]:
    """Open the file that `path` names, make it where there is none, and lock it.

    Raises:
        RecordError: it cannot be opened or locked, is no plain file, or is another one than `target`.
        OSError: from the body, as it comes.
    """
    while True:
        file = _opened(path, target)
        try:
            _lock(path, file.fd, None)
            if file.is_current():
                yield file
                return
        finally:
            release(file.fd)


@contextmanager
def inspected(path: Path) -> Iterator[LockedFile | None]:
    """Open the file as `locked` would, without creating it and without waiting; None where there is none yet."""
    target = plain_target(path)
    try:
        fd = _open(target, make=False)
    except FileNotFoundError:
        _check_folder(target.parent)
        yield None
        return
    try:
        _lock(path, fd, 0)
        yield LockedFile(target=target, fd=fd)
    finally:
        os.close(fd)


@contextmanager
def as_record_error(path: Path) -> Iterator[None]:
    """Turn an OSError about `path` into a RecordError with a message."""
    try:
        yield
    except OSError as error:
        raise _record_error(path, error) from error


def _opened(path: Path, expected: Path | None) -> LockedFile:
    target = plain_target(path)
    if expected is not None and target != expected:
        what = f"{path} leads to {target} since the command began: it is not written to"
        raise RecordError(what, f"ls -l {path}   shows the link that was laid")
    while True:
        try:
            return LockedFile(target=target, fd=_open(target, make=False))
        except FileNotFoundError:
            with suppress(FileExistsError):  # another one makes it at this moment
                return LockedFile(target=target, fd=_open(target, make=True), is_new=True)


def plain_target(path: Path) -> Path:
    """Return the file that a path names, there or not yet: a link stays a link, and what it names is replaced.

    Raises:
        RecordError: it is a device, a pipe, a file of the kernel's, one that has no name any more, or a link out of its
            folder to what is not there.
    """
    target = Path(os.path.realpath(path))
    with suppress(OSError):  # missing or not accessible: opening it raises
        path.stat()
        if not (target.is_dir() or is_plain(target)):
            raise _no_plain_file(path)
    if target.parts[1:2] in (("proc",), ("sys",)):
        raise _no_plain_file(path)
    if outside(path) is not None and not target.exists():
        raise RecordError(f"{path} is a link to {target}, which is not there", f"-o {target}   or rm {path}")
    return target


def _open(target: Path, *, make: bool) -> int:
    with folder_of(target) as (folder, name):
        return folder.open_file(name, os.O_RDWR | os.O_APPEND | (os.O_EXCL if make else 0), make=make)


def _no_plain_file(path: Path) -> RecordError:
    return RecordError(f"{path} is no plain file, so it is not written to", "name a plain file: -o FILE")


def make_folder(path: Path) -> None:
    """Make the folder of a file that is to be made.

    Raises:
        RecordError: it cannot be made.
    """
    with as_record_error(path):
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)


def _check_folder(folder: Path) -> None:
    """Check that a file can be made in a folder, and the folder where it is not there yet."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _lock(path: Path, fd: int, limit_s: float | None) -> None:
    try:
        acquire(fd, limit_s)
    except BlockingIOError:
        return  # only without waiting: another process appends right now, so locks work
    except OSError as error:
        raise RecordError(
            f"{path} cannot be locked on its file system ({error.strerror}), so rows of two runs could be lost",
            "keep it on a local disk or an NFS that locks: -o /path/on/local/disk/perf.csv",
        ) from error


def _record_error(path: Path, error: OSError) -> RecordError:
    folder = Path(os.path.realpath(path)).parent
    if error.errno == errno.EISDIR:
        return RecordError(f"{path} is a folder, not a file to append rows to", f"name a file: -o {path}/perf.csv")
    if error.errno == errno.ENOTDIR:
        file = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
        return RecordError(f"{path} cannot be made: {file} is no folder", "choose another file: -o FILE")
    if error.errno == errno.ENOENT:
        return RecordError(f"{path} cannot be made: there is no folder {folder}", f"mkdir -p {folder}")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = os.strerror(errno.EROFS) if is_read_only(folder) else error.strerror
        return RecordError(f"{path} cannot be written: {why}", f"ls -ld {folder} {path}   or another file: -o FILE")
    if error.errno in NO_SPACE:
        return RecordError(f"no space left for {path} ({error.strerror}); it is as it was", f"df -h {folder}")
    return RecordError(f"{path} cannot be written: {error.strerror or error}", "choose another file: -o FILE")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file that `path` names, links followed; mode and owner of an earlier one are kept.

    Callers hold a lock: the temporary file has a fixed name, so that the next writer replaces what a killed one left.

    Raises:
        OSError: it cannot be written; what was there is as it was.
        RecordError: it is a device, a pipe or the like, which must not become a file.
    """
    with replacing_file(plain_target(path), "new") as new:
        new.write(data)
