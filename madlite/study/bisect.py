"""Where a number changed: which item of an ordered list is measured next, from what was measured before.

The list begins with the good item and ends with the bad one.  Three parts, each judged by the gate of `compare`:

* the ends, in turns, until they differ; where they do not there is nothing to find;
* the middle of what is left, until its change is clearly above or below the limit: the gate's, or half of the change
  between the ends;
* the last good and the first bad one again, in turns.

Where the pair is not confirmed the machine may have drifted: all is judged once more, each item by its own runs and
those of the good one made in turns with them.  An item that fails is left out, as `git bisect skip` does: its neighbour
is tried, and at the end the first bad one is one of several.  A search depends on nothing but its samples, so that one
that was cut off goes on from its records.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal, TypeAlias

from msgspec.structs import replace

from madlite.measure.statistics import Interval, smallest_p
from madlite.model import Value
from madlite.reports.compare import DEFAULTS, Comparison, Gate, Report, compare_pair, trips
from madlite.reports.series import Direction, Pair, Sample, Series
from madlite.reports.series_key import DIMENSIONS

Standing: TypeAlias = Literal["", "good", "bad", "undecided", "untestable"]
FEWEST = 4  # runs of each side, before which no difference is significant at p < 0.05
_METRIC = "number"  # of the series that are compared
_CLEAR = 0.6  # of the noise floor, two standard errors: how far a change has to be from the limit


class Judge(Value, frozen=True):
    """When an item counts as bad.

    `gates` are those of `compare --fail-on`, none for any change that matters to `compare`; `most` the runs of one item
    after which it is left undecided.
    """

    gates: tuple[Gate, ...] = ()
    most: int = 16


class Measurement(Value, frozen=True):
    """One run of an item; `value` is None where it failed, and `reason` says why; `direction` is the metric's."""

    item: int
    value: float | None
    reason: str = ""
    run: str = ""
    suspect: bool = False
    direction: Direction = "higher"
    metric: str = ""


Purpose: TypeAlias = Literal["ends", "control", "middle", "pair"]


class NextItem(Value, frozen=True):
    """The item that is measured next, what for, and how many items are still to be judged, about."""

    item: int
    purpose: Purpose
    left: int


class Found(Value, frozen=True):
    """How a search ended, by the names of items.

    `found`: the number changed between `last_good` and `first_bad`; with `candidates`, the items that could not be
    tested between them, the first bad one is one of those.  `change` and its `interval` compare these two, as parts of
    the good one: below 0 is worse.  `no change`: the ends do not differ, as these say.  `end failed`: `failed` is the
    end without a number.  `not confirmed`: measured in turns the pair does not differ, so that the number changes
    little by little, or the machine does.  Blank: it has not ended.
    """

    conclusion: Literal["", "found", "no change", "end failed", "not confirmed"] = ""
    last_good: str = ""
    first_bad: str = ""
    candidates: tuple[str, ...] = ()
    failed: str = ""
    change: float | None = None
    interval: Interval | None = None


_Steps: TypeAlias = Generator[NextItem, Measurement, Found]
_Judging: TypeAlias = Generator[NextItem, Measurement, Standing]
_Running: TypeAlias = Generator[NextItem, Measurement, None]


class Bisection:
    """A search over the items of these names, the good one first and the bad one last.

    `upcoming` is what is measured next; each result is given to `add`; `found` is there once nothing is left.
    """

    def __init__(self, names: Sequence[str], judge: Judge) -> None:
        last = len(names) - 1
        self.samples: list[Measurement] = []
        self.standing: dict[int, Standing] = {0: "good", last: "bad"}
        self.in_turns = False  # whether all is judged once more
        self.found: Found | None = None
        self._names, self._last, self._judge = names, last, judge
        self._low, self._high = 0, last
        self._limit = 0.0  # how large a change from the good one makes a bad one
        self._sign = -1  # of the change from good to bad: worse
        self._between = 0.0  # the size of that change
        self._paired_at = 0  # the sample from which on the pair counts
        self._steps = self._search()
        self.upcoming: NextItem | None = next(self._steps)

    def add(self, sample: Measurement) -> None:
        """Take the result of `upcoming`.

        Raises:
            ValueError: it is another item's.
        """
        if self.upcoming is None or sample.item != self.upcoming.item:
            wanted = f"one of item {self.upcoming.item}" if self.upcoming is not None else "none"
            raise ValueError(f"run {sample.run} is one of item {sample.item} where {wanted} is next")
        self.samples.append(sample)
        try:
            self.upcoming = self._steps.send(sample)
        except StopIteration as end:
            self.upcoming, self.found = None, end.value

    @property
    def direction(self) -> Direction:
        """Which values are better; of a metric that does not tell more counts as better."""
        found = next((sample.direction for sample in self.samples if sample.value is not None), None)
        return "lower" if found == "lower" else "higher"

    def values(self, item: int, since: int = 0) -> list[float]:
        """Return the numbers of an item, of its runs from a sample on."""
        samples = (sample for sample in self.samples[since:] if sample.item == item)
        return [sample.value for sample in samples if sample.value is not None]

    def change(self, base: int, item: int, since: int = 0) -> Comparison:
        """Return the comparison of two items, with the noise of all runs so far."""
        most = self._judge.most
        sides = [self._series(which, self.values(which, since)[-most:]) for which in (base, item)]
        settings = replace(DEFAULTS, noise=self._noise(), better={_METRIC: self.direction})
        return compare_pair(Pair(base=sides[0], new=sides[1]), settings, lambda series: ())

    def _series(self, item: int, values: Sequence[float]) -> Series:
        key = tuple(_METRIC if name == "metric" else "" for name in DIMENSIONS)
        return Series(
            key=key,
            values=tuple(values),
            samples=tuple(Sample(value=value, study="bisect") for value in values),  # all of this one
            direction=self.direction,
        )

    def _noise(self) -> float | None:
        """Return the variation between runs of the same item, pooled."""
        items = {measurement.item for measurement in self.samples}
        parts = [(fmean(values), values) for item in items if len(values := self.values(item)) > 1]
        # of neighbours, which a slow drift leaves near each other
        apart = [(after - before) / mean for mean, values in parts if mean for before, after in pairwise(values)]
        return math.sqrt(sum(part * part for part in apart) / 2 / len(apart)) if apart else None

    def _trips(self, change: Comparison, least: float) -> bool:
        """Return whether the gate trips at a size, in the direction in which the ends differ."""
        what = "regression" if self._sign < 0 else "improvement"
        report = Report(base="", new="", comparisons=(change,), alpha=DEFAULTS.alpha)
        return change.p is not None and bool(trips(report, (Gate(what=what, least=least),), allow_undecided=True))

    def _runs(self, item: int, purpose: Purpose) -> _Running:
        """Run an item once; the bookkeeping is `add`'s."""
        open_items = [other for other in self._open() if other != item]
        yield NextItem(item=item, purpose=purpose, left=math.ceil(math.log2(len(open_items) + 1)) + 1)

    def _failed(self, item: int, since: int = 0) -> bool:
        """Return whether an item has more failures than numbers: it cannot be tested."""
        ended = [measurement.value is None for measurement in self.samples[since:] if measurement.item == item]
        return 2 * sum(ended) > len(ended)

    def _open(self) -> list[int]:
        """Return the items between the last good and the first bad one that may still be judged."""
        left_out = ("undecided", "untestable")
        return [item for item in range(self._low + 1, self._high) if self.standing.get(item, "") not in left_out]

    def _search(self) -> _Steps:
        found = yield from self._ends()
        if found is not None:
            return found
        confirmed = yield from self._narrow()
        if not confirmed:
            self.in_turns = True
            self._forget()
            confirmed = yield from self._narrow()
        change = self.change(self._low, self._high, self._paired_at)
        return Found(
            conclusion="found" if confirmed else "not confirmed",
            last_good=self._names[self._low],
            first_bad=self._names[self._high],
            candidates=tuple(self._names[self._low + 1 : self._high]),
            change=change.change,
            interval=change_interval(change),
        )

    def _narrow(self) -> Generator[NextItem, Measurement, bool]:
        """Judge items until none is left, and measure the pair again; return whether it differs."""
        while items := self._open():
            item = self._choose(items)
            self.standing[item] = standing = yield from self._middle(item)
            if standing == "good":
                self._low = item
            elif standing == "bad":
                self._high = item
        if self._last == 1:  # the ends, which were just measured in turns
            return True
        return (yield from self._pair())

    def _forget(self) -> None:
        """Forget what was judged while the machine may have drifted; what fails, fails all the same."""
        kept = ((0, "good"), (self._last, "bad"))
        untestable = ((item, standing) for item, standing in self.standing.items() if standing == "untestable")
        self.standing = dict((*untestable, *kept))  # type: ignore[arg-type]
        self._low, self._high = 0, self._last

    def _choose(self, items: Sequence[int]) -> int:
        """Return the item in the middle; after one failure its neighbour, after more what is far from all of them."""
        middle = (self._low + self._high) / 2
        failed = [item for item in range(self._low + 1, self._high) if item not in items]
        if len(failed) < 2:
            return min(items, key=lambda item: (abs(item - middle), item))
        ends = (self._low, *failed, self._high)
        return max(items, key=lambda item: (min(abs(item - end) for end in ends), -item))

    # The ends.

    def _ends(self) -> Generator[NextItem, Measurement, Found | None]:
        looked = 0
        while True:
            counts = [len(self.values(item)) for item in (0, self._last)]
            if min(counts) >= FEWEST and min(counts) > looked:
                looked = min(counts)
                found = self._differ()
                if found is not None or self._between:
                    return found
            item = 0 if self._turns(0) <= self._turns(self._last) else self._last
            yield from self._runs(item, "ends")
            if self._failed(item):
                return Found(conclusion="end failed", failed=self._names[item])

    def _turns(self, item: int, since: int = 0) -> int:
        return sum(measurement.item == item for measurement in self.samples[since:])

    def _differ(self) -> Found | None:
        """Note how the ends differ; return that they do not, or nothing where more runs may tell."""
        change = self.change(0, self._last)
        size = change.change or 0.0
        effect = DEFAULTS.effect
        either = (Gate(what="regression", least=effect), Gate(what="improvement", least=effect))
        gates = self._judge.gates or either
        for gate in gates:
            self._sign = -1 if gate.what == "regression" else 1
            is_clear = change.floor < abs(size) / 2 or len(self.values(self._last)) >= self._judge.most
            if is_clear and self._trips(change, gate.least):
                self._between = abs(size)
                self._limit = gate.least if self._judge.gates and gate.least else abs(size) / 2
                return None
        least = min(gate.least or effect for gate in gates)
        if abs(size) + change.floor < least or len(self.values(self._last)) >= self._judge.most:
            return Found(conclusion="no change", change=change.change, interval=change_interval(change))
        return None

    # The middle.

    def _middle(self, item: int) -> _Judging:
        begin = len(self.samples)
        since = begin if self.in_turns else 0
        while True:
            if self._failed(item):
                return "untestable"
            if max(self._turns(item, begin), self._turns(0, begin)) > 2 * self._judge.most:
                return "undecided"  # which failures of the good one can bring about
            standing = self._stands(item, since)
            if standing:
                return standing
            wants_base = self._wants_base(item, since)
            yield from self._runs(0, "control") if wants_base else self._runs(item, "middle")

    def _wants_base(self, item: int, since: int) -> bool:
        """Return whether a run of the good item says more than one of this; beside 8 of it, 2 of this can decide."""
        if self.in_turns:
            return self._turns(item, since) > self._turns(0, since)
        own, base = len(self.values(item)), len(self.values(0))
        return base < 2 * FEWEST or (own >= FEWEST and base <= own and base < self._judge.most)

    def _stands(self, item: int, since: int) -> Standing:
        own, base = len(self.values(item, since)), len(self.values(0, since)[-self._judge.most :])
        if own < 2 or smallest_p(base, own) >= DEFAULTS.alpha:
            return ""
        change = self.change(0, item, since)
        towards = (change.change or 0.0) * self._sign
        if towards + _CLEAR * change.floor < self._limit:
            return "good"
        is_bad = self._trips(change, self._limit)
        if is_bad and towards - _CLEAR * change.floor > self._limit:
            return "bad"
        if own < self._judge.most:
            return ""
        return "bad" if is_bad and self._judge.gates else "undecided"

    # The pair.

    def _pair(self) -> Generator[NextItem, Measurement, bool]:
        """Measure the last good and the first bad item again, in turns, until they differ; return whether they do."""
        begin = self._paired_at = len(self.samples)
        pair = (self._low, self._high)
        least = min(self._limit, DEFAULTS.effect)
        while True:
            turns = [self._turns(item, begin) for item in pair]
            counts = [len(self.values(item, begin)) for item in pair]
            if turns[0] == turns[1] and smallest_p(*counts) < DEFAULTS.alpha:
                if self._trips(self.change(*pair, begin), least):
                    return True
                if min(turns) >= max(FEWEST, self._judge.most // 2):
                    return False
            if min(turns) >= self._judge.most:  # which failures can bring about
                return False
            yield from self._runs(pair[0] if turns[0] <= turns[1] else pair[1], "pair")


def change_interval(change: Comparison) -> Interval | None:
    """Return the interval of a change, as a part of the base, from its worse end to its better one."""
    if change.interval is None:
        return None
    low, high = change.interval.low - 1, change.interval.high - 1
    return Interval(low=-high, high=-low) if change.direction == "lower" else Interval(low=low, high=high)
