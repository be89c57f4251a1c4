"""Statistics of small samples: intervals, the Mann-Whitney test, steps in a series.

The samples are runs: few, and rarely normal.  Formulas need no package: exact distributions up to `EXACT` values a
side, normal approximations above.  Sources: H. B. Mann and D. R. Whitney, 1947 (the test); B. Efron, 1979 (the
distribution of a resampled median); M. Abramowitz and I. Stegun, 26.7.3 and 26.7.4 (Student's t).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist, fmean, median

from madlite.model import Value

EXACT = 20  # values a side up to which distributions are exact
FEWEST_RESAMPLED = 5  # values a side from which on the bootstrap's interval holds the confidence it names
_NORMAL = NormalDist()


class Interval(Value, frozen=True):
    """A confidence interval."""

    low: float
    high: float


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the standard deviation (of n - 1) as a part of the mean; None of fewer than two values or a mean of 0."""
    mean = fmean(values) if len(values) > 1 else 0.0
    return _deviation(values, mean) / abs(mean) if mean else None


def _deviation(values: Sequence[float], mean: float) -> float:
    """Return the standard deviation (of n - 1); `statistics.stdev`, exact to the last bit, takes ten times as long."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Student's interval of the mean; None of fewer than two values."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    error = _deviation(values, mean) / math.sqrt(len(values))
    reach = student_quantile((1 + confidence) / 2, len(values) - 1) * error
    return Interval(low=mean - reach, high=mean + reach)


def ratio_of_means(base: Sequence[float], new: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Student's interval of mean(new) ÷ mean(base), of logarithms with a common variance.

    None of fewer than three values in all, of an empty side, or where a value is not above 0.
    """
    if not base or not new or len(base) + len(new) < 3 or min(*base, *new) <= 0:
        return None
    logs = [[math.log(value) for value in side] for side in (base, new)]
    means = [fmean(side) for side in logs]
    degrees = len(base) + len(new) - 2
    squares = math.fsum((value - mean) ** 2 for side, mean in zip(logs, means, strict=True) for value in side)
    error = math.sqrt(squares / degrees * (1 / len(base) + 1 / len(new)))
    reach = student_quantile((1 + confidence) / 2, degrees) * error
    middle = means[1] - means[0]
    return Interval(low=math.exp(middle - reach), high=math.exp(middle + reach))


@lru_cache(maxsize=256)
def student_quantile(part: float, degrees: int) -> float:
    """Return the quantile of Student's t, for a part between 0.5 and 1."""
    low, high = 0.0, 1.0
    while _student_cdf(high, degrees) < part:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, degrees) < part else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, degrees: int) -> float:
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + within) / 2


# The Mann-Whitney test: whether one side's values tend to be larger.


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value; 1 where a side is empty.

    Exact up to `EXACT` values a side without ties, else by the normal distribution, corrected for ties and continuity.
    """
    n, m = len(first), len(second)
    if not n or not m:
        return 1.0
    ranks, ties = _ranks([*first, *second])
    u = sum(ranks[:n]) - n * (n + 1) / 2
    extreme = min(u, n * m - u)
    if max(n, m) <= EXACT and not ties:
        ways = _ways(n, m)
        return min(1.0, 2 * sum(ways[: int(extreme) + 1]) / math.comb(n + m, n))
    return _p_of(extreme, n, m, ties)


def smallest_p(n: int, m: int) -> float:
    """Return the least p-value that so many values a side can have: 0.1 for three and three."""
    if not n or not m:
        return 1.0
    return 2 / math.comb(n + m, n) if max(n, m) <= EXACT else _p_of(0, n, m, 0)


def _p_of(extreme: float, n: int, m: int, ties: int) -> float:
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return min(1.0, 2 * _NORMAL.cdf((extreme + 0.5 - n * m / 2) / math.sqrt(variance)))


def _ranks(values: Sequence[float]) -> tuple[list[float], int]:
    """Return the rank of each value from 1 on, tied ones sharing their mean, and the sum of t³ - t of the ties."""
    counts = Counter(values)
    ends = dict(zip(sorted(counts), accumulate(counts[value] for value in sorted(counts)), strict=True))
    ties = sum(count**3 - count for count in counts.values())
    return [ends[value] - (counts[value] - 1) / 2 for value in values], ties


@lru_cache(maxsize=512)
def _ways(n: int, m: int) -> tuple[int, ...]:
    """Return in how many orders of n and m values U is 0, 1, … n·m."""
    if not n or not m:
        return (1,)
    ways = [0] * (n * m + 1)
    for shift, smaller in ((m, _ways(n - 1, m)), (0, _ways(n, m - 1))):
        for u, count in enumerate(smaller):
            ways[u + shift] += count
    return tuple(ways)


# The ratio of two medians.


def ratio_interval(base: Sequence[float], new: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the interval of median(new) ÷ median(base): the bootstrap's, by percentiles.

    Of fewer than `FEWEST_RESAMPLED` values a side that is too narrow (of two and two a third of all true ratios lies
    outside): there it is Student's, of `ratio_of_means`.

    Exact up to `EXACT` values a side: the distribution over all resamples, no random draws.  Above, the normal interval
    of the logarithm, with each median's error from its order statistics.  None of fewer than two values a side, or
    where a value is not above 0.
    """
    if min(len(base), len(new)) < 2 or min(*base, *new) <= 0:
        return None
    if min(len(base), len(new)) < FEWEST_RESAMPLED:
        return ratio_of_means(base, new, confidence)
    if max(len(base), len(new)) > EXACT:
        return _normal_ratio(base, new, confidence)
    share = _share_below(list(_resampled(base)), sorted(_resampled(new)))
    lowest, highest = min(new) / max(base), max(new) / min(base)
    tail = (1 - confidence) / 2
    return Interval(low=_first(share, tail, lowest, highest), high=_first(share, 1 - tail, lowest, highest))


def _share_below(base: Sequence[tuple[float, float]], new: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Return how probable a ratio of at most so much is, of medians with their probabilities; the new ones sorted."""
    values = [value for value, _ in new]
    sums = [0.0, *accumulate(weight for _, weight in new)]

    def share(ratio: float) -> float:
        return sum(weight * sums[bisect_right(values, ratio * value * (1 + 1e-12))] for value, weight in base)

    return share


def _first(share: Callable[[float], float], part: float, low: float, high: float) -> float:
    """Return the least ratio, between two, at or below which this part lies."""
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) >= part - 1e-12 else (middle, high)
    return high


def _resampled(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield the medians that resamples of the values can have, each with its probability."""
    ordered, n = sorted(values), len(values)
    half = (n + 1) // 2
    at_most = [sum(_binomial(n, k, i / n) for k in range(half, n + 1)) for i in range(n + 1)]
    for i in range(1, n + 1):
        left = at_most[i] - at_most[i - 1]
        if n % 2 == 0:
            for j in range(i + 1, n + 1):
                both = _apart(n, i, j - 1) - _apart(n, i - 1, j - 1) - _apart(n, i, j) + _apart(n, i - 1, j)
                left -= both
                yield (ordered[i - 1] + ordered[j - 1]) / 2, both
        yield ordered[i - 1], left


def _apart(n: int, i: int, j: int) -> float:
    """Return how probable it is that the lower half of a resample lies within the first i values, the rest above j."""
    half = n // 2
    return math.comb(n, half) * (i / n) ** half * (1 - j / n) ** (n - half)


def _binomial(n: int, k: int, part: float) -> float:
    return math.comb(n, k) * part**k * (1 - part) ** (n - k)


def _normal_ratio(base: Sequence[float], new: Sequence[float], confidence: float) -> Interval:
    middle = math.log(median(new) / median(base))
    reach = _NORMAL.inv_cdf((1 + confidence) / 2) * math.hypot(_median_error(base), _median_error(new))
    return Interval(low=math.exp(middle - reach), high=math.exp(middle + reach))


def _median_error(values: Sequence[float]) -> float:
    """Return the standard error of the median's logarithm, by the order statistics one deviation around it."""
    ordered, n = sorted(values), len(values)
    reach = math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return math.log(ordered[high] / ordered[low]) / 2


# Steps in a series over time.

_FEWEST = 4  # values on each side of a step
_CHANCE = 0.05  # of a step in a series without one


def change_points(values: Sequence[float], effect: float = 0.01) -> tuple[int, ...]:
    """Return the places where the level of a series changes: the index of the first value after each.

    Binary segmentation by the Mann-Whitney statistic; a step is surer than chance, and its medians are `effect` apart.
    """
    return tuple(sorted(_steps(values, 0, effect)))


def _steps(values: Sequence[float], begin: int, effect: float) -> Iterator[int]:
    place = _best_split(values)
    if not place:
        return
    before, after = values[:place], values[place:]
    if abs(median(after) - median(before)) < effect * abs(median(before)):
        return
    yield begin + place
    yield from _steps(before, begin, effect)
    yield from _steps(after, begin + place, effect)


def _best_split(values: Sequence[float]) -> int:
    """Return the most probable place of a step, or 0 without one."""
    total = len(values)
    if total < 2 * _FEWEST:
        return 0
    ranks, ties = _ranks(values)
    sums = list(accumulate(ranks))
    unit = (total + 1 - ties / (total * (total - 1))) / 12
    if unit <= 0:
        return 0
    places = range(_FEWEST, total - _FEWEST + 1)
    surest = max(places, key=lambda n: abs(_z(sums[n - 1], n, total, unit)))
    # of many places one looks like a step by chance: Bonferroni's correction
    return surest if mann_whitney(values[:surest], values[surest:]) * len(places) < _CHANCE else 0


def _z(rank_sum: float, n: int, total: int, unit: float) -> float:
    return (rank_sum - n * (total + 1) / 2) / math.sqrt(n * (total - n) * unit)
