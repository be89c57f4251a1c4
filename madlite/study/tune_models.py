"""What the runs of `madlite tune` tell: the configurations that ran, and models of their throughput and memory.

* throughput: `speed(group) x m / (c + m)` of micro batch m, where `c` is the fixed cost of a step in sequences; the
  speed of a group that never ran is that of its nearest one that did, times what the backend declares of its values;
* memory: `a + b(group) x m`, where `a` (weights, gradients, optimizer states) is the same for all groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import Literal, TypeAlias

from madlite.measure.memory import sequences_per_step
from madlite.model import Scalar, Value
from madlite.plan.submission import PlannedRun
from madlite.text import scalar_text

KIND = "tune"

UNTRIED, TRIED = 1.1, 1.02  # how much better than declared, or than beside other values, a value may be
_SIGMA = 0.01  # assumed noise of one short run
_PRIOR = 0.2  # the fixed cost of a step, as a part of the default's work, before anything is known of it
_WELL_POSSIBLE = 2.0  # by how much a fixed cost may fit worse than the most probable one
_MOST_STATES = 0.95  # the part of a run's memory that may be of what does not grow with the micro batch
_DOUBT = 0.07  # by which power of two a sequence may need more or less than that of runs of its group
_MOST_DOUBLINGS = 4.0  # in one run, of which nothing tells the memory
MOST_BATCH = 4096

Group: TypeAlias = tuple[Scalar, ...]


class Point(Value, frozen=True):
    """One configuration: the micro batch (0 where that is not tuned) and a value of each choice, in their order."""

    batch: int
    group: Group = ()


class Choice(Value, frozen=True):
    """A knob other than the micro batch: its values, and what is declared of each, relative to each other.

    A `later` one is tried once the others are done, where the budget leaves room for it.
    """

    key: str
    values: tuple[Scalar, ...]
    memory: tuple[float, ...] = ()
    speed: tuple[float, ...] = ()
    later: bool = False

    def ratio(self, table: tuple[float, ...], before: Scalar, after: Scalar) -> float:
        """Return what changes by another value, by a declared table; 1 where none is declared."""
        known = dict(zip(self.values, table, strict=False))
        return known.get(after, 1.0) / known.get(before, 1.0)


class RunSteps(Value, frozen=True):
    """How many steps runs make: full and short ones, and the least of them that tell a throughput.

    Of a full run `warmup` are none of its result.
    """

    warmup: int
    full: int
    least_full: int
    short: int
    least_short: int


class Space(Value, frozen=True):
    """What may be changed: the choices, and the micro batch where the default has one; `memory_gib` is of one GPU.

    `steps` is None where the number of steps cannot be set.
    """

    default: Point
    choices: tuple[Choice, ...] = ()
    most: int = 0  # the largest micro batch; 0: any that fits
    global_batch: int = 0  # of which a micro batch has to be a divisor; 0: none is fixed
    memory_gib: float | None = None
    steps: RunSteps | None = None

    def offers(self, batch: int) -> bool:
        """Return whether a micro batch may be run at all."""
        return 0 < batch <= (self.most or MOST_BATCH) and not self.global_batch % batch

    def named(self, point: Point) -> dict[str, Scalar]:
        """Return the values of a point by their keys."""
        batch: dict[str, Scalar] = {"micro_batch": point.batch} if point.batch else {}
        return {**batch, **{choice.key: value for choice, value in zip(self.choices, point.group, strict=True)}}

    def varied(self, point: Point) -> dict[str, Scalar]:
        """Return the values in which a point differs from the default."""
        default = self.named(self.default)
        return {key: value for key, value in self.named(point).items() if value != default[key]}

    def point(self, varied: dict[str, Scalar]) -> Point:
        """Return the point that differs from the default in these values."""
        values = {**self.named(self.default), **varied}
        group = tuple(values[choice.key] for choice in self.choices)
        return Point(batch=int(values.get("micro_batch", 0)), group=group)


_FAILED = ("failed", "out_of_memory")
TrialStatus: TypeAlias = Literal["ok", "out_of_memory", "failed", "refused"]


class Trial(Value, frozen=True):
    """One run of a point: `speed` is its throughput, more is better; `full` of a run that is a result, no short one.

    `memory_gib` is the peak of a GPU, None where nobody tells.  A `refused` one was never started, and cost nothing.
    `reason` says why it failed, and of one that is `ok` why its number is doubtful.
    """

    point: Point
    status: TrialStatus
    full: bool = False
    speed: float = 0.0
    memory_gib: float | None = None
    duration_s: float = 0.0
    steps: int = 0  # that it made; 0: nobody knows
    step_s: float = 0.0  # how long a steady one took; 0: nobody knows
    reason: str = ""
    run: str = ""


class Seen:
    """What the trials tell; everything of it is computed once, when it is first used."""

    def __init__(self, space: Space, trials: Sequence[Trial]) -> None:
        self.space, self.trials = space, trials

    @cached_property
    def ok(self) -> dict[Point, float]:
        """The throughput of each point that ran, by its full runs where there are any; none that failed once."""
        bad = {trial.point for trial in self.trials if trial.status != "ok"}
        found: dict[Point, list[Trial]] = {}
        for trial in self.trials:
            if trial.status == "ok" and (trial.point not in bad or trial.point == self.space.default):
                found.setdefault(trial.point, []).append(trial)
        return {point: fmean(trial.speed for trial in _counted(trials)) for point, trials in found.items()}

    @cached_property
    def best(self) -> Point:
        """The point with the highest throughput; the default comes first where another is no better."""
        return max(self.ok, key=lambda point: (self.ok[point], point == self.space.default))

    def full(self, point: Point) -> list[float]:
        """Return the throughputs of a point's full runs."""
        return [trial.speed for trial in self.trials if trial.point == point and trial.full and trial.status == "ok"]

    def failed(self, point: Point) -> int:
        """Return how many full runs of a point failed."""
        return sum(1 for trial in self.trials if trial.point == point and trial.full and trial.status in _FAILED)

    @property
    def is_confirming(self) -> bool:
        """Whether a full run after the default's first one was made: then the search is over."""
        return len([trial for trial in self.trials if trial.full]) > 1

    @property
    def has_later(self) -> bool:
        """Whether another value of a later choice was tried."""
        later = [at for at, choice in enumerate(self.space.choices) if choice.later]
        default = self.space.default.group
        return any(trial.point.group[at] != default[at] for trial in self.trials for at in later)

    @cached_property
    def batches(self) -> dict[Group, dict[int, float]]:
        """The throughputs of each group that ran, by micro batch."""
        found: dict[Group, dict[int, float]] = {}
        for point, speed in self.ok.items():
            found.setdefault(point.group, {})[point.batch] = speed
        return found

    @cached_property
    def banned(self) -> set[Group]:
        """Groups that failed, for another reason than memory, before they ever ran."""
        return {trial.point.group for trial in self.trials if trial.status == "failed"} - self.batches.keys()

    def too_large(self, group: Group) -> float:
        """Return the least micro batch of a group that did not fit, or failed where smaller ones ran."""
        failed = (trial.point for trial in self.trials if trial.status in _FAILED)
        return min((point.batch for point in failed if point.group == group), default=math.inf)


def _counted(trials: Sequence[Trial]) -> Sequence[Trial]:
    return [trial for trial in trials if trial.full] or trials


# Throughput: speed(group) x m / (c + m).


class SpeedModel:
    """Predicts the throughput of points by a fixed cost of a step, from those that ran and from what is declared."""

    def __init__(self, seen: Seen, cost: float) -> None:
        self._seen, self._choices, self._cost = seen, seen.space.choices, cost
        self._speeds = {group: self._highest(found, max(found)) for group, found in seen.batches.items()}

    def shape(self, batch: int) -> float:
        """Return which part of its highest throughput a group has with a micro batch."""
        return batch / (self._cost + batch) if batch else 1.0

    def optimistic(self, point: Point) -> float:
        """Return the highest throughput that the point may be hoped to have."""
        return self._hope(point.group, point.batch) * self.shape(point.batch)

    def _highest(self, found: Mapping[int, float], batch: int) -> float:
        """Return the throughput that a group comes near to, by its run with the micro batch nearest to one."""
        near = min(found, key=lambda other: abs(math.log((other or 1) / (batch or 1))))
        return found[near] / self.shape(near)

    def _hope(self, group: Group, batch: int) -> float:
        if group in self._speeds:
            return self._highest(self._seen.batches[group], batch)
        base = nearest(group, self._speeds)
        speed = self._highest(self._seen.batches[base], batch)
        for at, choice in enumerate(self._choices):
            if base[at] != group[at]:
                learned = _learned(self._speeds, at, base[at], group[at])
                declared = choice.ratio(choice.speed, base[at], group[at])
                speed *= declared * UNTRIED if learned is None else learned * TRIED
        return speed


def nearest(group: Group, known: dict[Group, float]) -> Group:
    """Return the known group that differs in the fewest values, of several the one with the larger number."""
    return min(known, key=lambda other: (sum(a != b for a, b in zip(group, other, strict=True)), -known[other]))


def _learned(known: dict[Group, float], at: int, before: Scalar, after: Scalar) -> float | None:
    """Return the ratio that another value of one choice made where all else was the same; None where none ran so."""
    ratios = [
        known[other] / number
        for group, number in known.items()
        if group[at] == before and (other := (*group[:at], after, *group[at + 1 :])) in known
    ]
    return fmean(ratios) if ratios else None


_PARTS = (0.0, *(0.01 * 1.2**power for power in range(41)))  # to 15


def fixed_costs(seen: Seen) -> tuple[float, float]:
    """Return the fixed cost of a step, in sequences: the most probable one, and the highest that may well be.

    Groups with several micro batches tell it, the better the further those are apart.
    """
    default = seen.space.default.batch
    groups = [found for found in seen.batches.values() if len(found) > 1]

    def misfit(part: float) -> float:
        cost = part * default
        total = (math.log((part + 0.03) / (_PRIOR + 0.03)) / 1.2) ** 2
        for found in groups:
            speeds = [speed * (cost + batch) / batch for batch, speed in found.items()]
            total += sum((speed / fmean(speeds) - 1) ** 2 for speed in speeds) / _SIGMA**2
        return total

    misfits = {part: misfit(part) for part in _PARTS}
    likely = min(misfits, key=lambda part: misfits[part])
    high = max(part for part in _PARTS if misfits[part] <= misfits[likely] + _WELL_POSSIBLE)
    return default * likely, default * high


# Memory: a + b(group) x m.


class MemoryModel:
    """Predicts whether points fit, from the peaks of those that ran and from those that did not fit."""

    def __init__(self, seen: Seen) -> None:
        self._seen, self._choices, self._limit = seen, seen.space.choices, seen.space.memory_gib
        self._peaks: dict[Group, dict[int, float]] = {}
        for trial in seen.trials:
            if trial.status == "ok" and trial.memory_gib is not None:
                of_group = self._peaks.setdefault(trial.point.group, {})
                of_group[trial.point.batch] = max(trial.memory_gib, of_group.get(trial.point.batch, 0.0))
        self._known = self._limit is not None and bool(self._peaks)
        # out of memory is a run lost, but all that bounds the micro batch where no run tells its memory
        self.caution = 2 if self._known else 1
        self._states = self._fixed()
        self._slopes = {group: self._slope(peaks) for group, peaks in self._peaks.items()}
        self._guesses: dict[Group, list[tuple[float, float]]] = {}

    def chance(self, point: Point) -> float:
        """Return how likely a point fits, from 0 to 1."""
        group, batch = point.group, point.batch
        if batch and batch >= self._seen.too_large(group):
            return 0.0
        ran = self._seen.batches.get(group, {})
        if batch <= max(ran, default=-1):
            return 1.0
        if not self._known:
            return self._unknown(batch, max(ran, default=0), self._seen.too_large(group))
        return self._predicted(group, batch)

    def _unknown(self, batch: int, largest: int, too_large: float) -> float:
        """Expect less of each further doubling while nothing is known, and halve the gap once one did not fit."""
        reference = largest or self._seen.space.default.batch
        if math.isfinite(too_large) and largest:
            return 0.5 if batch <= (largest + int(too_large)) // 2 else 0.0
        doublings = max(0.0, math.log2(batch / reference)) + (not largest) if batch else 0.5
        return 0.6**doublings if doublings <= _MOST_DOUBLINGS else 0.0

    def _predicted(self, group: Group, batch: int) -> float:
        """Return in which part of what the group's memory may be the batch fits, and what did not fit does not."""
        limit, too_large = self._limit or 0.0, self._seen.too_large(group)
        if group not in self._guesses:
            self._guesses[group] = [*self._may_be(group)]
        possible = [(states, slope) for states, slope in self._guesses[group] if states + slope * too_large > limit]
        if not possible:  # all that is known says that what did not fit would
            return 0.5 if batch <= too_large / 2 else 0.0
        return fmean(states + slope * max(1, batch) <= limit for states, slope in possible)

    def _may_be(self, group: Group) -> Iterator[tuple[float, float]]:
        """Yield what may be the memory that does not grow with the micro batch, and what each sequence needs.

        Where no group ran with several micro batches any part of a run's memory may not grow.  Else a sequence of
        another group may need half or twice of what is declared, or about what runs tell.
        """
        base = nearest(group, self._slopes)
        change, largest = self._change(base, group), max(self._peaks[base])
        if self._states is None:
            peak = self._peaks[base][largest]
            for percent in range(round(100 * _MOST_STATES) + 1):
                states = peak * percent / 100
                yield states, (peak - states) / max(1, largest) * change
            return
        doubt = _DOUBT if base == group else 0.1 if self._tells_change(base, group) else 1.0
        for part in range(-50, 51):
            yield self._states, self._slopes[base] * change * 2 ** (doubt * part / 50)

    def _tells_change(self, base: Group, group: Group) -> bool:
        """Return whether runs tell, or no table declares, how the memory of two groups differs."""
        declared = [at for at in range(len(group)) if base[at] != group[at] and self._choices[at].memory]
        return all(_learned(self._slopes, at, base[at], group[at]) is not None for at in declared)

    def _fixed(self) -> float | None:
        """Return the memory that does not grow with the micro batch; None where no group ran with several of them."""
        lines = [_line(peaks) for peaks in self._peaks.values() if len(peaks) > 1]
        least = min((peak for peaks in self._peaks.values() for peak in peaks.values()), default=0.0)
        return min(max(0.0, fmean(start for start, _ in lines)), least) if lines else None

    def _slope(self, peaks: dict[int, float]) -> float:
        return max(1e-6, fmean((peak - (self._states or 0.0)) / max(1, batch) for batch, peak in peaks.items()))

    def _change(self, base: Group, group: Group) -> float:
        """Return how much more a sequence of another group needs: what runs tell, else what is declared."""
        change = 1.0
        for at, choice in enumerate(self._choices):
            if base[at] != group[at]:
                learned = _learned(self._slopes, at, base[at], group[at]) if self._states is not None else None
                change *= choice.ratio(choice.memory, base[at], group[at]) if learned is None else learned
        return change


def _line(peaks: dict[int, float]) -> tuple[float, float]:
    """Return start and slope of the line through peaks by micro batch, by least squares."""
    x, y = fmean(peaks), fmean(peaks.values())
    slope = sum((batch - x) * (peak - y) for batch, peak in peaks.items()) / sum((batch - x) ** 2 for batch in peaks)
    return y - slope * x, slope


class Tuning(Value, frozen=True):
    """One run that is tuned: its default plan, what may be changed, and which knobs are left alone, with the reason."""

    default: PlannedRun
    space: Space
    left: dict[str, str] = {}

    @property
    def sequences(self) -> int | None:
        """The global batch of the default."""
        return sequences_per_step(self.default.plan)


def point_text(space: Space, point: Point) -> str:
    """Return a point in words: what of it differs from the default."""
    return ", ".join(f"{key}={scalar_text(value)}" for key, value in space.varied(point).items()) or "default"
