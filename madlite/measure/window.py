"""Steps → the steady window: ranks averaged, warm-up dropped, median of what is left."""

from __future__ import annotations

import math
import statistics
from array import array
from bisect import bisect_left
from itertools import compress

from madlite.measure.steps import Steps
from madlite.types import Quantity, Window

_GARBLED = 1e100  # no unit of a log gets there, and sums of squares stay finite below


def steady_window(steps: Steps, quantity: Quantity, warmup_steps: int) -> Window | None:
    """Return the statistics of the steps after warm-up; None where none is left or none is finite.

    A line that covers a warm-up step, even partly, is dropped.  `std` is the sample standard deviation.
    """
    curve = steps.curve(quantity)
    if not curve.ns:
        return None
    begin = 0
    if warmup_steps > 0:  # a line covers the steps since the one before it, which must have been past the warm-up
        begin = bisect_left(curve.ns, steps.begin - 1 + warmup_steps) + 1
    fine = [usable(value) for value in curve.values[begin:]]
    ns = array("q", compress(curve.ns[begin:], fine))
    values = array("d", compress(curve.values[begin:], fine))
    if not values:
        return None
    mean = statistics.fmean(values)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Window(
        quantity=quantity,
        n=len(values),
        first_step=ns[0],
        last_step=ns[-1],
        dropped=len(curve.ns) - len(ns),
        median=statistics.median(values),
        mean=mean,
        std=std,
        cv=std / mean if mean else 0.0,
        min=min(values),
        max=max(values),
    )


def median_in(steps: Steps, quantity: Quantity, window: Window) -> float | None:
    """Return the median of another quantity over a window's steps; None where none of them has a finite value."""
    curve = steps.curve(quantity)
    begin, end = bisect_left(curve.ns, window.first_step), bisect_left(curve.ns, window.last_step + 1)
    values = [value for value in curve.values[begin:end] if usable(value)]
    return statistics.median(values) if values else None


def usable(value: float) -> bool:
    """Say whether a value can be calculated with."""
    return math.isfinite(value) and abs(value) < _GARBLED
