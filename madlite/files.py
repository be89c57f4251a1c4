"""Files: the one place where they are opened, read, written, replaced and removed.

Who may have put a file there decides how it is opened (docs/trust.md).  What the user named on the command line may be
a pipe (`<(…)`, `/dev/stdin`).  What is found by its name is a plain file, links followed.  What a card, its repository
or a workload names is a plain file inside of a folder, wherever links lead.  In a `Folder`, which a workload or another
user may write to, no link is followed at all.  Nothing blocks on a pipe or a device, and nothing is read without limit.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import shlex
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.model import WRONG_NAMES, Json

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a full disk, a quota and a limit of size answer
LIMIT_BYTES = 64 << 20
"""More than this is no settings file, and no table of results."""
LONGEST_LINE = 1 << 20
REMOVED = ".removed-"
"""What the name of a folder begins with that is being removed."""
BOM = b"\xef\xbb\xbf"
UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""NUL, which no path, variable or command can hold, and half of a surrogate pair, which UTF-8 cannot."""
_OCTAL = re.compile(rb"\\([0-7]{3})")  # how /proc/self/mountinfo has a blank
_NO_SPACE_WORDS = tuple(map(os.strerror, NO_SPACE))
_LARGE_BYTES = 1 << 30  # of a log, or a file that is copied
_CHUNK_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # no pipe is waited for, and no terminal becomes ours
_WRITER_S = 5.0  # until somebody writes into a pipe that has a name
_log = logging.getLogger(__name__)


def _open_plain(path: str | Path, flags: int, where: Path, mode: int = 0o666, folder: int | None = None) -> int:
    """Return a descriptor of a plain file; one that is read, links followed, may be /dev/null.

    Raises:
        OSError: it cannot be opened, is a pipe, a device or the like, or with O_NOFOLLOW a link.
    """
    try:
        fd = os.open(path, flags | _AT_ONCE, mode, dir_fd=folder)
    except OSError as error:
        link = error.errno == errno.ELOOP and flags & os.O_NOFOLLOW
        why = "it is a link" if link else "it is no plain file" if error.errno == errno.ENXIO else error.strerror
        raise OSError(error.errno, why, str(where)) from None
    facts = os.fstat(fd)
    if stat.S_ISREG(facts.st_mode) or (_is_null(facts) and not flags & os.O_NOFOLLOW):
        return fd
    os.close(fd)
    raise _no_plain_file(facts, where)


def _is_null(facts: os.stat_result) -> bool:
    """Return whether it is /dev/null, which is as good as an empty file."""
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == os.makedev(1, 3)


def _no_plain_file(facts: os.stat_result, path: Path) -> OSError:
    if stat.S_ISDIR(facts.st_mode):
        return IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    return OSError(errno.EINVAL, f"it is {kind_of(facts)}, no plain file", str(path))


def kind_of(facts: os.stat_result) -> str:
    """Return what something in a folder is, for a message."""
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(facts.st_mode), "a device or socket")


def size_words(size: int) -> str:
    """Return a limit as a message has it."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} bytes"


def tells_no_space(message: str) -> bool:
    """Return whether an error message is of a full disk, a quota or a limit of size."""
    return any(words in message for words in _NO_SPACE_WORDS)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write bytes where a file is at.

    Raises:
        OSError: they do not all fit, and a part of them is written.
    """
    while data:
        data = data[os.write(fd, data) :]


def read_limited(fd: int, limit_bytes: int, where: str | Path) -> bytes:
    """Return what a descriptor holds from where it stands.

    Raises:
        OSError: it is larger than the limit, or cannot be read.
    """
    return b"".join(_pieces(fd, limit_bytes, where))


def _pieces(fd: int, limit_bytes: int, where: str | Path) -> Iterator[bytes]:
    """Yield what a descriptor holds; no more than the limit of a file that grows."""
    left = limit_bytes if os.fstat(fd).st_size <= limit_bytes else -1
    while left >= 0 and (piece := os.read(fd, _CHUNK_BYTES)):
        left -= len(piece)
        if left >= 0:
            yield piece
    if left < 0:
        raise OSError(errno.EFBIG, f"it is larger than {size_words(limit_bytes)}", str(where))


def half_made(name: str) -> str:
    """Return the name of what becomes the file `name` once it is whole: of this thread alone, and hidden.

    It ends in the thread's number, by which a reader can check whether its writer lives (`/proc` has threads too).
    """
    return f".{name}.{threading.get_native_id()}"


class Folder:
    """A folder held open by its descriptor, until `close`; `path` is where it was when it was opened.

    What is done in it stays in it wherever its path leads by now.  Names may have several parts (`tools/run.sh`): no
    part may be a link or lead out.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open a folder that the caller named, links followed.

        Raises:
            OSError: there is none.
        """
        return cls(path, os.open(path, _FOLDER & ~os.O_NOFOLLOW))

    def below(self, name: str, *, make: bool = False, new: bool = False, private: bool = False) -> Folder:
        """Open a folder in this one; `make` makes what is missing, `new` refuses one that is there.

        What is made `private` is for those alone who may write in this folder: its owner, and a group.

        Raises:
            OSError: it cannot be made or opened, or a link or a file is in its place.
        """
        parts = _parts(name)
        fd = os.dup(self.fd)
        of_group = os.fstat(fd).st_mode & stat.S_IWGRP
        mode = (0o770 if of_group else 0o700) if private else 0o777
        try:
            for part in parts:
                if make or new:
                    try:
                        os.mkdir(part, mode, dir_fd=fd)
                    except FileExistsError:
                        if new and part == parts[-1]:
                            raise
                    else:
                        if private:  # whatever the umask; what belongs to the folder's group goes on to
                            of_folder = os.stat(part, dir_fd=fd).st_mode & stat.S_ISGID
                            os.chmod(part, mode | of_folder, dir_fd=fd)
                inner = _open_folder(part, fd)
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        return Folder(self.path / name, fd)

    @contextmanager
    def parent_of(self, name: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """Yield the folder below this one that a name lies in, made if requested, and the name's last part.

        Raises:
            OSError: there is no such folder, or a link or a file is in its place.
        """
        *above, last = _parts(name)
        if not above:
            yield self, last
            return
        with self.below("/".join(above), make=make) as folder:
            yield folder, last

    def is_in_place(self) -> bool:
        """Return whether its path still names this very folder, and not a link to it."""
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(self.fd))
        except OSError:
            return False

    def write(self, name: str, data: bytes | Iterable[bytes], mode: int = 0o666) -> None:
        """Write a file as a whole: a reader sees the old one or the new one.  A link in its place is replaced.

        Raises:
            OSError: it cannot be written; what was there is as it was, and nothing half made is left.
        """
        with (
            self.parent_of(name, make=True) as (folder, last),
            folder.atomic(last) as beside,
            os.fdopen(folder.create(beside, mode=mode), "wb") as file,
        ):
            file.writelines([data] if isinstance(data, bytes) else data)

    @contextmanager
    def atomic(self, name: str, beside: str = "", *, warn: bool = True) -> Iterator[str]:
        """Yield a name `beside` for what the block makes, which then takes the place of `name` in one step.

        A link or the like in the place of `name` is replaced, with a warning unless the caller has its own (`warn`).

        Raises:
            OSError: it cannot be renamed.  After any exception nothing half made is left.
        """
        beside = beside or half_made(name)
        self.remove(beside)
        try:
            yield beside
            if warn:
                self._tell_replaced(name)
            self.rename(beside, name)
        finally:
            self.remove(beside)  # also where it was a second name of the same file, which rename leaves as it is

    @contextmanager
    def replacing(self, name: str, beside: str = "") -> Iterator[int]:
        """Yield a descriptor of the file that replaces another one after the block, with its mode and owner.

        Raises:
            OSError: it cannot be written; what was there is as it was, and no partial file is left.
        """
        beside = beside or half_made(name)
        with ExitStack() as opened, self.atomic(name, beside):
            fd = self.create(beside, os.O_RDWR)
            opened.callback(os.close, fd)
            with suppress(FileNotFoundError):
                self.copy_owner_and_mode(name, fd)
            yield fd
            os.fsync(fd)

    def copy_owner_and_mode(self, name: str, new: int) -> None:
        """Give an open file the owner and mode of one that is there, as far as this user may.

        Raises:
            FileNotFoundError: it is not there.
        """
        facts = self.status(name)
        for owner in (facts.st_uid, -1):
            with suppress(PermissionError):  # only root gives a file away; the group is what others write by
                os.fchown(new, owner, facts.st_gid)
                break
        with suppress(FileNotFoundError):  # no /proc
            shutil.copystat(self.path / name, f"/proc/self/fd/{new}")  # also access lists
        os.fchmod(new, stat.S_IMODE(facts.st_mode) & 0o777)  # no set-user-ID bits

    def create(self, name: str, flags: int = os.O_WRONLY, mode: int = 0o666) -> int:
        """Return a descriptor of a new file.  A link, pipe or file that lies in its place is removed, and that is said.

        Raises:
            OSError: it cannot be made; a folder is in its place, say.
        """
        with self.parent_of(name) as (folder, last):
            flags |= os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                return os.open(last, flags, mode, dir_fd=folder.fd)
            except FileExistsError:
                folder._tell_replaced(last)
                os.unlink(last, dir_fd=folder.fd)
                return os.open(last, flags, mode, dir_fd=folder.fd)

    def open_file(self, name: str, flags: int = os.O_RDWR, *, make: bool = True, mode: int = 0o666) -> int:
        """Return a descriptor of the plain file of this name, made where there is none.

        Raises:
            OSError: it is a link, a pipe or the like, or cannot be opened.
        """
        with self.parent_of(name) as (folder, last):
            flags |= os.O_NOFOLLOW | (os.O_CREAT if make else 0)
            fd = _open_plain(last, flags, self.path / name, mode, folder.fd)
            if make:
                _give_to_owner(fd, folder.fd)
            return fd

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return what a plain file of this folder holds.

        Raises:
            OSError: it is not there, a link, a pipe or the like, or larger than the limit.
        """
        return _read(self.open_file(name, os.O_RDONLY, make=False), self.path / name, limit_bytes)

    def copy_in(self, fd: int, path: Path, name: str, limit_bytes: int) -> None:
        """Write what an open file holds into a new file of this folder, with its rights and its time.

        `path` is the open file's, for messages.

        Raises:
            OSError: it is larger than the limit, or cannot be read or written; nothing half made is left.
        """
        facts = os.fstat(fd)
        self.remove(name)
        try:
            with os.fdopen(self.create(name), "wb", buffering=0) as new:
                for piece in _pieces(fd, limit_bytes, path):
                    write_all(new.fileno(), piece)
                os.fchmod(new.fileno(), stat.S_IMODE(facts.st_mode) & 0o777)
                os.utime(new.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))
        except BaseException:
            self.remove(name)
            raise

    def status(self, name: str) -> os.stat_result:
        """Return what lies under a name, a link itself.

        Raises:
            OSError: nothing does.
        """
        with self.parent_of(name) as (folder, last):
            return os.stat(last, dir_fd=folder.fd, follow_symlinks=False)

    def holds(self, name: str) -> bool:
        """Return whether anything lies under a name, a link that leads nowhere too."""
        try:
            self.status(name)
        except OSError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Take a file or link away; where that is not possible, it stays."""
        with suppress(OSError), self.parent_of(name) as (folder, last):
            os.unlink(last, dir_fd=folder.fd)

    def remove_tree(self, name: str) -> None:
        """Remove a file, a link itself, or a folder with all that is below it; no link is followed.

        Raises:
            OSError: something is mounted below the folder, and it is as it was, or something cannot be removed: the
                first of it, after the rest is gone.
        """
        with self.parent_of(name) as (folder, last):
            if not stat.S_ISDIR(folder.status(last).st_mode):
                os.unlink(last, dir_fd=folder.fd)
                return
            if mounted := _mount_point(folder.fd, last):
                raise OSError(errno.EBUSY, f"a file system is mounted at {mounted}: umount it first", name)
            problems = _remove_folder(folder.fd, last)
            if problems:  # folders of ours that are shut
                _open_folders(folder.fd, last)
                problems = _remove_folder(folder.fd, last)
        if problems:
            raise problems[0]

    def rename(self, name: str, to: str) -> None:
        """Give a file of this folder another name in it.

        Raises:
            OSError: it cannot be renamed.
        """
        os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def close(self) -> None:
        """Let go of the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _tell_replaced(self, name: str) -> None:
        """Say that what lies in the place of a file of ours, and is none, is about to be replaced."""
        with suppress(OSError):
            facts = self.status(name)
            if not stat.S_ISREG(facts.st_mode):
                _log.warning("%s is in the place of %s: it is not followed", kind_of(facts), self.path / name)


@contextmanager
def folder_of(path: Path) -> Iterator[tuple[Folder, str]]:
    """Yield the folder that a path lies in, opened, and the path's last part.

    Raises:
        OSError: there is no such folder.
    """
    with Folder.open(path.parent) as folder:
        yield folder, path.name


@contextmanager
def replacing_file(path: Path, mark: str = "") -> Iterator[IO[bytes]]:
    """Yield a stream whose bytes take the place of a file after the block, with its mode and owner, or make one.

    Until then they are in `.NAME.MARK`, where a writer who holds the file's lock names a mark, else in a file of this
    thread's own.

    Raises:
        OSError: it cannot be written; what was there is as it was, and no partial file is left.
    """
    with folder_of(path) as (folder, name):
        beside = f".{name}.{mark}" if mark else ""
        with folder.replacing(name, beside) as fd, os.fdopen(os.dup(fd), "wb") as new:
            yield new


def append_lines(fd: int, data: bytes, name: str) -> bool:
    """Append whole lines to an open file, all of them or none; return whether its last line had been cut off before.

    Raises:
        OSError: they do not all fit.
    """
    size = os.fstat(fd).st_size
    is_torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    data = b"\n" * is_torn + data
    if os.write(fd, data) < len(data):
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    return is_torn


def _parts(name: str) -> list[str]:
    """Return the parts of a relative name.

    Raises:
        OSError: it is none, or leads out of its folder.
    """
    if "/" not in name and "\0" not in name and name not in ("", ".", ".."):
        return [name]
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise OSError(errno.EINVAL, "it would be outside of its folder", name)
    return list(path.parts)


def _open_folder(name: str, fd: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=fd)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        what = kind_of(os.stat(name, dir_fd=fd, follow_symlinks=False))
        raise NotADirectoryError(errno.ENOTDIR, f"{what} is in the place of {name}", name) from None


def _give_to_owner(fd: int, folder: int) -> None:
    """Let the owner of a folder have what root opens in it: else root's lock or journal would shut its owner out."""
    owner = os.fstat(folder)
    if os.geteuid() == 0 and owner.st_uid and os.fstat(fd).st_uid == 0:
        with suppress(OSError):
            os.fchown(fd, owner.st_uid, owner.st_gid)


def _mount_point(fd: int, name: str) -> str:
    """Return where a file system is mounted at a folder of an open one or below it, "" where none is."""
    place = os.path.join(os.readlink(f"/proc/self/fd/{fd}"), name)  # noqa: PTH115, PTH118 - as the kernel has it
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point = os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), line.split()[4]))
        if point == place or point.startswith(f"{place}/"):
            return point
    return ""


def _remove_folder(fd: int, name: str) -> list[OSError]:
    """Remove a folder of an open one, and return what kept some of it."""
    problems: list[OSError] = []

    def note(_call: object, _path: str, info: tuple[Any, Any, Any]) -> None:
        problems.append(info[1])

    try:
        shutil.rmtree(f"/proc/self/fd/{fd}/{name}", onerror=note)
    except RecursionError:
        problems.append(OSError(errno.ELOOP, "its folders are nested too deep", name))
    return problems


def _open_folders(fd: int, name: str) -> None:
    """Open the folders of ours that are shut, below a folder of an open one and that one itself."""
    with suppress(OSError, RecursionError):
        os.chmod(name, stat.S_IRWXU, dir_fd=fd)
        for _, children, _, inner in os.fwalk(name, dir_fd=fd):
            for child in children:
                facts = os.stat(child, dir_fd=inner, follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
                    os.chmod(child, stat.S_IRWXU, dir_fd=inner)


# What others name: plain files alone.


def open_plain(path: Path, *roots: Path, links: bool = True) -> int:
    """Return a descriptor of a plain file, links followed or refused; with `roots` it has to lie below one of them.

    Raises:
        OSError: it is not there or cannot be read, is a pipe, a device or the like, is a link where none may be, or the
            file that was opened lies elsewhere.
    """
    fd = _open_plain(path, os.O_RDONLY | (0 if links else os.O_NOFOLLOW), path)
    if roots and (why := _way_out(path, _place(fd, path), roots)):
        os.close(fd)
        raise OSError(errno.EXDEV, why, str(path))
    return fd


def read_plain(path: Path, *roots: Path, links: bool = True, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a plain file holds, `roots` and `links` as for `open_plain`.

    Raises:
        OSError: as `open_plain`, or it is larger than the limit.
    """
    return _read(open_plain(path, *roots, links=links), path, limit_bytes)


def read_inside(path: Path, root: Path, *roots: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a plain file below one of several folders holds, links followed as long as they stay inside.

    Raises:
        OSError: as `read_plain`.
    """
    return read_plain(path, root, *roots, limit_bytes=limit_bytes)


def read_as_spelled(path: Path, root: Path | None, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a plain file holds that a card names: one elsewhere by its path, not by a link below a `root`.

    Raises:
        OSError: it cannot be read as `read_plain` has it.
    """
    roots = (root,) if root is not None and spells(path, root) else ()
    return read_plain(path, *roots, limit_bytes=limit_bytes)


def spells(path: Path, root: Path) -> bool:
    """Return whether a path is one below a folder as it is written, whatever links there are."""
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))  # noqa: PTH100 - links stay as they are


def way_out(path: Path, *roots: Path) -> str:
    """Return, as the end of a sentence, how a path that is there leads out of the folders `roots`; "" for inside.

    Raises:
        OSError: it cannot be resolved; links go in a circle, say.
    """
    return _way_out(path, Path(os.path.realpath(path, strict=True)), roots)


def _way_out(path: Path, place: Path, roots: tuple[Path, ...]) -> str:
    if any(place.is_relative_to(os.path.realpath(root)) for root in roots):
        return ""
    if path.is_symlink() or spells(path, roots[0]):
        return f"it is a link to {place}, outside of {roots[0]}"
    return f"it lies outside of {roots[0]}"


def _place(fd: int, path: Path) -> Path:
    """Return where an open file lies, whatever its path names by now."""
    try:
        return Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:  # no /proc
        return Path(os.path.realpath(path))


def copy_inside(path: Path, root: Path, to: Path, limit_bytes: int = _LARGE_BYTES) -> None:
    """Copy a plain file below `root`, its rights and its time, so that a reader sees the old one or the new one.

    Raises:
        OSError: as `read_plain`, or it cannot be written; nothing half made is left.
    """
    with (
        os.fdopen(open_plain(path, root), "rb") as file,
        folder_of(to) as (folder, name),
        folder.atomic(name) as beside,
    ):
        folder.copy_in(file.fileno(), path, beside, limit_bytes)


def read_output(path: Path, outputs: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a file holds that a workload left below the folder `outputs`.

    Empty, with a warning that states why, for one that is no plain file, that a link leads out to, that is larger than
    the limit or cannot be read.
    """
    try:
        return read_plain(path, outputs, limit_bytes=limit_bytes)
    except (OSError, ValueError) as error:
        _tell_unread(path, outputs, error)
        return b""


def output_lines(path: Path, outputs: Path, limit_bytes: int = _LARGE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file that a workload left below the folder `outputs`, without their ends.

    A line of more than 1 MiB comes in pieces.  Ends, with a warning that states why, at a file that is
    none for `read_output`.
    """
    try:
        with os.fdopen(open_plain(path, outputs), "rb") as file:
            rest = b""
            for piece in _pieces(file.fileno(), limit_bytes, path):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
                if len(rest) >= LONGEST_LINE:
                    yield rest
                    rest = b""
            if rest:
                yield rest
    except (OSError, ValueError) as error:
        _tell_unread(path, outputs, error)


def _tell_unread(path: Path, outputs: Path, error: Exception) -> None:
    if isinstance(error, FileNotFoundError):
        return
    name = path.relative_to(outputs) if path.is_relative_to(outputs) else path
    why = error.strerror if isinstance(error, OSError) else str(error)
    _log.warning("%s, which the run left, is not read: %s", name, why)


def open_given(path: Path) -> int:
    """Return a descriptor of what the user named on the command line: a plain file, or a pipe or terminal.

    Of a pipe that has a name in a folder, somebody has to write into it within seconds.

    Raises:
        OSError: it is not there, cannot be read, is a device or a folder, or nobody writes into it.
    """
    fd = os.open(path, os.O_RDONLY | _AT_ONCE)
    try:
        facts = os.fstat(fd)
        if stat.S_ISFIFO(facts.st_mode):
            _await_writer(fd, path)
        elif not (stat.S_ISREG(facts.st_mode) or _is_null(facts) or os.isatty(fd)):
            raise _no_plain_file(facts, path)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_given(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what the user named on the command line holds; a pipe is read to its end.

    Raises:
        OSError: as `open_given`, or it is larger than the limit.
    """
    return _read(open_given(path), path, limit_bytes)


def _await_writer(fd: int, path: Path) -> None:
    """Wait until a pipe has something to read, or its end; of one without a name the writer is there already."""
    has_name = not str(_place(fd, path)).startswith("pipe:")
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(_WRITER_S * 1000 if has_name else None):
        raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nothing was written to it for {_WRITER_S:.0f} s", str(path))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a plain file in hexadecimal digits; "" of one that cannot be read."""
    import hashlib

    try:
        return hashlib.sha256(read_plain(path)).hexdigest()
    except (OSError, ValueError):
        return ""


def _read(fd: int, path: Path, limit_bytes: int) -> bytes:
    try:
        return read_limited(fd, limit_bytes, path)
    finally:
        os.close(fd)


# Output files that the user names.
#
# A regular file is replaced atomically, links followed; of two writers the last one wins.  A pipe, a terminal or
# `/dev/null` is written to; none of them becomes a file.
#
# A workload can make links and devices in the working folder: a link that leads out of it, or elsewhere out of its own
# folder, is not followed, and a device in it is not written to.

_SYSTEM_LINKS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))  # whose links the system makes


def outside(path: Path, root: Path | None = None) -> Path | None:
    """Return the file outside of its own folder that a link names, there or not; None for all other paths.

    Of a path below `root` as it is written, outside is what a link anywhere in it leads to beyond `root`.
    """
    below = root is not None and spells(path, root)
    if not below and not path.is_symlink():
        return None
    target = Path(os.path.realpath(path))
    home = root if root is not None and below else path.parent
    return None if target.is_relative_to(os.path.realpath(home)) else target


def sync_folder(folder: Path) -> None:
    """Make a new name in the folder survive a loss of power, where the file system can."""
    with suppress(OSError), Folder.open(folder) as opened:  # some network file systems cannot: the rows are in the file
        os.fsync(opened.fd)


def is_read_only(folder: Path) -> bool:
    """Return whether a folder is on a file system that is mounted read-only."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def check_writable(path: Path) -> None:
    """Check before hours of work that a file can be written.

    Raises:
        UsageProblem: it is neither a plain file nor a pipe or the like, a link leads out to it, or its folder is not
            ours to write in.
    """
    target = _target(path)
    if target is not None and (not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK)):
        read_only = is_read_only(target.parent)
        why = "is on a file system that is read-only" if read_only else "is no folder that this user may write in"
        raise _not_writable(path, f"{target.parent} {why}")


def write_named(path: Path, text: str) -> None:
    """Write a file; bytes of the command line that are no UTF-8 are spelled out.

    Raises:
        UsageProblem: as `check_writable`, or it cannot be written; a plain file is as it was.
    """
    with writing_named(path) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def writing_named(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream whose bytes become the file after the block, or go into a pipe or a terminal as they come.

    Raises:
        UsageProblem: as `check_writable`, or it cannot be written; a plain file is as it was.
    """
    target = _target(path)
    try:
        with _writing_into(path) if target is None else replacing_file(target) as stream:
            yield stream
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _standard_stream(path.stat()) is not None:
            raise  # the reader of our output closed it, which is no mistake
        nobody = target is None and error.errno == errno.ENXIO
        raise _not_writable(path, "no process reads it" if nobody else error.strerror or str(error)) from error


def _writing_into(path: Path) -> IO[bytes]:
    fd = _standard_stream(path.stat())
    if fd is None:  # without waiting for a reader, who may never come; a slow one is waited for
        fd = os.open(path, os.O_WRONLY | _AT_ONCE)
        os.set_blocking(fd, True)
    else:
        fd = os.dup(fd)
    return os.fdopen(fd, "wb")


def _target(path: Path) -> Path | None:
    """Return the plain file to replace, there or not yet; None for what is written into."""
    target = Path(os.path.realpath(path))
    try:
        here = path.stat()
    except FileNotFoundError:
        _check_inside(path)
        return target
    except OSError as error:
        raise _not_writable(path, error.strerror or str(error)) from error
    if _standard_stream(here) is not None:
        return None
    if stat.S_ISDIR(here.st_mode):
        raise _not_writable(path, "it is a folder")
    _check_inside(path)
    if stat.S_ISFIFO(here.st_mode) or (stat.S_ISCHR(here.st_mode) and not target.is_relative_to(Path.cwd())):
        return None
    if not is_plain(target):
        raise _not_writable(path, "it is no plain file")
    return target


def is_plain(target: Path) -> bool:
    """Return whether a path without links names a plain file: none of the kernel's, and one that still has its name."""
    return target.is_file() and target.parts[1:2] not in (("proc",), ("sys",))


def _check_inside(path: Path) -> None:
    target = outside(path, Path.cwd())
    if target is not None and path.parent not in _SYSTEM_LINKS:
        what = f"{path} leads to {target} by a link, which is not followed"
        raise UsageProblem(what, f"name {shlex.quote(str(target))} itself, or rm {shlex.quote(str(path))}")


def _standard_stream(here: os.stat_result) -> int | None:
    """Return which of our own outputs a file is: replacing it would leave the output in a file without a name."""
    for fd in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(here, os.fstat(fd)):
                return fd
    return None


def _not_writable(path: Path, why: str) -> UsageProblem:
    return UsageProblem(f"{path} cannot be written: {why}", f"ls -ld {path.parent} {path}   or name another file")


# Files of the user: what a path names, and the JSON in it, each asked and worded in one place.

_PLACE = re.compile(r"(?P<what>.*) - at `(?:key` in `)?\$\.?(?P<key>.*)`", re.DOTALL)


class NotJson(ValueError):
    """Bytes that are no JSON text; its text says where and why and shows none of them."""


def is_file(path: Path) -> bool:
    """Say whether a path names a plain file.

    Raises:
        UsageProblem: the system does not say (a name too long, a folder that is shut, links in a circle).
    """
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Say whether a path names a folder.

    Raises:
        UsageProblem: as `is_file`.
    """
    return stat.S_ISDIR(_mode(path))


def exists(path: Path) -> bool:
    """Say whether a path names anything; a link that leads nowhere does not.

    Raises:
        UsageProblem: as `is_file`.
    """
    return bool(_mode(path))


def read_text(file: Path, where: str = "", errors: str = "strict", *, given: bool = False) -> str:
    """Return the UTF-8 text of a file without its byte order mark; messages call it `where`, else by its path.

    One that the user has `given` on the command line may be a pipe.

    Raises:
        UsageProblem: it cannot be read, is no plain file or too large, or, with `errors` strict, is no UTF-8.
    """
    data = read_bytes(file, where, given=given)
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{where or shown(file)}: {_not_utf8(data, error)}") from None


def read_json(file: Path, where: str = "", *, given: bool = False) -> Json:
    """Return what a JSON file holds, `given` as for `read_text`; messages call it `where`, else by its path.

    They show none of it.

    Raises:
        UsageProblem: it cannot be read, is no plain file or too large, is no JSON, or has a text with a character that
            nothing can be given.
    """
    try:
        value = decode_json(read_bytes(file, where, given=given))
    except NotJson as error:
        raise UsageProblem(f"{where or shown(file)}: {error}") from None
    for place, text in texts(value, "$"):
        if UNUSABLE.search(text):
            raise UsageProblem(f"{where or shown(file)}: {ascii(place)[1:-1]} holds a NUL character")
    return value


def read_bytes(file: Path, where: str = "", *, given: bool = False) -> bytes:
    """Return what a file holds without its byte order mark, `where` and `given` as for `read_text`.

    Raises:
        UsageProblem: it cannot be read, is no plain file or too large.
    """
    try:
        return (read_given(file) if given else read_plain(file)).removeprefix(BOM)
    except (OSError, ValueError) as error:
        hint = look_for(file) if given and isinstance(error, FileNotFoundError) else ""
        raise UsageProblem(f"{where or shown(file)} cannot be read: {_why(error)}", hint) from None


def look_for(file: Path) -> str:
    """Return the hint for a file that is not there: names like its own, and what lists where it should be."""
    folder = next((parent for parent in file.parents if parent.is_dir()), Path())
    try:
        near = did_you_mean(file.name, (path.name for path in folder.iterdir())) if folder == file.parent else ""
    except OSError:
        near = ""
    return one_hint(near, f"ls {shlex.quote(str(folder))}")


def decode_json(data: bytes) -> Json:
    """Return what UTF-8 bytes hold as JSON, with or without a byte order mark.

    Raises:
        NotJson: they hold none.
    """
    data = data.removeprefix(BOM)
    try:
        return msgspec.json.decode(data.decode())
    except UnicodeDecodeError as error:
        raise NotJson(_not_utf8(data, error)) from None
    except RecursionError:
        raise NotJson("brackets are nested too deep") from None
    except msgspec.DecodeError as error:
        reason, _, byte = str(error).removesuffix(")").partition(" (byte ")
        at = _position(data, int(byte) if byte else len(data))
        raise NotJson(f"{at} is not JSON: {reason.removeprefix('JSON is malformed: ')}") from None


def texts(value: Json, at: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON value, keys too, each after its place, as in `$[0].name`; `at` is the value's own."""
    pending = [(at, value)]
    while pending:
        place, item = pending.pop()
        if isinstance(item, str):
            yield place, item
        elif isinstance(item, Mapping):
            pending += [(f"{place} key", key) for key in item]
            pending += [(f"{place}.{key}", below) for key, below in item.items()]
        elif isinstance(item, list | tuple):
            pending += [(f"{place}[{n}]", below) for n, below in enumerate(item)]


def wrong_key(error: msgspec.ValidationError, tree: Json = None) -> tuple[str, str]:
    """Return the key whose value has the wrong type, and a sentence that names it; "" where it is the whole value.

    `tree` is what was read; with it the sentence has the value of a name that is none.
    """
    found = _PLACE.fullmatch(str(error))
    what = found["what"] if found else str(error)
    for pattern, words in WRONG_NAMES.items():
        if repr(pattern) in what:
            values = _values_at(tree, found["key"] if found else "")
            what = f"{next((ascii(value) for value in values if not re.search(pattern, value)), 'it')[:200]} {words}"
    what = what[:1].lower() + what[1:]
    return (found["key"], f"key '{found['key']}' is wrong: {what}") if found and found["key"] else ("", what)


def _values_at(tree: Json, place: str) -> list[str]:
    """Return the text at a place of a JSON value, or the keys of the table there."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        try:
            tree = tree[int(number) if number else name]
        except (LookupError, TypeError, ValueError):
            return []
    return [tree] if isinstance(tree, str) else list(tree) if isinstance(tree, dict) else []


def shown(path: Path) -> str:
    """Return a path as a message can hold it."""
    text = str(path) if str(path).isprintable() else ascii(str(path))
    return text if len(text) <= 200 else f"{text[:197]}..."


def _mode(path: Path) -> int:
    """Return type and rights of what a path names, 0 for nothing."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (OSError, ValueError) as error:
        raise UsageProblem(f"{shown(path)} cannot be inspected: {_why(error)}") from None


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def _not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    return f"{_position(data, error.start)} is not UTF-8: {error.reason}"


def _position(data: bytes, offset: int) -> str:
    before = data[:offset].decode(errors="replace")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
