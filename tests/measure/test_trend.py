"""Drift and outliers, against values computed by hand."""

from __future__ import annotations

import random
import time

import pytest

from madlite.measure.steps import POINTS, count_outliers, find_drift
from tests.rows import each_row


def jitter(count: int, part: float, seed: int = 1) -> list[float]:
    chance = random.Random(seed)  # noqa: S311
    return [1000 * (1 + chance.uniform(-part, part)) for _ in range(count)]


def test_a_straight_line_drifts_by_its_slope_over_the_window():
    values = [100.0 - n for n in range(21)]  # from 100 to 80, median 90
    drift = find_drift(range(21), values, 90.0)
    assert drift.part == pytest.approx(-20 / 90)
    # all 210 pairs fall: (210 - 1) ÷ sqrt(21 · 20 · 47 ÷ 18)
    assert drift.z == pytest.approx(-209 / (21 * 20 * 47 / 18) ** 0.5)
    # a few wild values move no drift
    values = [100.0 + n % 2 for n in range(40)]
    values[3] = values[30] = 1.0
    values[39] = 10_000.0
    drift = find_drift(range(40), values, 100.5)
    assert abs(drift.part) < 0.001 and abs(drift.z) < 1
    # A slope is per step: a log with gaps drifts as the whole one does
    ns = [1, 2, 3, 10, 11, 12, 20, 30, 31, 40]
    drift = find_drift(ns, [1000.0 + n for n in ns], 1011.5)
    assert drift.part == pytest.approx(39 / 1011.5)
    # Every 500th step saves a checkpoint; picking single steps for a slope could pick those
    values = [100.0 if n % 500 else 20.0 for n in range(500 * POINTS)]
    drift = find_drift(range(len(values)), values, 100.0)
    assert (drift.part, drift.z) == (0.0, 0.0)


def test_few_or_constant_values_say_nothing():
    # constant values neither drift nor stand apart
    drift = find_drift(range(20), [7.0] * 20, 7.0)
    assert (drift.part, drift.z) == (0.0, 0.0)
    assert count_outliers([7.0] * 20, 7.0) == 0
    assert find_drift(range(4), [float(n) for n in range(1, 5)], 2.5) is None
    assert count_outliers([100.0, 100.0, 100.0, 1.0], 100.0) == 0
    # All pairs fall: 21 of 7 values, 15 of 6
    seven = find_drift(range(7), [100.0 - 4 * n for n in range(7)], 88.0)
    assert seven.part == pytest.approx(-24 / 88)
    assert seven.z == pytest.approx(-20 / (7 * 6 * 19 / 18) ** 0.5) and seven.z < -3
    six = find_drift(range(6), [100.0 - 4 * n for n in range(6)], 90.0)
    assert six.z == pytest.approx(-14 / (6 * 5 * 17 / 18) ** 0.5)


@each_row("median", [0.0, -5.0])
def test_no_part_is_told_of_a_median_that_is_not_above_zero(median):
    assert find_drift(range(20), [median] * 20, median) is None
    assert count_outliers([median] * 19 + [100.0], median) == 0


def test_millions_of_values_take_little_time_and_all_count():
    values = [1000.0 + n * 1e-4 for n in range(1_000_000)]
    began = time.process_time()
    drift = find_drift(range(1_000_000), values, values[500_000])
    assert time.process_time() - began < 5
    assert drift.part == pytest.approx(100 / 1050, rel=1e-3)
    assert drift.z > 20


def test_steps_far_beyond_the_spread_of_the_others_are_outliers():
    assert count_outliers([*jitter(40, 0.005), 800.0, 1300.0], 1000.0) == 2
    assert count_outliers([*[1000.0] * 40, 800.0], 1000.0) == 1
    # jitter of half a percent has no outlier
    even = [*jitter(98, 0.0001), 1005.0, 995.0]
    assert count_outliers(even, 1000.0) == 0
    # where all scatter none stands apart
    assert count_outliers(jitter(50, 0.4), 1000.0) == 0
