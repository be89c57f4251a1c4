"""The steps of one run, each number once, in 8 bytes: a log can report millions of steps.

What is kept of a step: its number, rank and phase, when it was reported (8 bytes too), and the value of each of its
quantities.  Of a step that is reported again (a line forwarded twice, a run that went back to a checkpoint) the values
reported last count, quantity by quantity; the time is that of its first report, of a run that went back the first since
then.  Of the spans the first line's is kept, and that of each line where the training went back: the others follow from
the numbers.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise, takewhile
from operator import index, itemgetter
from typing import Literal, cast

from msgspec.structs import replace

from madlite.model import STEPS_APART, Quantity, Step, Value

Phase = Literal["warmup", "train", "validate"]
_FURTHEST = 2**63 - 1  # a step beyond is a garbled number


class Curve(Value, frozen=True):
    """One quantity over the steps that report it, in their order, each the mean of its ranks."""

    ns: array[int]
    values: array[float]


class Steps:
    """Every step that was reported, once."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._series: dict[tuple[str, int | None], _StepSeries] = {}
        self._first: tuple[int, int] | None = None  # of the lowest training line: its step, and how many it covers
        self._latest: dict[Quantity, float] = {}
        # lines at which a rank's training went back: their step → how many it covers
        self._restarts: dict[int, int] = {}
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
        series = self._series.get(key) or _StepSeries()
        t_s = float(step.t_s)
        went_back = series.note(series.put(n, step.values), t_s)
        self._series[key] = series
        if step.phase == "train":
            if went_back:
                self._restarts[n] = max(1, step.span)
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

    def interval(self, last: int = _FURTHEST) -> int:
        """Return how many steps lie between two training lines: the divisor that all distances have; 0 of one line.

        The first distance may be another, for many frameworks print step 1 beside every tenth: of two lines the second
        says how many, unless it is the next step's.  Steps above `last` are none of the training's.
        """
        numbers = takewhile(lambda n: n <= last, self.numbers())
        first, before = next(numbers, 0), next(numbers, 0)
        every = 0
        for n in numbers:
            every, before = math.gcd(every, n - before), n
            if every == 1:
                break
        return every or (before if first == 1 and before > 2 else max(0, before - first))

    def reach(self, phase: Phase = "train") -> tuple[int, int] | None:
        """Return the lowest and the highest number of a phase's steps; None without any."""
        ends = [n for series in self._of(phase) for n in (min(series.ns), max(series.ns))]
        return (min(ends), max(ends)) if ends else None

    @property
    def begin(self) -> int:
        """The first training step that was done: of the lowest line the first that it covers; 1 without any.

        How many a first line covers its reader may not know; where lines come every ten steps, and it is one of those,
        it covers ten as they do.
        """
        if self._first is None:
            return 1
        n, span = self._first
        if span == 1 and n > 0 and (every := self.interval()) > 1 and n % every == 0:
            span = every
        return n - span + 1

    @property
    def from_zero(self) -> bool:
        """Whether steps are counted from 0: N of them are done when step N - 1 is reported."""
        return self._first is not None and self._first[0] == 0

    @property
    def restarts(self) -> tuple[int, ...]:
        """The first step that was done after each time the training was started again from an earlier one, in order."""
        return tuple(sorted(n - span + 1 for n, span in self._restarts.items()))

    @property
    def is_overtaken(self) -> bool:
        """Whether all steps are of the training that was started again last: it reported each of the others' again."""
        return all(series.is_overtaken() for series in self._of("train"))

    def starts_over(self, step: Step, *, ended: bool = False) -> bool:
        """Return whether a training step that is not stored yet begins another training as its rank's first one.

        After an end mark (`ended`) a short training counts too, whose first step is not further back than lines of
        ranks come apart.
        """
        series = self._series.get(("train", step.rank))
        if series is None or step.phase != "train" or not isinstance(step.n, int):
            return False
        return series.starts_over(step.n, 0 if ended else STEPS_APART)

    def reported_s(self, n: int) -> float | None:
        """Return when a training step was reported first, by whatever rank, in seconds since the start of the run.

        None where no line has the step, or the log has no times.
        """
        times = [at for series in self._of("train") if math.isfinite(at := series.time(n))]
        return min(times, default=None)

    def latest(self, quantity: Quantity) -> float | None:
        """Return the value of a training step that was reported last, by whatever rank; None where there is none."""
        return self._latest.get(quantity)

    def ranks(self, phase: Phase = "train") -> tuple[int, ...]:
        """Return the ranks that a phase's lines name."""
        return tuple(sorted(rank for at, rank in self._series if at == phase and rank is not None))

    def counts(self, phase: Phase = "train") -> dict[int, int]:
        """Return how many steps of a phase each rank reported, of the ranks that lines name."""
        return {rank: len(self._series[phase, rank].ns) for rank in self.ranks(phase)}

    def arrived(self) -> dict[int, int]:
        """Return the training step that each rank has come to, of the ranks that lines name."""
        return {rank: self._series["train", rank].top for rank in self.ranks()}

    def quantities(self, phase: Phase = "train") -> frozenset[Quantity]:
        """Return what a phase's steps report."""
        return frozenset(quantity for series in self._of(phase) for quantity in series.columns)

    def curve(self, quantity: Quantity) -> Curve:
        """Return one quantity over the training steps."""
        series_points = [series.points(quantity) for series in self._of("train") if quantity in series.columns]
        ns, values = array("q"), array("d")
        for n, points in groupby(heapq.merge(*series_points), itemgetter(0)):
            of_ranks = [value for _, value in points]
            ns.append(n)
            values.append(sum(of_ranks) / len(of_ranks))
        return Curve(ns=ns, values=values)

    def of_ranks(self, quantity: Quantity) -> dict[int, Iterator[tuple[int, float]]]:
        """Return number and value of each rank's training steps, of the ranks that lines name and that report it."""
        series_of = {rank: self._series["train", rank] for rank in self.ranks()}
        return {rank: series.points(quantity) for rank, series in series_of.items() if quantity in series.columns}

    @property
    def is_shared(self) -> bool:
        """Whether some training step was reported by two of the ranks that lines name, as each is by those of one."""
        named = [series for (phase, rank), series in self._series.items() if phase == "train" and rank is not None]
        ordered = heapq.merge(*(map(series.ns.__getitem__, series.order()) for series in named))
        return any(n == after for n, after in pairwise(ordered))

    def without_ranks(self) -> Steps:
        """Return the steps as those of one rank, for what looks like a rank's label counts something else."""
        plain = Steps(replace(step, rank=None) for step in self)
        plain._first, plain._latest, plain._restarts = self._first, self._latest, self._restarts
        return plain

    def repeats_with_other_values(self, step: Step) -> bool:
        """Return whether its rank reported the same quantities of a training step before, and another value of one.

        A line that is there twice has the same values; another rank's, which no label tells apart, mostly has others.
        """
        series = self._series.get(("train", step.rank))
        return series is not None and isinstance(step.n, int) and series.repeats_with_other_values(step.n, step.values)

    def _of(self, phase: Phase) -> list[_StepSeries]:
        return [series for (at, _), series in self._series.items() if at == phase]

    def _rows(self, key: tuple[str, int | None], place: int) -> Iterator[tuple[int, int, Step]]:
        series, phase = self._series[key], cast(Phase, key[0])
        for row in series.order():
            n = series.ns[row]
            at = series.times[row]
            step = Step(n=n, values=series.values(row), rank=key[1], phase=phase)
            yield n, place, replace(step, t_s=at) if math.isfinite(at) else step


class _StepSeries:
    """The steps of one phase and rank: a row per step in the order they came, a column per quantity."""

    def __init__(self) -> None:
        self.ns = array("q")
        self.times = array("d")  # seconds since the start of the run, NaN where that is not known
        self._top: int | None = None  # the highest number since the training was started last
        self._before = -_FURTHEST  # the highest number before that
        self.columns: dict[Quantity, tuple[array[float], int]] = {}  # with the bit that says which rows have it
        self._present = array("Q")
        self._earlier, self._again = 0, 0  # rows before the training was started again last, and how many came again
        self._rows: dict[int, int] | None = None  # number → row, once a new step came before an older one

    def put(self, n: int, values: dict[Quantity, float]) -> int:
        """Take a step in, or new values of one that is here, and return its row; nothing where a value is no number."""
        columns = self.columns
        cells = [(columns.get(quantity) or self._open(quantity), float(value)) for quantity, value in values.items()]
        row = self._find(n)
        if row is None:
            row = self._append(n)
        present = 0
        for (column, bit), number in cells:
            column[row] = number
            present |= bit
        self._present[row] |= present
        return row

    def note(self, row: int, t_s: float) -> bool:
        """Note when the step of a row was reported, and say whether the training went back to it."""
        n, top = self.ns[row], self._top
        went_back = top is not None and n < top - STEPS_APART
        if top is not None and went_back:
            self._before = max(self._before, top)
            self._earlier, self._again = len(self.ns), 0
        ahead = top is None or went_back or n > top
        self._again += ahead and row < self._earlier
        if math.isnan(self.times[row]) or (ahead and n <= self._before):
            self.times[row] = t_s if t_s > 0 else math.nan  # 0 is what a reader leaves that tells no time
        self._top = n if ahead else top
        return went_back

    def is_overtaken(self) -> bool:
        """Return whether the training went back, then further than before, and reported each step up to there again."""
        return self.top > self._before and 0 < self._earlier == self._again

    def starts_over(self, n: int, apart: int) -> bool:
        """Return whether a step is the first line's again, or one before it, more than `apart` below the last ones."""
        return len(self.ns) > 1 and n <= self.ns[0] and n < self.top - apart

    @property
    def top(self) -> int:
        """The highest number since the training was started last."""
        return self._top if self._top is not None else self.ns[-1]

    def time(self, n: int) -> float:
        """Return when a step was reported, NaN where that is not known."""
        row = self._find(n)
        return math.nan if row is None else self.times[row]

    def order(self) -> Iterable[int]:
        """Return the rows by the numbers of their steps."""
        return range(len(self.ns)) if self._rows is None else sorted(self._rows.values(), key=self.ns.__getitem__)

    def points(self, quantity: Quantity) -> Iterator[tuple[int, float]]:
        """Yield number and value of the steps that have the quantity, in order."""
        column, bit = self.columns[quantity]
        return ((self.ns[row], column[row]) for row in self.order() if self._present[row] & bit)

    def values(self, row: int) -> dict[Quantity, float]:
        """Return what one step has."""
        present = self._present[row]
        return {quantity: column[row] for quantity, (column, bit) in self.columns.items() if present & bit}

    def repeats_with_other_values(self, n: int, values: dict[Quantity, float]) -> bool:
        """Return whether a step is here with the same quantities, of which one has another value."""
        row = self._find(n) if self.ns else None
        if row is None or not values:
            return False
        before = self.values(row)
        pairs = [(before.get(quantity, math.nan), value) for quantity, value in values.items()]
        same = all(old == new or (math.isnan(old) and math.isnan(new)) for old, new in pairs)
        return before.keys() == values.keys() and not same

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
            self._rows = {item: row for row, item in enumerate(ns)}
        return self._rows.get(n)

    def _append(self, n: int) -> int:
        row = len(self.ns)
        self.ns.append(n)
        self.times.append(math.nan)
        self._present.append(0)
        for column, _ in self.columns.values():
            column.append(0.0)
        if self._rows is not None:
            self._rows[n] = row
        return row
