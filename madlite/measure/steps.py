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
import statistics
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, compress, groupby, pairwise, takewhile
from operator import index, itemgetter
from statistics import median
from typing import Any, Literal, TypeVar, cast

from msgspec.structs import replace

from madlite.model import STEPS_APART, NodeUse, Quantity, Step, Value, Window

Phase = Literal["warmup", "train", "validate"]
_FURTHEST = 2**63 - 1  # a step beyond is a garbled number


class Curve(Value, frozen=True):
    """One quantity over the steps that report it, in their order, each the mean of its ranks."""

    ns: array[int]
    values: array[float]

    def within(self, window: Window) -> array[float]:
        """Return the values of a window's steps, those too that it leaves out."""
        return self.values[bisect_left(self.ns, window.first_step) : bisect_left(self.ns, window.last_step + 1)]


class Steps:
    """Every step that was reported, once."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._series: dict[tuple[str, int | None], _StepSeries] = {}
        self._first: tuple[int, int] | None = None  # of the lowest training line: its step, and how many it covers
        self._latest: dict[Quantity, float] = {}
        # lines at which a rank's training went back, the last one last: their step → how many it covers
        self._restarts: dict[int, int] = {}
        for step in steps:
            self.add(step)

    def add(self, step: Step, *, resumed: bool = False) -> bool:
        """Take a step in; return whether its rank's training was started again before it, so far as is known.

        `resumed` says that it was, perhaps without going back.

        Raises:
            TypeError, ValueError, OverflowError: its number or a value of it is none; nothing was taken in.
        """
        n = index(step.n)
        if abs(n) > _FURTHEST:
            return False
        key = (step.phase, step.rank)
        series = self._series.get(key) or _StepSeries()
        t_s = float(step.t_s)
        went_back = series.note(series.put(n, step.values), t_s)
        self._series[key] = series
        if step.phase == "train":
            if went_back or resumed:
                self._restarts.pop(n, None)
                self._restarts[n] = max(1, step.span)
            self._latest.update(step.values)
            if self._first is None or n < self._first[0]:
                self._first = (n, max(1, step.span))
        return went_back or resumed

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
    def part_begin(self) -> int:
        """The first training step that was done since the training was started again last; `begin` where it was not."""
        last = next(reversed(self._restarts.items()), None)
        return self.begin if last is None else last[0] - last[1] + 1

    @property
    def is_overtaken(self) -> bool:
        """Whether all steps are of the training that was started again last: it reported each of the others' again."""
        return all(series.is_overtaken() for series in self._of("train"))

    def starts_over(self, step: Step, *, ended: bool = False) -> bool:
        """Return whether a training step that is not stored yet begins another training as its rank's first one.

        It is the first line's again, or one before it.  After an end mark (`ended`) a short training counts too, whose
        first step is not further back than lines of ranks come apart.
        """
        series = self._series.get(("train", step.rank))
        if series is None or step.phase != "train" or not isinstance(step.n, int):
            return False
        apart = 0 if ended else STEPS_APART
        return len(series.ns) > 1 and step.n <= series.ns[0] and step.n < series.top - apart

    def reported_s(self, n: int) -> float | None:
        """Return when a training step was reported first, by whatever rank, in seconds since the start of the run.

        None where no line has the step, or the log has no times.
        """
        times = [at for series in self._of("train") if math.isfinite(at := series.time(n))]
        return min(times, default=None)

    def latest(self, quantity: Quantity) -> float | None:
        """Return the value of a training step that was reported last, by whatever rank; None where there is none."""
        return self._latest.get(quantity)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that training lines name."""
        return tuple(sorted(rank for phase, rank in self._series if phase == "train" and rank is not None))

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

    def of_ranks(self, window: Window) -> dict[int, list[float]]:
        """Return what each rank reports in a window's steps, of the ranks that lines name and that report any."""
        quantity, reach = window.quantity, (window.first_step, window.last_step)
        series_of = {rank: self._series["train", rank] for rank in self.ranks()}
        found = {
            rank: [value for n, value in series.points(quantity) if reach[0] <= n <= reach[1] and usable(value)]
            for rank, series in series_of.items()
            if quantity in series.columns
        }
        return {rank: values for rank, values in found.items() if values}

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
        self.top = -_FURTHEST  # the highest number since the training was started last
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
        n, top = self.ns[row], self.top
        went_back = n < top - STEPS_APART
        if went_back:
            self._before = max(self._before, top)
            self._earlier, self._again = len(self.ns), 0
        ahead = went_back or n > top
        self._again += ahead and row < self._earlier
        if math.isnan(self.times[row]) or (ahead and n <= self._before):
            self.times[row] = t_s if t_s > 0 else math.nan  # 0 is what a reader leaves that tells no time
        self.top = n if ahead else top
        return went_back

    def is_overtaken(self) -> bool:
        """Return whether the training went back, then further than before, and reported each step up to there again."""
        return self.top > self._before and 0 < self._earlier == self._again

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


# Steps → the steady window: ranks averaged, warm-up dropped, median of what is left.


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

    A line that covers a warm-up step, even partly, is dropped, and so are steps above the `last` of the training.  One
    that was started again is measured from there on.  `std` is the sample standard deviation.
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
    before = _warm_from(steps, curve.ns, warmup_steps)
    fine[:before] = [False] * before
    return array("q", compress(curve.ns, fine)), array("d", compress(curve.values, fine))


def median_in(steps: Steps, quantity: Quantity, window: Window) -> float | None:
    """Return the median of another quantity over a window's steps; None where none of them has a finite value."""
    values = list(filter(usable, steps.curve(quantity).within(window)))
    return statistics.median(values) if values else None


def usable(value: float) -> bool:
    """Return whether a value can be calculated with."""
    return math.isfinite(value) and abs(value) < _GARBLED


def _warm_from(steps: Steps, ns: Sequence[int], warmup_steps: int) -> int:
    """Return the place of the first line after the warm-up, of a training that was started again the last one's.

    A line covers the steps since the one before it, which must have been past the warm-up.
    """
    first = steps.part_begin
    if warmup_steps > 0:
        return min(len(ns), bisect_left(ns, first - 1 + warmup_steps) + 1)
    return bisect_left(ns, first) if steps.restarts else 0


def _times(steps: Steps, curve: Curve, ns: Sequence[int]) -> tuple[float | None, float | None]:
    """Return when the first step of a window began, which is when the one before it was reported, and its last ended.

    Where no step was reported before it, its own report has to do.
    """
    before = bisect_left(curve.ns, ns[0])
    began_s = steps.reported_s(curve.ns[max(0, before - 1)])
    ended_s = steps.reported_s(ns[-1])
    known = began_s is not None and ended_s is not None and began_s < ended_s
    return (began_s, ended_s) if known else (None, None)


# What each node of a run reports of the training, and which of them is slow.
#
# A node is slow where its number is below the median of the other nodes' by more than `NODE_FLOOR` of it and by more
# than `Z_SCORE` standard deviations, those of the others' numbers and of its own and theirs from step to step
# together.  All are robust: medians, and of deviations the median absolute one (Iglewicz and Hoaglin's score, as for
# outliers of a window), so that a slow node does not hide itself or another.  The floor is above what is ordinary:
# identical GPUs of one cluster differ by 8 % on average (Sinha et al., Not All GPUs Are Created Equal, SC22,
# arXiv:2208.11035).  Of two nodes the slower one is named, by the same limits.
#
# Where each step waits for all nodes, as with gradients that are reduced, their speeds are alike whoever is slow: then
# the clock of its GPUs is what tells (docs/scaling.md).


_Node = TypeVar("_Node", int, str)
NODE_FLOOR = 0.10  # of the others' median
_OF_MEDIAN = 1.2533  # the normal distribution's median's standard error ÷ its mean's, sqrt(pi / 2)
_MOST = 262144  # values of all nodes that are kept, the last ones of each
_LEAST = 64


class NodeSpeeds:
    """The last values of each quantity that could be a training's speed, by the node whose line had them.

    The ranks that lines name do not tell the node: a launcher may label each line with the rank on its own node.
    """

    def __init__(self, nodes: int) -> None:
        self._most = max(_LEAST, _MOST // max(1, nodes))
        self._values: dict[tuple[int, Quantity], tuple[array[int], array[float]]] = {}

    def note(self, step: Step, node: int) -> None:
        """Take a training step in."""
        for quantity, value in step.values.items():
            if quantity.direction == "neutral" or quantity == Quantity.LOSS:
                continue
            ns, values = self._values.setdefault((node, quantity), (array("q"), array("d")))
            if len(ns) >= 2 * self._most:
                del ns[: -self._most], values[: -self._most]
            ns.append(step.n)
            values.append(value)

    def over(self, window: Window) -> dict[int, list[float]]:
        """Return the values of a window's quantity and steps, by node."""
        found: dict[int, list[float]] = {}
        for (node, quantity), (ns, values) in self._values.items():
            if quantity == window.quantity:
                points = zip(ns, values, strict=True)
                within = [value for n, value in points if window.first_step <= n <= window.last_step]
                found[node] = [*filter(usable, within)]
        return found


def node_uses(speeds: NodeSpeeds, window: Window | None, names: Sequence[str]) -> tuple[NodeUse, ...]:
    """Return what is known of each node of a run; nothing of one node."""
    if len(names) < 2:
        return ()
    found = speeds.over(window) if window is not None else {}
    numbers: dict[int, dict[str, Any]] = {
        node: {"steps": len(values), "speed": median(values), "noise": error_of_median(values)}
        for node, values in found.items()
        if values
    }
    return tuple(NodeUse(node=node, name=name, **numbers.get(node, {})) for node, name in enumerate(names))


def error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median of at least one value, 0 of a single one."""
    return _OF_MEDIAN * robust_deviation(values, median(values)) / math.sqrt(len(values))


def with_slow(nodes: Sequence[NodeUse], quantity: Quantity | None) -> tuple[NodeUse, ...]:
    """Return the nodes, each slow one with why: by the numbers that their lines report, else by their GPUs' clocks."""
    told = [node for node in nodes if node.speed and node.steps >= FEWEST]
    clocked = [node for node in nodes if node.clock_mhz]
    slow: dict[int, str] = {}
    if quantity is not None and quantity.direction != "neutral":
        numbers = {node.node: (node.speed or 0.0, node.noise or 0.0) for node in told}
        slow |= slow_of(numbers, quantity.label, lower_is_better=quantity.direction == "lower")
    clocks = {node.node: (node.clock_mhz or 0.0, 0.0) for node in clocked}
    slow = slow_of(clocks, "MHz", lower_is_better=False) | slow
    return tuple(replace(node, slow=slow.get(node.node, "")) for node in nodes)


def slow_findings(nodes: Iterable[NodeUse]) -> tuple[str, ...]:
    """Return the slow nodes as sentences."""
    return tuple(f"{node.label} is slow: {node.slow}" for node in nodes if node.slow)


def slow_of(numbers: Mapping[_Node, tuple[float, float]], unit: str, *, lower_is_better: bool) -> dict[_Node, str]:
    """Return the slow nodes, each with why; `numbers` are each node's number and its standard error."""
    found: dict[_Node, str] = {}
    for node, (value, noise) in numbers.items() if len(numbers) > 1 else ():
        others = [number for other, number in numbers.items() if other != node]
        usual = median(other for other, _ in others)
        behind = value - usual if lower_is_better else usual - value
        spread = (robust_deviation([other for other, _ in others], usual), noise, median(other for _, other in others))
        if usual > 0 and behind > max(NODE_FLOOR * usual, Z_SCORE * math.hypot(*spread)):
            what = "the other node's" if len(others) == 1 else "the median of the other nodes'"
            beyond = "above" if lower_is_better else "below"
            number = f"{value:,.4g} {unit}".rstrip()
            found[node] = f"{number}, {100 * behind / usual:.0f} % {beyond} {what}, {usual:,.4g}"
    return found
