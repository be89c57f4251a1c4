"""How values move over a window, and which of them stand apart: robust figures, of however many values.

Drift is the slope by Theil and Sen, the median of the slopes between all pairs of points; whether there is one at all
says the test by Mann and Kendall.  Pairs grow with the square of the points, so of many values the medians of equal
blocks, one after another, are the points: all values count, and the same ones give the same answer.  Outliers are told
by the modified z-score of Iglewicz and Hoaglin.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations, pairwise

from madlite.model import Value

POINTS = 200  # of a slope: some 20,000 pairs
FEWEST = 5  # values: of fewer nothing is told
Z_SCORE = 3.5  # Iglewicz and Hoaglin's own limit
FLOOR = 0.10  # of the median: what is closer is no outlier, however even the others are
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


def count_outliers(values: Sequence[float], median: float) -> int:
    """Return how many values are far from the median, both by the spread of the others and as a part of it."""
    if len(values) < FEWEST or median <= 0:
        return 0
    far = [abs(value - median) for value in values]
    limit = max(Z_SCORE * statistics.median(far) / _TO_SIGMA, FLOOR * median)
    return sum(one > limit for one in far)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    pairs = combinations(points, 2)
    return statistics.median((later - value) / (later_n - n) for (n, value), (later_n, later) in pairs)


def _points(ns: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the values, or medians of as many blocks as a slope has points."""
    if len(values) <= POINTS:
        return list(zip(ns, values, strict=True))
    edges = [place * len(values) // POINTS for place in range(POINTS + 1)]
    return [(statistics.median(ns[begin:end]), statistics.median(values[begin:end])) for begin, end in pairwise(edges)]


def _z(balance: int, count: int) -> float:
    """Return how many standard deviations the balance of rising and falling pairs is from that of no trend."""
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return (balance - math.copysign(1, balance)) / deviation if balance else 0.0
