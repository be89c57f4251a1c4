"""The API of the dashboard: the same answers as its pages as JSON, and the OpenAPI document that describes them.

The document is made of the types that the endpoints really take and return.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from madlite.errors import UsageProblem
from madlite.model import Json, Value
from madlite.reports.against import compare_sides
from madlite.reports.compare import Report
from madlite.reports.dashboard.live import Live, log_end
from madlite.reports.index import COLUMNS, Order, RunFilter, SeriesSummary
from madlite.reports.listing import as_json as run_row
from madlite.reports.page.run_details import curve_of, read_steps
from madlite.reports.runs import BACK, StoredRun, as_json
from madlite.reports.series import Sample, Series
from madlite.reports.series_key import DIMENSIONS, as_dimensions, series_names
from madlite.reports.sides import Side, read_side
from madlite.reports.watch import WatchedRun
from madlite.store.folder import is_run
from madlite.store.record import Record

if TYPE_CHECKING:
    from madlite.reports.index import RunIndex


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
        return msgspec.convert({k: v for k, v in run_row(run).items() if k in cls.__struct_fields__}, cls)


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
        same = {
            struct_field: getattr(found, struct_field)
            for struct_field in cls.__struct_fields__
            if struct_field in found.__struct_fields__
        }
        return cls(name=name, dimensions=as_dimensions(found.key), **same)


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
            direction=found.direction,
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
    ledger: str
    notes: tuple[str, ...]


class Problem(Value, frozen=True):
    """What is wrong with a request, and what to do."""

    error: str
    hint: str = ""


FIRST_LOOK_S = 3.0  # that a request waits for an index that is read for the first time
NO_SUCH = 404


class NotHere(UsageProblem):
    """What an address names is not there."""


class Answers:
    """What the endpoints and pages return, from the index and the folders of runs."""

    def __init__(self, live: Live) -> None:
        self.live = live

    @property
    def index(self) -> RunIndex:
        """The index, as up to date as it is by now; one that has nothing yet is waited for a moment."""
        if not self.live.ready.is_set() and not self.live.index.count():
            self.live.ready.wait(FIRST_LOOK_S)
        return self.live.index

    def status(self, query: NoQuery) -> Status:
        """Return the state of the folder."""
        states = self.index.states()
        path = self.index.path
        return Status(
            folder=str(self.index.folder),
            runs=sum(states.values()),
            states=states,
            complete=self.live.ready.is_set(),
            ledger=str(path) if path is not None else "in memory",
            notes=self.index.notes,
        )

    def stored(self, query: RunsQuery) -> list[StoredRun]:
        """Return the runs of a page of the list."""
        return self.index.runs(
            query.filter, query.order, descending=query.descending, limit=query.limit, offset=query.offset
        )

    def runs(self, query: RunsQuery) -> RunPage:
        """Return a page of the list of runs."""
        return RunPage(total=self.index.count(query.filter), runs=tuple(map(RunLine.of, self.stored(query))))

    def run(self, name: str) -> StoredRun:
        """Return one run, read from its folder.

        Raises:
            NotHere: there is none of this id.
        """
        index = self.index
        if (back := BACK.fullmatch(name)) is not None:  # last, last~1
            newest = index.ids(limit=int(back[1] or 0) + 1)
            name = newest[0] if len(newest) > int(back[1] or 0) else ""
        folder = index.folder / name
        try:
            is_folder = bool(name) and "/" not in name and name[0] != "." and stat.S_ISDIR(os.lstat(folder).st_mode)
        except (OSError, ValueError):
            is_folder = False
        if not is_folder or not is_run(folder):
            raise NotHere(f"no run {name!r}", "madlite runs lists them")
        return index.opened([name])[0]

    def record(self, query: NoQuery, id: str) -> Json:
        """Return the record of a run as `madlite show --json` prints it."""
        return msgspec.json.decode(as_json(self.run(id)))

    def log(self, query: LogQuery, id: str) -> LogEnd:
        """Return the end of a run's log."""
        run = self.run(id)
        return LogEnd(id=run.folder.name, text=log_end(run.folder, query.tail))

    def steps(self, query: NoQuery, id: str) -> tuple[StepCurve, ...]:
        """Return the step curves of a run that has ended."""
        curves = read_steps(self.run(id).folder).items()
        return tuple(StepCurve(name, *curve_of(found, _MOST_POINTS)) for name, found in curves)

    def summaries(self, query: SeriesQuery) -> tuple[int, list[SeriesSummary]]:
        """Return how many series have the words, and those of a page."""
        words = query.q.casefold().split()
        found = [
            summary
            for summary in self.index.summaries()
            if all(word in " ".join(summary.key).casefold() for word in words)
        ]
        return len(found), found[query.offset : query.offset + query.limit]

    def series(self, query: SeriesQuery) -> SeriesPage:
        """Return a page of the list of series."""
        total, found = self.summaries(query)
        names = series_names([as_dimensions(summary.key) for summary in found])
        return SeriesPage(total=total, series=tuple(map(SeriesLine.of, found, names)))

    def one_series(self, number: str) -> Series:
        """Return a series by its number.

        Raises:
            NotHere: there is none.
        """
        is_number = number.isascii() and number.isdigit() and len(number) < 16
        found = self.index.series_of([int(number)]) if is_number else []
        if not found:
            raise NotHere(f"no series {number!r}", "/series lists them")
        return found[0]

    def detail(self, query: NoQuery, id: str) -> SeriesDetail:
        """Return a series with all of its numbers."""
        return SeriesDetail.of(self.one_series(id))

    def live_runs(self, query: NoQuery) -> tuple[WatchedRun, ...]:
        """Return how far the runs are that go on."""
        return self.live.running

    def comparison(self, query: CompareQuery) -> Report:
        """Return the comparison of two sides.

        Raises:
            UsageProblem: one is not named, or has no results.
        """
        return self.compared(query)[0]

    def compared(self, query: CompareQuery) -> tuple[Report, Side]:
        """Return a comparison, and its new side."""
        if not query.base or not query.new:
            raise UsageProblem("a comparison needs two sides", "/compare?base=last~1&new=last")
        name, _, text = query.where.partition("=")
        where = {name: text} if name else {}
        index, names = self.index, (query.base, query.new)
        # of files those of the working folder
        base, new = (read_side(name, index.folder, where, paths=False, index=index) for name in names)
        across = [name for name in DIMENSIONS if all(side.startswith(f"{name}=") for side in names)]
        return compare_sides(base, new, index.folder, across=across, index=index), new


class Endpoint(Value, frozen=True):
    """One address of the API: its parameters and its answer are types, from which its description is made.

    `method` is the name of a method of Answers; its docstring is the summary.
    """

    path: str
    method: str
    query: type
    answer: Any

    @property
    def parts(self) -> list[str]:
        """The names in braces of its path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def call(self, answers: Answers) -> Callable[..., Any]:
        """Return what answers it."""
        call: Callable[..., Any] = getattr(answers, self.method)
        return call


ENDPOINTS = (
    Endpoint(path="/api/status", method="status", query=NoQuery, answer=Status),
    Endpoint(path="/api/runs", method="runs", query=RunsQuery, answer=RunPage),
    Endpoint(path="/api/runs/{id}", method="record", query=NoQuery, answer=Record),
    Endpoint(path="/api/runs/{id}/log", method="log", query=LogQuery, answer=LogEnd),
    Endpoint(path="/api/runs/{id}/steps", method="steps", query=NoQuery, answer=tuple[StepCurve, ...]),
    Endpoint(path="/api/live", method="live_runs", query=NoQuery, answer=tuple[WatchedRun, ...]),
    Endpoint(path="/api/series", method="series", query=SeriesQuery, answer=SeriesPage),
    Endpoint(path="/api/series/{id}", method="detail", query=NoQuery, answer=SeriesDetail),
    Endpoint(path="/api/compare", method="comparison", query=CompareQuery, answer=Report),
)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the endpoints."""
    from madlite import __version__

    kinds = [Problem, *(kind for endpoint in ENDPOINTS for kind in (endpoint.query, endpoint.answer))]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    problem, rest = schemas[0], iter(schemas[1:])
    paths = {}
    for endpoint, query, answer in zip(ENDPOINTS, rest, rest, strict=True):
        own = components[query["$ref"].rpartition("/")[2]]
        paths[endpoint.path] = {"get": _operation(endpoint, own.get("properties", {}), answer, problem)}
    for endpoint in ENDPOINTS:  # they are parameters, no bodies
        components.pop(endpoint.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "madlite dashboard", "version": __version__, "description": "Read-only; see /."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(
    endpoint: Endpoint, parameters: Mapping[str, dict[str, Any]], answer: dict[str, Any], problem: dict[str, Any]
) -> dict[str, Any]:
    def described(text: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": {"schema": schema}}}

    inside = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in endpoint.parts]
    behind = [{"name": name, "in": "query", "schema": schema} for name, schema in parameters.items()]
    summary = (getattr(Answers, endpoint.method).__doc__ or "").partition("\n")[0].removeprefix("Return ").rstrip(".")
    return {
        "operationId": endpoint.method,
        "summary": summary[:1].upper() + summary[1:],
        "parameters": inside + behind,
        "responses": {
            "200": described("The answer.", answer),
            "400": described("A parameter cannot be used.", problem),
            "403": described("The token is missing.", problem),
            **({"404": described("There is nothing of this id.", problem)} if inside else {}),
        },
    }
