"""Statistics of small samples, against scipy and against what can be counted out."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import Counter

import pytest
from scipy import stats as scipy_stats

from madlite.measure.statistics import (
    change_points,
    coefficient_of_variation,
    mann_whitney,
    mean_interval,
    ratio_interval,
    smallest_p,
    student_quantile,
)
from tests.rows import each_row


def sample(n: int, seed: int, shift: float = 0.0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(100 + shift, 1) for _ in range(n)]


@each_row(("n", "m"), [(1, 1), (3, 3), (4, 5), (5, 5), (8, 13), (20, 20)])
def test_the_exact_test_is_scipys(n, m):
    first, second = sample(n, 1), sample(m, 2, 1.0)
    exact = scipy_stats.mannwhitneyu(first, second, method="exact").pvalue
    assert mann_whitney(first, second) == pytest.approx(exact, rel=1e-12)


@each_row("seed", range(5))
def test_with_ties_and_for_large_samples_it_is_scipys_approximation(seed):
    rng = random.Random(seed)
    first = [rng.randint(0, 9) for _ in range(12)]
    second = [rng.randint(1, 10) for _ in range(40)]
    expected = scipy_stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert mann_whitney(first, second) == pytest.approx(expected, rel=1e-9)


def test_equal_or_few_values_differ_in_nothing():
    assert mann_whitney([5.0] * 6, [5.0] * 6) == 1.0
    assert mann_whitney([], [1.0]) == 1.0
    # three against three can never be significant
    assert smallest_p(3, 3) == pytest.approx(0.1)
    assert smallest_p(4, 4) == pytest.approx(2 / 70)
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)


@each_row("degrees", [1, 2, 3, 4, 7, 29, 200])
@each_row("part", [0.75, 0.95, 0.975, 0.999])
def test_students_quantile_is_scipys(degrees, part):
    assert student_quantile(part, degrees) == pytest.approx(scipy_stats.t.ppf(part, degrees), rel=1e-9)


def test_the_interval_of_a_mean_and_how_much_runs_vary():
    values = sample(6, 3)
    low, high = scipy_stats.t.interval(0.95, 5, statistics.mean(values), scipy_stats.sem(values))
    found = mean_interval(values)
    assert found is not None and (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert mean_interval([1.0]) is None
    assert coefficient_of_variation([99.0, 100.0, 101.0]) == pytest.approx(0.01)
    assert coefficient_of_variation([7.0]) is None
    assert coefficient_of_variation([-1.0, 1.0]) is None
    # no interval of one run or of zeros
    assert ratio_interval([1.0], [2.0, 3.0]) is None
    assert ratio_interval([0.0, 1.0], [2.0, 3.0]) is None


def quantile(weighted: Counter, part: float) -> float:
    total, reached = sum(weighted.values()), 0
    for value in sorted(weighted):
        reached += weighted[value]
        if reached >= part * total - 1e-9:
            return value
    raise AssertionError


@each_row(("n", "m"), [(5, 5), (5, 6), (6, 5)])
def test_the_interval_of_a_ratio_is_that_of_all_resamples(n, m):
    base, new = sample(n, n), sample(m, m + 10, -3)
    medians = [
        Counter(statistics.median(one) for one in itertools.product(side, repeat=len(side))) for side in (base, new)
    ]
    ratios: Counter = Counter()
    for below, p in medians[0].items():
        for above, q in medians[1].items():
            ratios[above / below] += p * q
    found = ratio_interval(base, new)
    assert found is not None
    assert found.low == pytest.approx(quantile(ratios, 0.025), rel=1e-6)
    assert found.high == pytest.approx(quantile(ratios, 0.975), rel=1e-6)


def test_the_interval_of_large_samples_has_the_true_ratio_as_often_as_it_says():
    hits = 0
    for seed in range(300):
        found = ratio_interval(sample(60, seed), sample(60, seed + 1000, -3))
        hits += found is not None and found.low <= 0.97 <= found.high
    assert 0.91 <= hits / 300 <= 0.985


@each_row(("n", "m"), [(2, 2), (3, 3), (4, 4), (2, 10), (5, 5)])
def test_the_interval_of_few_values_has_the_true_ratio_as_often_as_it_says(n, m):
    hits = 0
    for seed in range(400):
        found = ratio_interval(sample(n, seed), sample(m, seed + 1000, -3))
        hits += found is not None and found.low <= 0.97 <= found.high
    assert hits / 400 >= 0.92


def test_steps_of_a_series_are_found_where_they_are():
    values = [*sample(30, 1), *sample(12, 2, -4), *sample(30, 3, 5)]
    assert change_points(values) == (30, 42)
    # five runs after five that are all slower are a step
    assert change_points([100.0, 99.7, 99.3, 99.2, 100.3, 94.7, 94.4, 94.5, 95.3, 95.0]) == (5,)
    assert change_points([100.0, 99.7, 99.3, 94.7, 94.4, 94.5]) == ()  # three and three can never be sure
    # noise alone has no step
    found = sum(bool(change_points(sample(50, seed), effect=0.0)) for seed in range(400))
    assert found / 400 < 0.05
    # a step that does not matter is none
    values = [*[100.0 + i * 1e-3 for i in range(20)], *[100.2 + i * 1e-3 for i in range(20)]]
    assert change_points(values, effect=0.01) == ()
    assert change_points(values, effect=0.001) == (20,)
    assert change_points([5.0] * 40) == () and change_points([1.0, 2.0]) == ()
