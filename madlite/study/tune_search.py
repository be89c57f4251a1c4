"""Which configuration `madlite tune` runs next: a pure function of what may be changed and of what was measured.

A *point* is one configuration: a micro batch, and a value of each other knob, its *group*.  Two models are fitted to
the runs so far and decide what is worth a run:

* throughput: `speed(group) x m / (c + m)` of micro batch m, where `c` is the fixed cost of a step in sequences; the
  speed of a group that never ran is that of its nearest one that did, times what the backend declares of its values;
* memory: `a + b(group) x m`, where `a` (weights, gradients, optimizer states) is the same for all groups.

The next run is the point whose optimistic throughput promises most over the best one, weighted with how likely it fits.
Running out of memory is an answer: it bounds the micro batch of its group.  Where no run tells its memory, larger
micro batches are tried until one does not fit, and the gap is halved.  Once nothing promises a gain, or what is left of
the budget is needed for it, the best points are confirmed by full runs in turns with the default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import Literal, TypeAlias

from madlite.measure.statistics import Interval, ratio_of_means
from madlite.model import Scalar, Value

GAIN = 0.004  # what a run has to promise over the best one
CLOSE = 0.01  # points as near to each other as this are both confirmed
MOST_REPEATS = 5  # full runs of one point
UNTRIED, TRIED = 1.1, 1.02  # how much better than declared, or than beside other values, a value may be
_SIGMA = 0.01  # assumed noise of one short run
_PRIOR = 0.2  # the fixed cost of a step, as a part of the default's work, before anything is known of it
_HIGH = 0.6  # a high one
_STATES = 0.35  # the part of a run's memory that does not grow with the micro batch, before two runs tell
_MOST_DOUBLINGS = 4.0  # in one run, of which nothing tells the memory
MOST_BATCH = 4096

Group: TypeAlias = tuple[Scalar, ...]


class Point(Value, frozen=True):
    """One configuration: the micro batch (0 where that is not tuned) and a value of each choice, in their order."""

    batch: int
    group: Group = ()


class Choice(Value, frozen=True):
    """A knob other than the micro batch: its values, and what is declared of each, relative to each other."""

    key: str
    values: tuple[Scalar, ...]
    memory: tuple[float, ...] = ()
    speed: tuple[float, ...] = ()

    def ratio(self, table: tuple[float, ...], before: Scalar, after: Scalar) -> float:
        """Return what changes by another value, by a declared table; 1 where none is declared."""
        known = dict(zip(self.values, table, strict=False))
        return known.get(after, 1.0) / known.get(before, 1.0)


class Space(Value, frozen=True):
    """What may be changed: the choices, and the micro batch where the default has one; `memory_gib` is of one GPU."""

    default: Point
    choices: tuple[Choice, ...] = ()
    most: int = 0  # the largest micro batch; 0: any that fits
    memory_gib: float | None = None

    def named(self, point: Point) -> dict[str, Scalar]:
        """Return the values of a point by their keys."""
        batch: dict[str, Scalar] = {"micro_batch": point.batch} if point.batch else {}
        return {**batch, **{one.key: value for one, value in zip(self.choices, point.group, strict=True)}}

    def varied(self, point: Point) -> dict[str, Scalar]:
        """Return the values in which a point differs from the default."""
        default = self.named(self.default)
        return {key: value for key, value in self.named(point).items() if value != default[key]}

    def point(self, varied: dict[str, Scalar]) -> Point:
        """Return the point that differs from the default in these values."""
        values = {**self.named(self.default), **varied}
        return Point(batch=int(values.get("micro_batch", 0)), group=tuple(values[one.key] for one in self.choices))


TrialStatus: TypeAlias = Literal["ok", "out_of_memory", "failed", "refused"]


class Trial(Value, frozen=True):
    """One run of a point: `speed` is its throughput, more is better; `full` of a run that is a result, no short one.

    `memory_gib` is the peak of a GPU, None where nobody tells.  A `refused` one was never started, and cost nothing.
    """

    point: Point
    status: TrialStatus
    full: bool = False
    speed: float = 0.0
    memory_gib: float | None = None
    duration_s: float = 0.0
    reason: str = ""
    run: str = ""


class Budget(Value, frozen=True):
    """How much may be spent: seconds, runs, both; with `either` it is enough that one of them is left."""

    seconds: float | None = None
    runs: int | None = None
    either: bool = False

    def allows(self, runs: int, seconds: float) -> bool:
        """Return whether so many runs may have been made, in this time, all together."""
        within = [self.seconds is None or seconds <= self.seconds, self.runs is None or runs <= self.runs]
        return any(within) if self.either else all(within)


class NextRun(Value, frozen=True):
    """The run that comes next: a full one is a result, any other a short one."""

    point: Point
    full: bool


class Stop(Value, frozen=True):
    """Why no run comes any more."""

    why: Literal["default_failed", "default_best", "confirmed", "undecided", "budget"]


def next_run(space: Space, trials: Sequence[Trial], budget: Budget) -> NextRun | Stop:
    """Return the run that comes next, or why there is none; the same for the same trials."""
    seen = Seen(space, trials)
    if not (tried := [one for one in trials if one.point == space.default]):
        return NextRun(point=space.default, full=True)
    if not any(one.status == "ok" for one in tried):
        return Stop(why="default_failed")
    costs = _Costs(seen, budget)
    if not seen.is_confirming and costs.allow_search():
        promising = best_candidate(seen)
        if promising is not None:
            return NextRun(point=promising, full=False)
    return _confirm(seen, costs)


class Seen:
    """What the trials tell; everything of it is computed once, when it is first used."""

    def __init__(self, space: Space, trials: Sequence[Trial]) -> None:
        self.space, self.trials = space, trials

    @cached_property
    def ok(self) -> dict[Point, float]:
        """The throughput of each point that ran, by its full runs where there are any; none that failed once."""
        bad = {one.point for one in self.trials if one.status != "ok"}
        found: dict[Point, list[Trial]] = {}
        for one in self.trials:
            if one.status == "ok" and (one.point not in bad or one.point == self.space.default):
                found.setdefault(one.point, []).append(one)
        return {point: fmean(one.speed for one in _counted(trials)) for point, trials in found.items()}

    @cached_property
    def best(self) -> Point:
        """The point with the highest throughput; the default comes first where another is no better."""
        return max(self.ok, key=lambda point: (self.ok[point], point == self.space.default))

    def full(self, point: Point) -> list[float]:
        """Return the throughputs of a point's full runs."""
        return [one.speed for one in self.trials if one.point == point and one.full and one.status == "ok"]

    @property
    def is_confirming(self) -> bool:
        """Whether a full run after the default's first one was made: then the search is over."""
        return len([one for one in self.trials if one.full]) > 1

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
        return {one.point.group for one in self.trials if one.status == "failed"} - self.batches.keys()

    def too_large(self, group: Group) -> float:
        """Return the least micro batch of a group that did not fit, or failed where smaller ones ran."""
        sizes = [
            one.point.batch
            for one in self.trials
            if one.status in ("out_of_memory", "failed") and one.point.group == group
        ]
        return min(sizes, default=math.inf)


def _counted(trials: Sequence[Trial]) -> Sequence[Trial]:
    return [one for one in trials if one.full] or trials


# Throughput: speed(group) x m / (c + m).


class SpeedModel:
    """Predicts the throughput of points, from those that ran and from what is declared."""

    def __init__(self, seen: Seen, cost: float | None = None) -> None:
        self._seen, self._choices = seen, seen.space.choices
        known = _fixed_cost(seen) if seen.space.default.batch else 0.0
        self._cost = known if cost is None else cost
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


def _fixed_cost(seen: Seen) -> float:
    """Return the fixed cost of a step, in sequences: the most probable one, groups with several micro batches tell."""
    default = seen.space.default.batch
    groups = [found for found in seen.batches.values() if len(found) > 1]

    def misfit(part: float) -> float:
        cost = part * default
        total = (math.log((part + 0.03) / (_PRIOR + 0.03)) / 1.2) ** 2
        for found in groups:
            speeds = [speed * (cost + batch) / batch for batch, speed in found.items()]
            total += sum((speed / fmean(speeds) - 1) ** 2 for speed in speeds) / _SIGMA**2
        return total

    return default * min(_PARTS, key=misfit)


# Memory: a + b(group) x m.


class MemoryModel:
    """Predicts whether points fit, from the peaks of those that ran and from those that did not fit."""

    def __init__(self, seen: Seen) -> None:
        self._seen, self._choices, self._limit = seen, seen.space.choices, seen.space.memory_gib
        self._peaks: dict[Group, dict[int, float]] = {}
        for one in seen.trials:
            if one.status == "ok" and one.memory_gib is not None:
                of_group = self._peaks.setdefault(one.point.group, {})
                of_group[one.point.batch] = max(one.memory_gib, of_group.get(one.point.batch, 0.0))
        self._known = self._limit is not None and bool(self._peaks)
        self._states = self._fixed()
        self._slopes = {group: self._slope(peaks) for group, peaks in self._peaks.items()}

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
        limit = self._limit or 0.0
        states, told = self._states
        likely = (states + self._slope_of(group) * batch) / limit
        if told or group not in self._peaks:
            return _chance(likely)
        largest = max(self._peaks[group])
        highest = self._peaks[group][largest] * batch / max(1, largest) / limit  # where nothing of it is fixed
        return max(_chance(highest / 0.98), 0.6 * _chance(likely))

    def _fixed(self) -> tuple[float, bool]:
        """Return the memory that does not grow with the micro batch, and whether runs of one group tell it."""
        lines = [_line(peaks) for peaks in self._peaks.values() if len(peaks) > 1]
        least = min((peak for peaks in self._peaks.values() for peak in peaks.values()), default=0.0)
        if lines:
            return min(max(0.0, fmean(start for start, _ in lines)), least), True
        return _STATES * least, False

    def _slope(self, peaks: dict[int, float]) -> float:
        if len(peaks) > 1:
            return max(1e-6, fmean((peak - self._states[0]) / max(1, batch) for batch, peak in peaks.items()))
        ((batch, peak),) = peaks.items()
        return max(1e-6, (peak - self._states[0]) / max(1, batch))

    def _slope_of(self, group: Group) -> float:
        slope = self._slopes.get(group)
        if slope is None:
            base = nearest(group, self._slopes)
            slope = self._slopes[base]
            for at, choice in enumerate(self._choices):
                if base[at] != group[at]:
                    learned = _learned(self._slopes, at, base[at], group[at])
                    slope *= choice.ratio(choice.memory, base[at], group[at]) if learned is None else learned
        too_large = self._seen.too_large(group)
        if math.isfinite(too_large) and self._limit:  # what did not fit needed at least all
            slope = max(slope, (self._limit - self._states[0]) / max(1.0, too_large))
        return slope


def _chance(part: float) -> float:
    """Return how likely something fits that is predicted to need this part of the memory."""
    return min(1.0, max(0.0, (1.02 - part) / 0.1))


def _line(peaks: dict[int, float]) -> tuple[float, float]:
    """Return start and slope of the line through peaks by micro batch, by least squares."""
    x, y = fmean(peaks), fmean(peaks.values())
    slope = sum((batch - x) * (peak - y) for batch, peak in peaks.items()) / sum((batch - x) ** 2 for batch in peaks)
    return y - slope * x, slope


# Candidates.


def best_candidate(seen: Seen) -> Point | None:
    """Return the point that promises most over the best one; None where nothing promises enough.

    As long as no configuration ran with two micro batches, the fixed cost of a step is a guess: what ran is looked at
    once more with a high one, of which larger micro batches save more.
    """
    found = _most_promising(seen, SpeedModel(seen), _groups(seen))
    if found is None and all(len(batches) < 2 for batches in seen.batches.values()):
        high = SpeedModel(seen, _HIGH * seen.space.default.batch)
        return _most_promising(seen, high, [group for group in _groups(seen) if group in seen.batches])
    return found


def _most_promising(seen: Seen, speed: SpeedModel, groups: Iterable[Group]) -> Point | None:
    memory = MemoryModel(seen)
    scores: dict[Point, float] = {}
    for group in groups:
        found = _scores(seen, group, speed, memory)
        if found:  # of as good ones the smallest: its steps are the shortest
            most = max(found.values())
            point = min((one for one in found if found[one] >= most - GAIN / 2), key=lambda one: one.batch)
            scores[point] = most
    promising = max(scores, key=lambda point: scores[point], default=None)
    return promising if promising is not None and scores[promising] >= GAIN else None


def _scores(seen: Seen, group: Group, speed: SpeedModel, memory: MemoryModel) -> dict[Point, float]:
    """Return what each point of a group promises over the best one, weighted with how likely it fits."""
    done, best = {one.point for one in seen.trials}, seen.ok[seen.best]
    found: dict[Point, float] = {}
    for point, value in _of_group(seen, group, speed):
        chance = memory.chance(point)
        if chance <= 0 and point.batch > max(seen.batches.get(group, {}), default=0):
            break  # and so does every larger one not fit
        if point not in done and value > best:
            found[point] = (value / best - 1) * chance
    return found


def _groups(seen: Seen) -> Iterator[Group]:
    """Yield the groups that ran, and those beside the best point's that differ in one value."""
    found = dict.fromkeys(seen.batches)
    best = seen.best.group
    for at, choice in enumerate(seen.space.choices):
        found.update(dict.fromkeys((*best[:at], value, *best[at + 1 :]) for value in choice.values))
    return (group for group in found if group not in seen.banned and not _has_failing_value(seen, group))


def _has_failing_value(seen: Seen, group: Group) -> bool:
    """Return whether a group has a value that alone made another one fail."""
    for bad in seen.banned:
        base = nearest(bad, {other: 0.0 for other in seen.batches})
        apart = [at for at in range(len(bad)) if bad[at] != base[at]]
        if len(apart) == 1 and group[apart[0]] == bad[apart[0]]:
            return True
    return False


def _of_group(seen: Seen, group: Group, speed: SpeedModel) -> Iterator[tuple[Point, float]]:
    """Yield the points of a group with their optimistic throughput, the smallest micro batch first."""
    if not seen.space.default.batch:
        point = Point(batch=0, group=group)
        yield point, speed.optimistic(point)
        return
    falls = _where_it_falls(seen.batches.get(group, {}))
    if falls is None:
        points = (Point(batch=batch, group=group) for batch in range(1, (seen.space.most or MOST_BATCH) + 1))
        yield from ((point, speed.optimistic(point)) for point in points)
        return
    low, top, high = falls
    hope = seen.batches[group][top] * (1 + 1.5 * GAIN)
    for batch in sorted({(low + top) // 2, (top + high) // 2} - {low, top, high, 0}):
        yield Point(batch=batch, group=group), hope


def _where_it_falls(found: dict[int, float]) -> tuple[int, int, int] | None:
    """Return three micro batches around the best one of a group, where a larger one was slower; 0 for none below."""
    if not found:
        return None
    top = max(found, key=lambda batch: found[batch])
    above = [batch for batch in found if batch > top and found[batch] < found[top] * (1 - GAIN)]
    below = [batch for batch in found if batch < top]
    return (max(below, default=0), top, min(above)) if above else None


# Confirmation, and what there is left for it.


class _Costs:
    """What further runs would cost, by those that were made."""

    def __init__(self, seen: Seen, budget: Budget) -> None:
        self._budget = budget
        started = [one for one in seen.trials if one.status != "refused"]
        self._runs, self._spent_s = len(started), sum(one.duration_s for one in started)
        full = [one.duration_s for one in started if one.full and one.status == "ok"]
        short = [one.duration_s for one in started if not one.full and one.status == "ok"]
        self._full_s = fmean(full) if full else 0.0
        self._short_s = fmean(short) if short else self._full_s

    def allow_search(self) -> bool:
        """Return whether one more short run leaves enough for a full run of the best point and of the default."""
        return self._budget.allows(self._runs + 3, self._spent_s + self._short_s + 2 * self._full_s)

    def allow_full(self) -> bool:
        """Return whether there is enough left for one more full run."""
        return self._budget.allows(self._runs + 1, self._spent_s + self._full_s)


def _confirm(seen: Seen, costs: _Costs) -> NextRun | Stop:
    default = seen.space.default
    finalists = _finalists(seen)
    if not finalists:
        return Stop(why="default_best")
    runs = {point: len(seen.full(point)) for point in (*finalists, default)}
    fewest = min(runs, key=lambda point: runs[point])  # of several the best one first, the default last
    if min(runs.values()) > 1:
        ratio = gain_interval(seen, finalists[0])
        if ratio is not None and (ratio.low > 1 or ratio.high < 1):
            return Stop(why="confirmed" if ratio.low > 1 else "default_best")
    if runs[fewest] >= MOST_REPEATS:
        return Stop(why="undecided")
    return NextRun(point=fewest, full=True) if costs.allow_full() else Stop(why="budget")


def _finalists(seen: Seen) -> list[Point]:
    """Return the points to confirm, the best first: those that are close to the best one, at most two."""
    default = seen.space.default
    ranked = sorted((point for point in seen.ok if point != default), key=lambda point: -seen.ok[point])
    ranked = [point for point in ranked if seen.ok[point] > seen.ok[default] or seen.full(point)]
    return [point for point in ranked[:2] if seen.ok[point] >= seen.ok[ranked[0]] * (1 - CLOSE)]


def gain_interval(seen: Seen, point: Point) -> Interval | None:
    """Return the interval of a point's throughput ÷ the default's, over their full runs; None of too few."""
    return ratio_of_means(seen.full(seen.space.default), seen.full(point))
