"""The pages of the dashboard: what they show, drawn by the templates beside this module and those of reports."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Status, Value
from madlite.reports.baselines import baseline_names
from madlite.reports.comparison import compare_sides
from madlite.reports.dashboard.live import FACETS, Live, log_end
from madlite.reports.index import COLUMNS, Order, RunFilter, RunIndex, SeriesSummary
from madlite.reports.listing import STATES
from madlite.reports.log import masked, plain_text, read_log
from madlite.reports.page.build import page_data
from madlite.reports.page.render import HOME, environment, payload
from madlite.reports.page.run_details import curves_of, read_steps
from madlite.reports.page.values import Page, SeriesView
from madlite.reports.runs import BACK, LAST, RUNNING, StoredRun
from madlite.reports.selectors import Side, of_runs, read_side
from madlite.reports.series import Series
from madlite.reports.series_key import DIMENSIONS
from madlite.store.folder import is_run, read_points
from madlite.text import duration, scalar_text, status_text

if TYPE_CHECKING:
    from jinja2 import Environment

    from madlite.reports.compare import Report


# The parameters of addresses.

Q = TypeVar("Q", bound=Value)
_Limit = Annotated[int, Meta(ge=1, le=1000)]
_Offset = Annotated[int, Meta(ge=0, le=10_000_000)]
_Text = Annotated[str, Meta(max_length=300)]


class RunsQuery(RunFilter, frozen=True, forbid_unknown_fields=True):
    """Which runs, in which order: `status`, `q` and `of` as `madlite runs` has them; `columns` are exact texts."""

    q: _Text = ""
    order: Order = "when"
    descending: bool = True
    limit: _Limit = 50
    offset: _Offset = 0


class SeriesQuery(Value, frozen=True, forbid_unknown_fields=True):
    """Which series: by words, all of which are in their names."""

    q: _Text = ""
    limit: _Limit = 25
    offset: _Offset = 0


class CompareQuery(Value, frozen=True, forbid_unknown_fields=True):
    """Two sides: a run, `last~1`, a study, a batch, a baseline, a results file of the folder, or `device=MI300X`.

    `where` is `KEY=VALUE` of a dimension or a fact, for both sides.
    """

    base: _Text = ""
    new: _Text = ""
    where: _Text = ""


def parsed(kind: type[Q], parameters: Mapping[str, str]) -> Q:
    """Return the parameters of an address, blank ones left out.

    Raises:
        UsageProblem: one has no such name, or its value cannot be used.
    """
    given: dict[str, object] = dict(_given(parameters))
    fields = kind.__struct_fields__
    names = (*(name for name in fields if name != "columns"), *(COLUMNS if "columns" in fields else ()))
    if "columns" in fields:
        given["columns"] = {name: given.pop(name) for name in COLUMNS if name in given}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"the address cannot be used: {error}", f"parameters are {', '.join(names)}") from None


def _given(parameters: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in parameters.items() if text}


# The pages.

_HERE = Path(__file__).parent
STATIC = {
    "uPlot.css": (HOME / "vendor/uPlot.min.css", "text/css"),
    "page.css": (HOME / "page.css", "text/css"),
    "dashboard.css": (_HERE / "dashboard.css", "text/css"),
    "theme.js": (HOME / "theme.js", "text/javascript"),
    "uPlot.js": (HOME / "vendor/uPlot.iife.min.js", "text/javascript"),
    "page.js": (HOME / "page.js", "text/javascript"),
    "dashboard.js": (_HERE / "dashboard.js", "text/javascript"),
}
"""The files that pages name, and their kinds."""
_COLUMNS = (  # of the list of runs: its head, and the order behind it
    ("Base, new", ""),
    ("Run", ""),
    ("Started (UTC)", "when"),
    ("Card", "card"),
    ("Backend", "backend"),
    ("Mode", ""),
    ("GPUs", "device"),
    ("Status", "state"),
    ("Number", "number"),
    ("Took", "duration"),
)
_STATES = (RUNNING, *(status.value for status in (Status.SUCCESS, Status.FAILURE, Status.SKIPPED)))
_LEADING = 3  # newest numbers above the list of runs
_LISTED = 200  # results of a series, in the list
_SUGGESTED = 30  # sides of a comparison that are offered
_FIRST_LOOK_S = 3.0  # that a request waits for an index that is read for the first time


class NotHere(UsageProblem):
    """What an address names is not there."""


Details: TypeAlias = Callable[..., Iterable[tuple[str, list[tuple[str, str]]]]]
"""What the command line shows of a run, `every` value or those to look at: sections of names and values."""


class Pages:
    """Makes the text of each page, of a log in pieces; PATHS names the methods by address, whose parameters each takes.

    All raise UsageProblem where a parameter cannot be used, and NotHere where nothing is named so.
    """

    PATHS = {
        "/": "runs",
        "/runs/{id}": "run",
        "/runs/{id}/log": "log",
        "/series": "series",
        "/series/{number}": "one_series",
        "/compare": "compare",
    }

    def __init__(self, live: Live, details: Details) -> None:
        self._live, self._details = live, details

    @property
    def _index(self) -> RunIndex:
        """The index, as up to date as it is by now; one that has nothing yet is waited for a moment."""
        if not self._live.ready.is_set() and not self._live.index.count():
            self._live.ready.wait(_FIRST_LOOK_S)
        return self._live.index

    def runs(self, parameters: Mapping[str, str]) -> str:
        """Return the list of runs."""
        query = parsed(RunsQuery, parameters)
        index = self._index
        total = index.count(query)
        given = _given(parameters)
        metrics = index.values("metric")
        measured = (summary for summary in index.summaries() if summary.key[-1] in metrics)
        return self._drawn(
            "runs.html.j2",
            title="Runs",
            study_pages=self._study_pages(query.of),
            leading=[] if given else self._rows(islice(measured, _LEADING)),
            query=query,
            total=total,
            rows=_folded(self._stored(query), alone=bool(query.of) or query.order != "when"),
            states=_tiles(index.states(), index.count(RunFilter(status="suspect"))),
            facets={name: index.values(name) for name in FACETS},
            statuses=(*STATES, *(value for value in index.values("cause"))),
            columns=_COLUMNS,
            given=given,
            pages=_pages(query.offset, query.limit, total),
        )

    def _study_pages(self, of: str) -> list[Path]:
        """Return the pages that a scaling or a tuning has left: named alone, for a file of the folder is not served."""
        places = [self._index.folder / f"study-{of}" / name for name in ("scaling.html", "tune.html")]
        return [place.resolve() for place in places if "/" not in of and os.path.isfile(place)]  # noqa: PTH113 - nor raises

    def run(self, parameters: Mapping[str, str], id: str) -> str:
        """Return the page of one run."""
        run = self._run(id)
        page = page_data(of_runs(run.folder.name, [run], {}).series, [run])
        first, *others = self._details(run, every=False)
        main = dict(others)
        return self._drawn(
            "run.html.j2",
            page=page,
            title=run.record.card or run.folder.name,
            run=run,
            first=first[1],
            details=[
                (name, main.get(name, []), [pair for pair in pairs if pair not in main.get(name, [])])
                for name, pairs in self._details(run, every=True)
                if name
            ],
            log=log_end(run.folder),
            is_running=run.state == RUNNING,
            curves=() if page.panels else curves_of(read_steps(run.folder) or read_points(run.folder)),
            earlier=self._earlier(run),
        )

    def log(self, parameters: Mapping[str, str], id: str) -> Iterator[bytes]:
        """Return all of a run's log, as its page shows the end of it."""
        text = plain_text(masked(read_log(self._run(id).folder)))
        return chain([next(text, b"")], text)  # what is wrong with it is raised here, not amid the answer

    def _stored(self, query: RunsQuery) -> list[StoredRun]:
        return self._index.runs(query, query.order, descending=query.descending, limit=query.limit, offset=query.offset)

    def _run(self, name: str) -> StoredRun:
        """Return one run, read from its folder."""
        index = self._index
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

    def _earlier(self, run: StoredRun) -> str:
        """Return the id of the run before with the same card that has a number, "" without one."""
        if run.headline is None:
            return ""
        own = run.record
        columns = {"card": own.card, "metric": run.headline.metric, "device": own.device}
        query = RunsQuery(status="success", until=run.when, limit=2, columns=columns)
        found = [stored.folder.name for stored in self._stored(query) if stored.folder.name != run.folder.name]
        return found[0] if found else ""

    def series(self, parameters: Mapping[str, str]) -> str:
        """Return the list of series."""
        query = parsed(SeriesQuery, parameters)
        total, found = self._summaries(query)
        return self._drawn(
            "series.html.j2",
            title="Series",
            query=query,
            total=total,
            rows=self._rows(found),
            given=_given(parameters),
            pages=_pages(query.offset, query.limit, total),
        )

    def _rows(self, found: Iterable[SeriesSummary]) -> list[tuple[SeriesView, str, int]]:
        """Return series as lines of a table: statistics of the newest results, the series' page, how many it has."""
        known = {summary.key: summary for summary in found}
        newest = [
            replace(series, values=series.values[-_LISTED:], samples=series.samples[-_LISTED:])
            for series in self._index.series_of([summary.id for summary in known.values()])
        ]
        views = {view.series.key: view for view in page_data(newest).series}
        return [(views[key], f"/series/{own.id}", own.runs) for key, own in known.items() if key in views]

    def _summaries(self, query: SeriesQuery) -> tuple[int, list[SeriesSummary]]:
        """Return how many series have the words, and those of a page."""
        words = query.q.casefold().split()
        found = [
            summary
            for summary in self._index.summaries()
            if all(word in " ".join(summary.key).casefold() for word in words)
        ]
        return len(found), found[query.offset : query.offset + query.limit]

    def one_series(self, parameters: Mapping[str, str], number: str) -> str:
        """Return the page of one series."""
        series = self._series(number)
        newest = list(dict.fromkeys(sample.run for sample in series.samples))[-10:]
        page = page_data([series], self._index.opened(newest))
        return self._drawn("trend.html.j2", page=page, title=series.name, newest=newest[::-1])

    def _series(self, number: str) -> Series:
        is_number = number.isascii() and number.isdigit() and len(number) < 16
        found = self._index.series_of([int(number)]) if is_number else []
        if not found:
            raise NotHere(f"no series {number!r}", "/series lists them")
        return found[0]

    def compare(self, parameters: Mapping[str, str]) -> str:
        """Return the comparison of two sides, or the form for one."""
        query = parsed(CompareQuery, parameters)
        problem, page = None, None
        if query.base or query.new:
            try:
                report, new = self._compared(query)
                page = page_data(new.series, (), report, sources=(new.label,))
            except UsageProblem as error:
                problem = error
        return self._drawn(
            "compare.html.j2", page=page, title="Compare", query=query, problem=problem, offered=self._sides()
        )

    def _compared(self, query: CompareQuery) -> tuple[Report, Side]:
        """Return a comparison, and its new side."""
        if not query.base or not query.new:
            raise UsageProblem("a comparison needs two sides", "/compare?base=last~1&new=last")
        key, _, text = query.where.partition("=")
        where = {key: text} if key else {}
        index, names = self._index, (query.base, query.new)
        # of files those of the working folder
        base, new = (read_side(name, index, where, paths=False) for name in names)
        across = [name for name in DIMENSIONS if all(side.startswith(f"{name}=") for side in names)]
        return compare_sides(base, new, index, across=across), new

    def _sides(self) -> list[str]:
        """Return what a side can be, the likely ones first."""
        index = self._index
        devices = [f"device={name}" for name in index.values("device")]
        names = [*baseline_names(index.folder), *index.values("study")[::-1], *devices]
        return [LAST, f"{LAST}~1", *names[:_SUGGESTED], *index.ids(limit=_SUGGESTED)[::-1]]

    def problem(self, problem: UsageProblem) -> str:
        """Return the page of a request that cannot be answered."""
        return self._drawn("problem.html.j2", title="This cannot be shown", problem=problem)

    def _drawn(self, template: str, *, page: Page | None = None, **values: object) -> str:
        live = self._live
        common = {
            "page": page,
            "path": template,
            "folder": live.index.folder,
            "complete": live.ready.is_set(),
            "notes": live.index.notes,
            "now": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}",
            "duration": duration,
            "status": lambda run: status_text(run.state, run.record.suspect),
        }
        return templates().get_template(template).render({**common, **values})


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the environment of the reports with what the dashboard's templates need."""
    made = environment().overlay()
    made.filters = {**made.filters, "kind_of": kind_of, "part": lambda text: quote(text, safe="")}
    made.globals = {**made.globals, "asset_url": asset_url, "data_of": payload, "link": link}
    return made


@lru_cache(maxsize=16)
def asset_url(name: str) -> str:
    """Return the address of a file of ours, which changes with what it holds."""
    path, _ = STATIC[name]
    return f"/static/{name}?{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def link(path: str, given: Mapping[str, str], **changes: object) -> str:
    """Return an address with the parameters of this one, some of them changed; blank ones are left out."""
    own = {name: text for name, text in {**given, **changes}.items() if text not in ("", None)}
    return f"{path}?{urlencode({name: scalar_text(text) for name, text in own.items()})}" if own else path


def kind_of(run: StoredRun) -> str:
    """Return how a run's status looks: good, bad, warn or plain."""
    if run.is_suspect:
        return "warn"
    kinds = {Status.SUCCESS.value: "good", Status.SKIPPED.value: "plain", RUNNING: "live"}
    return kinds.get(run.state, "bad")


def _folded(runs: Iterable[StoredRun], *, alone: bool) -> list[list[StoredRun]]:
    """Return the runs of each row of a list: those of one study together, unless each stands alone."""
    found: dict[str, list[StoredRun]] = {}
    for run in runs:
        study = run.record.study
        found.setdefault(study.id if study is not None and not alone else run.folder.name, []).append(run)
    return list(found.values())


def _tiles(states: Mapping[str, int], suspects: int) -> list[tuple[str, int, str]]:
    """Return the counts above the list: word, count, `--status` of it."""
    tiles = [("runs", sum(states.values()), "")]
    order = sorted(states, key=lambda state: (_STATES.index(state) if state in _STATES else len(_STATES), state))
    tiles += [(state.lower(), states[state], state.lower().replace(" ", "-")) for state in order]
    return [*tiles, ("suspect", suspects, "suspect")] if suspects else tiles


def _pages(offset: int, limit: int, total: int) -> dict[str, int | None]:
    """Return which of so many are shown, and where the pages before and after begin."""
    after = offset + limit
    return {
        "first": min(offset + 1, total),
        "last": min(after, total),
        "before": max(0, offset - limit) if offset else None,
        "after": after if after < total else None,
    }
