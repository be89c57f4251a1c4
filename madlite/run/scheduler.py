"""Which run of a batch starts when, and on which GPUs: the longest first, none of them shared.

A run that needs more GPUs than are free is not passed for ever: a later one may start before it only where it ends
before the first could begin, as far as their durations are known, or where the first has enough GPUs without it.
(EASY backfilling: D. Lifka, The ANL/IBM SP Scheduling System, 1995.)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from itertools import islice

from msgspec.structs import replace

from madlite.model import Gpu, Value
from madlite.run.recovery.dead_leases import remains_of
from madlite.runtimes.process_table import opened, user_name
from madlite.workspace.gpu_leases import GpuLease, LeaseFolder, LeaseHolder, lease_names

_LOOK_AHEAD = 64  # of the waiting runs: with ten thousand of them not each is tried each time
_POLL_S = 1.0  # for GPUs of other processes to be free
_POLL_DEAD_S = 5.0  # for what a killed run left on them to be gone
MOST_BESIDE = 64  # runs at the same time that are named


class Job(Value, frozen=True):
    """What the scheduler knows of a run: how many GPUs of the `allowed` ones it needs, and how long it may take.

    Runs that have one of their `keys` in common do not run at the same time.  An `exclusive` one gets all GPUs of the
    machine to itself, and uses some of them.
    """

    position: int
    run_id: str
    folder: str = ""
    gpus: int = 0
    allowed: tuple[int, ...] = ()
    keys: frozenset[str] = frozenset()
    expected_s: float | None = None
    exclusive: bool = False


class Start(Value, frozen=True):
    """A run that starts now, and the GPUs that it keeps others off: none where it needs none."""

    job: Job
    leased: tuple[int, ...] = ()

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """The GPUs that it uses."""
        return tuple(index for index in self.job.allowed if index in self.leased)[: self.job.gpus]


class Outlook(Value, frozen=True):
    """The GPUs that a waiting run can count on: those of its batch, and those that nobody has.

    `is_blocked` says that what may be there for long keeps so many of the others that it cannot start before that goes:
    a killed run's remains, or foreign processes that are left alone.
    """

    usable: frozenset[int]
    is_blocked: bool


class Waiting(Value, frozen=True):
    """Why a run gets no GPUs from outside of this batch: a sentence, and seconds after which that may have changed."""

    text: str
    poll_s: float = _POLL_S


class GpuPool:
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
        self._remains = remains
        self._in_use, self._foreign, self._foreign_at_s = in_use, dict[int, str](), -_POLL_DEAD_S
        self._taken: set[int] = set()
        self._mine: dict[int, GpuLease] = {}  # of taken GPUs, and of those kept for who waits
        self._turn: int | None = None
        self._owner = _this_process()

    @property
    def every(self) -> tuple[int, ...]:
        """All GPUs of the machine."""
        return tuple(self._names)

    def free(self, allowed: Iterable[int]) -> list[int]:
        """Return the GPUs that no run of this batch has."""
        return [index for index in allowed if index not in self._taken]

    def foreign(self) -> dict[int, str]:
        """Return the GPUs that are left alone, for foreign processes are on them, and those processes as text."""
        if self._in_use is not None and time.monotonic() - self._foreign_at_s >= _POLL_DEAD_S:
            self._foreign, self._foreign_at_s = dict(self._in_use()), time.monotonic()
        return self._foreign

    def outlook(self, job: Job) -> Outlook:
        """Return what a run that waits can count on, so that others pass it without being what it waits for."""
        others = [index for index in job.allowed if index not in self._mine]
        states = dict(zip(others, self._leases.states([self._names[index] for index in others]), strict=True))
        held = {index for index, state in states.items() if state.locked}
        stays = {index for index in others if index in self._foreign and index not in held}
        stays |= {
            index
            for index, state in states.items()
            if not state.locked and state.holder is not None and self._remains(state.holder)
        }
        return Outlook(
            usable=frozenset(job.allowed) - held - stays, is_blocked=len(job.allowed) - len(stays) < job.gpus
        )

    def take(self, job: Job, *, passes: bool, spared: Collection[int] = ()) -> tuple[int, ...] | None:
        """Return GPUs for a run, leased; None where there are not enough.

        Where a run `passes` another one, that one keeps the turn and what it has so far, and this one nothing.  Of
        the `spared` it gets none that are kept.

        Raises:
            UsageProblem: the folder of leases cannot be used.
        """
        self.waiting = None
        wanted = len(self.every) if job.exclusive else job.gpus
        free = self.free(self.every if job.exclusive else job.allowed)
        free = [index for index in free if index not in spared or index not in self._mine]
        had_turn = self._turn is not None
        if len(free) < wanted or len(free := self._without_foreign(free, wanted)) < wanted or not self._have_turn():
            return None
        stuck = self._lease(free, wanted)
        have = [index for index in free if index in self._mine][:wanted]
        if len(have) == wanted:
            self._give(job, have)
        elif not passes and not stuck:  # it waits with what it has; what is stuck may be so for long
            return None
        if not (passes and had_turn):
            self.let_go()
        return tuple(have) if len(have) == wanted else None

    def give_back(self, gpu_ids: Iterable[int]) -> None:
        """Take back the GPUs of a run that ended."""
        for index in gpu_ids:
            self._taken.discard(index)
            self._mine.pop(index).release()

    def let_go(self) -> None:
        """Give back what no run has."""
        for index in [index for index in self._mine if index not in self._taken]:
            self._mine.pop(index).release()
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None

    def note(self, gpu_ids: Iterable[int], run_id: str, folder: str, handle: str = "") -> None:
        """Write into leases which run has them, and the handle of its session: by them others find what it left."""
        holder = replace(self._owner, since=_utc(), run=run_id, folder=folder, handle=handle)
        for index in gpu_ids:
            self._mine[index].note(holder)

    def beside(self) -> set[str]:
        """Return the ids of the runs that other processes have on GPUs of this machine."""
        names = [name for index, name in self._names.items() if index not in self._mine]
        held = (one.holder for one in self._leases.states(names) if one.locked and one.holder is not None)
        return {holder.run for holder in held if holder.run}

    def close(self) -> None:
        """Give back all of it."""
        self._taken.clear()
        self.let_go()
        self._leases.close()

    def _lease(self, free: Sequence[int], wanted: int) -> bool:
        """Lease free GPUs up to so many; note who has the others, and return whether that is a killed run."""
        texts: dict[str, list[int]] = {}
        stuck = False
        for index in free:
            if sum(one in self._mine for one in free) >= wanted:
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
                texts.setdefault(f"{left} of {holder_text(dead)}, which was killed (madlite gpus)", []).append(index)
            else:
                lease.note(self._owner)
                self._mine[index] = lease
        listed = (f"GPU {', '.join(map(str, indexes))}: {text}" for text, indexes in texts.items())
        self.waiting = Waiting(text="; ".join(listed), poll_s=_POLL_DEAD_S if stuck else _POLL_S)
        return stuck

    def _give(self, job: Job, gpu_ids: Sequence[int]) -> None:
        self.waiting = None
        self._taken.update(gpu_ids)
        self.note(gpu_ids, job.run_id, job.folder)

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
            foreign = self.foreign()
            left = [index for index in free if index not in foreign]
        if len(left) < wanted:
            used = "; ".join(f"GPU {index}: {text}" for index, text in self._foreign.items() if index in free)
            self.waiting = Waiting(text=f"{used} (--parallel N shares them)", poll_s=_POLL_DEAD_S)
        return left


def holder_text(holder: LeaseHolder | None) -> str:
    """Return who has a GPU, as text."""
    if holder is None:
        return "a process that does not say who it is"
    what = f"run {holder.run}" if holder.run else "a madlite that waits for more"
    return f"{what} of user {holder.user or holder.uid} (pid {holder.pid})"


def _this_process() -> LeaseHolder:
    started = 0
    try:
        with opened(os.getpid()) as own:
            started = own.facts().started
    except OSError:  # no /proc
        pass
    uid = os.getuid()
    return LeaseHolder(user=user_name(uid), uid=uid, pid=os.getpid(), started=started, since=_utc())


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class _Running:
    """A run that goes on."""

    def __init__(self, start: Start, began_s: float, passed: int | None) -> None:
        self.start, self.began_s = start, began_s
        self.passed = passed  # the position of the run before it that was waiting for GPUs
        self.beside: dict[str, None] = {}  # runs at the same time, in the order in which they met


class _First:
    """The first of the runs that wait for GPUs, and what it can count on, looked at once others may pass it."""

    def __init__(self, job: Job, pool: GpuPool | None) -> None:
        self.job, self._pool = job, pool

    @cached_property
    def outlook(self) -> Outlook:
        return self._pool.outlook(self.job) if self._pool is not None else Outlook(usable=frozenset(), is_blocked=False)


class Scheduler:
    """Gives the jobs of a batch to threads that run them, one after another as each can start; safe from any thread.

    `cpu_slots` is how many runs without a GPU go on at once; `is_over` says that none starts any more.  `on_wait` gets
    why no run can start as long as that is for other processes, and "" when one can.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        pool: GpuPool | None,
        cpu_slots: int,
        *,
        in_order: bool = False,
        on_wait: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waiting = list(jobs) if in_order else _longest_first(jobs)
        self._pool, self._cpu_slots = pool, cpu_slots
        self._on_wait, self._clock = on_wait, clock
        self._condition = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._in_order = in_order
        self.is_over = self._is_polling = False
        self._shown = ""

    def take(self) -> Start | None:
        """Return the next run as soon as one can start; None once none is to start any more.

        Raises:
            UsageProblem: the folder of leases cannot be used.
        """
        with self._condition:
            while self._waiting and not self.is_over:
                if (start := self._next()) is not None:
                    self._show("")
                    self._condition.notify_all()  # another one of them may have waited for other processes
                    return start
                self._wait()
            self._condition.notify_all()
            return None

    def note(self, start: Start, run_id: str, folder: str, handle: str = "") -> None:
        """Note which attempt of a run is on its GPUs, and once its session is open the handle of that."""
        with self._condition:
            if self._pool is not None and start.job.position in self._running:
                self._pool.note(start.leased, run_id, folder, handle)

    def beside(self, start: Start) -> tuple[str, ...]:
        """Return the runs that went on beside one so far."""
        with self._condition:
            one = self._running[start.job.position]
            if self._pool is not None:
                one.beside.update(dict.fromkeys(self._pool.beside()))
            return tuple(islice(one.beside, MOST_BESIDE))

    def end(self, start: Start) -> tuple[str, ...]:
        """Take back what an ended run had, and return the runs that went on beside it; a second time nothing."""
        with self._condition:
            if (ended := self._running.pop(start.job.position, None)) is None:
                return ()
            if self._pool is not None:
                ended.beside.update(dict.fromkeys(self._pool.beside()))
                self._pool.give_back(start.leased)
            self._condition.notify_all()
            return tuple(islice(ended.beside, MOST_BESIDE))

    def stop(self) -> None:
        """Start no other run; what goes on is not touched."""
        with self._condition:
            self.is_over = True
            if self._pool is not None:
                self._pool.let_go()
            self._condition.notify_all()

    def left_s(self, typical_s: float | None) -> float | None:
        """Return how long the batch will take, by durations that are known, else `typical_s`; None where it is unknown.

        It is what all GPUs or slots need together, and at least the longest that goes on.
        """
        with self._condition:
            jobs = [(one.start.job, self._clock() - one.began_s) for one in self._running.values()]
            jobs += [(job, 0.0) for job in self._waiting]
        if any(job.expected_s is None for job, _ in jobs) and typical_s is None:
            return None
        left = [(max(1, job.gpus), max(0.0, (job.expected_s or typical_s or 0.0) - done_s)) for job, done_s in jobs]
        with_gpus = self._pool is not None and any(job.gpus for job, _ in jobs)
        room = len(self._pool.every) if self._pool is not None and with_gpus else self._cpu_slots
        return max(sum(size * left_s for size, left_s in left) / max(1, room), max((one for _, one in left), default=0))

    def _wait(self) -> None:
        """Wait for a change: of our own runs, and one of the threads also for other processes."""
        waiting = self._pool.waiting if self._pool is not None else None
        if waiting is None or self._is_polling:
            self._condition.wait()
            return
        self._show(waiting.text)
        self._is_polling = True
        try:
            self._condition.wait(waiting.poll_s)
        finally:
            self._is_polling = False

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._on_wait(text)

    def _next(self) -> Start | None:
        """Start the first of the waiting runs that can; None where none can now."""
        first: _First | None = None  # that waits for GPUs
        waited: Waiting | None = None
        keys = {key for one in self._running.values() for key in one.start.job.keys}
        for at, job in enumerate(self._waiting[: 1 if self._in_order else _LOOK_AHEAD]):
            if keys & job.keys:
                keys |= job.keys  # nobody gets past it with one of them
            elif (leased := self._room_for(job, first)) is not None:
                return self._start(at, leased, first)
            elif self._needs_gpus(job):
                waited = waited or (self._pool.waiting if self._pool is not None else None)
                first = first or _First(job, self._pool)
        if self._pool is not None:
            self._pool.waiting = waited
        return None

    def _needs_gpus(self, job: Job) -> bool:
        return self._pool is not None and (job.gpus > 0 or job.exclusive)

    def _room_for(self, job: Job, first: _First | None) -> tuple[int, ...] | None:
        """Return the GPUs that a run can start with now, none for one that needs none; None where it cannot."""
        if self._pool is None or not self._needs_gpus(job):
            without = sum(not one.start.leased for one in self._running.values())
            return () if without < self._cpu_slots else None
        if first is None:
            return self._pool.take(job, passes=False)
        if first.outlook.is_blocked or self._ends_before(first, job):
            return self._pool.take(job, passes=True)
        if self._leaves_enough(first, job):  # in the end: what the first keeps would be missed meanwhile
            return self._pool.take(job, passes=True, spared=first.job.allowed)
        return None

    def _start(self, at: int, leased: tuple[int, ...], first: _First | None) -> Start:
        job = self._waiting.pop(at)
        start = Start(job=job, leased=leased)
        begun = _Running(start, self._clock(), first.job.position if first is not None and leased else None)
        if self._pool is not None:
            begun.beside.update(dict.fromkeys(self._pool.beside()))
        for one in self._running.values():
            begun.beside[one.start.job.run_id] = None
            if len(one.beside) < MOST_BESIDE:
                one.beside[job.run_id] = None
        self._running[job.position] = begun
        return start

    def _leaves_enough(self, first: _First, job: Job) -> bool:
        """Return whether the first that waits will have enough GPUs of those it can count on without a run's."""
        passing = [one for one in self._running.values() if one.passed == first.job.position]
        used = sum(len(first.outlook.usable.intersection(one.start.leased)) for one in passing)
        return len(first.outlook.usable) - used - job.gpus >= first.job.gpus

    def _ends_before(self, first: _First, job: Job) -> bool:
        """Return whether a run will have ended when the first that waits has its GPUs, as far as that is known."""
        begins_s = self._begins_s(first)
        return begins_s is not None and job.expected_s is not None and job.expected_s <= begins_s

    def _begins_s(self, first: _First) -> float | None:
        """Return in how many seconds a run will have its GPUs; None where that is not known."""
        free = len(self._pool.free(first.outlook.usable)) if self._pool is not None else 0
        ends: list[tuple[float, int]] = []
        for one in self._running.values():
            if not (count := len(first.outlook.usable.intersection(one.start.leased))):
                continue
            if one.start.job.expected_s is None:
                return None
            ends.append((one.began_s + one.start.job.expected_s - self._clock(), count))
        for left_s, count in sorted(ends):
            free += count
            if free >= first.job.gpus:
                return left_s
        return None


def _longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs by their durations, of alike ones those with many GPUs first: what is small fills what they leave.

    One whose duration is not known is taken for one like the others.
    """
    known = sorted(job.expected_s for job in jobs if job.expected_s is not None)
    typical_s = known[len(known) // 2] if known else 0.0

    def key(job: Job) -> tuple[float, int, int]:
        return (-(typical_s if job.expected_s is None else job.expected_s), -job.gpus, job.position)

    return sorted(jobs, key=key)
