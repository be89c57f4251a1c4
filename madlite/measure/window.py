"""Steps → the steady window: ranks averaged, warm-up dropped, median of what is left."""

from __future__ import annotations

import math
import statistics
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import combinations, compress, pairwise, takewhile

from madlite.measure.steps import Curve, Steps
from madlite.model import Quantity, Value, Window

# How values move over a window, and which of them stand apart: robust figures, of however many values.
#
# Drift is the slope by Theil and Sen, the median of the slopes between all pairs of points; whether there is one at
# all says the test by Mann and Kendall.  Pairs grow with the square of the points, so of many values the medians of
# equal blocks, one after another, are the points: all values count, and the same ones give the same answer.  Outliers
# are found by the modified z-score of Iglewicz and Hoaglin.

POINTS = 200  # of a slope: some 20,000 pairs
INTERVAL_POINTS = 50  # of a slope's interval, which is asked for while a run goes on
FEWEST = 5  # values: fewer are not judged
Z_SCORE = 3.5  # Iglewicz and Hoaglin's own limit
FLOOR = 0.10  # of the median: what is closer is no outlier, however even the others are
_MEDIAN_ERROR = 1.25  # of normal values' median: its standard error as a multiple of their mean's
_TO_SIGMA = 0.6745  # the normal distribution's third quartile: of such values MAD ÷ this is the standard deviation


class Drift(Value, frozen=True):
    """How far the line through the values moves over them, as a part of their median, and Mann and Kendall's z."""

    part: float
    z: float


def find_drift(ns: Sequence[int], values: Sequence[float], median: float) -> Drift | None:
    """Return the drift over steps `ns`, in order; None where too few values, or a median that is not above 0, say."""
    if len(values) < FEWEST or median <= 0:
        return None
    points = _points(ns, values)
    balance = sum((later > value) - (later < value) for (_, value), (_, later) in combinations(points, 2))
    part = _slope(points) * (ns[-1] - ns[0]) / median
    return Drift(part=part, z=_z(balance, len(points))) if math.isfinite(part) else None


def find_slope(values: Sequence[float]) -> float:
    """Return how far the line through two values or more rises from one to the next."""
    return _slope(_points(range(len(values)), values))


def slope_interval(
    ns: Sequence[int], values: Sequence[float], z: float, inflation: float
) -> tuple[float, float] | None:
    """Return Sen's interval of the slope per step, of the quantile `z`; None where all slopes together are too few.

    `inflation` is by how much autocorrelation widens the variance of Kendall's balance (Hamed and Rao).
    """
    points = _points(ns, values, INTERVAL_POINTS)
    slopes = sorted((later - value) / (later_n - n) for (n, value), (later_n, later) in combinations(points, 2))
    reach = z * math.sqrt(_balance_variance(len(points)) * inflation)
    low, high = math.floor((len(slopes) - reach) / 2), math.ceil((len(slopes) + reach) / 2)
    return (slopes[low], slopes[high]) if low >= 0 and high < len(slopes) else None


def find_late_change(values: Sequence[float], median: float, low: float, high: float) -> float | None:
    """Return the median of the last values, of however many, where it is surely another than that of all, else None.

    Sure is what lies outside of an interval, and by more than three standard errors of so few values; their deviation
    is that of all by their median distance.
    """
    sigma = robust_deviation(values, median)
    for count in takewhile(lambda count: count <= len(values) / 2, (2**power for power in range(64))):
        late = statistics.median(values[-count:])
        if not low <= late <= high and abs(late - median) > 3 * _MEDIAN_ERROR * sigma / math.sqrt(count):
            return late
    return None


def count_outliers(values: Sequence[float], median: float) -> int:
    """Return how many values are far from the median, both by the spread of the others and as a part of it."""
    if len(values) < FEWEST or median <= 0:
        return 0
    limit = max(Z_SCORE * robust_deviation(values, median), FLOOR * median)
    return sum(abs(value - median) > limit for value in values)


def robust_deviation(values: Sequence[float], median: float) -> float:
    """Return the standard deviation by the median distance from the median."""
    return statistics.median(abs(value - median) for value in values) / _TO_SIGMA


def _slope(points: Sequence[tuple[float, float]]) -> float:
    pairs = combinations(points, 2)
    return statistics.median((later - value) / (later_n - n) for (n, value), (later_n, later) in pairs)


def _points(ns: Sequence[int], values: Sequence[float], most: int = POINTS) -> list[tuple[float, float]]:
    """Return the values, or medians of as many blocks as a slope has points."""
    if len(values) <= most:
        return list(zip(ns, values, strict=True))
    edges = [place * len(values) // most for place in range(most + 1)]
    return [(statistics.median(ns[begin:end]), statistics.median(values[begin:end])) for begin, end in pairwise(edges)]


def _balance_variance(count: int) -> float:
    return count * (count - 1) * (2 * count + 5) / 18


def _z(balance: int, count: int) -> float:
    """Return how many standard deviations the balance of rising and falling pairs is from that of no trend."""
    deviation = math.sqrt(_balance_variance(count))
    return (balance - math.copysign(1, balance)) / deviation if balance else 0.0


_GARBLED = 1e100  # no unit of a log gets there, and sums of squares stay finite below


def steady_window(steps: Steps, quantity: Quantity, warmup_steps: int, last: int | None = None) -> Window | None:
    """Return the statistics of the steps after warm-up; None where none is left or none is finite.

    A line that covers a warm-up step, even partly, is dropped, and so are those of a warm-up after the training was
    started again, and steps above the `last` of the training.  `std` is the sample standard deviation.
    """
    curve = steps.curve(quantity)
    ns, values = _steady(steps, curve, warmup_steps, last)
    if not values:
        return None
    mean, median = statistics.fmean(values), statistics.median(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
    drift = find_drift(ns, values, median)
    began_s, ended_s = _times(steps, curve, ns)
    return Window(
        quantity=quantity,
        n=len(values),
        first_step=ns[0],
        last_step=ns[-1],
        dropped=len(curve.ns) - len(ns),
        median=median,
        mean=mean,
        std=std,
        cv=std / mean if mean else 0.0,
        min=min(values),
        max=max(values),
        last=values[-1],
        drift=drift.part if drift else None,
        drift_z=drift.z if drift else 0.0,
        outliers=count_outliers(values, median),
        began_s=began_s,
        ended_s=ended_s,
    )


def steady_values(
    steps: Steps, quantity: Quantity, warmup_steps: int, last: int | None = None
) -> tuple[array[int], array[float]]:
    """Return the numbers of the steady window's steps, and their values."""
    return _steady(steps, steps.curve(quantity), warmup_steps, last)


def _steady(steps: Steps, curve: Curve, warmup_steps: int, last: int | None) -> tuple[array[int], array[float]]:
    fine = [usable(value) and (last is None or n <= last) for n, value in zip(curve.ns, curve.values, strict=True)]
    for begin, end in _warmups(steps, curve.ns, warmup_steps):
        fine[begin:end] = [False] * (end - begin)
    return array("q", compress(curve.ns, fine)), array("d", compress(curve.values, fine))


def median_in(steps: Steps, quantity: Quantity, window: Window, warmup_steps: int = 0) -> float | None:
    """Return the median of another quantity over a window's steps; None where none of them has a finite value.

    `warmup_steps` are the window's: with them the warm-up after a restart is left out here too.
    """
    curve = steps.curve(quantity)
    begin, end = bisect_left(curve.ns, window.first_step), bisect_left(curve.ns, window.last_step + 1)
    fine = [begin <= place < end and usable(value) for place, value in enumerate(curve.values)]
    for first, after in _warmups(steps, curve.ns, warmup_steps):
        fine[first:after] = [False] * (after - first)
    values = list(compress(curve.values, fine))
    return statistics.median(values) if values else None


def usable(value: float) -> bool:
    """Return whether a value can be calculated with."""
    return math.isfinite(value) and abs(value) < _GARBLED


def _warmups(steps: Steps, ns: Sequence[int], warmup_steps: int) -> list[tuple[int, int]]:
    """Return from which line to before which one the training warms up, at its begin and after each restart.

    A line covers the steps since the one before it, which must have been past the warm-up.
    """
    if warmup_steps <= 0 or not ns:
        return []
    later = [(bisect_left(ns, first), _after(ns, first, warmup_steps)) for first in steps.restarts]
    return [(0, _after(ns, steps.begin, warmup_steps)), *later]


def _after(ns: Sequence[int], first: int, warmup_steps: int) -> int:
    return min(len(ns), bisect_left(ns, first - 1 + warmup_steps) + 1)


def _times(steps: Steps, curve: Curve, ns: Sequence[int]) -> tuple[float | None, float | None]:
    """Return when the first step of a window began, which is when the one before it was reported, and its last ended.

    Where no step was reported before it, its own report has to do.
    """
    before = bisect_left(curve.ns, ns[0])
    began_s = steps.reported_s(curve.ns[max(0, before - 1)])
    ended_s = steps.reported_s(ns[-1])
    known = began_s is not None and ended_s is not None and began_s < ended_s
    return (began_s, ended_s) if known else (None, None)
