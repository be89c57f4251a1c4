"""Which run of a batch starts when, and on which GPUs: the longest first, none of them shared.

A run that needs more GPUs than are free has a reservation: a later one may start before it only where enough GPUs are
left for it in the end.  A run that is tried again comes right behind the one that waits with a reservation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile

from msgspec.structs import replace

from madlite.batch.gpu_pool import GpuPool, Job, Start
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
        self._head: int | None = None  # the position of the first that waits for GPUs
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
            while self._waiting and not self.is_over:
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

    def beside(self, start: Start) -> tuple[str, ...]:
        """Return the runs that went on beside one so far."""
        with self._condition:
            running = self._running[start.job.position]
            if self._pool is not None:
                running.beside.update(dict.fromkeys(self._pool.beside()))
            return tuple(islice(running.beside, MOST_BESIDE))

    def end(self, start: Start) -> tuple[str, ...]:
        """Take back what an ended run had, and return the runs that went on beside it; a second time nothing."""
        return self._end(start, None)

    def rest(self, start: Start, run_id: str, folder: str, wait_s: float) -> None:
        """Take back what an attempt of a run had; the next one, `run_id`, starts before other runs, after `wait_s`."""
        self._end(start, replace(start.job, run_id=run_id, folder=folder, due_s=self._clock() + wait_s))

    def _end(self, start: Start, following: Job | None) -> tuple[str, ...]:
        with self._condition:
            if not self._goes_on(start):
                return ()
        left = self._pool.left_on(start.leased) if self._pool is not None and not start.job.keeps else ""
        with self._condition:
            if following is not None:  # behind those that are due before it
                before = sum(1 for job in self._retried() if job.due_s <= following.due_s)
                self._waiting.insert(before, following)
            ended = self._running.pop(start.job.position)
            if self._pool is not None:
                ended.beside.update(dict.fromkeys(self._pool.beside()))
                self._pool.give_back(start.leased, left=left)
            self._condition.notify_all()
            return tuple(islice(ended.beside, MOST_BESIDE))

    def give_up(self) -> int | None:
        """Return the position of a run that was to be tried again and is not any more, each once; None without one."""
        with self._condition:
            left = min((job.position for job in self._retried()), default=None) if self.is_over else None
            self._waiting = [job for job in self._waiting if job.position != left]
            return left

    def _retried(self) -> Iterator[Job]:
        """Yield the runs that are to be tried again: they are the first of the waiting ones."""
        return takewhile(lambda job: job.due_s > 0, self._waiting)

    def _resting(self) -> list[Job]:
        """Return those that are tried again later."""
        now_s = self._clock()
        return [job for job in self._retried() if job.due_s > now_s]

    def _goes_on(self, start: Start) -> bool:
        """Return whether a run was not ended yet: another attempt of it has a start of its own."""
        running = self._running.get(start.job.position)
        return running is not None and running.start is start

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
            jobs = [(running.start.job, now_s - running.began_s, 0.0) for running in self._running.values()]
            jobs += [(job, 0.0, max(0.0, job.due_s - now_s)) for job in self._waiting]
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
        rest_s = min((max(0.0, job.due_s - self._clock()) for job in self._resting()), default=None)
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
        now_s, resting = self._clock(), len(self._resting())
        only_retried = resting >= (1 if self._in_order else _MOST_RESTING)
        keys = {key for running in self._running.values() for key in running.start.job.keys}
        head, waited = None, None  # the first that waits for GPUs, and what for
        for job in self._in_turn(resting):
            if job.due_s > now_s or (only_retried and not job.due_s):
                continue
            if keys & job.keys:
                keys |= job.keys  # nobody gets past it with one of them
            elif (start := self._start_of(job, head)) is not None:
                return self._begin(start, head)
            elif head is None and self._needs_gpus(job):
                head, waited = job, self._pool.waiting if self._pool is not None else None
        self._head = head.position if head is not None else None
        if self._pool is not None:
            self._pool.waiting = waited
            if only_retried and head is None:  # no GPU is kept for a run that does not start before others
                self._pool.let_go()
        return None

    def _in_turn(self, resting: int) -> list[Job]:
        """Return the waiting runs that may start now in their order; the one with a reservation is the first."""
        looked_at = self._waiting[: resting + (1 if self._in_order else _LOOK_AHEAD)]
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

    def _start_of(self, job: Job, head: Job | None) -> Start | None:
        """Return the start of a run, also of one that cannot have GPUs any more; None where it waits."""
        try:
            leased = self._room_for(job, head)
        except UsageProblem as problem:
            if not self._has_begun:
                raise
            return Start(job=job, problem=problem)
        return Start(job=job, leased=leased) if leased is not None else None

    def _begin(self, start: Start, head: Job | None) -> Start:
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
