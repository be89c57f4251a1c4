"""Leases of GPUs between the madlite processes and users of one machine: one lock file for each GPU.

A lease is an flock(2) on the GPU's file in a folder that every user may write to, and the file's text names the owner.
The lock goes with the process that holds it, however that ends; the text stays, so that what a killed owner left
running on the GPU can be looked for.  Nothing is ever removed there: two processes that locked two files of one name
would share a GPU.

The folder is like /tmp, in which the kernel keeps users from opening each other's files with O_CREAT
(fs.protected_regular) and from following their links (fs.protected_symlinks): a file that is there is opened without
O_CREAT, a link is never followed, and only a plain file is used.  One that has other names too, which everybody can
give it, is locked like any, but nothing is read from it or written to it: it may be a file of somebody's.

What cleans /tmp by age leaves a folder alone as long as somebody has it locked (tmpfiles.d(5)), as we do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import structs

from madlite.errors import UsageProblem
from madlite.model import Gpu, Value
from madlite.safe_files import Folder, check_plain, open_plain
from madlite.text import printable

VARIABLE = "MADLITE_GPU_LEASES"
"""The variable that names the folder; processes of containers share leases where they are given one folder."""
_SHARED = Path("/run/lock")
_OTHERWISE = Path("/tmp")  # noqa: S108 - the folder in it is used by all users, as one of /run/lock
_NAME = "madlite"
_FOR_ALL, _FILE_FOR_ALL = 0o1777, 0o666
_LIMIT_BYTES = 16 << 10
_TRIES, _TRY_S = 50, 0.02  # for a file or a folder that another user makes just now to be for all
_PREFIX = "gpu-"
_TURN = "turn"


class LeaseHolder(Value, frozen=True):
    """Who has a GPU: a process, since when, and for which run; `handle` is that of the run's session, once it is open.

    `started` tells the process from a later one of its number, in clock ticks since the machine started; `table` is the
    table of processes that has it.
    """

    user: str = ""
    uid: int = -1
    pid: int = 0
    started: int = 0
    table: str = ""
    since: str = ""  # UTC
    run: str = ""
    folder: str = ""
    handle: str = ""


class LeaseState(Value, frozen=True):
    """A GPU's lease as others see it: whether a living process holds it, and who the file says that is or was.

    `problem` is why the file cannot be used.
    """

    name: str
    locked: bool = False
    holder: LeaseHolder | None = None
    problem: str = ""


def lease_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the leases: the one that the environment names, else one that all users come to.

    /run/lock is for all users on Debian and Ubuntu, and for root alone on others.
    """
    if named := environ.get(VARIABLE, "").strip():
        return Path(named)
    with suppress(OSError):
        if stat.S_IMODE(_SHARED.stat().st_mode) == _FOR_ALL:
            return _places()[0]
    return _places()[1]


def _places() -> tuple[Path, Path]:
    """Return the folders that all users come to without naming one."""
    return _SHARED / _NAME, _OTHERWISE / f"{_NAME}-leases"


def lease_names(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Return the name of each GPU's lease by its id, the same whatever else a process sees, and by which tool.

    AMD's is its PCI address with its render node, for partitions of a GPU share an address; NVIDIA's its UUID, which
    each of its tools has.  Where those are not known it is what is, and then partitions are told apart by their order.
    """
    keys = {gpu.index: _key(gpu) for gpu in gpus}
    counts = Counter(keys.values())
    seen: Counter[str] = Counter()
    names = {}
    for index, key in keys.items():
        part = f"-{seen[key]}" if counts[key] > 1 else ""
        seen[key] += 1
        names[index] = _PREFIX + re.sub(r"[^\w:.-]", "_", key) + part
    return names


def _key(gpu: Gpu) -> str:
    if gpu.render_minor is not None:
        return f"{gpu.bus}-{gpu.render_minor}"
    of_nvidia = gpu.unique_id if gpu.unique_id.startswith(("GPU-", "MIG-")) else ""
    return of_nvidia or gpu.bus or gpu.unique_id or str(gpu.index)


class GpuLease:
    """The lease of one GPU, held until `release` or the end of the process."""

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self._fd = fd
        self._has_text = not _is_linked(fd)

    def note(self, holder: LeaseHolder) -> None:
        """Write who holds it.  On a full disk it is held all the same, by a process that nothing is known of."""
        self._write(msgspec.json.encode(holder) + b"\n")

    def release(self) -> None:
        """Give it back: nothing of the owner is left on the GPU."""
        self._write(b"")
        self.leave()

    def leave(self) -> None:
        """Unlock it, and leave the text of who had it."""
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        """Write a line over what is there, and only then cut off the rest: a kill in between leaves an owner."""
        if not self._has_text:
            return
        try:
            os.pwrite(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))
        except OSError:  # a full disk: nobody's, rather than of who had it before
            with suppress(OSError):
                os.ftruncate(self._fd, 0)


class LeaseFolder:
    """The open folder of the leases of this machine, until `close`."""

    def __init__(self, path: Path) -> None:
        """Open the folder, made where there is none.

        Raises:
            UsageProblem: it is no folder, a link, or not to be written to.
        """
        self.path = path
        try:
            self._folder = _open_folder(path)
        except OSError as error:
            raise self._unusable(path, error) from error
        with suppress(OSError):
            fcntl.flock(self._folder.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def take(self, name: str) -> tuple[GpuLease, LeaseHolder | None] | None:
        """Lock a GPU's file; return the lease, with the owner that died without giving it back, or None if it is held.

        Raises:
            UsageProblem: something else is in the place of the file.
        """
        fd = self._take(name)
        return None if fd is None else (GpuLease(name, fd), _read(fd))

    def take_turn(self) -> int | None:
        """Lock the right to take leases, which who waits for several GPUs keeps meanwhile; None where another has it.

        So of two that wait each for what the other has there is never more than one, and nobody waits for ever for
        many GPUs at once while others take single ones.

        Raises:
            UsageProblem: something else is in the place of its file.
        """
        return self._take(_TURN)

    def has_turn(self, fd: int) -> bool:
        """Return whether what `take_turn` gave is still the turn: somebody may have removed its file."""
        return self._is_named(_TURN, fd)

    def states(self, names: Iterable[str]) -> Iterator[LeaseState]:
        """Yield the state of GPUs' leases, without taking any."""
        for name in names:
            try:
                fd = open_plain(self._folder, name, os.O_RDONLY, make=False)
            except FileNotFoundError:
                yield LeaseState(name=name)
                continue
            except OSError as error:
                yield LeaseState(name=name, problem=self._unusable(self.path / name, error).message)
                continue
            try:
                check_plain(fd, str(self.path / name), linked=True)
                yield LeaseState(name=name, locked=_is_locked(fd), holder=_read(fd))
            except OSError as error:
                yield LeaseState(name=name, problem=self._unusable(self.path / name, error).message)
            finally:
                os.close(fd)

    def names(self) -> list[str]:
        """Return the names of all leases that were ever taken here."""
        return sorted(name for name in os.listdir(self._folder.fd) if name.startswith(_PREFIX))  # noqa: PTH208

    def clear(self, name: str) -> None:
        """Take the name of a dead owner out of a lease; one that is held stays as it is.

        Raises:
            UsageProblem: something else is in the place of the file.
        """
        if (taken := self.take(name)) is not None:
            taken[0].release()

    def close(self) -> None:
        """Let go of the folder."""
        self._folder.close()

    def _take(self, name: str) -> int | None:
        while (fd := self._locked(name)) is not None:
            if self._is_named(name, fd):
                return fd
            os.close(fd)  # removed by hand: who comes next would lock another file
        return None

    def _is_named(self, name: str, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._folder.status(name))
        except FileNotFoundError:
            return False

    def _locked(self, name: str) -> int | None:
        try:
            fd = self._open(name)
        except OSError as error:
            raise self._unusable(self.path / name, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            raise self._unusable(self.path / name, error) from error
        return fd

    def _open(self, name: str) -> int:
        """Return a descriptor of a file for all; one that another user makes just now is so in a moment."""
        for left in reversed(range(_TRIES)):
            try:
                return self._open_once(name)
            except FileExistsError:  # made between our two attempts
                continue
            except PermissionError:
                if not left:
                    raise
                time.sleep(_TRY_S)
        raise OSError(errno.EAGAIN, "it comes and goes")

    def _open_once(self, name: str) -> int:
        try:
            fd = open_plain(self._folder, name, os.O_RDWR, make=False)
        except FileNotFoundError:
            fd = open_plain(self._folder, name, os.O_RDWR | os.O_EXCL, mode=_FILE_FOR_ALL)
        try:
            facts = check_plain(fd, str(self.path / name), linked=True)
            is_ours = facts.st_uid == os.geteuid() and facts.st_nlink == 1
            if is_ours and stat.S_IMODE(facts.st_mode) != _FILE_FOR_ALL:
                os.fchmod(fd, _FILE_FOR_ALL)  # the umask took rights, or its maker was killed
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _unusable(self, path: Path, error: OSError) -> UsageProblem:
        return UsageProblem(
            f"the leases of GPUs cannot be used: {path}: {error.strerror or error}",
            f"its owner or root removes it, or {VARIABLE}=DIR names another folder, the same for all users",
        )


def _open_folder(path: Path) -> Folder:
    """Open the folder; one that another user makes just now is for all in a moment."""
    try:
        path.mkdir()
        made = True
    except FileExistsError:
        made = False
    for left in reversed(range(_TRIES)):
        folder = Folder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
        facts = os.fstat(folder.fd)
        is_for_all = made or (path in _places() and facts.st_uid == os.geteuid())
        if is_for_all and stat.S_IMODE(facts.st_mode) != _FOR_ALL:
            os.fchmod(folder.fd, _FOR_ALL)  # the umask took rights, or its maker was killed
        if os.access(path, os.W_OK | os.X_OK):
            return folder
        owner = facts.st_uid
        folder.close()
        if left:
            time.sleep(_TRY_S)
    raise PermissionError(errno.EACCES, f"it belongs to user {owner}, and others may not write to it")


def _is_linked(fd: int) -> bool:
    return os.fstat(fd).st_nlink > 1


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _read(fd: int) -> LeaseHolder | None:
    """Return who a file names; None where it is empty, or holds something else, which anybody can write there.

    So its texts have no end of a line and nothing that moves a terminal's cursor.
    """
    if _is_linked(fd):
        return None
    try:
        holder = msgspec.json.decode(os.pread(fd, _LIMIT_BYTES, 0).partition(b"\n")[0], type=LeaseHolder)
        texts = {name: text for name, text in structs.asdict(holder).items() if isinstance(text, str)}
        return structs.replace(holder, **{name: printable(text) for name, text in texts.items()})
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
