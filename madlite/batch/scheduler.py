"""Which run of a batch starts when, and on which GPUs: the longest first, none of them shared.

A run that needs more GPUs than are free has a reservation: a later one may start before it only where enough GPUs are
left for it in the end.  A run that is tried again keeps its GPUs, or its slot, until its last attempt has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice

from msgspec.structs import replace

from madlite.batch.gpu_allocator import POLL_LEFT_S, Allocation, GpuAllocator, Job
from madlite.errors import UsageProblem

_LOOK_AHEAD = 64  # of the waiting runs: with ten thousand of them not each is tried each time
MOST_BESIDE = 64  # runs at the same time that are named


class _Running:
    """A run that goes on."""

    def __init__(self, start: Allocation, began_s: float, passed: int | None) -> None:
        self.start, self.began_s = start, began_s
        self.passed = passed  # the position of the run before it that was waiting for GPUs
        self.beside: dict[str, None] = {}  # runs at the same time, in the order in which they met
        self.is_blocked = start.job.blocked or start.problem is not None  # then it executes nothing


class Scheduler:
    """Gives the jobs of a batch to threads that run them, one after another as each can start; safe from any thread.

    `cpu_slots` is how many runs without a GPU go on at once; `is_over` says that none starts any more.  `on_wait` gets
    why no run can start as long as that is for other processes, and "" when one can.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        pool: GpuAllocator | None,
        cpu_slots: int,
        *,
        in_order: bool = False,
        on_wait: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waiting = list(jobs) if in_order else _longest_first(jobs)
        self._head: int | None = None  # the position of the first that waits for GPUs
        self._pool, self._cpu_slots = pool, cpu_slots
        self._on_wait, self._clock = on_wait, clock
        self._condition = threading.Condition()
        self._running: dict[int, _Running] = {}
        self._in_order = in_order
        self.is_over = self._is_polling = self._has_begun = False
        self._shown = ""

    def take(self) -> Allocation | None:
        """Return the next run as soon as one can start; None once none is to start any more.

        Raises:
            UsageProblem: the leases cannot be used, and no run has started yet; later it is that of a `Start`.
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

    def note(self, start: Allocation, run_id: str, folder: str, handle: str = "") -> None:
        """Note which run is on its GPUs, and once its session is open the handle of that."""
        with self._condition:
            if self._pool is not None and start.job.position in self._running:
                self._pool.note(start.leased, run_id, folder, handle)

    def beside(self, start: Allocation) -> tuple[str, ...]:
        """Return the runs that went on beside one so far."""
        with self._condition:
            running = self._running[start.job.position]
            if self._pool is not None:
                running.beside.update(dict.fromkeys(self._pool.beside()))
            return tuple(islice(running.beside, MOST_BESIDE))

    def try_again(self, start: Allocation, run_id: str, folder: str, wait_s: float) -> Allocation | None:
        """Return the start of a run's next attempt, after `wait_s` on the same GPUs; None once no run starts.

        It does not start before what the failed attempt left on them is gone.
        """
        self._wait_or_stop(wait_s)
        while (left := self._left_by(start)) and not self.is_over:
            with self._condition:
                self._show(f"{left}, left by run {start.job.run_id} that is to be tried again")
            self._wait_or_stop(POLL_LEFT_S)
        with self._condition:
            self._show("")
            if self.is_over:
                return None
            before = self._running.pop(start.job.position)
            following = replace(start, job=replace(start.job, run_id=run_id, folder=folder))
            begun = _Running(following, self._clock(), before.passed)
            self._meet(begun)
            self._running[start.job.position] = begun
            return following

    def end(self, start: Allocation) -> tuple[str, ...]:
        """Take back what an ended run had, and return the runs that went on beside it; a second time nothing."""
        with self._condition:
            if start.job.position not in self._running:
                return ()
        left = self._left_by(start)
        with self._condition:
            ended = self._running.pop(start.job.position)
            if self._pool is not None:
                ended.beside.update(dict.fromkeys(self._pool.beside()))
                self._pool.give_back(start.leased, left=left)
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
            now_s = self._clock()
            jobs = [(running.start.job, now_s - running.began_s) for running in self._running.values()]
            jobs += [(job, 0.0) for job in self._waiting]
        if any(job.expected_s is None for job, _ in jobs) and typical_s is None:
            return None
        needs_s = [max(0.0, (job.expected_s or typical_s or 0.0) - done_s) for job, done_s in jobs]
        with_gpus = self._pool is not None and any(job.gpus for job, _ in jobs)
        room = len(self._pool.every) if self._pool is not None and with_gpus else self._cpu_slots
        together_s = sum(max(1, job.gpus) * need_s for (job, _), need_s in zip(jobs, needs_s, strict=True))
        return max(together_s / max(1, room), *needs_s, 0.0)

    def _left_by(self, start: Allocation) -> str:
        """Return what a run that ended left running on its GPUs, as text; without the lock, for it takes long."""
        return self._pool.left_on(start.leased) if self._pool is not None and not start.job.keeps else ""

    def _wait_or_stop(self, wait_s: float) -> None:
        """Wait for so long, or until no run starts any more."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_over, wait_s)

    def _wait(self) -> None:
        """Wait for a change: of our own runs, and one of the threads also for other processes."""
        waiting = self._pool.waiting if self._pool is not None else None
        if waiting is None or self._is_polling:
            self._condition.wait()
            return
        self._is_polling = True
        try:
            if waiting.for_foreign and self._pool is not None and self._pool.is_out_of_date:
                self._list_foreign(self._pool)
                return
            self._show(waiting.text)
            self._condition.wait(waiting.poll_s)
        finally:
            self._is_polling = False

    def _list_foreign(self, pool: GpuAllocator) -> None:
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

    def _next(self) -> Allocation | None:
        """Start the first of the waiting runs that can; None where none can now."""
        keys = {key for running in self._running.values() for key in running.start.job.keys}
        head, waited = None, None  # the first that waits for GPUs, and what for
        for job in self._in_turn():
            if keys & job.keys:
                keys |= job.keys  # nobody gets past it with one of them
            elif (start := self._start_of(job, head)) is not None:
                return self._begin(start, head)
            elif head is None and self._needs_gpus(job):
                head, waited = job, self._pool.waiting if self._pool is not None else None
        self._head = head.position if head is not None else None
        if self._pool is not None:
            self._pool.waiting = waited
        return None

    def _in_turn(self) -> list[Job]:
        """Return the waiting runs that may start now in their order; the one with a reservation is the first."""
        looked_at = self._waiting[: 1 if self._in_order else _LOOK_AHEAD]
        return sorted(looked_at, key=lambda job: job.position != self._head)

    def _needs_gpus(self, job: Job) -> bool:
        return self._pool is not None and (job.gpus > 0 or job.exclusive)

    def _room_for(self, job: Job, head: Job | None) -> tuple[int, ...] | None:
        """Return the GPUs that a run can start with now, none for one that needs none; None where it cannot."""
        if self._pool is None or not self._needs_gpus(job):
            without = sum(not running.start.leased for running in self._running.values())
            return () if without < self._cpu_slots else None
        if head is None:
            return self._pool.take(job, passes=False)
        usable = self._pool.usable(head)
        if usable is None:
            return self._pool.take(job, passes=True)
        passing = [running for running in self._running.values() if running.passed == head.position]
        used = sum(len(usable.intersection(running.start.leased)) for running in passing)
        if len(usable) - used - job.gpus < head.gpus:
            return None
        return self._pool.take(job, passes=True, spared=head.allowed)  # what it keeps would be missed meanwhile

    def _start_of(self, job: Job, head: Job | None) -> Allocation | None:
        """Return the start of a run, also of one that cannot have GPUs any more; None where it waits."""
        try:
            leased = self._room_for(job, head)
        except UsageProblem as problem:
            if not self._has_begun:
                raise
            return Allocation(job=job, problem=problem)
        return Allocation(job=job, leased=leased) if leased is not None else None

    def _begin(self, start: Allocation, head: Job | None) -> Allocation:
        job = start.job
        self._waiting.remove(job)
        self._head = head.position if head is not None else None
        self._has_begun = True
        begun = _Running(start, self._clock(), self._head if start.leased else None)
        self._meet(begun)
        self._running[job.position] = begun
        return start

    def _meet(self, begun: _Running) -> None:
        """Note of a run that begins, and of those that go on now, that they were beside each other."""
        if self._pool is not None:
            begun.beside.update(dict.fromkeys(self._pool.beside()))
        for running in self._running.values():
            if running.is_blocked or begun.is_blocked:
                continue
            begun.beside[running.start.job.run_id] = None
            if len(running.beside) < MOST_BESIDE:
                running.beside[begun.start.job.run_id] = None


def _longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs by their durations, of alike ones those with many GPUs first: what is small fills what they leave.

    One whose duration is not known is taken for one like the others.
    """
    known = sorted(job.expected_s for job in jobs if job.expected_s is not None)
    typical_s = known[len(known) // 2] if known else 0.0

    def key(job: Job) -> tuple[float, int, int]:
        return (-(typical_s if job.expected_s is None else job.expected_s), -job.gpus, job.position)

    return sorted(jobs, key=key)
