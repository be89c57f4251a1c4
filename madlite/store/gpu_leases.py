"""Leases of GPUs between the madlite processes and users of one machine: one lock file for each GPU.

A lease is an flock(2) on the GPU's file, and the file's text names the owner.  The lock goes with the process that
holds it, however that ends; the text stays, so that what a killed owner left running on the GPU can be looked for.

Folder and files are for all users (1777 and 0666), and flock alone decides.  Who made the folder can remove files in
it: once a file is locked its path has to lead to it.  Where the folder cannot be used by all, leases are in a folder of
the user's own, which others do not see.

A file that is there is opened without O_CREAT, which the kernel refuses for other users' files in such a folder
(fs.protected_regular), and a link is never followed.  What cleans /tmp by age leaves a folder alone as long as somebody
has it locked (tmpfiles.d(5)), as we do.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import structs

from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.model import Gpu, Value
from madlite.store.locks import acquire, is_held, open_locked
from madlite.text import printable

VARIABLE = "MADLITE_GPU_LEASES"
"""The variable that names the folder; processes of containers share leases where they are given one folder."""
_SHARED = Path("/run/lock")
_OTHERWISE = Path("/tmp")  # noqa: S108 - the folder in it is used by all users, as one of /run/lock
_NAME = "madlite"
_FOR_ALL, _FILE_FOR_ALL = 0o1777, 0o666
_LIMIT_BYTES = 16 << 10
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


def own_lease_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for leases of this user that the one for all users refuses."""
    runtime = Path(environ.get("XDG_RUNTIME_DIR") or "-")
    if runtime.is_absolute() and runtime.is_dir():
        return runtime / _NAME / "leases"
    return (
        Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~", ".cache")).expanduser()
        / _NAME
        / "leases"
    )


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

    def __init__(self, fd: int) -> None:
        self._fd = fd

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
        try:
            os.pwrite(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))
        except OSError:  # a full disk: nobody's, rather than of who had it before
            with suppress(OSError):
                os.ftruncate(self._fd, 0)


class LeaseFolder:
    """The open folder of the leases of this machine, until `close`.

    With `own` a folder that cannot be used by all users is replaced by that one; `problem` says why.
    """

    def __init__(self, path: Path, own: Path | None = None) -> None:
        """Open the folder, made where there is none.

        Raises:
            UsageProblem: it cannot be used, nor `own`.
        """
        self.problem = ""
        try:
            self._folder = _open_folder(path)
        except OSError as error:
            problem = _unusable(path, error)
            if own is None:
                raise problem from error
            self.problem = problem.message
            self._folder = _open_own(own)

    def take(self, name: str) -> tuple[GpuLease, LeaseHolder | None] | None:
        """Lock a GPU's file; return the lease, with the owner that died without giving it back, or None if it is held.

        Raises:
            UsageProblem: its file cannot be used.
        """
        try:
            fd = open_locked(self._folder, name, 0, open_file=_open)
            return GpuLease(fd), _read(fd)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _unusable(self._folder.path / name, error) from error

    def take_turn(self) -> GpuLease | None:
        """Lock the right to take leases, which who waits for several GPUs keeps meanwhile; None where another has it.

        So of two that wait each for what the other has there is never more than one, and nobody waits for ever for
        many GPUs at once while others take single ones.

        Raises:
            UsageProblem: as `take`.
        """
        taken = self.take(_TURN)
        return taken[0] if taken is not None else None

    def states(self, names: Iterable[str]) -> Iterator[LeaseState]:
        """Yield the state of GPUs' leases, without taking any."""
        return (_state(self._folder, name) for name in names)

    def names(self) -> list[str]:
        """Return the names of all leases that were ever taken here."""
        names = os.listdir(self._folder.fd)  # noqa: PTH208 - of the open folder
        return sorted(name for name in names if name.startswith(_PREFIX))

    def clear(self, name: str) -> None:
        """Take the name of a dead owner out of a lease; one that is held stays as it is.

        Raises:
            UsageProblem: as `take`.
        """
        if (taken := self.take(name)) is not None:
            taken[0].release()

    def close(self) -> None:
        """Let go of the folder."""
        self._folder.close()


def _open(folder: Folder, name: str) -> int:
    """Return a descriptor of a file for all, made where there is none."""
    try:
        fd = folder.open_file(name, os.O_RDWR, make=False)
    except FileNotFoundError:
        fd = folder.open_file(name, os.O_RDWR | os.O_EXCL, mode=_FILE_FOR_ALL)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != _FILE_FOR_ALL:  # the umask took rights, or its maker was killed
            os.fchmod(fd, _FILE_FOR_ALL)
    except OSError:
        os.close(fd)
        raise
    return fd


def _state(folder: Folder, name: str) -> LeaseState:
    try:
        fd = folder.open_file(name, os.O_RDONLY, make=False)
    except FileNotFoundError:
        return LeaseState(name=name)
    except OSError as error:
        return LeaseState(name=name, problem=_unusable(folder.path / name, error).message)
    try:
        return LeaseState(name=name, locked=is_held(fd), holder=_read(fd))
    except OSError as error:
        return LeaseState(name=name, problem=_unusable(folder.path / name, error).message)
    finally:
        os.close(fd)


def _unusable(path: Path, error: OSError) -> UsageProblem:
    return UsageProblem(
        f"the leases of GPUs cannot be used: {path}: {error.strerror or error}",
        f"its owner or root removes it, or {VARIABLE}=DIR names another folder, the same for all users",
    )


def _open_folder(path: Path) -> Folder:
    """Open the folder for all users, made where there is none; one that a user named keeps its mode.

    Raises:
        OSError: it is no folder, a link, or not for all users.
    """
    try:
        path.mkdir()
        made = True
    except FileExistsError:
        made = False
    folder = Folder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    try:
        if (made or path in _places()) and stat.S_IMODE(os.fstat(folder.fd).st_mode) != _FOR_ALL:
            os.fchmod(folder.fd, _FOR_ALL)  # the umask took rights, or its maker was killed
        elif not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "it is not for all users")
        with suppress(OSError):
            acquire(folder.fd, 0, shared=True)
    except OSError:
        folder.close()
        raise
    return folder


def _open_own(path: Path) -> Folder:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Folder.open(path)
    except OSError as error:
        raise _unusable(path, error) from error


def _read(fd: int) -> LeaseHolder | None:
    """Return who a file names; None where it is empty, or holds something else, which anybody can write there.

    So its texts have no end of a line and nothing that moves a terminal's cursor.
    """
    try:
        holder = msgspec.json.decode(os.pread(fd, _LIMIT_BYTES, 0).partition(b"\n")[0], type=LeaseHolder)
        texts = {name: text for name, text in structs.asdict(holder).items() if isinstance(text, str)}
        return structs.replace(holder, **{name: printable(text) for name, text in texts.items()})
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
