"""What further runs of `madlite tune` take, and what the budget allows of them.

A run takes `start + steps x k x m / v`, with its micro batch m and throughput v: `k` is what the steady steps of the
runs so far took, and `start` (imports, weights, compilation) what else the last run of the same or the nearest group
took.  So a large micro batch, whose steps are long, gets fewer of them: in a short run, and in a full one where the
budget would not be enough for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import fmean

from msgspec.structs import replace

from madlite.model import Value
from madlite.study.tune_models import Group, Point, Seen, nearest

SHORT_S = 25.0  # of the steps of a short run, where fewer than usual will do
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
        started = [one for one in seen.trials if one.status != "refused"]
        self._runs, self._spent_s = len(started), sum(one.duration_s for one in started)
        self._ok = [one for one in started if one.status == "ok"]

    def allow_search(self, following: Sequence[Point]) -> bool:
        """Return whether one more short run, near the best point, leaves enough for full runs of these points."""
        best = self._seen.best
        short_s = self._seconds(best, self.short_steps(best), full=False)
        return self._allow(1 + len(following), short_s + self._full_s(following))

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
        later_s = sum(self._least_s(one) for one in others)
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
        alike = [one.duration_s for one in self._ok if one.full == full] or [one.duration_s for one in self._ok]
        return fmean(alike) if alike else 0.0

    def _step_s(self, point: Point) -> float:
        """Return how long a step of a point takes, one that never ran as fast as the best; 0 if no run tells."""
        speed = self._seen.ok.get(point) or self._seen.ok[self._seen.best]
        return self._work * max(1, point.batch) / speed

    def _start_s(self, point: Point) -> float:
        starts = self._starts
        return starts[nearest(point.group, starts)] if starts else 0.0

    @cached_property
    def _work(self) -> float:
        """`k`: the seconds of a step times the throughput, for each sequence of its micro batch; 0 if no run tells."""
        found = [one.step_s * one.speed / max(1, one.point.batch) for one in self._ok if one.step_s]
        return fmean(found) if found else 0.0

    @cached_property
    def _starts(self) -> dict[Group, float]:
        """What the last run of each group took beside its steps, in seconds: by then its caches are filled."""
        told = [one for one in self._ok if one.step_s and one.steps]
        return {one.point.group: max(0.0, one.duration_s - one.steps * one.step_s) for one in told}
