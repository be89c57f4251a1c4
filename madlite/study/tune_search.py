"""Which configuration `madlite tune` runs next: a pure function of what may be changed and of what was measured.

A *point* is one configuration: a micro batch, and a value of each other knob, its *group*.  Two models
(`tune_models`), fitted to the runs so far, predict its throughput and its memory.

The next run is the point whose optimistic throughput promises most over the best one, weighted with how likely it fits.
Running out of memory is an answer: it bounds the micro batch of its group.  Where no run tells its memory, larger
micro batches are tried until one does not fit, and the gap is halved.  Once nothing promises a gain, or what is left of
the budget is needed for it, the best points are confirmed by full runs in turns with the default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from statistics import fmean
from typing import Literal

from msgspec.structs import replace

from madlite.measure.adaptive import FIRST_LOOK
from madlite.measure.statistics import Interval, ratio_of_means
from madlite.model import Value
from madlite.study.tune_models import MOST_BATCH, Group, MemoryModel, Point, Seen, Space, SpeedModel, Trial, fixed_costs

SHORT_S = 12.0  # of the steps of a short run, where fewer than usual will do
_MARGIN = 0.1  # by which full runs that are to follow may take longer than is expected


class Budget(Value, frozen=True):
    """How much may be spent: seconds, runs, both; with `either` it is enough that one of them is left."""

    seconds: float | None = None
    runs: int | None = None
    either: bool = False

    def less(self, seconds: float) -> Budget:
        """Return what is left after so many seconds that no run tells of."""
        return self if self.seconds is None else replace(self, seconds=max(0.0, self.seconds - seconds))

    def allows(self, runs: int, seconds: float) -> bool:
        """Return whether so many runs may have been made, in this time, all together."""
        within = [self.seconds is None or seconds <= self.seconds, self.runs is None or runs <= self.runs]
        return any(within) if self.either else all(within)


class Costs:
    """What runs cost, by those that were made."""

    def __init__(self, seen: Seen, budget: Budget) -> None:
        self._seen, self._space, self._budget = seen, seen.space, budget
        started = [trial for trial in seen.trials if trial.status != "refused"]
        self._runs, self._spent_s = len(started), sum(trial.duration_s for trial in started)
        self._ok = [trial for trial in started if trial.status == "ok"]

    def allow_search(self, point: Point, following: Sequence[Point]) -> bool:
        """Return whether one more short run, of this point or near it, leaves enough for full runs of those points."""
        short_s = self._seconds(point, self.short_steps(point), full=False)
        return self._allow(1 + len(following), short_s + self._full_s(following))

    def allow_second(self) -> bool:
        """Return whether the default alone ran, and a run of a budget in seconds alone fits yet."""
        is_timed = self._budget.seconds is not None and self._budget.runs is None
        return is_timed and self._runs == 1 and self.allow_search(self._seen.best, ())

    def is_last(self, following: Sequence[Point]) -> bool:
        """Return whether the number of runs leaves one short run alone beside full runs of these points."""
        budget = self._budget
        return budget.runs is not None and not budget.either and self._runs + 2 + len(following) > budget.runs

    def allow_full(self, points: Sequence[Point]) -> bool:
        """Return whether there is enough left for full runs of these points."""
        return self._allow(len(points), self._full_s(points))

    def short_steps(self, point: Point) -> int:
        """Return how many steps a short run of a point makes; 0: as many as usual."""
        steps, step_s = self._space.steps, self._step_s(point)
        return 0 if steps is None or not step_s else max(steps.least_short, min(steps.short, int(SHORT_S / step_s)))

    def full_steps(self, point: Point, others: Sequence[Point]) -> int | None:
        """Return how many steps one more full run of a point makes: 0 for all of them, None where it is too much.

        `others` are the points of the full runs that should follow it: where there is enough for all, this one has no
        more than the least steps unless they have what they need, and a margin.
        """
        least_s = self._least_s(point)
        if not self._allow(1, least_s):
            return None
        steps, step_s = self._space.steps, self._step_s(point)
        if steps is None or not step_s or self._budget.seconds is None:
            return 0
        more_s = self._budget.seconds - self._spent_s - least_s
        later_s = sum(self._least_s(point) for point in others)
        if more_s >= later_s:
            more_s -= self._full_s(others)
        fitting = steps.least_full + int(max(0.0, more_s) / step_s)
        return 0 if fitting >= steps.full else fitting

    def _allow(self, runs: int, seconds: float) -> bool:
        return self._budget.allows(self._runs + runs, self._spent_s + seconds)

    def _full_s(self, points: Sequence[Point]) -> float:
        """Return what full runs with the least steps take, and a margin."""
        return (1 + _MARGIN) * sum(map(self._least_s, points))

    def _least_s(self, point: Point) -> float:
        return self._seconds(point, self._space.steps.least_full if self._space.steps else 0, full=True)

    def _seconds(self, point: Point, steps: int, *, full: bool) -> float:
        if steps and (step_s := self._step_s(point)):
            return self._start_s(point) + steps * step_s
        alike = [trial for trial in self._ok if trial.full == full] or self._ok
        return fmean(trial.duration_s for trial in alike) if alike else 0.0

    def _step_s(self, point: Point) -> float:
        """Return how long a step of a point takes, one that never ran as fast as the best; 0 if no run tells."""
        speed = self._seen.ok.get(point) or self._seen.ok[self._seen.best]
        return self._work * max(1, point.batch) / speed

    def _start_s(self, point: Point) -> float:
        """Return what a run takes beside its steps, in seconds: as the last one of its group, whose caches are filled.

        The study's first run fills those that all groups share, so that it tells the most that the next one may take.
        """
        told = [trial for trial in self._ok if trial.step_s and trial.steps]
        starts = {trial.point.group: max(0.0, trial.duration_s - trial.steps * trial.step_s) for trial in told}
        own = starts.pop(point.group, None)
        is_first = [trial.point.group for trial in told].count(point.group) == 1 and told[0].point.group == point.group
        if not starts or (own is not None and not is_first):
            return own or 0.0
        near = self._space.nearest(point.group, starts)
        more_s = sum(choice.more_s(*values) for choice, *values in self._space.changes(near, point.group))
        return min(max(0.0, starts[near] + more_s), math.inf if own is None else own)

    @cached_property
    def _work(self) -> float:
        """`k`: the seconds of a step times the throughput, for each sequence of its micro batch; 0 if no run tells."""
        found = [trial.step_s * trial.speed / max(1, trial.point.batch) for trial in self._ok if trial.step_s]
        return fmean(found) if found else 0.0


GAIN = 0.004  # what a run has to promise over the best one
CLOSE = 0.01  # points as near to each other as this are both confirmed
LEVELS = {2: 0.97, 3: 0.99, 4: 0.995, 5: 0.995}  # of the interval, by full runs of each; what they miss adds up to 5 %
MOST_REPEATS = max(LEVELS)  # full runs of one point
FEWEST_RUNS = 2 * min(LEVELS)  # of a study: the default, a short one, and a full one of each, for a first figure


class NextRun(Value, frozen=True):
    """The run that comes next: a full one is a result, any other a short one; `steps` 0: as many as such a run has."""

    point: Point
    full: bool
    steps: int = 0


class Stop(Value, frozen=True):
    """Why no run comes any more."""

    why: Literal["default_failed", "default_best", "confirmed", "undecided", "budget"]


def next_run(space: Space, trials: Sequence[Trial], budget: Budget) -> NextRun | Stop:
    """Return the run that comes next, or why there is none; the same for the same trials."""
    seen = Seen(space, trials)
    if not (tried := [trial for trial in trials if trial.point == space.default]):
        return NextRun(point=space.default, full=True, steps=_first_steps(space, budget))
    if not any(trial.status == "ok" for trial in tried):
        return Stop(why="default_failed")
    costs = Costs(seen, budget)
    promising = None if seen.is_confirming else _promising(seen, costs)
    if promising is not None:
        return NextRun(point=promising, full=False, steps=costs.short_steps(promising))
    return _confirm(seen, costs)


def _first_steps(space: Space, budget: Budget) -> int:
    """Return how many steps the first run makes, 0 for all: where time is short as many as tell a number."""
    steps = space.steps
    if steps is None or budget.seconds is None:
        return 0
    looked_at = steps.warmup + (FIRST_LOOK + 1) * steps.every  # the line after those that are looked at ends the run
    return looked_at if steps.full > 1.5 * looked_at else 0


# Candidates.


def best_candidate(seen: Seen, caution: int = 1) -> Point | None:
    """Return the point that promises most over the best one; None where nothing promises enough.

    How likely a point fits counts to the power of `caution`.
    As long as runs leave the fixed cost of a step open, all is looked at once more with a high one, of which larger
    micro batches save more.  Where no configuration ran with two of them, a second one of those comes first, however
    unlikely it fits: it tells the cost, and so whether anything further away is worth a run.
    """
    memory, groups = MemoryModel(seen), list(_groups(seen))
    likely, high = fixed_costs(seen)
    scores = {group: _scores(seen, group, SpeedModel(seen, likely), memory, caution) for group in groups}
    found = _most_promising(seen, scores)
    if found is None and high > likely:
        again = {group: _scores(seen, group, SpeedModel(seen, high), memory, caution) for group in groups}
        if all(len(batches) < 2 for batches in seen.batches.values()):
            found = _smallest(again[group] for group in groups if group in seen.batches)
        found = found or _most_promising(seen, again)
    return found


def _promising(seen: Seen, costs: Costs) -> Point | None:
    """Return the point that is worth a short run, for which the budget leaves the full runs that confirm the best one.

    While nothing is faster than the default, and no later choice was tried, a full run of each is enough to go on.
    """
    best, default = seen.best, seen.space.default
    following = _missing(seen, (best,)) if best != default else [default] * 3
    if costs.allow_search(best, following):
        # a run out of memory is no loss once something can be confirmed, and a great one where it is the last
        caution = (2 if best == default else 1) * (2 if costs.is_last(following) else 1)
        found = best_candidate(seen, caution) or _later(seen, costs)
        # once something can be confirmed, what would take longer to confirm must leave room for that
        is_in_time = found is None or best == default or costs.allow_search(best, _missing(seen, (found,)))
        return found if is_in_time else None
    if best != default or seen.has_later:
        return None
    # what nothing is left to confirm with is still better known than not
    return best_candidate(seen, 4) if costs.allow_search(best, [default] * 2) or costs.allow_second() else None


def _missing(seen: Seen, points: Sequence[Point]) -> list[Point]:
    """Return the full runs that points and the default lack for a first look at what they gain."""
    return [point for point in (*points, seen.space.default) for _ in range(min(LEVELS) - len(seen.full(point)))]


def _later(seen: Seen, costs: Costs) -> Point | None:
    """Return the point with another value of a later choice, at the best one's micro batch, that promises most.

    One whose run leaves too little for its own confirmation is none.
    """
    speed, memory = SpeedModel(seen, fixed_costs(seen)[0]), MemoryModel(seen)
    done = {trial.point for trial in seen.trials}
    points = [Point(batch=seen.best.batch, group=group) for group in _neighbours(seen, later=True)]
    scores = {point: (speed.optimistic(point) / seen.ok[seen.best] - 1) * memory.chance(point) for point in points}
    open_ones = [point for point in points if point not in done and costs.allow_search(point, _missing(seen, (point,)))]
    return _most_promising(seen, {point.group: {point: scores[point]} for point in open_ones})


def _most_promising(seen: Seen, of_groups: Mapping[Group, dict[Point, float]]) -> Point | None:
    scores: dict[Point, float] = {}
    for found in of_groups.values():
        if found:  # of as good ones the smallest: its steps are the shortest
            most = max(found.values())
            point = min((point for point in found if found[point] >= most - GAIN / 2), key=lambda point: point.batch)
            scores[point] = most
    equal = max(scores.values(), default=0.0) - GAIN / 2
    first = {point: score >= equal and seen.shortens_most_lost(point.group) for point, score in scores.items()}
    promising = max(scores, key=lambda point: (first[point], scores[point]), default=None)
    return promising if promising is not None and scores[promising] >= GAIN else None


def _smallest(scores: Iterable[dict[Point, float]]) -> Point | None:
    """Return the smallest micro batch that would be the best one: of all it is the likeliest to fit."""
    promised = {point: score for found in scores for point, score in found.items()}
    return min(promised, key=lambda point: (point.batch, -promised[point]), default=None)


def _scores(seen: Seen, group: Group, speed: SpeedModel, memory: MemoryModel, caution: int) -> dict[Point, float]:
    """Return what each point of a group promises over the best one, weighted with how likely it fits."""
    done, best = {trial.point for trial in seen.trials}, seen.ok[seen.best]
    found: dict[Point, float] = {}
    for point, value in _of_group(seen, group, speed):
        chance = memory.chance(point)
        if chance <= 0 and point.batch > max(seen.batches.get(group, {}), default=0):
            break  # and so does every larger one not fit
        if point not in done and value > best:
            found[point] = (value / best - 1) * chance**caution
    return found


def _groups(seen: Seen) -> Iterator[Group]:
    """Yield the groups that ran, and those beside the best point's."""
    yield from dict.fromkeys((*seen.batches, *_neighbours(seen)))


def _neighbours(seen: Seen, *, later: bool = False) -> Iterator[Group]:
    """Yield the groups with one other value than the best one: of later choices and slower to start, or the others."""
    best = seen.best.group
    for at, choice in enumerate(seen.space.choices):
        for value in choice.values:
            group = (*best[:at], value, *best[at + 1 :])
            is_open = group not in seen.banned and not _has_failing_value(seen, group)
            if is_open and choice.comes_later(best[at], value) == later:
                yield group


def _has_failing_value(seen: Seen, group: Group) -> bool:
    """Return whether a group has a value that alone made another one fail."""
    for bad in seen.banned:
        base = seen.space.nearest(bad, seen.batches)
        apart = [at for at in range(len(bad)) if bad[at] != base[at]]
        if len(apart) == 1 and group[apart[0]] == bad[apart[0]]:
            return True
    return False


def _of_group(seen: Seen, group: Group, speed: SpeedModel) -> Iterator[tuple[Point, float]]:
    """Yield the points of a group with their optimistic throughput, the smallest micro batch first."""
    falls = _where_it_falls(seen.batches.get(group, {}))
    if falls is None:
        offered = _offered(seen.space.most, seen.space.global_batch) if seen.space.default.batch else (0,)
        for point in (Point(batch=batch, group=group) for batch in offered):
            yield point, speed.optimistic(point)
        return
    low, top, high = falls
    hope = seen.batches[group][top] * (1 + 1.5 * GAIN)
    for batch in filter(seen.space.offers, sorted({(low + top) // 2, (top + high) // 2} - {low, top, high})):
        yield Point(batch=batch, group=group), hope


@cache  # of every group before each run
def _offered(most: int, global_batch: int) -> tuple[int, ...]:
    space = Space(default=Point(batch=1), most=most, global_batch=global_batch)
    return tuple(filter(space.offers, range(1, MOST_BATCH + 1)))


def _where_it_falls(found: dict[int, float]) -> tuple[int, int, int] | None:
    """Return three micro batches around the best one of a group, where a larger one was slower; 0 for none below."""
    if not found:
        return None
    top = max(found, key=lambda batch: found[batch])
    above = [batch for batch in found if batch > top and found[batch] < found[top] * (1 - GAIN)]
    below = [batch for batch in found if batch < top]
    return (max(below, default=0), top, min(above)) if above else None


# Confirmation, and what there is left for it.


def _confirm(seen: Seen, costs: Costs) -> NextRun | Stop:
    default = seen.space.default
    finalists = _finalists(seen, costs)
    if not finalists:
        is_cut = not seen.is_confirming and best_candidate(seen) is not None
        return Stop(why="budget" if is_cut else "default_best")
    runs = {point: len(seen.full(point)) for point in (*finalists, default)}
    if (interval := gain_interval(seen, finalists[0])) is not None and (interval.low > 1 or interval.high < 1):
        return Stop(why="confirmed" if interval.low > 1 else "default_best")
    fewest = min(runs, key=lambda point: runs[point])  # of several the best one first, the default last
    if runs[fewest] >= MOST_REPEATS or seen.failed(fewest) > 1:
        return Stop(why="undecided")
    enough = max(min(LEVELS), runs[fewest] + 1)
    others = [point for point in runs for _ in range(enough - runs[point] - (point == fewest))]
    steps = costs.full_steps(fewest, others)
    return NextRun(point=fewest, full=True, steps=steps) if steps is not None else Stop(why="budget")


def _finalists(seen: Seen, costs: Costs) -> list[Point]:
    """Return the points to confirm, the best first: at most two, close or with the default's global batch.

    It is one where the budget lacks two full runs of each: two points that ran twice tell more than three of which one
    ran once.
    """
    default = seen.space.default
    better = ranked(seen, (point for point in seen.ok if point != default))
    better = [point for point in better if seen.ok[point] > seen.ok[default] or seen.full(point)]
    sure = seen.ok[default] * (1 + CLOSE)
    kept = [point for point in better if seen.space.keeps_batch(point) and seen.ok[point] > sure]
    close = [point for point in better if seen.ok[point] >= seen.ok[better[0]] * (1 - CLOSE)]
    found = list(dict.fromkeys((*better[:1], *kept[:1], *close)))
    is_enough = costs.allow_full(_missing(seen, found[:2]))
    return found[:2] if is_enough else sorted(found, key=lambda point: -len(seen.full(point)))[:1]


def ranked(seen: Seen, points: Iterable[Point]) -> list[Point]:
    """Return points, the fastest first; before it one as near as CLOSE that keeps the default's global batch."""
    order = sorted(points, key=lambda point: (-seen.ok[point], point != seen.space.default))
    near = (point for point in order if seen.ok[point] >= seen.ok[order[0]] * (1 - CLOSE))
    first = next((point for point in near if seen.space.keeps_batch(point)), None)
    return [first, *(point for point in order if point != first)] if first is not None else order


def gain_interval(seen: Seen, point: Point) -> Interval | None:
    """Return the interval of a point's throughput ÷ the default's, over as many full runs of each; None of too few.

    It is looked at again with each further pair of runs: all looks together miss with at most 5 %.
    """
    base, new = seen.full(seen.space.default), seen.full(point)
    pairs = min(len(base), len(new))
    level = LEVELS.get(pairs)
    return ratio_of_means(base[:pairs], new[:pairs], level) if level is not None else None
