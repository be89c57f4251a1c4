"""Which run of a batch starts when, and on which GPUs: the longest first, none of them shared.

A run that needs more GPUs than are free is not passed for ever: a later one may start before it only where it ends
before the first could begin, as far as their durations are known, or where the first has enough GPUs without it.
(EASY backfilling: D. Lifka, The ANL/IBM SP Scheduling System, 1995.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice

from msgspec.structs import replace

from madlite.batch.gpu_pool import GpuPool, Job, Outlook, Start, Waiting
from madlite.errors import UsageProblem

_LOOK_AHEAD = 64  # of the waiting runs: with ten thousand of them not each is tried each time
MOST_BESIDE = 64  # runs at the same time that are named
_MOST_RESTING = 32  # runs that wait to be tried again: where so many do others would too, and each has files open


class _Running:
    """A run that goes on."""

    def __init__(self, start: Start, began_s: float, passed: int | None) -> None:
        self.start, self.began_s = start, began_s
        self.passed = passed  # the position of the run before it that was waiting for GPUs
        self.beside: dict[str, None] = {}  # runs at the same time, in the order in which they met
        self.is_blocked = start.job.blocked or start.problem is not None  # then it executes nothing


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
        self._resting: list[tuple[float, Job]] = []  # that are tried again, and when
        self._due: set[int] = set()  # positions of waiting ones that are tried again now
        self._turn: int | None = None  # the position of the first that waits for GPUs
        self._pool, self._cpu_slots = pool, cpu_slots
        self._on_wait, self._clock = on_wait, clock
        self._condition = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._in_order = in_order
        self.is_over = self._is_polling = self._has_begun = False
        self._shown = ""

    def take(self) -> Start | None:
        """Return the next run as soon as one can start; None once none is to start any more.

        Raises:
            UsageProblem: the leases cannot be used, and no run has started yet; later it is that of a `Start`.
        """
        with self._condition:
            while (self._waiting or self._resting) and not self.is_over:
                if (start := self._next()) is not None:
                    self._show("")
                    self._condition.notify_all()  # another one of them may have waited for other processes
                    return start
                self._wait()
            self._condition.notify_all()
            return None

    def note(self, start: Start, run_id: str, folder: str, handle: str = "") -> None:
        """Note which run is on its GPUs, and once its session is open the handle of that."""
        with self._condition:
            if self._pool is not None and self._goes_on(start):
                self._pool.note(start.leased, run_id, folder, handle)

    def unshared_lease(self, start: Start) -> str:
        """Return why another process may use the GPUs of a run, though it has their leases; "" where none should."""
        with self._condition:
            return self._pool.unshared(start.leased) if self._pool is not None else ""

    def beside(self, start: Start) -> tuple[str, ...]:
        """Return the runs that went on beside one so far."""
        with self._condition:
            one = self._running[start.job.position]
            if self._pool is not None:
                one.beside.update(dict.fromkeys(self._pool.beside()))
            return tuple(islice(one.beside, MOST_BESIDE))

    def end(self, start: Start) -> tuple[str, ...]:
        """Take back what an ended run had, and return the runs that went on beside it; a second time nothing."""
        return self._end(start, None)

    def again(self, start: Start, run_id: str, folder: str) -> Start:
        """Begin the next attempt of a run, `run_id`, on what the one before had."""
        following = replace(start, job=replace(start.job, run_id=run_id, folder=folder))
        with self._condition:
            ended = self._running.pop(start.job.position)
            begun = _Running(following, ended.began_s, ended.passed)
            self._meet(begun)
            self._running[start.job.position] = begun
        return following

    def rest(self, start: Start, run_id: str, folder: str, wait_s: float) -> None:
        """Take back what an attempt of a run had; the next one, `run_id`, can start after `wait_s`.

        It comes before all others then, but for the one that waits for GPUs longest, and for those that are due longer.
        """
        following = replace(start.job, run_id=run_id, folder=folder)
        self._end(start, (self._clock() + wait_s, following))

    def _end(self, start: Start, following: tuple[float, Job] | None) -> tuple[str, ...]:
        with self._condition:
            if not self._goes_on(start):
                return ()
        left = self._pool.left_on(start.leased) if self._pool is not None and not start.job.keeps else ""
        with self._condition:
            self._resting += [] if following is None else [following]
            ended = self._running.pop(start.job.position)
            if self._pool is not None:
                ended.beside.update(dict.fromkeys(self._pool.beside()))
                self._pool.give_back(start.leased, left=left)
            self._condition.notify_all()
            return tuple(islice(ended.beside, MOST_BESIDE))

    def give_up(self) -> int | None:
        """Return the position of a run that was to be tried again and is not any more, each once; None without one."""
        with self._condition:
            left = [*self._due, *(job.position for _, job in self._resting)] if self.is_over else []
            if not left:
                return None
            position = min(left)
            self._due.discard(position)
            self._resting = [one for one in self._resting if one[1].position != position]
            self._waiting = [job for job in self._waiting if job.position != position]
            return position

    def _goes_on(self, start: Start) -> bool:
        """Return whether a run was not ended yet: another attempt of it has a start of its own."""
        one = self._running.get(start.job.position)
        return one is not None and one.start is start

    def stop(self) -> None:
        """Start no other run; what goes on is not touched."""
        with self._condition:
            self.is_over = True
            if self._pool is not None:
                self._pool.let_go()
            self._condition.notify_all()

    def left_s(self, typical_s: float | None) -> float | None:
        """Return how long the batch will take, by durations that are known, else `typical_s`; None where it is unknown.

        It is what all GPUs or slots need together, and at least the longest that goes on, or waits to be tried again.
        """
        with self._condition:
            now_s = self._clock()
            jobs = [(one.start.job, now_s - one.began_s, 0.0) for one in self._running.values()]
            jobs += [(job, 0.0, max(0.0, due_s - now_s)) for due_s, job in self._resting]
            jobs += [(job, 0.0, 0.0) for job in self._waiting]
        if any(job.expected_s is None for job, _, _ in jobs) and typical_s is None:
            return None
        needs_s = [max(0.0, (job.expected_s or typical_s or 0.0) - done_s) for job, done_s, _ in jobs]
        with_gpus = self._pool is not None and any(job.gpus for job, _, _ in jobs)
        room = len(self._pool.every) if self._pool is not None and with_gpus else self._cpu_slots
        together_s = sum(max(1, job.gpus) * need_s for (job, _, _), need_s in zip(jobs, needs_s, strict=True))
        longest_s = max((wait_s + need_s for (_, _, wait_s), need_s in zip(jobs, needs_s, strict=True)), default=0.0)
        return max(together_s / max(1, room), longest_s)

    def _wait(self) -> None:
        """Wait for a change: of our own runs, and one of the threads also for other processes."""
        waiting = self._pool.waiting if self._pool is not None else None
        rest_s = min((max(0.0, due_s - self._clock()) for due_s, _ in self._resting), default=None)
        if waiting is None or self._is_polling:
            self._condition.wait(rest_s)
            return
        self._is_polling = True
        try:
            if waiting.for_foreign and self._pool is not None and self._pool.is_out_of_date:
                self._list_foreign(self._pool)
                return
            self._show(waiting.text)
            self._condition.wait(waiting.poll_s if rest_s is None else min(waiting.poll_s, rest_s))
        finally:
            self._is_polling = False

    def _list_foreign(self, pool: GpuPool) -> None:
        """List foreign processes while others use the scheduler: it starts tools."""
        self._condition.release()
        try:
            pool.foreign()
        finally:
            self._condition.acquire()

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._on_wait(text)

    def _next(self) -> Start | None:
        """Start the first of the waiting runs that can; None where none can now."""
        self._wake()
        only_due = len(self._resting) >= (1 if self._in_order else _MOST_RESTING)
        if only_due and not self._due:
            self._pause()
            return None
        first: _First | None = None  # that waits for GPUs
        waited: Waiting | None = None
        keys = {key for one in self._running.values() for key in one.start.job.keys}
        for at, job in enumerate(self._waiting[: 1 if self._in_order else _LOOK_AHEAD]):
            if only_due and job.position not in self._due:
                continue
            if keys & job.keys:
                keys |= job.keys  # nobody gets past it with one of them
            elif (start := self._start_of(job, first)) is not None:
                return self._begin(at, start, first)
            elif self._needs_gpus(job):
                waited = waited or (self._pool.waiting if self._pool is not None else None)
                first = first or _First(job, self._pool)
        self._turn = first.job.position if first is not None else None
        if self._pool is not None:
            self._pool.waiting = waited
        return None

    def _wake(self) -> None:
        """Put the runs that are to be tried again now behind those that come before them, and before all others."""
        now_s = self._clock()
        self._resting.sort(key=lambda one: one[0])
        due = [job for due_s, job in self._resting if due_s <= now_s]
        self._resting = self._resting[len(due) :]
        before = set() if self._in_order else {*self._due, self._turn}
        looked_at = enumerate(self._waiting[:_LOOK_AHEAD], 1)
        place = max((after for after, job in looked_at if job.position in before), default=0)
        self._waiting[place:place] = due
        self._due.update(job.position for job in due)

    def _pause(self) -> None:
        """Keep no GPU for a run that does not start before others were tried again."""
        if self._pool is not None:
            self._pool.waiting = None
            self._pool.let_go()

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

    def _start_of(self, job: Job, first: _First | None) -> Start | None:
        """Return the start of a run, also of one that cannot have GPUs any more; None where it waits."""
        try:
            leased = self._room_for(job, first)
        except UsageProblem as problem:
            if not self._has_begun:
                raise
            return Start(job=job, problem=problem)
        return Start(job=job, leased=leased) if leased is not None else None

    def _begin(self, at: int, start: Start, first: _First | None) -> Start:
        job = self._waiting.pop(at)
        self._due.discard(job.position)
        self._turn = first.job.position if first is not None else None
        self._has_begun = True
        begun = _Running(start, self._clock(), first.job.position if first is not None and start.leased else None)
        self._meet(begun)
        self._running[job.position] = begun
        return start

    def _meet(self, begun: _Running) -> None:
        """Note of a run that begins, and of those that go on now, that they were beside each other."""
        if self._pool is not None:
            begun.beside.update(dict.fromkeys(self._pool.beside()))
        for one in self._running.values():
            if one.is_blocked or begun.is_blocked:
                continue
            begun.beside[one.start.job.run_id] = None
            if len(one.beside) < MOST_BESIDE:
                one.beside[begun.start.job.run_id] = None

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
