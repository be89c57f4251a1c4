"""Samples → what the GPUs did over a span of the run.

Means are taken over the time of the span.  Where a GPU counts its energy, its mean power is exact: the difference
over the time between two samples.  Where AMD's driver counts the ticks in which a reason held, so is the part of the
time in which a GPU was held down; else that is the part of the samples.  GPUs that share a package share its power,
and GPUs that did nothing while others worked are no part of the mean.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from madlite.machine.sources.base import POWER_CAP, THROTTLING, Reading, Sample
from madlite.model import Gpu, GpuUse, Telemetry, Value, Vendor

NO_PACKAGES: Mapping[int, str] = MappingProxyType({})
LEAST_SAMPLES = 3  # of a span: fewer mean little
LEAST_ENERGY_S = 10.0  # between two counts of energy: drivers count in steps of up to a tenth of a second
THROTTLED_FROM = 0.05  # of the window: from there on it is a finding
_SHOWN_FROM = 0.005  # what would be shown as 0 %
_IDLE_PERCENT = 1.0  # of utilisation, at most
_AT_WORK_PERCENT = 20.0
# what no reading of any GPU has, where none has the power
_FIELD_NAMES = {
    "power_w": "power",
    "clock_mhz": "clocks",
    "temperature_c": "temperature",
    "memory_used_gib": "memory",
    "utilization_percent": "utilisation",
}


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
    unreported = _unreported(series)
    missing = f"{source} reports no {unreported}" if unreported else ""
    taken = max((len(curve.readings) for curve in series), default=0)
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


def _unreported(series: Sequence[_SampleSeries]) -> str:
    """Return what no reading of any GPU has where none has the power, as of a tool that answers N/A."""
    silent = [name for field, name in _FIELD_NAMES.items() if not any(curve.timed(field) for curve in series)]
    return ", ".join(silent) if "power" in silent and any(curve.readings for curve in series) else ""


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


def telemetry_findings(telemetry: Telemetry | None) -> tuple[str, ...]:
    """Return what of a run's telemetry explains a slow or unsteady number."""
    if telemetry is None or telemetry.samples < LEAST_SAMPLES or (telemetry.throttled or 0.0) < THROTTLED_FROM:
        return ()
    return (f"the GPUs were {format_throttling(telemetry)}",)


def format_throttling(telemetry: Telemetry) -> str:
    """Return how much of the time GPUs were slowed down, and why: `throttled 18 % of the window (thermal)`; or ""."""
    if (telemetry.throttled or 0.0) < _SHOWN_FROM:
        return ""
    reasons = sorted(telemetry.throttled_by, key=lambda reason: -telemetry.throttled_by[reason])
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"throttled {(telemetry.throttled or 0.0) * 100:.0f} % of the {telemetry.over}{why}"
