"""What a page of results shows, as frozen values: made by `build`, drawn by the templates beside it.

Texts in them are as their sources have them, hostile ones included: the templates escape, and so does `render`.
Numbers are in the unit of their metric; a part of something is 0.04, not 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from madlite.measure.statistics import coefficient_of_variation
from madlite.model import Value
from madlite.reports.compare import Comparison, Report
from madlite.reports.references import Match
from madlite.reports.runs import StoredRun
from madlite.reports.series import Failure, Series

STATUSES = ("success", "failure", "skipped", "suspect", "regression", "improvement")
"""What the status filter knows; a series can be several of them."""


class Item(Value, frozen=True):
    """What the filters of a page choose by; each element of the page names its item by number."""

    model: str
    device: str = ""
    precision: str = ""
    status: tuple[str, ...] = ()
    text: str = ""  # what the text filter searches


MARKS = {
    "regression": "regression",
    "improvement": "improvement",
    "suspect": "suspect",
    "change": "level change",
    "failure": "failures",
    "drift": "drift",
    "scatter": "scatter",
    "reference": "below published",
}
"""The kinds of what needs a look, and what a page calls them."""


class LevelChange(Value, frozen=True):
    """A place where the level of a series changes: `at` is the index of the first value after it.

    `change` is new ÷ old median - 1; `is_worse` by the direction of the metric, None where it has none.  `changed` is
    what the results just before and just after it ran with differently: name, old and new value.
    """

    at: int
    before: float
    after: float
    change: float
    is_worse: bool | None = None
    where: str = ""
    changed: tuple[tuple[str, str, str], ...] = ()

    @property
    def names(self) -> list[str]:
        """What changed, as far as a line has room."""
        return [name for name, _, _ in self.changed[:4]] + ["…"] * (len(self.changed) > 4)


class Trend(Value, frozen=True):
    """The values of a series in their order, thinned where there are many: of each piece the least and the largest.

    `at` are the indices of `values` in the series; `labels` say what each is (time, run or line); `suspects` are the
    indices in `values` of suspect ones.  `levels` are the medians between level
    changes, as (first index in the series, median).
    """

    at: tuple[int, ...]
    values: tuple[float, ...]
    labels: tuple[str, ...] = ()
    suspects: tuple[int, ...] = ()
    levels: tuple[tuple[int, float], ...] = ()
    total: int = 0


class SeriesView(Value, frozen=True):
    """One series: its place among the page's items, what it measures, its statistics and how they developed.

    `best` is the best by the metric's direction, None where it has none; `differing` are facts with several values.
    """

    item: int
    series: Series
    name: str
    model: str
    settings: str  # its other dimensions in one line, without the metric
    metric: str
    median: float | None = None
    cv: float | None = None
    best: float | None = None
    trend: Trend | None = None
    changes: tuple[LevelChange, ...] = ()
    references: tuple[Match, ...] = ()
    comparison: Comparison | None = None
    differing: tuple[tuple[str, tuple[str, ...]], ...] = ()
    reasons: tuple[str, ...] = ()  # why results are suspect, each once
    leads: bool = False  # whether its metric is what its newest run is measured by: a run of several leads once

    @property
    def n(self) -> int:
        """How many results it has."""
        return len(self.series.values)

    @property
    def last(self) -> float | None:
        """The last of them."""
        return self.series.values[-1] if self.n else None

    @property
    def last_at(self) -> str:
        """When the last of them started, "" where that is unknown."""
        return self.series.samples[-1].when if self.n else ""

    @property
    def level_cv(self) -> float | None:
        """How much those since the last level change scatter."""
        return coefficient_of_variation(self.series.values[self.changes[-1].at if self.changes else 0 :])

    @property
    def steady_cv(self) -> float | None:
        """How much the steps of the last of them scatter."""
        return self.series.samples[-1].steady_cv if self.n else None

    @property
    def moved(self) -> float | None:
        """How far it is from the base of a comparison, above 0 where it is better; else the last from those before.

        Where the level has changed those before are those of the level before.
        """
        if self.comparison is not None:
            return self.comparison.change
        before = self.changes[-1].before if self.changes else median(self.series.values[:-1]) if self.n > 1 else 0.0
        return self.series.values[-1] / before - 1 if before else None

    @property
    def moved_to(self) -> str:
        """Return `good` or `bad` where the move is the one that the last level change found, else ""."""
        last, moved = self.changes[-1] if self.changes else None, self.moved
        if last is None or not moved or last.is_worse is None:
            return ""
        is_worse = (moved < 0) != (self.series.direction == "lower")
        return ("bad" if is_worse else "good") if is_worse == last.is_worse else ""

    @property
    def is_detailed(self) -> bool:
        """Whether it has a trend to draw."""
        return self.trend is not None and self.n > 1

    @property
    def of_reference(self) -> float | None:
        """The median as a part of the nearest published number."""
        published = self.references[0].reference.value if self.references else 0.0
        return self.median / published if self.median is not None and published else None


class Curve(Value, frozen=True):
    """One quantity of one run over its steps, thinned so that peaks stay."""

    run: int  # index in the panel's runs
    steps: tuple[int, ...]
    values: tuple[float, ...]


class CurvePanel(Value, frozen=True):
    """The newest runs of a series and their numbers, step by step; quantities by name, each with the runs' curves."""

    item: int
    name: str
    runs: tuple[tuple[StoredRun, float | None], ...]
    quantities: tuple[tuple[str, tuple[Curve, ...]], ...]


class CauseGroup(Value, frozen=True):
    """The failures of one cause with their items, the newest first.

    `part` is of the most frequent cause's, `left_out` have no room.
    """

    cause: str
    count: int
    part: float
    failures: tuple[tuple[int, Failure], ...]
    left_out: int = 0


class Attention(Value, frozen=True):
    """Something that a reader should look at first.

    `kind` is one of `MARKS`; `target` the element that has more of it.
    """

    item: int
    kind: str
    target: str
    name: str
    text: str
    weight: float = 0.0  # the heavier come first


class Totals(Value, frozen=True):
    """What is on a page, counted: results with a number and without one."""

    series: int = 0
    results: int = 0
    suspects: int = 0
    failed: int = 0
    skipped: int = 0
    models: int = 0


class Page(Value, frozen=True):
    """All that a page shows.

    `series` is every series, with a trend where it has a number; `panels` and `causes` are the same results from other
    sides.  `notes` are what was left out or could not be read.
    """

    title: str
    made: str  # UTC
    sources: tuple[str, ...]
    items: tuple[Item, ...]
    totals: Totals
    series: tuple[SeriesView, ...]
    attention: tuple[Attention, ...] = ()
    attention_left_out: int = 0
    comparison: Report | None = None
    compared: tuple[tuple[int, str, Comparison], ...] = ()  # item, name
    panels: tuple[CurvePanel, ...] = ()
    causes: tuple[CauseGroup, ...] = ()
    notes: tuple[str, ...] = ()
    series_left_out: int = 0


def rounded(value: float) -> float:
    """Return a number with six significant digits, as a chart needs it."""
    return float(f"{value:.6g}")


def thinned(values: Sequence[float], most: int) -> Sequence[int]:
    """Return the indices of at most so many values that have the shape of all: of each piece the ends of its range."""
    if len(values) <= most:
        return range(len(values))
    size = -(-len(values) // (most // 2))
    found: list[int] = []
    for begin in range(0, len(values), size):
        piece = values[begin : begin + size]
        found += sorted({begin + piece.index(min(piece)), begin + piece.index(max(piece))})
    return found
