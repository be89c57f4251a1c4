"""Adaptive length: whether the steady steps of a run that goes on are enough for its number (docs/until.md).

The number is the median of the steady steps.  Its 95 % interval is that of order statistics (binomial, without an
assumption about the distribution, so that single slow steps widen it little), with as many independent steps as an
AR(1) series of the same autocorrelation has: n (1 − ρ) ÷ (1 + ρ).  ρ is the lag-1 autocorrelation of the ranks, with
the first-order correction of its bias in short series.  Fewer than 10 independent steps say nothing: a stretch of a
slowly wandering series looks narrow, and its ρ is estimated too low.  It is looked at after 20 steady steps and then
each time that there are 1.22 times as many; look k may err with probability 0.05 · 6 ÷ (π k)², which adds up to 0.05
over all looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, median

from msgspec.structs import replace

from madlite.measure.steps import Steps
from madlite.measure.window import count_outliers, find_drift, steady_values
from madlite.model import AdaptiveLength, Quantity, Step, Value

FIRST_LOOK = 20  # steady steps: fewer say nothing about their autocorrelation
LEAST_INDEPENDENT = 10  # steps
GROWTH = 1.22
ERROR = 0.05  # of all looks together
SURE_Z = 3.0  # of a drift: without one, independent steps seem to have one in 3 of 1000 looks
AFTER_STALL = 3  # steady steps that must follow one far from the median
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
    rho = math.fsum(one * other for one, other in pairwise(ranks)) / square
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


def looks() -> Sequence[int]:
    """Return after how many steady steps it is looked at, as far as anybody trains."""
    found = [FIRST_LOOK]
    while found[-1] < 10_000_000:
        found.append(math.ceil(found[-1] * GROWTH))
    return found


_LOOKS = looks()


class ConvergenceMonitor:
    """Decides after each training step whether the interval of `quantity`'s steady median is narrow enough.

    `target` is the half-width asked for as a part of the median; `planned` is how many steps were, None if unknown.
    """

    def __init__(self, target: float, quantity: Quantity, warmup_steps: int, planned: int | None) -> None:
        self._target, self._quantity, self._warmup_steps, self._planned = target, quantity, warmup_steps, planned
        self._highest = 0
        self._missing = FIRST_LOOK  # steps at least, until there are enough for a look
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
        count = len(self._values(steps, step.n - 1)[1])
        is_look = count >= _LOOKS[self._look]
        while count >= _LOOKS[self._look]:
            self._look += 1
        self._missing = _LOOKS[self._look] - count - 1
        if not is_look:
            return None
        self._error = ERROR * 6 / (math.pi * self._look) ** 2
        found = self._decide(steps, step.n - 1, self._error)
        self._reached = found if found.reached else None
        return self._reached

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
        interval = median_interval(values, error)
        why = self._why_not(ns, values, interval)
        return AdaptiveLength(
            target=self._target,
            reached=not why,
            steps_planned=self._planned,
            steps_run=last,
            steady_steps=len(values),
            median=interval.median if interval else None,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            why=why,
        )

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
        if count_outliers(values, middle) > count_outliers(values[:-AFTER_STALL], middle):
            return "one of the last steps is far from the median"
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
    return f"{until} {how} after {length.steps_run}{of} steps: the 95 % interval of the median is ±{interval}"


def ending_text(length: AdaptiveLength) -> str:
    """Return why the run is ended, while more steps may still be reported."""
    return f"--until {percent(length.target)} ended the run"


def _interval_of(length: AdaptiveLength) -> str:
    if length.median is None or length.low is None or length.high is None:
        return "?"
    return percent(MedianInterval(median=length.median, low=length.low, high=length.high).part)


def percent(part: float) -> str:
    """Return a part in percent, to two digits."""
    return f"{100 * part:.2g} %"
