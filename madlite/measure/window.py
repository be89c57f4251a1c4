"""Steps → the steady window: ranks averaged, warm-up dropped, median of what is left."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable

from madlite.types import Quantity, Step, Value, Window


class Point(Value, frozen=True):
    """One step's value, the mean of the ranks that reported it; it covers the `span` steps that end with `n`."""

    n: int
    value: float
    span: int


def points(steps: Iterable[Step], quantity: Quantity) -> tuple[Point, ...]:
    """Return the training steps' values of one quantity in the order of the steps."""
    by_step: dict[int, dict[int | None, float]] = defaultdict(dict)
    for step in steps:
        if step.phase == "train" and quantity in step.values:
            by_step[step.n][step.rank] = step.values[quantity]  # a line that is forwarded twice counts once
    found = []
    before = None
    for n in sorted(by_step):
        values = list(by_step[n].values())
        found.append(Point(n=n, value=sum(values) / len(values), span=n - before if before is not None else 1))
        before = n
    return tuple(found)


def steady_window(steps: Iterable[Step], quantity: Quantity, warmup_steps: int) -> Window | None:
    """Return the statistics of the steps after warm-up; None where none is left or none is finite.

    A line that covers a warm-up step, even partly, is dropped.  `std` is the sample standard deviation.
    """
    everything = points(steps, quantity)
    if not everything:
        return None
    last_warm = everything[0].n - 1 + warmup_steps
    kept = [point for point in everything if point.n - point.span + 1 > last_warm and math.isfinite(point.value)]
    if not kept:
        return None
    values = [point.value for point in kept]
    mean = statistics.fmean(values)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Window(
        quantity=quantity,
        n=len(values),
        first_step=kept[0].n,
        last_step=kept[-1].n,
        dropped=len(everything) - len(kept),
        median=statistics.median(values),
        mean=mean,
        std=std,
        cv=std / mean if mean else 0.0,
        min=min(values),
        max=max(values),
    )
