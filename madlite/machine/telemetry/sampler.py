"""A thread that samples a run's GPUs, and can neither delay the run nor fail it.

It is a daemon: a call into a driver that hangs cannot be ended, only be left behind.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from threading import Event

import msgspec

from madlite.cancellation import in_thread
from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.machine.detect import TOOLS
from madlite.machine.host import Host
from madlite.machine.processes import (
    ForeignProcess,
    OwnProcesses,
    describe_processes,
    find_foreign,
    merge_processes,
    sees_all_processes,
)
from madlite.machine.sources.amdgpu import AmdGpu, driver_facts
from madlite.machine.sources.base import GpuProcess, Reading, ReadResult, Sample, TelemetrySource
from madlite.machine.sources.kfd import kfd_processes
from madlite.machine.sources.nvml import Nvml
from madlite.machine.visible import visible_gpus
from madlite.model import Gpu, GpuStart, RunPlan, Say, Settling, Value, Vendor

# What a run's GPUs are like right before its workload begins: how hot they are, and how fast.

LIMIT_S = 10.0  # for a driver or a tool to answer; one that does not is not asked again
LEAST_INTERVAL_S = 1.0  # between two readings
_LOG = logging.getLogger(__name__)


class StartReader:
    """Reads GPUs of a vendor until `close`; nothing of it raises, and none of it outlasts its limit."""

    def __init__(self, vendor: Vendor, gpus: Sequence[Gpu], host: Host) -> None:
        self._vendor, self._gpus, self._host = vendor, tuple(gpus), host
        self._over = threading.Event()
        self._source: TelemetrySource | None = None
        self._is_lost = not gpus

    @property
    def interval_s(self) -> float:
        """The least time between two readings: a tool is a process each time."""
        return max(LEAST_INTERVAL_S, self._source.least_interval_s if self._source is not None else 0.0)

    def read(self) -> tuple[GpuStart, ...]:
        """Return each GPU that reports its temperature or its clock; none where nothing answers in time."""
        if self._is_lost:
            return ()
        reading = in_thread(self._read, "madlite-start")
        found = reading.result() if wait([reading], LIMIT_S).done else ()
        self._is_lost = not found
        starts = [
            GpuStart(index=item.index, temperature_c=item.temperature_c, clock_mhz=item.clock_mhz) for item in found
        ]
        return tuple(start for start in starts if (start.temperature_c, start.clock_mhz) != (None, None))

    def close(self) -> None:
        """Give back what reading took."""
        self._over.set()
        if self._source is not None and not self._is_lost:
            with suppress(Exception):
                self._source.close()

    def _read(self) -> Sequence[Reading]:
        try:
            if self._source is not None:
                return self._source.read().readings
            opened, _ = open_sources(self._vendor, self._gpus, self._host, self._over)
            for source, _ in opened[1:]:  # the first one is read again: it costs the least
                source.close()
            self._source = opened[0][0] if opened else None
            return opened[0][1].readings if opened else ()
        except Exception as error:  # noqa: BLE001 - a driver's library may raise anything, and must not fail a run
            _LOG.debug("the GPUs were not read: %s", error)
            return ()


SHARE = 0.005  # of one core, at most
MOST_SAMPLES = 7200  # that are kept: from then on half of them, at twice the interval
MOST_BYTES = 64 << 20  # of the file
PROCESSES_EVERY_S = 10.0  # of reading the list of processes
BUSY_PERCENT = 5.0  # of utilisation: what an idle GPU does not reach
TOOL_PAUSE_FACTOR = 9  # times as long as a tool took, in which the source beside it is read again
LEAVE_S = 2.0  # for the thread to end


class SamplingTarget(Value, frozen=True):
    """What is to be sampled: GPUs of a vendor on a host, every `interval_s`; and which processes are the run's own."""

    vendor: Vendor
    gpus: tuple[Gpu, ...]
    interval_s: float
    own: OwnProcesses
    host: Host = Host()


def used_gpus(plan: RunPlan) -> tuple[Gpu, ...]:
    """Return the GPUs of a run: what it is granted, less what its environment hides.

    A container counts the GPUs it is given from 0, a process of the host those of the machine.  A list that names no
    GPU of ours is the workload's own business: then the granted ones are meant.
    """
    allocated = [gpu for gpu in plan.machine.gpus if gpu.index in plan.place.gpu_ids]
    counted = allocated if plan.traits.containerised else plan.machine.gpus
    left = visible_gpus(plan.machine.vendor, counted, plan.env)
    return tuple(left or allocated) if allocated else ()


def open_sources(
    vendor: Vendor, gpus: Sequence[Gpu], host: Host, cancelled: Event
) -> tuple[list[tuple[TelemetrySource, ReadResult]], str]:
    """Return the sources that read these GPUs, each with its first result; and why others do not.

    One source is enough, but that the files of AMD's driver, which cost nothing, report throttling only with newer
    drivers: then a tool is read too, now and then.  May block for as long as a driver does.
    """
    found: list[tuple[TelemetrySource, ReadResult]] = []
    if vendor == "AMD":
        files = AmdGpu(host.root, gpus)
        found = [(files, first)] if (first := files.read()).readings else []
        if found and files.counts:
            return found, ""
    problems: list[str] = []
    for tool in _tools(vendor, [gpu.index for gpu in gpus], host, cancelled):
        if cancelled.is_set():
            break
        result = tool.read()
        if result.readings:
            return [*found, (tool, result)], ""
        tool.close()
        problems.append(f"{tool.name}: {result.problem or 'it says nothing'}")
    return found, "; ".join(problems)


def _tools(vendor: Vendor, indexes: Sequence[int], host: Host, cancelled: Event) -> Sequence[TelemetrySource]:
    tools = [tool(host, indexes, cancelled) for tool in TOOLS[vendor]]
    if vendor != "NVIDIA":
        return tools
    import pynvml

    return [Nvml(pynvml, indexes), *tools]


def list_processes(vendor: Vendor, gpus: Sequence[Gpu], host: Host, cancelled: Event) -> tuple[GpuProcess, ...]:
    """Return the processes on GPUs, as the driver or the first tool that can lists them; none where nothing does."""
    if vendor == "CPU":
        return ()
    if vendor == "AMD" and (found := kfd_processes(host.root, gpus)) is not None:
        return found
    for tool in _tools(vendor, [gpu.index for gpu in gpus], host, cancelled):
        try:
            if tool.read().readings and (listed := tool.processes()) is not None:
                return listed
        finally:
            tool.close()
    return ()


class Sampler:
    """Takes samples between `start` and `stop`; what it has is in its attributes, also while it goes on.

    They also go into a new file of this name in the folder.
    """

    def __init__(self, target: SamplingTarget, folder: Folder, name: str, now: Callable[[], float]) -> None:
        self.samples: list[Sample] = []
        self.facts: dict[str, str] = {}
        self.source = ""
        self.interval_s = target.interval_s
        self.problem = ""
        self.cost = 0.0  # CPU seconds in all
        self.processes_known = False  # whether processes could be distinguished
        self._foreign: dict[int, ForeignProcess] = {}
        self._target, self._folder, self._name, self._now = target, folder, name, now
        self._over = threading.Event()
        self._began_s = self._ended_s = time.monotonic()
        self._processes_due_s = 0.0
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
            self._note("no sample before the run ended")

    @property
    def foreign_processes(self) -> tuple[str, ...]:
        """The processes on these GPUs that are not the run's, as text."""
        return describe_processes(self._foreign.values())

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
        target, meter = self._target, _CpuMeter()
        opened, problem = open_sources(target.vendor, target.gpus, target.host, self._over)
        self.source = " and ".join(source.name for source, _ in opened)
        if problem and not self._over.is_set():
            self._note(problem)
        if not opened:
            return
        try:
            for source, _ in opened[:-1]:  # it was read before the others were opened, which can take a while
                self._take(source.read())
            self._take(opened[-1][1])
            self._find_foreign(opened[-1][0], opened[0][1])
            by_files = driver_facts(target.host.root, target.gpus) if target.vendor == "AMD" else {}
            self.facts = by_files or opened[-1][0].facts()
            self.cost += meter.lap()
            self._go_on([_Schedule(source, target.interval_s) for source, _ in opened], meter)
        finally:
            for source, _ in opened:
                source.close()

    def _go_on(self, schedules: Sequence[_Schedule], meter: _CpuMeter) -> None:
        """Read each source when it is due; what is due follows from what it cost."""
        self.interval_s = schedules[0].interval_s
        while True:
            due = min(schedules, key=lambda schedule: schedule.due_s)
            if self._over.wait(max(0.0, due.due_s - time.monotonic())):
                return
            begun_s = time.monotonic()
            self._take(due.source.read())
            if due is schedules[-1] and time.monotonic() >= self._processes_due_s:
                self._find_foreign(due.source, None)
            spent_s = meter.lap()
            self.cost += spent_s
            due.was_read(spent_s, 0.0 if due is schedules[0] else time.monotonic() - begun_s)
            if len(self.samples) >= MOST_SAMPLES:
                self.samples = self.samples[::2]
                for schedule in schedules:
                    schedule.least_s *= 2
            self.interval_s = schedules[0].interval_s

    def _take(self, result: ReadResult) -> None:
        if result.problem and not self._over.is_set():
            self._note(result.problem)
        if result.readings:
            sample = Sample(t_s=round(self._now(), 3), gpus=result.readings)
            self.samples.append(sample)
            self._write(sample)

    def _find_foreign(self, source: TelemetrySource, before: ReadResult | None) -> None:
        """Note who else uses the GPUs; `before` is what they did before the run's own processes began."""
        self._processes_due_s = time.monotonic() + PROCESSES_EVERY_S
        root, proc = self._target.host.root, self._target.host.root / "proc"
        if not sees_all_processes(proc):
            return
        listed = kfd_processes(root, self._target.gpus) if self._target.vendor == "AMD" else None
        if listed is None and (listed := source.processes()) is None:
            return
        self.processes_known = True
        readings = before.readings if before else ()
        busy = [reading.index for reading in readings if (reading.utilization_percent or 0.0) >= BUSY_PERCENT]
        self._foreign = merge_processes(self._foreign.values(), find_foreign(listed, self._target.own, proc, busy))

    def _write(self, sample: Sample) -> None:
        """Append a sample to the file; a full disk costs the file, not the samples."""
        line = msgspec.json.encode(sample) + b"\n"
        if self._written + len(line) > MOST_BYTES:
            return
        try:
            if self._fd is None:
                self._fd = self._folder.create(self._name, os.O_WRONLY | os.O_APPEND)
            self._written += os.write(self._fd, line)
        except OSError as error:
            self._written = MOST_BYTES
            self._note(f"{self._name} is incomplete: {error.strerror}")

    def _note(self, problem: str) -> None:
        """Keep the first of each kind of problem: a lost GPU says it at every sample."""
        plain = "".join(filter(str.isprintable, problem))[:300]
        if plain and plain not in self.problem and len(self.problem) < 600:
            self.problem = f"{self.problem}; {plain}" if self.problem else plain


class _Schedule:
    """A source and when it is due: never so often that it costs more than its share of a core."""

    def __init__(self, source: TelemetrySource, requested_s: float) -> None:
        self.source = source
        self.least_s = self.interval_s = max(requested_s, source.least_interval_s)
        self.due_s = time.monotonic() + self.interval_s
        self._costs: list[float] = []

    def was_read(self, cost_s: float, lasted_s: float = 0.0) -> None:
        """Note what a reading cost, in CPU seconds; and how long another source had to wait for it."""
        self._costs = [*self._costs[-2:], cost_s]
        self.interval_s = max(self.least_s, max(self._costs) / SHARE, TOOL_PAUSE_FACTOR * lasted_s)
        self.due_s = time.monotonic() + self.interval_s


class _CpuMeter:
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


# `--settle`: each run begins with GPUs about as hot as those that the first run of the command began with.

NEAR_C = 2.0  # above the first run's start: sensors count in whole degrees, and cooling ends slowly
LEAST_C, MOST_C = 10.0, 110.0  # what a user may wait for
FIRST = "first"
UNKNOWN = "--settle has no effect: nothing here reports the temperature of the run's GPUs"


class Settle:
    """Waits before each run, for `limit_s` at most, until the hottest of its GPUs has cooled down.

    `target_c` is the temperature to wait for; None takes the first run's own start, and `NEAR_C` above it.
    """

    def __init__(
        self, target_c: float | None = None, limit_s: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target_c, self._limit_s, self._clock = target_c, limit_s, clock
        self._said_unknown = False

    def unknown(self) -> str:
        """Return that no temperature is known, the first time; "" after it."""
        said, self._said_unknown = self._said_unknown, True
        return "" if said else UNKNOWN

    def wait(
        self, read: Callable[[], Sequence[GpuStart]], interval_s: Callable[[], float], over: Event, say: Say
    ) -> tuple[tuple[GpuStart, ...], Settling | None]:
        """Return the last reading, and what was waited for: None where no temperature is known.

        `over` ends the wait, `say` is told how it goes.
        """
        began_s = self._clock()
        starts = tuple(read())
        first_c = now_c = hottest(starts)
        if first_c is None or now_c is None:
            return starts, None
        if self._target_c is None:
            self._target_c = first_c + NEAR_C
        while now_c > self._target_c and self._clock() - began_s < self._limit_s and not over.is_set():
            say(f"cooling down: {now_c:.0f} °C, until {self._target_c:.0f} °C")
            over.wait(min(interval_s(), self._limit_s - (self._clock() - began_s)))
            if (read_c := hottest(again := tuple(read()))) is None:
                break
            starts, now_c = again, read_c
        return starts, Settling(
            target_c=self._target_c,
            waited_s=round(self._clock() - began_s, 3),
            from_c=first_c,
            to_c=now_c,
            reached=now_c <= self._target_c,
        )


def make_settle(text: str, limit_s: float) -> Settle:
    """Return what waits as the option --settle says: `first`, which it has without a value, or a temperature.

    Raises:
        UsageProblem: it is neither.
    """
    if text == FIRST:
        return Settle(limit_s=limit_s)
    try:
        target_c = float(text)
    except ValueError:
        target_c = 0.0
    if not LEAST_C <= target_c <= MOST_C:
        what = f"--settle {text}: it is no temperature of {LEAST_C:.0f} to {MOST_C:.0f} °C"
        raise UsageProblem(
            what, "--settle=45, or --settle as the last word for the temperature at the first run's start"
        )
    return Settle(target_c, limit_s)


def hottest(starts: Sequence[GpuStart]) -> float | None:
    """Return the temperature of the hottest GPU; None where none reports one."""
    return max((start.temperature_c for start in starts if start.temperature_c is not None), default=None)


def settling_text(settling: Settling) -> str:
    """Return what a run waited for as a sentence; "" where it began at once, as it should."""
    waited = f"{settling.waited_s:.0f} s for the GPUs to cool down from {settling.from_c:.0f} °C"
    if not settling.reached:
        return f"waited {waited}, and they began at {settling.to_c:.0f} °C, not {settling.target_c:.0f} °C (--settle)"
    if settling.from_c <= settling.target_c:
        return ""
    return f"waited {waited} to {settling.to_c:.0f} °C (--settle)"
