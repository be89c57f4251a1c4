"""Files in folders that a workload, a container's root or another user can write to: made and replaced without trust.

What is done in a `Folder` is done through its descriptor, so it stays in that folder wherever its path leads by now.
No link is followed, no pipe or device is opened, and a file that is there already is written to only if it is plain,
has one name and belongs to us or to the owner of the folder.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a full disk, a quota and a limit of size answer
_NO_SPACE_WORDS = tuple(map(os.strerror, NO_SPACE))
_LOG = logging.getLogger(__name__)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Folder:
    """A folder held open by its descriptor, until `close`; `path` is where it was when it was opened.

    Names may have several parts (`tools/run.sh`): no part may be a link or lead out.
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

    def below(self, name: str, *, make: bool = False, new: bool = False) -> Folder:
        """Open a folder in this one; `make` makes what is missing, `new` refuses one that is there.

        Raises:
            OSError: it cannot be made or opened, or a link or a file is in its place.
        """
        parts = _parts(name)
        fd = os.dup(self.fd)
        try:
            for part in parts:
                if make or new:
                    try:
                        os.mkdir(part, 0o777, dir_fd=fd)
                    except FileExistsError:
                        if new and part == parts[-1]:
                            raise
                inner = _open_folder(part, fd)
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        return Folder(self.path / name, fd)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: no two folders that are there at a time share them."""
        facts = os.fstat(self.fd)
        return facts.st_dev, facts.st_ino

    def is_in_place(self) -> bool:
        """Return whether its path still names this very folder, and not a link to it."""
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(self.fd))
        except OSError:
            return False

    def write(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Write a file as a whole: a reader sees the old one or the new one.  A link in its place is replaced.

        Raises:
            OSError: it cannot be written; what was there is as it was, and nothing half made is left.
        """
        with (
            self.parent_of(name, make=True) as (folder, last),
            folder.atomic(last) as beside,
            os.fdopen(folder.create(beside), "wb") as file,
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
                self.tell_replaced(name)
            self.rename(beside, name)
        except BaseException:
            self.remove(beside)
            raise

    def create(self, name: str, flags: int = os.O_WRONLY, mode: int = 0o666) -> int:
        """Return a descriptor of a new file.  A link, pipe or file that lies in its place is removed, and that is said.

        Raises:
            OSError: it cannot be made; a folder is in its place, say.
        """
        with self.parent_of(name) as (folder, last):
            flags |= os.O_CREAT | os.O_EXCL | _PLAIN
            try:
                return os.open(last, flags, mode, dir_fd=folder.fd)
            except FileExistsError:
                folder.tell_replaced(last)
                os.unlink(last, dir_fd=folder.fd)
                return os.open(last, flags, mode, dir_fd=folder.fd)

    def open_file(self, name: str, flags: int = os.O_RDWR, *, make: bool = True, mode: int = 0o666) -> int:
        """Return a descriptor of the plain file of this name, made where there is none.

        Raises:
            OSError: it is a link, a pipe or the like, has several names, belongs to another user, or cannot be opened.
        """
        return self._open_checked(name, flags, make=make, mode=mode, own=True)

    def open_lock(self, name: str) -> int:
        """Return a descriptor of a lock file, made where there is none; it is not written to, so anybody may own it.

        Raises:
            OSError: it is a link, a pipe or the like, or cannot be opened.
        """
        return self._open_checked(name, os.O_RDWR)

    def _open_checked(self, name: str, flags: int, *, make: bool = True, mode: int = 0o666, own: bool = False) -> int:
        with self.parent_of(name) as (folder, last):
            fd = open_plain(folder, last, flags, make=make, mode=mode)
            try:
                where = str(self.path / name)
                check_own(fd, folder.fd, where) if own else check_plain(fd, where)
                _give_to_owner(fd, folder.fd)
            except BaseException:
                os.close(fd)
                raise
            return fd

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return what a plain file of this folder holds.

        Raises:
            OSError: it is not there, a link, a pipe or the like, or larger than the limit.
        """
        with self.parent_of(name) as (folder, last):
            fd = os.open(last, os.O_RDONLY | _PLAIN, dir_fd=folder.fd)
            try:
                check_plain(fd, str(self.path / name))
                return read_limited(fd, limit_bytes, str(self.path / name))
            finally:
                os.close(fd)

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

    def tell_replaced(self, name: str) -> None:
        """Say that what lies in the place of a file of ours, and is none, is about to be replaced."""
        with suppress(OSError):
            facts = self.status(name)
            if not stat.S_ISREG(facts.st_mode):
                _LOG.warning("%s is in the place of %s: it is not followed", kind_of(facts), self.path / name)

    def remove_tree(self, name: str) -> None:
        """Remove a file, a link itself, or a folder with all that is below it, however deep.

        No link is followed and no mounted file system is emptied; folders of ours that are shut are opened.

        Raises:
            OSError: something cannot be removed: the first of it, after the rest is gone.
        """
        with self.parent_of(name) as (folder, last):
            removal = _Removal(folder.fd)
            removal.remove(last)
        if removal.problems:
            raise removal.problems[0]

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


REMOVED = ".removed-"
"""What the name of a folder begins with that is being removed."""


class _Removal:
    """Removes what lies in one open folder; each folder below is first moved up into it, so that depth is no limit.

    That a folder can be moved shows, too, that nothing is mounted there.
    """

    def __init__(self, top: int) -> None:
        self.problems: list[OSError] = []
        self._top, self._mark, self._count = top, f"{REMOVED}{secrets.token_hex(4)}-", 0
        self._folders: deque[str] = deque()

    def remove(self, name: str) -> None:
        """Remove one name of the folder; what cannot be removed is among the problems."""
        self._take(name, self._top)
        while self._folders:
            self._empty(self._folders.popleft())

    def _take(self, name: str, fd: int) -> None:
        """Remove a file of an open folder, or move a folder of it up."""
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
                return
            _open_up(name, fd)
            self._count += 1
            moved = f"{self._mark}{self._count}"
            os.rename(name, moved, src_dir_fd=fd, dst_dir_fd=self._top)
            self._folders.append(moved)
        except OSError as error:
            self.problems.append(error)

    def _empty(self, name: str) -> None:
        try:
            fd = _open_folder(name, self._top)
            try:
                for child in os.listdir(fd):  # noqa: PTH208 - of the open folder
                    self._take(child, fd)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=self._top)
        except OSError as error:
            self.problems.append(error)


def _open_up(name: str, fd: int) -> None:
    """Give the owner of a folder, if that is us, the rights to empty it."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        facts = os.fstat(held)
        if facts.st_uid == os.geteuid() and facts.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(f"/proc/self/fd/{held}").chmod(stat.S_IMODE(facts.st_mode) | stat.S_IRWXU)
    finally:
        os.close(held)


@contextmanager
def resolved(target: Path) -> Iterator[tuple[Folder, str]]:
    """Yield the folder that a path without links lies in, and the path's last part.

    Raises:
        OSError: there is no such folder, or something put a link into the path since it was resolved.
    """
    with folder_of(target) as (folder, name):
        with suppress(FileNotFoundError):  # no /proc
            if Path(f"/proc/self/fd/{folder.fd}").readlink() != target.parent:
                raise OSError(errno.ELOOP, "a link was put into its path", str(target))
        yield folder, name


@contextmanager
def folder_of(path: Path) -> Iterator[tuple[Folder, str]]:
    """Yield the folder that a path lies in, opened, and the path's last part.

    Raises:
        OSError: there is no such folder.
    """
    with Folder.open(path.parent) as folder:
        yield folder, path.name


def open_plain(folder: Folder, name: str, flags: int, *, make: bool = True, mode: int = 0o666) -> int:
    """Return a descriptor of what lies under a name of an open folder; `make` makes it where there is nothing.

    Raises:
        OSError: it is a link, or cannot be opened.
    """
    flags |= _PLAIN | (os.O_CREAT if make else 0)
    try:
        return os.open(name, flags, mode, dir_fd=folder.fd)
    except OSError as error:
        where = str(folder.path / name)
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", where) from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "it is no plain file", where) from None
        raise


def check_plain(fd: int, where: str) -> os.stat_result:
    """Check that a descriptor is of a plain file with one name; return its status.

    Raises:
        OSError: it is not.
    """
    facts = os.fstat(fd)
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", where)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", where)
    if facts.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has other names too (hard links)", where)
    return facts


def check_own(fd: int, folder: int, where: str) -> None:
    """Check that a descriptor is of a plain file with one name, of ours or of the owner of its folder.

    The owner of a folder has every file of it in hand; and root's files of an NFS folder belong to somebody else.

    Raises:
        OSError: it is not.
    """
    facts = check_plain(fd, where)
    if facts.st_uid not in (os.geteuid(), os.fstat(folder).st_uid):
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {facts.st_uid})", where)


def _give_to_owner(fd: int, folder: int) -> None:
    """Let the owner of a folder have what root opens in it: else root's lock or journal would shut its owner out."""
    owner = os.fstat(folder)
    if os.geteuid() == 0 and owner.st_uid and os.fstat(fd).st_uid == 0:
        with suppress(OSError):
            os.fchown(fd, owner.st_uid, owner.st_gid)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write bytes where a file is at.

    Raises:
        OSError: they do not all fit, and a part of them is written.
    """
    while data:
        data = data[os.write(fd, data) :]


def read_limited(fd: int, limit_bytes: int, where: str) -> bytes:
    """Return what a descriptor holds from where it stands.

    Raises:
        OSError: it is larger than the limit, or cannot be read.
    """
    pieces, left = [], limit_bytes + 1
    if os.fstat(fd).st_size <= limit_bytes:
        while left > 0 and (piece := os.read(fd, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    else:
        left = 0
    if left <= 0:  # it may grow meanwhile
        raise OSError(errno.EFBIG, f"it is larger than {size_words(limit_bytes)}", where)
    return b"".join(pieces)


def tells_no_space(message: str) -> bool:
    """Return whether an error message is of a full disk, a quota or a limit of size."""
    return any(words in message for words in _NO_SPACE_WORDS)


def size_words(size: int) -> str:
    """Return a limit as a message has it."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} bytes"


def kind_of(facts: os.stat_result) -> str:
    """Return what something in a folder is, for a message."""
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(facts.st_mode), "a device or socket")


def half_made(name: str) -> str:
    """Return the name of what becomes the file `name` once it is whole: of this thread alone, and hidden.

    It ends in the thread's number, by which a reader can check whether its writer lives (`/proc` has threads too).
    """
    return f".{name}.{threading.get_native_id()}"


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
