"""The steps of one run, each number once, in 8 bytes: a log can report millions of steps.

What is kept of a step: its number, rank and phase, and the value of each of its quantities.  Of a step that is reported
again (a line forwarded twice, a run that went back to a checkpoint) the values reported last count, quantity by
quantity.  Of the spans the first line's is kept: the others' are told by the numbers.  Times are the live screen's and
the plugins' business; they get every step as it comes.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import index, itemgetter
from typing import Literal, cast

from madlite.types import Quantity, Step, Value

Phase = Literal["warmup", "train", "validate"]
_FURTHEST = 2**63 - 1  # a step beyond is a garbled number


class Curve(Value, frozen=True):
    """One quantity over the steps that report it, in their order, each the mean of its ranks."""

    ns: array[int]
    values: array[float]


class Steps:
    """Every step that was reported, once."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._series: dict[tuple[str, int | None], _Series] = {}
        self._first: tuple[int, int] | None = None  # of the lowest training line: its step, and how many it covers
        self._latest: dict[Quantity, float] = {}
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        """Take a step in.

        Raises:
            TypeError, ValueError, OverflowError: its number or a value of it is none; nothing was taken in.
        """
        n = index(step.n)
        if abs(n) > _FURTHEST:
            return
        key = (step.phase, step.rank)
        series = self._series.get(key) or _Series()
        series.put(n, step.values)
        self._series[key] = series
        if step.phase == "train":
            self._latest.update(step.values)
            if self._first is None or n < self._first[0]:
                self._first = (n, max(1, step.span))

    def __len__(self) -> int:
        return sum(len(series.ns) for series in self._series.values())

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps by number, then rank, then phase."""
        keys = sorted(self._series, key=lambda key: (-1 if key[1] is None else key[1], key[0]))
        rows = [self._rows(key, place) for place, key in enumerate(keys)]
        return (step for _, _, step in heapq.merge(*rows))

    def numbers(self, phase: Phase = "train") -> Iterator[int]:
        """Yield the numbers of a phase's steps, each once, in order."""
        ordered = heapq.merge(*(map(series.ns.__getitem__, series.order()) for series in self._of(phase)))
        return (n for n, _ in groupby(ordered))

    def count(self, phase: Phase = "train") -> int:
        """Return how many steps of a phase were reported, by whatever ranks."""
        return sum(1 for _ in self.numbers(phase))

    def reach(self, phase: Phase = "train") -> tuple[int, int] | None:
        """Return the lowest and the highest number of a phase's steps; None without any."""
        ends = [n for series in self._of(phase) for n in (min(series.ns), max(series.ns))]
        return (min(ends), max(ends)) if ends else None

    @property
    def begin(self) -> int:
        """The first training step that was done: of the lowest line the first that it covers; 1 without any."""
        return self._first[0] - self._first[1] + 1 if self._first else 1

    def latest(self, quantity: Quantity) -> float | None:
        """Return the value of a training step that was reported last, by whatever rank; None where there is none."""
        return self._latest.get(quantity)

    def ranks(self, phase: Phase = "train") -> tuple[int, ...]:
        """Return the ranks that a phase's lines name."""
        return tuple(sorted(rank for at, rank in self._series if at == phase and rank is not None))

    def quantities(self, phase: Phase = "train") -> frozenset[Quantity]:
        """Return what a phase's steps report."""
        return frozenset(quantity for series in self._of(phase) for quantity in series.columns)

    def curve(self, quantity: Quantity) -> Curve:
        """Return one quantity over the training steps."""
        told = [series.points(quantity) for series in self._of("train") if quantity in series.columns]
        ns, values = array("q"), array("d")
        for n, points in groupby(heapq.merge(*told), itemgetter(0)):
            of_ranks = [value for _, value in points]
            ns.append(n)
            values.append(sum(of_ranks) / len(of_ranks))
        return Curve(ns=ns, values=values)

    def _of(self, phase: Phase) -> list[_Series]:
        return [series for (at, _), series in self._series.items() if at == phase]

    def _rows(self, key: tuple[str, int | None], place: int) -> Iterator[tuple[int, int, Step]]:
        series, phase = self._series[key], cast(Phase, key[0])
        for row in series.order():
            n = series.ns[row]
            yield n, place, Step(n=n, values=series.values(row), rank=key[1], phase=phase)


class _Series:
    """The steps of one phase and rank: a row per step in the order they came, a column per quantity."""

    def __init__(self) -> None:
        self.ns = array("q")
        self.columns: dict[Quantity, tuple[array[float], int]] = {}  # with the bit that says which rows have it
        self._told = array("Q")
        self._rows: dict[int, int] | None = None  # number → row, once a new step came before an older one

    def put(self, n: int, values: dict[Quantity, float]) -> None:
        """Take a step in, or new values of one that is here; nothing where a value is no number."""
        cells = [
            (self.columns.get(quantity) or self._open(quantity), float(value)) for quantity, value in values.items()
        ]
        row = self._find(n)
        if row is None:
            row = self._append(n)
        told = 0
        for (column, bit), number in cells:
            column[row] = number
            told |= bit
        self._told[row] |= told

    def order(self) -> Iterable[int]:
        """Return the rows by the numbers of their steps."""
        return range(len(self.ns)) if self._rows is None else sorted(self._rows.values(), key=self.ns.__getitem__)

    def points(self, quantity: Quantity) -> Iterator[tuple[int, float]]:
        """Yield number and value of the steps that have the quantity, in order."""
        column, bit = self.columns[quantity]
        return ((self.ns[row], column[row]) for row in self.order() if self._told[row] & bit)

    def values(self, row: int) -> dict[Quantity, float]:
        """Return what one step has."""
        told = self._told[row]
        return {quantity: column[row] for quantity, (column, bit) in self.columns.items() if told & bit}

    def _open(self, quantity: Quantity) -> tuple[array[float], int]:
        if not isinstance(quantity, Quantity):
            raise TypeError(f"{quantity!r} is no quantity")
        self.columns[quantity] = (array("d", bytes(8 * len(self.ns))), 1 << len(self.columns))
        return self.columns[quantity]

    def _find(self, n: int) -> int | None:
        ns = self.ns
        if not ns or n > ns[-1]:  # the usual case; no number above the last is anywhere while they ascend
            return None if self._rows is None else self._rows.get(n)
        if self._rows is None:
            row = bisect_left(ns, n)
            if ns[row] == n:
                return row
            self._rows = {one: row for row, one in enumerate(ns)}
        return self._rows.get(n)

    def _append(self, n: int) -> int:
        row = len(self.ns)
        self.ns.append(n)
        self._told.append(0)
        for column, _ in self.columns.values():
            column.append(0.0)
        if self._rows is not None:
            self._rows[n] = row
        return row
