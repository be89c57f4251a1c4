"""A thread that samples a run's GPUs, and can neither delay the run nor fail it.

It is a daemon: a call into a driver that hangs cannot be ended, only be left behind.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec

from madlite.machine.host import Host
from madlite.machine.kfd_processes import driver_ids, kfd_users
from madlite.machine.strangers import Ours, Stranger, find_strangers, sees_all_processes, together, words
from madlite.machine.telemetry.choose import open_sources
from madlite.machine.telemetry.reading import Answer, Reading, Source, User
from madlite.model import Gpu, Value, Vendor
from madlite.safe_files import Folder

SHARE = 0.005  # of one core, at most
MOST_SAMPLES = 7200  # that are kept: from then on half of them, at twice the interval
MOST_BYTES = 64 << 20  # of the file
USERS_EVERY_S = 10.0  # of asking for processes
BUSY_PERCENT = 5.0  # of utilisation: what an idle GPU does not reach
PATIENCE = 9  # times as long as a tool took, in which the source beside it is read again
LEAVE_S = 2.0  # for the thread to end


class Sample(Value, frozen=True):
    """All GPUs at one moment, `t_s` seconds since the start of the run."""

    t_s: float
    gpus: tuple[Reading, ...]


class Watched(Value, frozen=True):
    """What is to be sampled: GPUs of a vendor on a host, every `interval_s`; and whose processes are ours."""

    vendor: Vendor
    gpus: tuple[Gpu, ...]
    interval_s: float
    ours: Ours
    host: Host = Host()

    @property
    def indexes(self) -> tuple[int, ...]:
        """The GPUs' numbers."""
        return tuple(gpu.index for gpu in self.gpus)


class Sampler:
    """Takes samples between `start` and `stop`; what it has is in its attributes, also while it goes on.

    They also go into `file`, a new one in its `folder`.
    """

    def __init__(self, watched: Watched, file: Path, now: Callable[[], float], folder: Folder | None = None) -> None:
        self.samples: list[Sample] = []
        self.facts: dict[str, str] = {}
        self.source = ""
        self.interval_s = watched.interval_s
        self.problem = ""
        self.cost = 0.0  # CPU seconds in all
        self.strangers_known = False
        self._strangers: dict[int, Stranger] = {}
        self._watched, self._file, self._now, self._folder = watched, file, now, folder
        self._over = threading.Event()
        self._began_s = self._ended_s = time.monotonic()
        self._users_due_s = 0.0
        self._kfd: dict[int, int] | None = None
        self._fd: int | None = None
        self._written = 0
        self._thread = threading.Thread(target=self._run, name="madlite-telemetry", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and leave behind what does not end."""
        self._ended_s = time.monotonic()
        self._over.set()
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            self._note(f"{self.source or 'the driver'} did not answer in time")
        elif not (self.samples or self.problem):
            self._note("nothing was told before the run ended")

    @property
    def strangers(self) -> tuple[str, ...]:
        """The processes on these GPUs that are not ours, in words."""
        return words(self._strangers.values())

    @property
    def core_share(self) -> float | None:
        """What the sampling cost, as a part of one core; None before it lasted."""
        lasted_s = (self._ended_s if self._over.is_set() else time.monotonic()) - self._began_s
        return self.cost / lasted_s if lasted_s > 0 else None

    def _run(self) -> None:
        try:
            self._sample_until_over()
        except Exception as error:  # noqa: BLE001 - a driver's library may raise anything, and must not fail a run
            self._note(f"{type(error).__name__}: {error}")
        finally:
            if self._fd is not None:
                os.close(self._fd)

    def _sample_until_over(self) -> None:
        watched, meter = self._watched, _Meter()
        opened, problem = open_sources(watched.vendor, watched.gpus, watched.host, self._over)
        self.source = " and ".join(source.name for source, _ in opened)
        if problem and not self._over.is_set():
            self._note(problem)
        if not opened:
            return
        try:
            for source, _ in opened[:-1]:  # it was read before the others were opened, which can take a while
                self._take(source.read())
            self._take(opened[-1][1])
            self._look_for_strangers(opened[-1][0], opened[0][1])
            for source, _ in opened:
                self.facts = {**source.facts(), **self.facts}
            self.cost += meter.lap()
            self._go_on([_Paced(source, watched.interval_s) for source, _ in opened], meter)
        finally:
            for source, _ in opened:
                source.close()

    def _go_on(self, sources: Sequence[_Paced], meter: _Meter) -> None:
        """Read each source when it is due; what is due follows from what it cost."""
        self.interval_s = sources[0].interval_s
        while True:
            paced = min(sources, key=lambda one: one.due_s)
            if self._over.wait(max(0.0, paced.due_s - time.monotonic())):
                return
            begun_s = time.monotonic()
            self._take(paced.source.read())
            if paced is sources[-1] and time.monotonic() >= self._users_due_s:
                self._look_for_strangers(paced.source, None)
            spent_s = meter.lap()
            self.cost += spent_s
            paced.was_read(spent_s, 0.0 if paced is sources[0] else time.monotonic() - begun_s)
            if len(self.samples) >= MOST_SAMPLES:
                self.samples = self.samples[::2]
                for one in sources:
                    one.least_s *= 2
            self.interval_s = sources[0].interval_s

    def _take(self, answer: Answer) -> None:
        if answer.problem and not self._over.is_set():
            self._note(answer.problem)
        if answer.readings:
            sample = Sample(t_s=round(self._now(), 3), gpus=answer.readings)
            self.samples.append(sample)
            self._write(sample)

    def _look_for_strangers(self, source: Source, before: Answer | None) -> None:
        """Note who else uses the GPUs; `before` is what they did before ours began."""
        watched = self._watched
        self._users_due_s = time.monotonic() + USERS_EVERY_S
        proc = watched.host.root / "proc"
        if not sees_all_processes(proc) or (users := self._users(source)) is None:
            return
        self.strangers_known = True
        told = before.readings if before else ()
        busy = [one.index for one in told if (one.utilization_percent or 0.0) >= BUSY_PERCENT]
        self._strangers = together(self._strangers.values(), find_strangers(users, watched.ours, proc, busy))

    def _users(self, source: Source) -> Sequence[User] | None:
        """Return who is on the GPUs: of AMD's by the driver's files, which cost nothing, else by the source."""
        if self._watched.vendor == "AMD":
            root = self._watched.host.root
            self._kfd = driver_ids(root, self._watched.gpus) if self._kfd is None else self._kfd
            if (found := kfd_users(root, self._kfd)) is not None:
                return found
        return source.users()

    def _write(self, sample: Sample) -> None:
        """Append a sample to the file; a full disk costs the file, not the samples."""
        line = msgspec.json.encode(sample) + b"\n"
        if self._written + len(line) > MOST_BYTES:
            return
        try:
            if self._fd is None:
                self._fd = self._create()
            self._written += os.write(self._fd, line)
        except OSError as error:
            self._written = MOST_BYTES
            self._note(f"{self._file.name} is incomplete: {error.strerror}")

    def _create(self) -> int:
        with nullcontext(self._folder) if self._folder is not None else Folder.open(self._file.parent) as folder:
            return folder.create(self._file.name, os.O_WRONLY | os.O_APPEND)

    def _note(self, problem: str) -> None:
        """Keep the first of each kind of problem: a lost GPU says it at every sample."""
        plain = "".join(filter(str.isprintable, problem))[:300]
        if plain and plain not in self.problem and len(self.problem) < 600:
            self.problem = f"{self.problem}; {plain}" if self.problem else plain


class _Paced:
    """A source and when it is due: never so often that it costs more than its share of a core."""

    def __init__(self, source: Source, asked_s: float) -> None:
        self.source = source
        self.least_s = self.interval_s = max(asked_s, source.least_interval_s)
        self.due_s = time.monotonic() + self.interval_s
        self._costs: list[float] = []

    def was_read(self, cost_s: float, lasted_s: float = 0.0) -> None:
        """Note what a reading cost, in CPU seconds; and how long another source had to wait for it."""
        self._costs = [*self._costs[-2:], cost_s]
        self.interval_s = max(self.least_s, max(self._costs) / SHARE, PATIENCE * lasted_s)
        self.due_s = time.monotonic() + self.interval_s


class _Meter:
    """What this thread and the processes that it waited for have cost."""

    def __init__(self) -> None:
        self._last = self._spent()
        self._at = time.monotonic()

    def lap(self) -> float:
        """Return CPU seconds since the last time; never more than a core could have spent."""
        before, at = self._last, self._at
        self._last, self._at = self._spent(), time.monotonic()
        return max(0.0, min(self._last - before, self._at - at))

    def _spent(self) -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.thread_time() + children.ru_utime + children.ru_stime
