"""perf.csv opened and locked, with errors as messages; atomic writes; files that the user names."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from madlite.errors import RecordError, UsageProblem
from madlite.model import Json, Value
from madlite.perfcsv.header import read_header, read_json, text_of
from madlite.safe_files import NO_SPACE, Folder, folder_of, open_plain, read_limited, resolved

# Links among the files that madlite writes: a user or a workload may have made them.
#
# A link inside of its folder is followed.  One that leads out of it is followed to an existing file of the same kind;
# nothing is created outside, and no other file is overwritten.

_LIMIT_BYTES = 1 << 30
_REQUIRED_KEYS = {"n_gpus", "pipeline"}  # what every object of a side file has


def outside(path: Path, root: Path | None = None) -> Path | None:
    """Return the file outside of its own folder that a link names, there or not; None for all other paths.

    Of a path below `root` as it is written, outside is what a link anywhere in it leads to beyond `root`.  One that
    leaves `root` by `..` is another path, unless `..` is that of what a link leads to.
    """
    target = Path(os.path.realpath(path))
    if root is not None and path.is_relative_to(root):
        home = Path(os.path.realpath(root))
        written = Path(os.path.normpath(home / path.relative_to(root)))
        if written.is_relative_to(home):
            return None if target.is_relative_to(home) else target
        if target != Path(os.path.realpath(written)):
            return target
    if not path.is_symlink():
        return None
    return None if target.is_relative_to(os.path.realpath(path.parent)) else target


def check_side_file(path: Path) -> None:
    """Check that what a side file's link leads to outside of its folder is a side file.

    Raises:
        RecordError: it is another file, which is not overwritten.
        OSError: it cannot be read.
    """
    target = outside(path)
    if target is None or not target.is_file():  # a missing or special file is refused when it is opened
        return
    try:
        with folder_of(target) as (folder, name):
            fd = open_plain(folder, name, os.O_RDONLY, make=False)
        with os.fdopen(fd, "rb"):
            known = _is_table(path, fd) if path.suffix == ".csv" else _is_entries(path, fd)
    except (RecordError, ValueError, RecursionError):
        known = False
    if not known:
        raise RecordError(f"{path} is a link to {target}, which is no such file: it is left as it is", f"rm {path}")


def _is_table(path: Path, fd: int) -> bool:
    with text_of(fd) as text:
        return read_header(path, text) is not None


def _is_entries(path: Path, fd: int) -> bool:
    value: Json = read_json(read_limited(fd, _LIMIT_BYTES, str(path)))
    every = value if isinstance(value, list) else [value]
    return bool(every) and all(isinstance(one, dict) and one.keys() >= _REQUIRED_KEYS for one in every)


_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


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
def locked(path: Path, target: Path | None = None) -> Iterator[LockedFile]:
    """Open the file that `path` names, make it where there is none, and lock it.

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
            with suppress(OSError):  # unlocked explicitly: a process forked meanwhile would keep the lock
                fcntl.flock(file.fd, fcntl.LOCK_UN)
            os.close(file.fd)


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
        _check_plain(path, fd)
        _lock(path, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    return LockedFile(target=target, fd=fd, is_new=is_new)


def plain_target(path: Path) -> Path:
    """Return the file that a path names, there or not yet: a link stays a link, and what it names is replaced.

    Raises:
        RecordError: it is a device, a pipe, a file of the kernel's, one that has no name any more, or a link out of its
            folder to what is not there.
    """
    target = Path(os.path.realpath(path))
    try:
        here = path.stat()
    except OSError:  # missing or not accessible: opening it raises
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
    with as_record_error(path):
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
    if error.errno in _DENIED:
        why = os.strerror(errno.EROFS) if _is_read_only(folder) else error.strerror
        return RecordError(f"{path} cannot be written: {why}", f"ls -ld {folder} {path}   or another file: -o FILE")
    if error.errno in NO_SPACE:
        return RecordError(f"no space left for {path} ({error.strerror}); it is as it was", f"df -h {folder}")
    return RecordError(f"{path} cannot be written: {error.strerror or error}", "choose another file: -o FILE")


# Atomic writes: a reader sees the old file or the new one, and so does a kill.


def write_atomically(path: Path, data: bytes, mark: str = "new") -> None:
    """Replace the file that `path` names, links followed; mode and owner of an earlier one are kept.

    Only one writer at a time, so callers hold a lock, or have a unique `mark`: the temporary file has a fixed name
    beside the file, so that the next writer replaces what a killed one left.

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
def replacing(folder: Folder, name: str, beside: str) -> Iterator[int]:
    """Yield a descriptor of the file that replaces another one after the block.

    Raises:
        OSError: it cannot be written; what was there is as it was, and no partial file is left.
    """
    with ExitStack() as opened, folder.atomic(name, beside):
        fd = folder.create(beside, os.O_RDWR, 0o666)
        opened.callback(os.close, fd)
        with suppress(FileNotFoundError):
            keep_owner_and_mode(folder, name, fd)
        yield fd
        os.fsync(fd)


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
        os.fchmod(new, stat.S_IMODE(status.st_mode) & 0o777)  # no set-user-ID bits
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


# Output files that the user names.
#
# A regular file is replaced atomically, links followed; of two writers the last one wins.  A pipe, a terminal or
# `/dev/null` is written to; none of them becomes a file.
#
# A workload can make links and devices in the working folder: a link that leads out of it, or elsewhere out of its own
# folder, is not followed, and a device in it is not written to.

_NO_FOLDER = "is no folder that this user may write in"
_SCREEN = (1, 2)
_SYSTEM_LINKS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))  # whose links the system makes


def check_writable(path: Path, is_expected: Callable[[Path], bool] = lambda path: False) -> None:
    """Check before hours of work that a file can be written; a link out is followed if the file `is_expected`.

    Raises:
        UsageProblem: it is neither a plain file nor a pipe or the like, a link leads out to it, or its folder is not
            ours to write in.
    """
    target = _target(path, is_expected)
    if target is not None and (not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK)):
        why = "is on a file system that is read-only" if _is_read_only(target.parent) else _NO_FOLDER
        raise _not_writable(path, f"{target.parent} {why}")


def _is_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def write_named(path: Path, text: str, is_expected: Callable[[Path], bool] = lambda path: False) -> None:
    """Write a file; bytes of the command line that are no UTF-8 are spelled out.

    Raises:
        UsageProblem: as `check_writable`, or it cannot be written; a plain file is as it was.
    """
    with writing_named(path, is_expected) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def writing_named(path: Path, is_expected: Callable[[Path], bool] = lambda path: False) -> Iterator[IO[bytes]]:
    """Yield a stream whose bytes become the file after the block, or go into a pipe or a terminal as they come.

    Raises:
        UsageProblem: as `check_writable`, or it cannot be written; a plain file is as it was.
    """
    target = _target(path, is_expected)
    try:
        with _writing_into(path) if target is None else _writing_whole(target) as stream:
            yield stream
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _standard_stream(path.stat()) is not None:
            raise  # the reader of our output closed it, which is no mistake
        nobody = target is None and error.errno == errno.ENXIO
        raise _not_writable(path, "no process reads it" if nobody else error.strerror or str(error)) from error


@contextmanager
def _writing_whole(target: Path) -> Iterator[IO[bytes]]:
    with (
        resolved(plain_target(target)) as (folder, name),
        replacing(folder, name, f".{name}.{threading.get_native_id()}") as fd,
        os.fdopen(os.dup(fd), "wb") as new,
    ):
        yield new


def _target(path: Path, is_expected: Callable[[Path], bool]) -> Path | None:
    """Return the plain file to replace, there or not yet; None for what is written into."""
    target = Path(os.path.realpath(path))
    try:
        here = path.stat()
    except FileNotFoundError:
        _check_inside(path, is_expected)
        return target
    except OSError as error:
        raise _not_writable(path, error.strerror or str(error)) from error
    if _standard_stream(here) is not None:
        return None
    if stat.S_ISDIR(here.st_mode):
        raise _not_writable(path, "it is a folder")
    _check_inside(path, is_expected)
    if stat.S_ISFIFO(here.st_mode) or (stat.S_ISCHR(here.st_mode) and not target.is_relative_to(Path.cwd())):
        return None
    of_kernel = target.parts[1:2] in (("proc",), ("sys",))
    if of_kernel or not stat.S_ISREG(here.st_mode) or not target.exists():  # a file can have lost its name
        raise _not_writable(path, "it is no plain file")
    return target


def _check_inside(path: Path, is_expected: Callable[[Path], bool]) -> None:
    target = outside(Path.cwd() / path, Path.cwd())
    if target is not None and path.parent not in _SYSTEM_LINKS and not is_expected(path):
        what = f"{path} leads to {target} by a link, which is not followed"
        raise UsageProblem(what, f"name {shlex.quote(str(target))} itself, or rm {shlex.quote(str(path))}")


def _standard_stream(here: os.stat_result) -> int | None:
    """Return which of our own outputs a file is: replacing it would leave the output in a file without a name."""
    for fd in _SCREEN:
        with suppress(OSError):  # closed
            if os.path.samestat(here, os.fstat(fd)):
                return fd
    return None


def _writing_into(path: Path) -> IO[bytes]:
    fd = _standard_stream(path.stat())
    if fd is None:  # without waiting for a reader, who may never come; a slow one is waited for
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.set_blocking(fd, True)
    else:
        fd = os.dup(fd)
    return os.fdopen(fd, "wb")


def _not_writable(path: Path, why: str) -> UsageProblem:
    return UsageProblem(f"{path} cannot be written: {why}", f"ls -ld {path.parent} {path}   or name another file")
