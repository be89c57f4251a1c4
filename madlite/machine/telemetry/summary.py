"""Samples → what the GPUs did over a span of the run.

Means are taken over the time of the span.  Where a GPU counts its energy, its mean power is exact: the difference
over the time between two samples.  Where AMD's driver counts the ticks in which a reason held, so is the part of the
time in which a GPU was held down; else that is the part of the samples.  GPUs that share a package share its power,
and GPUs that did nothing while others worked are no part of the mean.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from madlite.machine.telemetry.power import NO_PACKAGES, mean_power
from madlite.machine.telemetry.reading import POWER_CAP, THROTTLING, Reading, mean_over_time
from madlite.machine.telemetry.sampler import Sample
from madlite.machine.telemetry.words import LEAST_SAMPLES
from madlite.model import GpuUse, Value, Vendor

LEAST_ENERGY_S = 10.0  # between two counts of energy: drivers count in steps of up to a tenth of a second


class Summary(Value, frozen=True):
    """A span: its samples, what they come to for each GPU and for all, and what about them is to be known."""

    over: str
    samples: int
    gpus: tuple[GpuUse, ...] = ()
    power_w: float | None = None  # mean of one GPU
    throttled: float | None = None
    throttled_by: dict[str, float] = {}
    power_cap: float | None = None
    problem: str = ""
    untold: str = ""  # what no reading tells, where it is the power too


class _Series(Value, frozen=True):
    """The readings of one GPU in a span, with their times."""

    index: int
    at_s: tuple[float, ...]
    readings: tuple[Reading, ...]

    def told(self, field: str) -> list[float]:
        """Return what the readings say of one field."""
        return [value for _, value in self.timed(field)]

    def mean(self, field: str) -> float | None:
        """Return the mean of one field over the time of the span."""
        return mean_over_time(self.timed(field))

    def timed(self, field: str) -> list[tuple[float, float]]:
        """Return what the readings say of one field, each with its time."""
        both = zip(self.at_s, self.readings, strict=True)
        return [(at, value) for at, reading in both if (value := getattr(reading, field)) is not None]


def summarise(
    samples: Sequence[Sample],
    indexes: Sequence[int],
    began_s: float | None,
    ended_s: float | None,
    vendor: Vendor,
    packages: Mapping[int, str] = NO_PACKAGES,
) -> Summary:
    """Return what GPUs did between two times of the run; over all of it where too few samples are between them.

    `packages` names what GPUs are parts of, where several can be parts of one.
    """
    within = [one for one in samples if began_s is not None and ended_s is not None and began_s <= one.t_s <= ended_s]
    in_window = len(within) >= LEAST_SAMPLES
    span = within if in_window else list(samples)
    series = [_series(span, index) for index in indexes]
    uses = tuple(_use(one) for one in series)
    telling = {reading.index for sample in samples for reading in sample.gpus if reading.power_w is not None}
    power_w, problem = mean_power(uses, _silent(uses, vendor, telling), packages)
    by = {reason: max(use.throttled.get(reason, 0.0) for use in uses) for reason in _reasons(uses)}
    return Summary(
        over="window" if in_window else "run",
        samples=max((len(one.readings) for one in series), default=0),
        gpus=uses,
        power_w=power_w,
        throttled=_any(span, series, THROTTLING),
        throttled_by=by,
        power_cap=_any(span, series, (POWER_CAP,)),
        problem=problem,
        untold=_untold(series),
    )


def _untold(series: Sequence[_Series]) -> str:
    """Return what no reading of any GPU tells where none tells the power, as of a tool that answers N/A."""
    names = {"power_w": "power", "clock_mhz": "clocks", "temperature_c": "temperature"}
    names |= {"memory_used_gib": "memory", "utilization_percent": "utilisation"}
    silent = [words for field, words in names.items() if not any(one.told(field) for one in series)]
    return ", ".join(silent) if "power" in silent and any(one.readings for one in series) else ""


def _series(span: Iterable[Sample], index: int) -> _Series:
    found = [(sample.t_s, reading) for sample in span for reading in sample.gpus if reading.index == index]
    return _Series(index=index, at_s=tuple(at for at, _ in found), readings=tuple(reading for _, reading in found))


def _use(series: _Series) -> GpuUse:
    parts = _parts(series)
    sampled_w = series.mean("power_w")
    return GpuUse(
        index=series.index,
        power_w=_exact_power(series, sampled_w) or sampled_w,
        power_max_w=max(series.told("power_w"), default=None),
        clock_mhz=series.mean("clock_mhz"),
        memory_clock_mhz=series.mean("memory_clock_mhz"),
        temperature_c=max(series.told("temperature_c"), default=None),
        memory_used_gib=max(series.told("memory_used_gib"), default=None),
        utilization_percent=series.mean("utilization_percent"),
        throttled={reason: part for reason, part in (parts or {}).items() if part > 0 and reason != POWER_CAP},
        power_cap=None if parts is None else parts.get(POWER_CAP, 0.0),
    )


def _exact_power(series: _Series, sampled_w: float | None) -> float | None:
    """Return the mean power by the counted energy; a counter far from what was sampled is broken."""
    counted = series.timed("energy_j")
    if len(counted) < 2 or counted[-1][0] - counted[0][0] < LEAST_ENERGY_S:
        return None
    power_w = (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])
    fits = sampled_w is None or sampled_w / 2 <= power_w <= sampled_w * 2
    return power_w if power_w > 0 and fits else None


def _parts(series: _Series) -> dict[str, float] | None:
    """Return for each reason the part of the span in which it held the clocks down; None where that is not known."""
    counted = _counted(series)
    if counted is not None:
        return counted
    both = zip(series.at_s, series.readings, strict=True)
    slowed = [(at, one.slowed) for at, one in both if one.slowed is not None]
    if not slowed or not _enough(slowed, series.readings):
        return None
    reasons = dict.fromkeys(reason for _, one in slowed for reason in one)
    parts = {reason: mean_over_time([(at, one.get(reason, 0.0)) for at, one in slowed]) for reason in reasons}
    return {reason: part for reason, part in parts.items() if part is not None}


def _enough(telling: Sequence[object], taken: Sequence[object]) -> bool:
    """Say whether enough of the samples tell of throttling: one of a tool among many of the driver's files does not."""
    return len(telling) >= min(LEAST_SAMPLES, len(taken))


def _counted(series: _Series) -> dict[str, float] | None:
    """Return the parts by the driver's counters; of several that count one reason the highest. None without them.

    What held at every tick since the driver was loaded, and still does, is firmware that does not count it.
    """
    counting = [(one.ticks, one.counters) for one in series.readings if one.ticks is not None and one.counters]
    if len(counting) < 2 or (ticks := counting[-1][0] - counting[0][0]) <= 0:
        return None
    (before, first), (after, last) = counting[0], counting[-1]
    found: dict[str, float] = {}
    for name in first.keys() & last.keys():
        if (first[name], last[name]) != (before, after):
            reason, part = name.partition("/")[0], (last[name] - first[name]) / ticks
            found[reason] = max(found.get(reason, 0.0), min(1.0, max(0.0, part)))
    return found or None


def _any(span: Sequence[Sample], series: Sequence[_Series], reasons: Sequence[str]) -> float | None:
    """Return the part of the span in which any of the reasons held any GPU: that one is what the others wait for.

    Counters do not say when they grew: it is then the part of the GPU and reason that have most.
    """
    counted = [parts for one in series if (parts := _counted(one)) is not None]
    most = [max((parts.get(reason, 0.0) for reason in reasons), default=0.0) for parts in counted]
    told = [(sample.t_s, [one.slowed for one in sample.gpus if one.slowed is not None]) for sample in span]
    sampled = [(at, max(gpu.get(reason, 0.0) for gpu in gpus for reason in reasons)) for at, gpus in told if gpus]
    if most:
        return max(most)
    return mean_over_time(sampled) if _enough(sampled, span) else None


def _reasons(uses: Iterable[GpuUse]) -> list[str]:
    return [reason for reason in THROTTLING if any(use.throttled.get(reason) for use in uses)]


def _silent(uses: Iterable[GpuUse], vendor: Vendor, telling: Container[int]) -> str:
    """Return the GPUs whose power is missing though they have one of their own.

    Of AMD's the first partition of a socket, or the first die of a card, can be the only one that tells any.
    """
    return ", ".join(
        str(use.index) for use in uses if use.power_w is None and (vendor != "AMD" or use.index in telling)
    )
