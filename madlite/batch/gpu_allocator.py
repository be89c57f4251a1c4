"""The GPUs of this machine as one batch has them: which it can get, and what keeps it from the others.

What a dead owner of a lease still has running is found by anybody on the machine, also where it is another user.  Who
does not see its processes cannot know: in another container than the owner's, or where /proc shows others' to nobody
(hidepid).  Then the lease is the owner's until somebody says that nothing is left.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import exists
from madlite.machine.host import read_file
from madlite.machine.processes import RUN_MARK, facts_of, sees_all_processes, user_name
from madlite.model import Gpu, Value
from madlite.platforms.host import supervisor
from madlite.store.events import now
from madlite.store.gpu_leases import GpuLease, LeaseFolder, LeaseHolder, LeaseState, lease_names

_SUPERVISOR = "/".join(Path(supervisor.__file__).parts[-2:]).encode()  # of whatever installation
_BOOT = "sys/kernel/random/boot_id"
UNSEEN = "perhaps processes that cannot be seen from here"
_CONTAINER = re.compile(r"[0-9a-f]{12,64}")  # an id of docker's or podman's


def lease_states(folder: Path, gpus: Sequence[Gpu]) -> dict[int, tuple[LeaseState, str]]:
    """Return the state of each GPU's lease by its id, and what a dead owner still has running on it.

    Nothing is made: where there is no folder yet no GPU is held.

    Raises:
        UsageProblem: the folder cannot be used.
    """
    names = lease_names(gpus)
    if not folder.is_symlink() and not exists(folder):
        return {index: (LeaseState(name=name), "") for index, name in names.items()}
    with closing(LeaseFolder(folder)) as leases:
        states = zip(names, leases.states(names.values()), strict=True)
        return {index: (state, _left_by(state)) for index, state in states}


def _left_by(state: LeaseState) -> str:
    return remains_of(state.holder) if state.holder is not None and not state.locked else ""


def clear_leases(folder: Path, run_id: str) -> None:
    """Take the name of a run that is known to have nothing running any more out of leases that nobody holds.

    Raises:
        UsageProblem: the folder, or a file of it, cannot be used.
    """
    if not folder.is_symlink() and not exists(folder):
        return
    with closing(LeaseFolder(folder)) as leases:
        for state in leases.states(leases.names()):
            if not state.locked and state.holder is not None and state.holder.run == run_id:
                leases.clear(state.name)


def clear_unseen(folder: Path, gpus: Iterable[int], states: Mapping[int, tuple[LeaseState, str]]) -> None:
    """Free GPUs of dead owners whose processes cannot be seen from here; `states` are those of `lease_states`.

    Raises:
        UsageProblem: one is not there, is held, or what keeps it can be seen; none was freed.
    """
    names = []
    for gpu in gpus:
        if gpu not in states:
            raise UsageProblem(
                f"--clear {gpu}: there is no GPU {gpu} here", "madlite doctor --gpus lists those that are"
            )
        state, left = states[gpu]
        if state.locked or state.problem or left not in ("", UNSEEN):
            raise UsageProblem(f"--clear {gpu}: it is {lease_text(state, left)}", "only what cannot be seen is cleared")
        names += [state.name] if left else []
    if names:
        with closing(LeaseFolder(folder)) as leases:
            for name in names:
                leases.clear(name)


def lease_facts(gpus: Iterable[Gpu], states: Mapping[int, tuple[LeaseState, str]]) -> Iterator[dict[str, object]]:
    """Yield the state of each GPU's lease for programs."""
    for gpu in gpus:
        state, left = states[gpu.index]
        held = "problem" if state.problem else "held" if state.locked else "left" if left else "free"
        holder = to_builtins(state.holder) if state.holder is not None and held in ("held", "left") else None
        yield {"gpu": gpu.index, "bus": gpu.bus, "state": held, "holder": holder, "left": left}


def lease_text(state: LeaseState, left: str) -> str:
    """Return the state of a GPU's lease in words, and the command that ends what a dead owner left on it."""
    if state.problem:
        return state.problem
    if state.locked:
        since = f", since {state.holder.since}" if state.holder is not None and state.holder.since else ""
        return f"held by {holder_text(state.holder)}{since}"
    if left and state.holder is not None:
        ends = "madlite clean --everywhere --yes ends it"
        if left == UNSEEN:
            ends = "the same command where it ran, or --clear GPU once they have ended"
        return f"held by {left}, left by {holder_text(state.holder)}; {ends}"
    return "free"


def process_table(proc: Path = Path("/proc")) -> str:
    """Return which table of processes is seen here: of this start of the machine and this namespace; "" if unknown."""
    try:
        namespace = str((proc / "self/ns/pid").readlink())
    except OSError:
        return ""
    return f"{read_file(proc / _BOOT)} {namespace}"


def remains_of(holder: LeaseHolder, proc: Path = Path("/proc")) -> str:
    """Return what a lease's dead owner still has running, as text; "" where nothing is left, and the GPU is free.

    Where its processes would not be seen from here that is `UNSEEN`.
    """
    if not holder.run or _is_of_an_earlier_start(holder, proc):
        return ""
    return _found(holder, proc) or ("" if _would_be_seen(holder, proc) else UNSEEN)


def _is_of_an_earlier_start(holder: LeaseHolder, proc: Path) -> bool:
    boot = holder.table.partition(" ")[0]
    return bool(boot) and boot != read_file(proc / _BOOT)


def _would_be_seen(holder: LeaseHolder, proc: Path) -> bool:
    is_same_table = bool(holder.table) and holder.table == process_table(proc)
    if sees_all_processes(proc) or (is_same_table and holder.pid == os.getpid()):  # whose runtime has ended them
        return True
    is_container = bool(_CONTAINER.fullmatch(holder.handle))  # its engine may be outside of the one that we are in
    shows_others = bool(read_file(proc / "1/stat"))
    return is_same_table and not is_container and (shows_others or holder.uid == os.geteuid())


def _found(holder: LeaseHolder, proc: Path) -> str:
    """Return what is seen of a run, as text.

    A run's processes are below a supervisor, whose command line everybody sees, and carry the run's mark in their
    environment, which their own user sees.  A container's are in a control group of its id, which everybody sees.
    """
    container = holder.handle.encode() if _CONTAINER.fullmatch(holder.handle) else b""
    run = holder.run.encode("utf-8", "replace")
    mark = f"{RUN_MARK}=".encode() + run
    found = []
    for pid in _processes(proc):
        if container and container in _read(f"{proc}/{pid}/cgroup"):
            return f"container {holder.handle[:12]}"
        words = _read(f"{proc}/{pid}/cmdline").split(b"\0")
        supervises = run in words and any(word.endswith(_SUPERVISOR) for word in words)
        if supervises or mark in _read(f"{proc}/{pid}/environ").split(b"\0"):
            found.append(pid)
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"pid {found[0]}{more}"


def _processes(proc: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(proc) if name.isdecimal())  # noqa: PTH208 - thousands of paths
    except OSError:
        return []


def _read(path: str) -> bytes:
    """Return a file of a process, empty where it is gone or must not be read.

    By the plainest means: this is asked whenever a run ends, of every process of the machine.
    """
    with suppress(OSError), FileIO(path) as file:
        return file.readall()
    return b""


_POLL_S = 1.0  # for GPUs of other processes to be free
POLL_LEFT_S = 5.0  # for what a run left on them to be gone


class Job(Value, frozen=True):
    """What the scheduler knows of a run: how many GPUs of the `allowed` ones it needs, and how long it may take.

    Runs that have one of their `keys` in common do not run at the same time.  An `exclusive` one gets all GPUs of the
    machine to itself, and uses some of them.  What a run that `keeps` leaves running is meant to stay, and has no GPU.
    A `blocked` one has its row and executes nothing: no other run is beside it.
    """

    position: int
    run_id: str
    folder: str = ""
    gpus: int = 0
    allowed: tuple[int, ...] = ()
    keys: frozenset[str] = frozenset()
    expected_s: float | None = None
    exclusive: bool = False
    keeps: bool = False
    blocked: bool = False


class Waiting(Value, frozen=True):
    """Why a run gets no GPUs from outside of this batch: a sentence, and seconds after which that may have changed.

    `for_foreign` says that foreign processes are to be listed anew then.
    """

    text: str
    poll_s: float = _POLL_S
    for_foreign: bool = False


class GpuAllocator:
    """The GPUs of this machine as one batch has them; its leases keep other processes off them.

    A run that waits for several GPUs keeps those that became free, and the turn to take leases.  Not safe by itself
    between threads: the scheduler's lock is held.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        leases: LeaseFolder,
        in_use: Callable[[], Mapping[int, str]] | None = None,
        remains: Callable[[LeaseHolder], str] = remains_of,
    ) -> None:
        """Make a pool; `in_use` returns GPUs with processes that are no run's, and those processes as text."""
        self.waiting: Waiting | None = None  # of the last attempt
        self._names = lease_names(gpus)
        self._leases = leases
        self.problem = leases.problem  # why other users may not see its leases
        self._remains = remains
        self._in_use, self._foreign, self._foreign_at_s = in_use, dict[int, str](), -POLL_LEFT_S
        self._mine: dict[int, GpuLease] = {}  # of GPUs that runs have, and of those kept for who waits
        self._taken: dict[int, LeaseHolder] = {}  # of GPUs that runs have, as their leases say
        self._turn: GpuLease | None = None
        self._owner = _this_process()

    @property
    def every(self) -> tuple[int, ...]:
        """All GPUs of the machine."""
        return tuple(self._names)

    def foreign(self) -> dict[int, str]:
        """Return the GPUs that are left alone, for foreign processes are on them, and those processes as text.

        They are listed anew after a while, by tools that take long: without the scheduler's lock.  What is on a GPU
        that a run has is taken for that run's, and its lease says more.
        """
        if self._in_use is not None and self.is_out_of_date:
            found = self._in_use()
            names = {index: self._names[index] for index in found if index in self._names}
            states = dict(zip(names, self._leases.states(names.values()), strict=True))
            free = {index for index, state in states.items() if not state.locked and not self._stays(state)}
            self._foreign = {index: text for index, text in found.items() if index in free}
            self._foreign_at_s = time.monotonic()
        return self._foreign

    @property
    def is_out_of_date(self) -> bool:
        """Whether foreign processes were listed a while ago."""
        return time.monotonic() - self._foreign_at_s >= POLL_LEFT_S

    def _stays(self, state: LeaseState) -> bool:
        """Return whether a lease that nobody holds keeps its GPU from everybody: for what a run left, or a bad file."""
        return bool(state.problem) or (state.holder is not None and bool(self._remains(state.holder)))

    def usable(self, job: Job) -> frozenset[int] | None:
        """Return the GPUs that a run that waits can count on: those of its batch, and those that nobody has.

        None where what may be there for long keeps it from starting before that goes: what a run left running, foreign
        processes that are left alone, or a lease that cannot be used.
        """
        others = [index for index in job.allowed if index not in self._mine]
        states = dict(zip(others, self._leases.states([self._names[index] for index in others]), strict=True))
        held = {index for index, state in states.items() if state.locked}
        free = {index: state for index, state in states.items() if not state.locked}
        stays = {index for index, state in free.items() if index in self._foreign or self._stays(state)}
        return frozenset(job.allowed) - held - stays if len(job.allowed) - len(stays) >= job.gpus else None

    def take(self, job: Job, *, passes: bool, spared: Collection[int] = ()) -> tuple[int, ...] | None:
        """Return GPUs for a run, leased; None where there are not enough.

        Where a run `passes` another one, that one keeps the turn and what it has so far, and this one nothing.  Of
        the `spared` it gets none that are kept.

        Raises:
            UsageProblem: a lease cannot be used, nor one of the user's own.
        """
        self.waiting = None
        allowed = self.every if job.exclusive else job.allowed
        wanted = len(allowed) if job.exclusive else job.gpus
        kept = set(self._mine).intersection(spared)
        free = [index for index in allowed if index not in self._taken and index not in kept]
        had_turn = self._turn is not None
        if len(free) < wanted or len(free := self._without_foreign(free, wanted)) < wanted or not self._have_turn():
            return None
        try:
            stuck = self._lease(free, wanted)
        except UsageProblem:
            self.let_go()
            raise
        have = [index for index in free if index in self._mine][:wanted]
        if len(have) == wanted:
            self.waiting = None
            self.note(have, job.run_id, job.folder)
        elif not passes and not stuck:  # it waits with what it has; what is stuck may be so for long
            return None
        if not (passes and had_turn):
            self.let_go()
        return tuple(have) if len(have) == wanted else None

    def left_on(self, gpu_ids: Iterable[int]) -> str:
        """Return what a run that ended still has running, as text; it reads the table of processes."""
        holder = next((self._taken[index] for index in gpu_ids if index in self._taken), None)
        return self._remains(holder) if holder is not None else ""

    def give_back(self, gpu_ids: Iterable[int], *, left: str = "") -> None:
        """Take back the GPUs of a run that ended; nobody gets them before what is `left` of it ends."""
        for index in gpu_ids:
            self._taken.pop(index)
            lease = self._mine.pop(index)
            (lease.leave if left else lease.release)()

    def let_go(self) -> None:
        """Give back what no run has."""
        for index in [index for index in self._mine if index not in self._taken]:
            self._mine.pop(index).release()
        if self._turn is not None:
            self._turn.leave()
            self._turn = None

    def note(self, gpu_ids: Iterable[int], run_id: str, folder: str, handle: str = "") -> None:
        """Write into leases which run has them, and the handle of its session: by them others find what it left."""
        holder = replace(self._owner, since=now("seconds"), run=run_id, folder=folder, handle=handle)
        for index in gpu_ids:
            self._taken[index] = holder
            self._mine[index].note(holder)

    def beside(self) -> set[str]:
        """Return the ids of the runs that other processes have on GPUs of this machine."""
        names = [name for index, name in self._names.items() if index not in self._mine]
        holders = (state.holder for state in self._leases.states(names) if state.locked)
        return {holder.run for holder in holders if holder is not None and holder.run}

    def close(self) -> None:
        """Give back all of it."""
        self._taken.clear()
        self.let_go()
        self._leases.close()

    def _lease(self, free: Sequence[int], wanted: int) -> bool:
        """Lease free GPUs up to so many; note who has the others, and return whether that may be so for long."""
        texts: dict[str, list[int]] = {}
        stuck = False
        for index in free:
            if sum(gpu in self._mine for gpu in free) >= wanted:
                return False
            if index in self._mine:
                continue
            taken = self._leases.take(self._names[index])
            if taken is None:
                (state,) = self._leases.states([self._names[index]])
                texts.setdefault(holder_text(state.holder), []).append(index)
                continue
            lease, dead = taken
            left = self._remains(dead) if dead is not None else ""
            if dead is not None and left:
                lease.leave()
                stuck = True
                texts.setdefault(f"{left}, left by {holder_text(dead)} (madlite doctor --gpus)", []).append(index)
            else:
                lease.note(self._owner)
                self._mine[index] = lease
        listed = (f"GPU {', '.join(map(str, indexes))}: {text}" for text, indexes in texts.items())
        self.waiting = Waiting(text="; ".join(listed), poll_s=POLL_LEFT_S if stuck else _POLL_S)
        return stuck

    def _have_turn(self) -> bool:
        if self._turn is None:
            self._turn = self._leases.take_turn()
        if self._turn is None:
            self.waiting = Waiting(text="another madlite waits for GPUs, and is first")
        return self._turn is not None

    def _without_foreign(self, free: Sequence[int], wanted: int) -> list[int]:
        """Return the free GPUs that no foreign process uses, where those are to be left alone."""
        left = [index for index in free if index not in self._foreign]
        if len(left) < wanted:
            used = "; ".join(f"GPU {index}: {text}" for index, text in self._foreign.items() if index in free)
            self.waiting = Waiting(text=f"{used} (--parallel N shares them)", poll_s=POLL_LEFT_S, for_foreign=True)
        return left


def holder_text(holder: LeaseHolder | None) -> str:
    """Return who has a GPU, as text."""
    if holder is None:
        return "a process that does not say who it is"
    what = f"run {holder.run}" if holder.run else "a madlite that waits for more"
    return f"{what} of user {holder.user or holder.uid} (pid {holder.pid})"


def _this_process() -> LeaseHolder:
    own = facts_of(os.getpid())
    uid, started = os.getuid(), own.started if own is not None else 0  # without /proc
    table = process_table()
    return LeaseHolder(
        user=user_name(uid), uid=uid, pid=os.getpid(), started=started, table=table, since=now("seconds")
    )
