"""What the runs of `madlite tune` tell: the configurations that ran, and models of their throughput and memory.

* throughput: `speed(group) x m / (c + m)` of micro batch m, where `c` is the fixed cost of a step in sequences; the
  speed of a group that never ran is that of its nearest one that did, times what the backend declares of its values;
* memory: `a + b(group) x m`, where `a` (weights, gradients, optimizer states) is the same for all groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from statistics import NormalDist, fmean
from typing import Literal, TypeAlias

from madlite.measure.memory import sequences_per_step
from madlite.model import Knob, Scalar, Value
from madlite.plan.submission import PlannedRun
from madlite.text import scalar_text

KIND = "tune"
SHARED = ("tp", "pp", "cp")  # by how many GPUs a sequence is shared

UNTRIED, TRIED = 1.1, 1.02  # how much better than declared, or than beside other values, a value may be
_SIGMA = 0.01  # assumed noise of one short run
_PRIOR = 0.2  # the fixed cost of a step, as a part of the default's work, before anything is known of it
_WELL_POSSIBLE = 2.0  # by how much a fixed cost may fit worse than the most probable one
_MOST_DOUBLINGS = 4.0  # in one run, of which nothing tells the memory
MOST_BATCH = 4096

Group: TypeAlias = tuple[Scalar, ...]


class Point(Value, frozen=True):
    """One configuration: the micro batch (0 where that is not tuned) and a value of each choice, in their order."""

    batch: int
    group: Group = ()


class Choice(Knob, frozen=True):
    """A knob other than the micro batch, whose values are those of one run, the default's among them."""

    def more_s(self, before: Scalar, after: Scalar) -> float:
        """Return by how much longer a start takes with another value, in seconds, by what is declared."""
        known = dict(zip(self.values, self.start_s, strict=False))
        return known.get(after, 0.0) - known.get(before, 0.0)

    def comes_later(self, before: Scalar, after: Scalar) -> bool:
        """Return whether another value waits until the others are done."""
        return self.later or self.more_s(before, after) > 0

    def ratio(self, table: tuple[float, ...], before: Scalar, after: Scalar) -> float:
        """Return what changes by another value, by a declared table; 1 where none is declared."""
        known = dict(zip(self.values, table, strict=False))
        return known.get(after, 1.0) / known.get(before, 1.0)

    def distance(self, before: Scalar, after: Scalar) -> float:
        """Return how far apart two values are: as the memory declared of them, where they are more than two, else 1."""
        return abs(math.log2(self.ratio(self.memory, before, after))) if len(self.memory) > 2 else 1.0


class RunSteps(Value, frozen=True):
    """How many steps runs make: full and short ones, and the least of them that tell a throughput.

    Of a full run `warmup` are none of its result.
    """

    warmup: int
    full: int
    least_full: int
    short: int
    least_short: int
    every: int = 1  # steps of a line of the log


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

    def keeps_batch(self, point: Point) -> bool:
        """Return whether a point trains the default's global batch: as many sequences for each rank of its own data."""
        return bool(self.global_batch) or self._per_gpu(point) == self._per_gpu(self.default)

    def _per_gpu(self, point: Point) -> float:
        shared = (value for choice, value in zip(self.choices, point.group, strict=True) if choice.key in SHARED)
        return point.batch / math.prod(map(int, shared))

    def named(self, point: Point) -> dict[str, Scalar]:
        """Return the values of a point by their keys."""
        batch: dict[str, Scalar] = {"micro_batch": point.batch} if point.batch else {}
        return {**batch, **{choice.key: value for choice, value in zip(self.choices, point.group, strict=True)}}

    def varied(self, point: Point) -> dict[str, Scalar]:
        """Return the values in which a point differs from the default."""
        default = self.named(self.default)
        return {key: value for key, value in self.named(point).items() if value != default[key]}

    def changes(self, before: Group, after: Group) -> Iterator[tuple[Choice, Scalar, Scalar]]:
        """Yield the choices in which two groups differ, with their values."""
        yield from (both for both in zip(self.choices, before, after, strict=True) if both[1] != both[2])

    def nearest(self, group: Group, known: Iterable[Group]) -> Group:
        """Return the group of these that differs least, of several the first one."""
        return min(
            known, key=lambda other: sum(choice.distance(*values) for choice, *values in self.changes(other, group))
        )

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
    short_of_memory: bool = False  # an `ok` one: the allocator freed its cache and tried again, which takes time
    duration_s: float = 0.0
    steps: int = 0  # that it made; 0: nobody knows
    step_s: float = 0.0  # how long a steady one took; 0: nobody knows
    reason: str = ""
    run: str = ""
    parts: dict[str, float] = {}  # of a profiled step, each as what can be saved of it at most
    most_lost: str = ""  # the part that could shrink by most


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
        """Whether a value that comes later than the default's was tried."""
        tried = (self.space.changes(self.space.default.group, trial.point.group) for trial in self.trials)
        return any(choice.comes_later(*values) for changes in tried for choice, *values in changes)

    @cached_property
    def batches(self) -> dict[Group, dict[int, float]]:
        """The throughputs of each group that ran, by micro batch; without those whose memory was short."""
        found: dict[Group, dict[int, float]] = {}
        for point, speed in self.ok.items():
            if point == self.space.default or point not in self.did_not_fit:
                found.setdefault(point.group, {})[point.batch] = speed
        return found

    @cached_property
    def banned(self) -> set[Group]:
        """Groups that failed, for another reason than memory, before they ever ran."""
        return {trial.point.group for trial in self.trials if trial.status == "failed"} - self.batches.keys()

    def too_large(self, group: Group) -> float:
        """Return the least micro batch of a group that did not fit, or failed where smaller ones ran."""
        failed = (trial.point for trial in self.trials if trial.status in _FAILED or trial.short_of_memory)
        return min((point.batch for point in failed if point.group == group), default=math.inf)

    @cached_property
    def profiled(self) -> Trial | None:
        """The run of the default that was profiled."""
        return next((trial for trial in self.trials if trial.parts), None)

    def most(self, choice: Choice) -> float:
        """Return what another value may promise at most, as a ratio: no part of a step shrinks to less than nothing."""
        if self.profiled is None or not choice.acts_on:
            return math.inf
        left = 1 - sum(self.profiled.parts.get(name, 0.0) for name in choice.acts_on)
        return 1 / left if left > 0 else math.inf

    def shortens_most_lost(self, group: Group) -> bool:
        """Return whether a group differs from the best one's in what acts on the largest loss of a profiled step."""
        changes = self.space.changes(self.best.group, group)
        return self.profiled is not None and any(self.profiled.most_lost in one.acts_on for one, *_ in changes)

    @property
    def did_not_fit(self) -> list[Point]:
        """The points whose memory was short."""
        return [trial.point for trial in self.trials if trial.status == "out_of_memory" or trial.short_of_memory]


def _counted(trials: Sequence[Trial]) -> Sequence[Trial]:
    return [trial for trial in trials if trial.full] or trials


# Throughput: speed(group) x m / (c + m).


class SpeedModel:
    """Predicts the throughput of points by a fixed cost of a step, from those that ran and from what is declared."""

    def __init__(self, seen: Seen, cost: float) -> None:
        self._seen, self._cost = seen, cost
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
        base = self._seen.space.nearest(group, self._speeds)
        speed = self._highest(self._seen.batches[base], batch)
        for choice, before, after in self._seen.space.changes(base, group):
            learned = _learned(self._speeds, self._seen.space.choices.index(choice), before, after)
            declared = choice.ratio(choice.speed, before, after) * UNTRIED ** min(1.0, choice.distance(before, after))
            speed *= min(declared, self._seen.most(choice)) if learned is None else learned * TRIED
        return speed


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

_STATES = [0.02 * part for part in range(48)]  # of the least peak, which may be of what does not grow with the batch
_SCATTER = 0.03  # by how much (sigma of the logarithm) a sequence may need more or less than in other runs of its group
_DECLARED = 0.3  # and than another value's declared memory says, for each unit of distance
_UNDECLARED = 0.05  # and where none is declared
_ROOM = 0.975  # of a GPU's memory: with less left the allocator frees and retries, which takes time
_HOPELESS = 0.01
_NORMAL = NormalDist()


class MemoryModel:
    """Predicts whether points fit, from the peaks of those that ran and from those that did not fit.

    What part of the memory does not grow with the micro batch is not known: every possible one counts, the more the
    better it explains all runs so far.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen, self._space = seen, seen.space
        self._peaks: dict[Group, dict[int, float]] = {}
        for trial in seen.trials:
            if trial.status == "ok" and trial.memory_gib and not trial.short_of_memory:
                of_group = self._peaks.setdefault(trial.point.group, {})
                of_group[trial.point.batch] = max(trial.memory_gib, of_group.get(trial.point.batch, 0.0))
        self._limit = _ROOM * (seen.space.memory_gib or 0.0)
        self._known = bool(self._limit and self._peaks)
        self._slopes: dict[Group, list[tuple[float, float]]] = {}

    def chance(self, point: Point) -> float:
        """Return how likely a point fits, from 0 to 1."""
        group, batch = point.group, point.batch
        if (batch and batch >= self._seen.too_large(group)) or any(
            map(partial(self._needs_more, point), self._seen.did_not_fit)
        ):
            return 0.0
        ran = self._seen.batches.get(group, {})
        if batch <= max(ran, default=-1):
            return 1.0
        if not self._known:
            return self._unknown(batch, max(ran, default=0), self._seen.too_large(group))
        if group not in self._slopes:
            base = self._space.nearest(group, self._peaks)
            self._slopes[group] = [self._slope(base, group, states) for states in self._weights]
        slopes = zip(self._weights.items(), self._slopes[group], strict=True)
        found = sum(weight * self._fits(batch, states, *slope) for (states, weight), slope in slopes)
        return found if found > _HOPELESS else 0.0

    def _needs_more(self, point: Point, other: Point) -> bool:
        """Return whether a point surely needs as much memory as another one: what is declared says so.

        A value of which nothing is declared needs no less than the default's.
        """
        default = self._space.named(self._space.default)
        changes = self._space.changes(other.group, point.group)
        return point.batch >= other.batch and all(
            choice.ratio(choice.memory, before, after) >= 1 if choice.memory else before == default[choice.key]
            for choice, before, after in changes
        )

    def _unknown(self, batch: int, largest: int, too_large: float) -> float:
        """Expect less of each further doubling while nothing is known, and halve the gap once one did not fit."""
        reference = largest or self._seen.space.default.batch
        if math.isfinite(too_large) and largest:
            return 0.5 if batch <= (largest + int(too_large)) // 2 else 0.0
        doublings = max(0.0, math.log2(batch / reference)) + (not largest) if batch else 0.5
        return 0.6**doublings if doublings <= _MOST_DOUBLINGS else 0.0

    @cached_property
    def _weights(self) -> dict[float, float]:
        """What may be the memory that does not grow with the micro batch, in GiB, and how likely that is.

        Of most trainings it is the larger part.
        """
        least = min(peak for peaks in self._peaks.values() for peak in peaks.values())
        weights = {least * part: (0.1 + part) * self._likelihood(least * part) for part in _STATES}
        total = sum(weights.values())
        return (
            {states: weight / total for states, weight in weights.items()}
            if total
            else dict.fromkeys(weights, 1 / len(weights))
        )

    def _likelihood(self, states: float) -> float:
        """Return how well an amount of memory that does not grow explains the runs, those that did not fit included."""
        first = next(iter(self._peaks))
        off = [
            (math.log((peak - states) / max(1, batch)) - slope) / spread
            for group, peaks in self._peaks.items()
            for slope, spread in [self._slope(first, group, states)]
            for batch, peak in peaks.items()
        ]
        fitted = math.exp(-0.5 * sum(z * z for z in off))
        for point in self._seen.did_not_fit:
            base = self._space.nearest(point.group, self._peaks)
            fitted *= 1.01 - self._fits(point.batch, states, *self._slope(base, point.group, states))
        return fitted

    def _slope(self, base: Group, group: Group, states: float) -> tuple[float, float]:
        """Return the logarithm of what a sequence of a group needs, by the runs of another one, and how sure it is."""
        slope = fmean(math.log((peak - states) / max(1, batch)) for batch, peak in self._peaks[base].items())
        spread = _SCATTER
        for choice, before, after in self._space.changes(base, group):
            slope += math.log(choice.ratio(choice.memory, before, after))
            spread += _DECLARED * min(1.0, choice.distance(before, after)) if choice.memory else _UNDECLARED
        return slope, spread

    def _fits(self, batch: int, states: float, slope: float, spread: float) -> float:
        room = (self._limit - states) / max(1, batch)
        return _NORMAL.cdf((math.log(room) - slope) / spread) if room > 0 else 0.0


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
