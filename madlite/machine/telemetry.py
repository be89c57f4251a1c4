"""What a run's GPUs do: sampled by a thread that can neither delay the run nor fail it, and summed up over a span.

It is a daemon: a call into a driver that hangs cannot be ended, only be left behind.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from itertools import pairwise
from threading import Event
from types import MappingProxyType

import msgspec

from madlite.cancellation import in_thread
from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.machine.host import Host
from madlite.machine.processes import (
    ForeignProcess,
    OwnProcesses,
    describe_processes,
    find_foreign,
    merge_processes,
    sees_all_processes,
)
from madlite.machine.sources.amd_smi import AmdSmi
from madlite.machine.sources.amdgpu import AmdGpu, driver_facts, kfd_processes
from madlite.machine.sources.base import (
    POWER_CAP,
    THROTTLING,
    GpuProcess,
    Reading,
    ReadResult,
    Sample,
    TelemetrySource,
    ToolSource,
)
from madlite.machine.sources.nvidia_smi import NvidiaSmi
from madlite.machine.sources.nvml import Nvml
from madlite.model import Gpu, GpuStart, GpuUse, Say, Settling, Telemetry, Value, Vendor

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
TOOLS: dict[Vendor, type[ToolSource]] = {"NVIDIA": NvidiaSmi, "AMD": AmdSmi}


class SamplingTarget(Value, frozen=True):
    """What is to be sampled: GPUs of a vendor on a host, every `interval_s`; and which processes are the run's own."""

    vendor: Vendor
    gpus: tuple[Gpu, ...]
    interval_s: float
    own: OwnProcesses
    host: Host = Host()


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
    tool = TOOLS[vendor](host, indexes, cancelled)
    if vendor != "NVIDIA":
        return [tool]
    import pynvml

    return [Nvml(pynvml, indexes), tool]


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
            is_amd = target.vendor == "AMD"
            self.facts = driver_facts(target.host.root, target.gpus) if is_amd else opened[-1][0].facts()
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


# Samples → what the GPUs did over a span of the run.
#
# Means are taken over the time of the span.  Where a GPU counts its energy, its mean power is exact: the difference
# over the time between two samples.  Where AMD's driver counts the ticks in which a reason held, so is the part of the
# time in which a GPU was held down; else that is the part of the samples.  GPUs that share a package share its power,
# and GPUs that did nothing while others worked are no part of the mean.


NO_PACKAGES: Mapping[int, str] = MappingProxyType({})
LEAST_SAMPLES = 3  # of a span: fewer mean little
LEAST_ENERGY_S = 10.0  # between two counts of energy: drivers count in steps of up to a tenth of a second
THROTTLED_FROM = 0.05  # of the window: from there on it is a finding
_SHOWN_FROM = 0.005  # what would be shown as 0 %
_IDLE_PERCENT = 1.0  # of utilisation, at most
_AT_WORK_PERCENT = 20.0


class _SampleSeries(Value, frozen=True):
    """The readings of one GPU in a span, with their times."""

    index: int
    readings: tuple[tuple[float, Reading], ...]

    def timed(self, field: str) -> list[tuple[float, float]]:
        """Return what the readings report about one field, each with its time."""
        return [(at, value) for at, reading in self.readings if (value := getattr(reading, field)) is not None]

    def mean(self, field: str) -> float | None:
        """Return the mean of one field over the time of the span."""
        return _mean_over_time(self.timed(field))

    def most(self, field: str) -> float | None:
        """Return the highest value of one field."""
        return max((value for _, value in self.timed(field)), default=None)


def summarise(
    samples: Sequence[Sample],
    indexes: Sequence[int],
    began_s: float | None,
    ended_s: float | None,
    vendor: Vendor,
    packages: Mapping[int, str] = NO_PACKAGES,
    source: str = "",
) -> Telemetry:
    """Return what GPUs did between two times of the run; over all of it where too few samples are between them.

    `packages` names what GPUs are parts of, where several can be parts of one; `source` is what read them.
    """
    within = [
        item for item in samples if began_s is not None and ended_s is not None and began_s <= item.t_s <= ended_s
    ]
    in_window = len(within) >= LEAST_SAMPLES
    span = within if in_window else list(samples)
    series = [_series(span, index) for index in indexes]
    uses = tuple(_use(curve) for curve in series)
    reporting = {reading.index for sample in samples for reading in sample.gpus if reading.power_w is not None}
    power_w, problem = _mean_power(uses, _silent(uses, vendor, reporting), packages)
    by = {reason: max((use.throttled.get(reason, 0.0) for use in uses), default=0.0) for reason in THROTTLING}
    taken = max((len(curve.readings) for curve in series), default=0)
    missing = f"{source} reports no power" if taken and all(use.power_w is None for use in uses) else ""
    return Telemetry(
        source=source,
        over=("window" if in_window else "run") if taken else "",
        samples=taken,
        gpus=uses if taken else (),
        power_w=power_w,
        throttled=_any(span, series, THROTTLING),
        throttled_by={reason: part for reason, part in by.items() if part},
        power_cap=_any(span, series, (POWER_CAP,)),
        problem="; ".join(filter(None, (missing, problem))),
    )


def _series(span: Iterable[Sample], index: int) -> _SampleSeries:
    found = ((sample.t_s, reading) for sample in span for reading in sample.gpus if reading.index == index)
    return _SampleSeries(index=index, readings=tuple(found))


def _use(series: _SampleSeries) -> GpuUse:
    parts = _parts(series)
    sampled_w = series.mean("power_w")
    return GpuUse(
        index=series.index,
        power_w=_exact_power(series, sampled_w) or sampled_w,
        power_max_w=series.most("power_w"),
        clock_mhz=series.mean("clock_mhz"),
        memory_clock_mhz=series.mean("memory_clock_mhz"),
        temperature_c=series.most("temperature_c"),
        memory_used_gib=series.most("memory_used_gib"),
        utilization_percent=series.mean("utilization_percent"),
        throttled={reason: part for reason, part in (parts or {}).items() if part > 0 and reason != POWER_CAP},
        power_cap=None if parts is None else parts.get(POWER_CAP, 0.0),
    )


def _exact_power(series: _SampleSeries, sampled_w: float | None) -> float | None:
    """Return the mean power by the counted energy; a counter far from what was sampled is broken."""
    counted = series.timed("energy_j")
    if len(counted) < 2 or counted[-1][0] - counted[0][0] < LEAST_ENERGY_S:
        return None
    power_w = (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])
    fits = sampled_w is None or sampled_w / 2 <= power_w <= sampled_w * 2
    return power_w if power_w > 0 and fits else None


def _parts(series: _SampleSeries) -> dict[str, float] | None:
    """Return for each reason the part of the span in which it held the clocks down; None where that is not known."""
    counted = _counted(series)
    if counted is not None:
        return counted
    slowed = [(at, item.slowed) for at, item in series.readings if item.slowed is not None]
    if not slowed or not _enough(slowed, series.readings):
        return None
    reasons = dict.fromkeys(reason for _, item in slowed for reason in item)
    parts = {reason: _mean_over_time([(at, item.get(reason, 0.0)) for at, item in slowed]) for reason in reasons}
    return {reason: part for reason, part in parts.items() if part is not None}


def _enough(reporting: Sequence[object], taken: Sequence[object]) -> bool:
    """Return whether enough samples report throttling: one of a tool among many of the driver's files is too few."""
    return len(reporting) >= min(LEAST_SAMPLES, len(taken))


def _counted(series: _SampleSeries) -> dict[str, float] | None:
    """Return the parts by the driver's counters; of several that count one reason the highest. None without them.

    What held at every tick since the driver was loaded, and still does, is firmware that does not count it.
    """
    counting = [(item.ticks, item.counters) for _, item in series.readings if item.ticks is not None and item.counters]
    if len(counting) < 2 or (ticks := counting[-1][0] - counting[0][0]) <= 0:
        return None
    (before, first), (after, last) = counting[0], counting[-1]
    found: dict[str, float] = {}
    for name in first.keys() & last.keys():
        if (first[name], last[name]) != (before, after):
            reason, part = name.partition("/")[0], (last[name] - first[name]) / ticks
            found[reason] = max(found.get(reason, 0.0), min(1.0, max(0.0, part)))
    return found or None


def _any(span: Sequence[Sample], series: Sequence[_SampleSeries], reasons: Sequence[str]) -> float | None:
    """Return the part of the span in which any of the reasons held any GPU: that one is what the others wait for.

    Counters do not report when they grew: it is then the part of the GPU and reason that have most.
    """
    counted = [parts for curve in series if (parts := _counted(curve)) is not None]
    most = [max((parts.get(reason, 0.0) for reason in reasons), default=0.0) for parts in counted]
    reported = [(sample.t_s, [item.slowed for item in sample.gpus if item.slowed is not None]) for sample in span]
    sampled = [(at, max(gpu.get(reason, 0.0) for gpu in gpus for reason in reasons)) for at, gpus in reported if gpus]
    if most:
        return max(most)
    return _mean_over_time(sampled) if _enough(sampled, span) else None


def _silent(uses: Iterable[GpuUse], vendor: Vendor, reporting: Container[int]) -> str:
    """Return the GPUs whose power is missing though they have one of their own.

    Of AMD's the first partition of a socket, or the first die of a card, can be the only one that reports any.
    """
    return ", ".join(
        str(use.index) for use in uses if use.power_w is None and (vendor != "AMD" or use.index in reporting)
    )


def _mean_over_time(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of values with their times, each for the time until halfway to its neighbours.

    Samples come late where a driver is slow.  The first and the last stand for as long on both sides.
    """
    at = [time for time, _ in samples]
    values = [value for _, value in samples]
    if len(at) < 2 or at[-1] <= at[0]:
        return sum(values) / len(values) if values else None
    gaps = [max(0.0, after - before) for before, after in pairwise(at)]
    weights = [(left + right) / 2 for left, right in zip([gaps[0], *gaps], [*gaps, gaps[-1]], strict=True)]
    least = min(values)  # what is alike has itself for a mean, to the last digit
    return least + sum(weight * (value - least) for weight, value in zip(weights, values, strict=True)) / sum(weights)


def packages(gpus: Sequence[Gpu]) -> dict[int, str]:
    """Return what each of a machine's GPUs is a part of: partitions share a unique id, else a PCI device."""
    return {gpu.index: gpu.unique_id or gpu.bus.rpartition(".")[0] or f"GPU {gpu.index}" for gpu in gpus}


def _mean_power(uses: Sequence[GpuUse], silent: str, packages: Mapping[int, str]) -> tuple[float | None, str]:
    """Return the mean power of one GPU, and what of it is to be known.

    `silent` names those that should report their power and do not.  A package is counted once: some versions of the
    tools report the power of all of it for each partition, others for the first one alone, whichever of them works.
    """
    working, idle = _without_idle(uses)
    names = {use.index: packages.get(use.index, f"GPU {use.index}") for use in uses}
    at_work = {names[use.index] for use in working}
    power_w: dict[str, float] = {}
    for use in uses:
        name = names[use.index]
        if use.power_w is not None and name in at_work:
            power_w[name] = max(use.power_w, power_w.get(name, 0.0))
    if silent and power_w:
        return None, f"GPU {silent} reports no power"
    if not power_w:
        return None, idle
    return sum(power_w.values()) / len(working), "; ".join(filter(None, (_shared(working, packages), idle)))


def _without_idle(uses: Sequence[GpuUse]) -> tuple[list[GpuUse], str]:
    """Return the GPUs that worked, and which did not: what is granted and not used takes no part in the tokens."""
    percents = {use.index: use.utilization_percent for use in uses if use.utilization_percent is not None}
    at_work = any(percent >= _AT_WORK_PERCENT for percent in percents.values())
    idle = [index for index, percent in percents.items() if at_work and percent <= _IDLE_PERCENT]
    named = f"GPU {', '.join(map(str, idle))} did nothing: left out of the mean power" if idle else ""
    return [use for use in uses if use.index not in idle], named


def _shared(uses: Sequence[GpuUse], packages: Mapping[int, str]) -> str:
    without = [use.index for use in uses if use.power_w is None]
    if without:
        return f"GPU {', '.join(map(str, without))} has no power of its own: the sum is shared among all"
    names = [packages.get(use.index, f"GPU {use.index}") for use in uses]
    parts = [use.index for use, name in zip(uses, names, strict=True) if names.count(name) > 1]
    listed = ", ".join(map(str, parts))
    return f"GPU {listed} tell the power of their whole package: it is shared among its parts" if parts else ""


def telemetry_findings(telemetry: Telemetry) -> tuple[str, ...]:
    """Return what of a run's telemetry explains a slow or unsteady number."""
    if telemetry.samples < LEAST_SAMPLES or (telemetry.throttled or 0.0) < THROTTLED_FROM:
        return ()
    return (f"the GPUs were {format_throttling(telemetry)}",)


def format_throttling(telemetry: Telemetry) -> str:
    """Return how much of the time GPUs were slowed down, and why: `throttled 18 % of the window (thermal)`; or ""."""
    if (telemetry.throttled or 0.0) < _SHOWN_FROM:
        return ""
    reasons = sorted(telemetry.throttled_by, key=lambda reason: -telemetry.throttled_by[reason])
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"throttled {(telemetry.throttled or 0.0) * 100:.0f} % of the {telemetry.over}{why}"
