"""One look at a GPU, in the units and words that all sources share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from madlite.machine.facts import UNITS, clean
from madlite.model import Json, Value

# why a GPU's clocks are held down
POWER_CAP = "power cap"  # its power limit: normal at full load, so it is told apart from throttling
UNSPECIFIED = "unspecified"  # it says that it is throttled and not why: the power limit may be all
THERMAL = "thermal"
HARDWARE_THERMAL = "hardware thermal"
HARDWARE = "hardware slowdown"
POWER_BRAKE = "power brake"
PROCHOT = "PROCHOT"
REGULATOR = "voltage regulator thermal"
MEMORY_THERMAL = "memory thermal"
THROTTLING = (THERMAL, HARDWARE_THERMAL, HARDWARE, POWER_BRAKE, PROCHOT, REGULATOR, MEMORY_THERMAL)

GIB = 1 << 30
# what is above is no measurement: a driver writes 65535 or 4294967295 where it has none
_MOST = {"power_w": 20_000.0, "clock_mhz": 20_000.0, "memory_clock_mhz": 20_000.0, "temperature_c": 200.0}
_MOST |= {"memory_used_gib": 16_384.0, "utilization_percent": 100.0}


class Reading(Value, frozen=True, omit_defaults=True):
    """One GPU at one moment; None is what it does not tell.

    `slowed` is why its clocks are held down and for which part of the moment (1 all of it), None where it does not
    say.  `counters` count the driver's ticks in which `reason/name` held, of `ticks` in all; both only ever grow, and
    so does `energy_j`.
    """

    index: int
    power_w: float | None = None
    energy_j: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_used_gib: float | None = None
    utilization_percent: float | None = None
    slowed: dict[str, float] | None = None
    counters: dict[str, float] | None = None
    ticks: float | None = None


class Answer(Value, frozen=True):
    """What a source said of the GPUs it was asked for; `problem` what it could not say."""

    readings: tuple[Reading, ...] = ()
    problem: str = ""


class User(Value, frozen=True):
    """A process on a GPU, as the driver lists it; None is what it does not tell."""

    pid: int
    gpu: int
    memory_bytes: int | None = None
    busy: bool | None = None
    name: str = ""


class Source(Protocol):
    """Reads GPUs; every member may block for as long as its driver does, and is called in the sampler's thread."""

    name: str
    least_interval_s: float  # between two readings, whatever a user asks for

    def read(self) -> Answer:
        """Return one reading of each GPU that answers."""

    def users(self) -> tuple[User, ...] | None:
        """Return the processes on these GPUs; None where nobody can say."""

    def facts(self) -> dict[str, str]:
        """Return what does not change during a run: firmware, power limit, partitions."""

    def close(self) -> None:
        """Give back what reading took."""


def number(value: Json) -> float | None:
    """Return a number from 140, "140.0", "140 W" or {"value": 140, "unit": "W"}; None for N/A and the like."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    try:
        found = float((clean(value).split() or [""])[0].rstrip("%"))
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def gib(value: Json) -> float | None:
    """Return GiB from {"value": 283, "unit": "MB"} or "0.3 GB"; the tools' MB, also unsaid, is 2**20."""
    found = number(value)
    said = str(value.get("unit", "")) if isinstance(value, dict) else "".join(clean(value).split()[1:])
    return None if found is None else found * UNITS[(said or "M")[0].upper()] / GIB if _is_unit(said) else None


def whole_bytes(gib_: float | None) -> int | None:
    """Return the bytes of GiB that a GPU can have."""
    held = plausible(memory_used_gib=gib_)["memory_used_gib"]
    return None if held is None else int(held * GIB)


def _is_unit(said: str) -> bool:
    return (said or "M")[0].upper() in UNITS


def plausible(**values: float | None) -> dict[str, float | None]:
    """Return the fields of a reading without those that no GPU can have."""
    return {name: value if value is not None and _can_be(name, value) else None for name, value in values.items()}


def _can_be(name: str, value: float) -> bool:
    """Say whether a GPU that runs can have a value: its power is never 0, which is how older tools leave it out."""
    return 0 <= value <= _MOST.get(name, math.inf) and not (name == "power_w" and value == 0)


def scalars(value: Json) -> Iterator[Json]:
    """Yield the values below a value: of `{"xcp_0": [{"value": 0, "unit": "%"}, "N/A"]}` the 0 and the N/A.

    Newer tools have the unit outside: `{"value": {"xcp_0": [0, "N/A"]}, "unit": "%"}`.
    """
    if isinstance(value, dict) and "value" in value:
        yield from scalars(value["value"])
    elif isinstance(value, dict):
        for item in value.values():
            yield from scalars(item)
    elif isinstance(value, list):
        for item in value:
            yield from scalars(item)
    else:
        yield value


def mean(values: list[float]) -> float | None:
    """Return the mean, None of nothing."""
    return sum(values) / len(values) if values else None


def mean_over_time(told: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of values with their times, each for the time until halfway to its neighbours.

    Samples come late where a driver is slow.  The first and the last stand for as long on both sides.
    """
    at = [time for time, _ in told]
    if len(at) < 2 or at[-1] <= at[0]:
        return mean([value for _, value in told])
    gaps = [max(0.0, after - before) for before, after in pairwise(at)]
    weights = [(left + right) / 2 for left, right in zip([gaps[0], *gaps], [*gaps, gaps[-1]], strict=True)]
    least = min(value for _, value in told)  # what is alike has itself for a mean, to the last digit
    above = sum(weight * (value - least) for weight, (_, value) in zip(weights, told, strict=True))
    return least + above / sum(weights)
