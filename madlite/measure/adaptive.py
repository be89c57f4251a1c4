"""Adaptive length: whether the steps so far tell the steady median that all planned steps would have (docs/until.md).

The interval of the median is that of order statistics (binomial, without an assumption about the distribution, so that
single slow steps widen it little), with as many independent steps as an AR(1) series of the same autocorrelation has:
n (1 − ρ) ÷ (1 + ρ).  ρ is the lag-1 autocorrelation of the ranks, with the first-order correction of its bias in short
series.  Fewer than 10 independent steps say nothing: a stretch of a slowly wandering series looks narrow, and its ρ is
estimated too low.  What the steps that are left can change is told by Sen's interval of the slope, its variance widened
for the same autocorrelation: it is carried on to the last planned step.  The steady window must be a minute long, or a
fifth of the planned steps.  It is looked at then and each time that there are 1.22 times as many steps; look k may err
with probability 0.05 · 6 ÷ (π k)², which adds up to 0.05 over all looks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, median

from msgspec.structs import replace

from madlite.measure.steps import INTERVAL_POINTS, Steps, find_drift, find_late_change, slope_interval, steady_values
from madlite.model import AdaptiveLength, Quantity, Step, Value

FIRST_LOOK = 19  # steady steps: fewer say nothing about their autocorrelation
LEAST_INDEPENDENT = 10  # steps
LEAST_S, LEAST_PART = 60.0, 0.2  # of the steady window: seconds, or a part of the planned steps
GROWTH = 1.22
ERROR = 0.05  # of all looks together
SURE_Z = 3.0  # of a drift: without one, independent steps seem to have one in 3 of 1000 looks
_MOST_RHO = 0.95


class MedianInterval(Value, frozen=True):
    """A median and its interval; `part` is the larger of the two half-widths, as a part of the median."""

    median: float
    low: float
    high: float

    @property
    def part(self) -> float:
        """Return the half-width relative to the median."""
        return max(self.high - self.median, self.median - self.low) / self.median


def autocorrelation(values: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of the values' ranks, from 0 to 0.95; 0 of a constant series."""
    n = len(values)
    order = sorted(range(n), key=values.__getitem__)
    ranks = [0.0] * n
    for rank, place in enumerate(order):
        ranks[place] = rank - (n - 1) / 2
    square = math.fsum(rank * rank for rank in ranks)
    if values[order[0]] == values[order[-1]] or not square:
        return 0.0
    rho = math.fsum(item * other for item, other in pairwise(ranks)) / square
    return min(_MOST_RHO, max(0.0, rho + (1 + 3 * rho) / n))


def _independent(n: int, rho: float) -> float:
    """Return how many independent values tell as much as n with this autocorrelation."""
    return n * (1 - rho) / (1 + rho)


def median_interval(values: Sequence[float], error: float = ERROR) -> MedianInterval | None:
    """Return the interval that misses the median with a probability of `error`; None where it needs more values."""
    n = len(values)
    if n < FIRST_LOOK:
        return None
    rho = autocorrelation(values)
    if _independent(n, rho) < LEAST_INDEPENDENT:
        return None
    half = NormalDist().inv_cdf(1 - error / 2) * math.sqrt(n * (1 + rho) / (1 - rho)) / 2
    low, high = math.floor(n / 2 - half), math.ceil(n / 2 + half + 1)  # counted from 1
    middle = median(values)
    if low < 1 or high > n or middle <= 0:
        return None
    ordered = sorted(values)
    return MedianInterval(median=middle, low=ordered[low - 1], high=ordered[high - 1])


def forecast(
    ns: Sequence[int], values: Sequence[float], last: int, planned: int | None, error: float = ERROR
) -> MedianInterval | None:
    """Return the interval of the median that the run will have at its planned end, if it goes on as it did.

    It has the median so far and what that would become by each slope that the values allow, over the steps that are
    left: a trend that goes on moves the median by half of what it moves the values.  Without a number of planned steps
    the run counts as five times as long as it is.  None where the values are too few.
    """
    found = median_interval(values, error)
    left = (planned if planned is not None else round(last / LEAST_PART)) - last
    if found is None or left <= 0:
        return found
    inflation = max(1.0, min(len(values), INTERVAL_POINTS) / _independent(len(values), autocorrelation(values)))
    slopes = slope_interval(ns, values, NormalDist().inv_cdf(1 - error / 2), inflation)
    if slopes is None:
        return None
    falls, rises = (slope * left / 2 for slope in slopes)
    below = math.hypot(found.median - found.low, min(0.0, falls))
    above = math.hypot(found.high - found.median, max(0.0, rises))
    return replace(found, low=found.median - below, high=found.median + above)


class ConvergenceMonitor:
    """Decides after each training step whether the full run's steady median of `quantity` is known well enough.

    `target` is the half-width asked for as a part of the median; `planned` is how many steps were, None if unknown.
    """

    def __init__(self, target: float, quantity: Quantity, warmup_steps: int, planned: int | None) -> None:
        self._target, self._quantity, self._warmup_steps, self._planned = target, quantity, warmup_steps, planned
        self._highest = 0
        self._next = FIRST_LOOK  # steady steps, for a look
        self._missing = FIRST_LOOK  # steps at least, until there are as many
        self._look = 0  # looks so far
        self._reached: AdaptiveLength | None = None
        self._error = ERROR  # of the last look

    def check(self, step: Step, steps: Steps) -> AdaptiveLength | None:
        """Return how the run ended its length, the first time that it is enough; `steps` has the step already.

        The values of the step itself are left out: other ranks may still report theirs.
        """
        if self._reached is not None or step.phase != "train" or step.n <= self._highest:
            return None
        self._highest, self._missing = step.n, self._missing - 1
        if self._missing >= 0:  # not even with the warm-up, and steps without a value, are there as many
            return None
        ns, values = self._values(steps, step.n - 1)
        count = len(values)
        if count >= self._next:
            self._next = math.ceil(count * GROWTH)
            self._reached = None if self._too_short(steps, ns) else self._look_at(steps, ns, values, step.n - 1)
        self._missing = self._next - count - 1
        return self._reached

    def _look_at(self, steps: Steps, ns: Sequence[int], values: Sequence[float], last: int) -> AdaptiveLength | None:
        self._look += 1
        self._error = ERROR * 6 / (math.pi * self._look) ** 2
        interval = forecast(ns, values, last, self._planned, self._error)
        if interval is None or interval.part > self._target:  # why not takes longer
            return None
        found = self._decide(steps, last, self._error)
        return found if found.reached else None

    def outcome(self, steps: Steps) -> AdaptiveLength:
        """Return how the run ended its length, by all steps that ran: when it was enough, or why it never was."""
        reach = steps.reach()
        last = reach[1] if reach is not None else 0
        if self._reached is not None:
            return replace(self._decide(steps, last, self._error), reached=True, why="")
        return replace(self._decide(steps, last, ERROR), reached=False)

    def _values(self, steps: Steps, last: int) -> tuple[Sequence[int], Sequence[float]]:
        return steady_values(steps, self._quantity, self._warmup_steps, last)

    def _decide(self, steps: Steps, last: int, error: float) -> AdaptiveLength:
        ns, values = self._values(steps, last)
        interval = forecast(ns, values, last, self._planned, error)
        why = self._too_short(steps, ns) or self._why_not(ns, values, interval)
        return AdaptiveLength(
            target=self._target,
            reached=not why,
            steps_planned=self._planned,
            steps_run=last + steps.from_zero,
            steady_steps=len(values),
            median=interval.median if interval else None,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            why=why,
        )

    def _too_short(self, steps: Steps, ns: Sequence[int]) -> str:
        """Return why the steady steps are too short a time to speak for the run, "" where they are not."""
        if not ns:
            return ""
        covered = ns[-1] - ns[0] + 1
        began_s, ended_s = steps.reported_s(ns[0]), steps.reported_s(ns[-1])
        lasted_s = ended_s - began_s if began_s is not None and ended_s is not None else 0.0
        if lasted_s >= LEAST_S or (self._planned is not None and covered >= LEAST_PART * self._planned):
            return ""
        of = f" of {self._planned}" if self._planned is not None else ""
        return f"the steady window has {covered}{of} steps in {lasted_s:.0f} s: 60 s or 20 % of the steps are the least"

    def _why_not(self, ns: Sequence[int], values: Sequence[float], interval: MedianInterval | None) -> str:
        """Return why the steps are not enough yet, "" where they are."""
        middle = median(values) if values else 0.0
        drift = find_drift(ns, values, middle)
        if drift is not None and abs(drift.part) > self._target and abs(drift.z) > SURE_Z:
            way = "rises" if drift.part > 0 else "falls"
            return f"{self._quantity.label} {way} by {percent(abs(drift.part))} over the steady steps"
        if interval is None:
            count, alone = len(values), _independent(len(values), autocorrelation(values)) if values else 0.0
            said = f", for they count as {alone:.1f} independent ones" if count >= FIRST_LOOK else ""
            return f"{count} steady steps are too few for an interval of their median{said}"
        if interval.part > self._target:
            return f"the 95 % interval of the median is ±{percent(interval.part)} wide"
        late = find_late_change(values, middle, interval.low, interval.high)
        if late is not None:
            where = "above" if late > middle else "below"
            return f"the last steps are {percent(abs(late / middle - 1))} {where} the median"
        return ""


def adaptive_text(length: AdaptiveLength) -> str:
    """Return how the run ended its length as a sentence."""
    until = f"--until {percent(length.target)}"
    of = f" of {length.steps_planned}" if length.steps_planned else ""
    interval = _interval_of(length)
    if not length.reached:
        is_whole = not length.steps_planned or length.steps_run >= length.steps_planned
        ended = "its last step came first" if is_whole else f"it ended after {length.steps_run}{of} steps"
        return f"{until} did not end the run: {length.why or f'{ended}, with ±{interval}'}"
    how = "was reached" if length.steps_planned and length.steps_run >= length.steps_planned else "ended the run"
    unseen = "" if how == "was reached" else "; a drift after its end is not known"
    return f"{until} {how} after {length.steps_run}{of} steps: the 95 % interval of the median is ±{interval}{unseen}"


def ending_text(length: AdaptiveLength) -> str:
    """Return why the run is ended, while more steps may still be reported; the run's log ends with it."""
    return f"--until {percent(length.target)} ended the run"


ENDED = re.compile(rb"^madlite: (--until [0-9.]+ % ended the run)\s*\Z", re.MULTILINE)
"""The end of a log whose run `--until` ended."""


def _interval_of(length: AdaptiveLength) -> str:
    if length.median is None or length.low is None or length.high is None:
        return "?"
    return percent(MedianInterval(median=length.median, low=length.low, high=length.high).part)


def percent(part: float) -> str:
    """Return a part in percent, to two digits."""
    return f"{100 * part:.2g} %"
