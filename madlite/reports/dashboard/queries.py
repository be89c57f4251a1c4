"""What an address asks for: parameters as typed values, and the answers of the API as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from madlite.errors import UsageProblem
from madlite.model import Value
from madlite.reports.index import COLUMNS, Order, RunFilter, SeriesSummary
from madlite.reports.listing import as_json
from madlite.reports.page.figures import rounded, thinned
from madlite.reports.page.run_details import read_steps
from madlite.reports.runs import StoredRun
from madlite.reports.series import Sample, Series, direction_of
from madlite.reports.series_key import as_dimensions

Q = TypeVar("Q", bound=Value)
_MOST_POINTS = 2000  # of a curve
Limit = Annotated[int, Meta(ge=1, le=1000, description="The most that are returned.")]
Offset = Annotated[int, Meta(ge=0, le=10_000_000, description="How many are left out before them.")]
Text = Annotated[str, Meta(max_length=300)]


class RunsQuery(Value, frozen=True, forbid_unknown_fields=True):
    """Which runs, in which order; names of columns stand for their exact text."""

    q: Annotated[str, Meta(max_length=300, description="Words, one of which is in a card's name, tag or id.")] = ""
    status: Annotated[str, Meta(max_length=60, description="As `madlite runs --status`.")] = ""
    of: Annotated[str, Meta(max_length=200, description="The beginning of the id of a batch or study.")] = ""
    since: Annotated[str, Meta(max_length=30, description="The earliest start, UTC: `2026-11-24 10:00`.")] = ""
    until: Annotated[str, Meta(max_length=30, description="The latest start, or its beginning: `2026-11`.")] = ""
    card: Text = ""
    backend: Text = ""
    recipe: Text = ""
    mode: Text = ""
    precision: Text = ""
    seq_len: Text = ""
    micro_batch: Text = ""
    global_batch: Text = ""
    device: Text = ""
    gpus: Text = ""
    nodes: Text = ""
    runtime: Text = ""
    hostname: Text = ""
    cause: Text = ""
    metric: Text = ""
    study: Text = ""
    batch: Text = ""
    order: Order = "when"
    descending: bool = True
    limit: Limit = 50
    offset: Offset = 0

    @property
    def filter(self) -> RunFilter:
        """The filter of the index."""
        return RunFilter(
            status=self.status,
            words=tuple(self.q.replace(",", " ").split()),
            of=self.of,
            since=self.since,
            until=self.until,
            columns={name: text for name in COLUMNS if (text := getattr(self, name))},
        )


class SeriesQuery(Value, frozen=True, forbid_unknown_fields=True):
    """Which series: by words in their names."""

    q: Annotated[str, Meta(max_length=300, description="Words, all of which are in the name of a series.")] = ""
    limit: Limit = 25
    offset: Offset = 0


class CompareQuery(Value, frozen=True, forbid_unknown_fields=True):
    """Two sides: a run, `last~1`, a study, a batch, a baseline, a results file of the folder, or `device=MI300X`."""

    base: Annotated[str, Meta(max_length=300)] = ""
    new: Annotated[str, Meta(max_length=300)] = ""
    where: Annotated[str, Meta(max_length=300, description="`KEY=VALUE`, of a dimension or a fact: both sides.")] = ""


class LogQuery(Value, frozen=True, forbid_unknown_fields=True):
    """How much of a log."""

    tail: Annotated[int, Meta(ge=1, le=2000, description="The last so many lines, 64 KiB at most.")] = 200


class NoQuery(Value, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


def parsed(kind: type[Q], parameters: Mapping[str, str]) -> Q:
    """Return the parameters of an address, blank ones left out.

    Raises:
        UsageProblem: one has no such name, or its value cannot be used.
    """
    given = {name: text for name, text in parameters.items() if text}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(kind.__struct_fields__)
        raise UsageProblem(f"the address cannot be used: {error}", f"parameters are {names}") from None


# Answers.


class RunLine(Value, frozen=True):
    """A run as the list of runs has it."""

    id: str
    when: str
    card: str
    status: str
    cause: str
    performance: str
    metric: str
    suspect: tuple[str, ...]
    duration_s: float | None
    reason: str
    doubt: str
    origin: str
    pruned: bool
    backend: str
    mode: str
    precision: str
    gpu: str
    n_gpus: int | None
    collected: bool
    batch: str
    study: str
    study_kind: str
    varied: dict[str, Any]
    warm_up: bool
    caches: str

    @classmethod
    def of(cls, run: StoredRun) -> RunLine:
        """Return a run of the index."""
        return msgspec.convert({k: v for k, v in as_json(run).items() if k in cls.__struct_fields__}, cls)


class RunPage(Value, frozen=True):
    """A page of the list of runs; `total` are those that the filters choose."""

    total: int
    runs: tuple[RunLine, ...]


class SeriesLine(Value, frozen=True):
    """A series in a line; `id` is its number in this index."""

    id: int
    name: str
    dimensions: dict[str, str]
    runs: int
    failed: int
    skipped: int
    last: float | None
    last_at: str

    @classmethod
    def of(cls, found: SeriesSummary, name: str) -> SeriesLine:
        """Return a series of the index; of a list that has others of its name, with what tells them apart."""
        dimensions = as_dimensions(found.key)
        return cls(
            id=found.id,
            name=name,
            dimensions=dimensions,
            runs=found.runs,
            failed=found.failed,
            skipped=found.skipped,
            last=found.last,
            last_at=found.last_at,
        )


class SeriesPage(Value, frozen=True):
    """A page of the list of series."""

    total: int
    series: tuple[SeriesLine, ...]


class SeriesDetail(Value, frozen=True):
    """One series with its numbers, the oldest first."""

    name: str
    dimensions: dict[str, str]
    direction: str
    failed: int
    skipped: int
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, found: Series) -> SeriesDetail:
        """Return a series."""
        return cls(
            name=found.name,
            dimensions=as_dimensions(found.key),
            direction=direction_of(found["metric"]),
            failed=found.failed,
            skipped=found.skipped,
            samples=found.samples,
        )


class LogEnd(Value, frozen=True):
    """The end of a log."""

    id: str
    text: str


class StepCurve(Value, frozen=True):
    """One quantity over the steps of a run; of many steps the least and the largest value of each piece."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


class Status(Value, frozen=True):
    """The folder as a whole: runs by state, whether all of them are in the index already, and notes on its file."""

    folder: str
    runs: int
    states: dict[str, int]
    complete: bool
    ledger: str  # where the index is
    notes: tuple[str, ...]


class Problem(Value, frozen=True):
    """What is wrong with a request, and what to do."""

    error: str
    hint: str = ""


def step_curves(run: StoredRun) -> tuple[StepCurve, ...]:
    """Return the curves of a run that has ended."""
    curves: list[StepCurve] = []
    for name, found in read_steps(run.folder).items():
        numbers = sorted(found)
        values = [found[n] for n in numbers]
        at = thinned(values, _MOST_POINTS)
        curves.append(
            StepCurve(name=name, steps=tuple(numbers[n] for n in at), values=tuple(rounded(values[n]) for n in at))
        )
    return tuple(curves)
