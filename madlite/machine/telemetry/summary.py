"""Samples → what the GPUs did over a span of the run.

Means are taken over the samples of the span.  Where a GPU counts its energy, its mean power is exact: the difference
over the time between two samples.  Where AMD's driver counts the ticks in which a reason held, so is the part of the
time in which a GPU was held down; else that is the part of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from madlite.machine.telemetry.reading import POWER_CAP, THROTTLING, Reading, mean
from madlite.machine.telemetry.sampler import Sample
from madlite.machine.telemetry.words import LEAST_SAMPLES
from madlite.types import GpuUse, Value, Vendor

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
        return [value for reading in self.readings if (value := getattr(reading, field)) is not None]


def summarise(
    samples: Sequence[Sample], indexes: Sequence[int], began_s: float | None, ended_s: float | None, vendor: Vendor
) -> Summary:
    """Return what GPUs did between two times of the run; over all of it where too few samples are between them."""
    within = [one for one in samples if began_s is not None and ended_s is not None and began_s <= one.t_s <= ended_s]
    in_window = len(within) >= LEAST_SAMPLES
    span = within if in_window else list(samples)
    series = [_series(span, index) for index in indexes]
    uses = tuple(_use(one) for one in series)
    power_w, problem = _mean_power(uses, vendor)
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
    powers = series.told("power_w")
    return GpuUse(
        index=series.index,
        power_w=_exact_power(series, mean(powers)) or mean(powers),
        power_max_w=max(powers, default=None),
        clock_mhz=mean(series.told("clock_mhz")),
        memory_clock_mhz=mean(series.told("memory_clock_mhz")),
        temperature_c=max(series.told("temperature_c"), default=None),
        memory_used_gib=max(series.told("memory_used_gib"), default=None),
        utilization_percent=mean(series.told("utilization_percent")),
        throttled={reason: part for reason, part in parts.items() if part > 0 and reason != POWER_CAP},
        power_cap=parts.get(POWER_CAP, 0.0) if parts or series.told("slowed") or series.told("ticks") else None,
    )


def _exact_power(series: _Series, sampled_w: float | None) -> float | None:
    """Return the mean power by the counted energy; a counter far from what was sampled is broken."""
    counted = [
        (at, one.energy_j) for at, one in zip(series.at_s, series.readings, strict=True) if one.energy_j is not None
    ]
    if len(counted) < 2 or counted[-1][0] - counted[0][0] < LEAST_ENERGY_S:
        return None
    power_w = (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])
    fits = sampled_w is None or sampled_w / 2 <= power_w <= sampled_w * 2
    return power_w if power_w > 0 and fits else None


def _parts(series: _Series) -> dict[str, float]:
    """Return for each reason the part of the span in which it held the clocks down."""
    counted = _counted(series)
    if counted is not None:
        return counted
    slowed: list[dict[str, float]] = [one.slowed for one in series.readings if one.slowed is not None]
    reasons = dict.fromkeys(reason for one in slowed for reason in one)
    return {reason: sum(one.get(reason, 0.0) for one in slowed) / len(slowed) for reason in reasons}


def _counted(series: _Series) -> dict[str, float] | None:
    """Return the parts by the driver's counters; of several that count one reason the highest. None without them."""
    counting = [one for one in series.readings if one.ticks is not None]
    if len(counting) < 2 or (ticks := (counting[-1].ticks or 0.0) - (counting[0].ticks or 0.0)) <= 0:
        return None
    first, last = counting[0].counters or {}, counting[-1].counters or {}
    found: dict[str, float] = {}
    for name, count in last.items():
        reason, part = name.partition("/")[0], (count - first.get(name, 0.0)) / ticks
        found[reason] = max(found.get(reason, 0.0), min(1.0, max(0.0, part)))
    return found


def _any(span: Sequence[Sample], series: Sequence[_Series], reasons: Sequence[str]) -> float | None:
    """Return the part of the span in which any of the reasons held any GPU: that one is what the others wait for.

    Counters do not say when they grew: it is then the part of the GPU and reason that have most.
    """
    counted = [parts for one in series if (parts := _counted(one)) is not None]
    most = [max((parts.get(reason, 0.0) for reason in reasons), default=0.0) for parts in counted]
    told = [[one.slowed for one in sample.gpus if one.slowed is not None] for sample in span]
    sampled = [max(gpu.get(reason, 0.0) for gpu in gpus for reason in reasons) for gpus in told if gpus]
    return max(most) if most else mean(sampled)


def _reasons(uses: Iterable[GpuUse]) -> list[str]:
    return [reason for reason in THROTTLING if any(use.throttled.get(reason) for use in uses)]


def _mean_power(uses: Sequence[GpuUse], vendor: Vendor) -> tuple[float | None, str]:
    """Return the mean power of one GPU, and what of it is to be known.

    Of AMD's the first partition of a socket, or the first die of a card, tells the power of all of it: the sum is
    shared among the GPUs of the run.
    """
    told = [use.power_w for use in uses if use.power_w is not None]
    silent = ", ".join(str(use.index) for use in uses if use.power_w is None)
    if not told or not silent:
        return mean(told), ""
    if vendor == "AMD":
        return sum(told) / len(uses), f"GPU {silent} has no power of its own: the sum is shared among all"
    return None, f"GPU {silent} tells no power"
