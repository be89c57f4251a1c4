"""Queries over the index of a folder of runs: lists and counts of 100,000 runs, and their results as series.

What is in the index of a run is decided here (`read_runs`); its file and how it is kept up to date: store/index.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from msgspec.structs import asdict, replace

from madlite.errors import UsageProblem
from madlite.model import Metric, Value
from madlite.reports.listing import names_of, status_words, value_of, wanted_status
from madlite.reports.runs import BACK, UNREADABLE, StoredRun, began, names_with, open_run, several
from madlite.reports.series import Entry, Sample, Series, group, matches, of_record
from madlite.reports.series_key import DIMENSIONS, record_dimensions, record_facts
from madlite.store.index import RUN_COLUMNS, IndexedRun, IndexFile
from madlite.store.record import NotedRuns, Record

if TYPE_CHECKING:
    import sqlite3


Order = Literal["when", "card", "state", "duration", "number", "backend", "device", "gpus"]
ORDERS: tuple[Order, ...] = get_args(Order)
_ORDER_COLUMNS = {name: name for name in ORDERS} | {"when": "at", "duration": "duration_s", "gpus": "CAST(gpus AS INT)"}
COLUMNS = (
    *("card", "backend", "recipe", "mode", "precision", "seq_len", "micro_batch", "global_batch", "device", "gpus"),
    *("nodes", "runtime", "hostname", "cause", "metric", "study", "batch"),
)
"""The columns of a run by which runs can be filtered: the exact text."""
_MOST_VALUES = 200  # of a column that are offered as a filter
_STORED = "SELECT text FROM runs JOIN summaries ON run = n"

_ENTRIES = (
    "SELECT runs.id, results.status, value, facts, results.series, started, suspect, steady_cv, study "
    "FROM results JOIN runs ON runs.n = results.run WHERE {} "
    "ORDER BY at ASC, began ASC, runs.id ASC, results.place"
)


class RunFilter(Value, frozen=True):
    """Which runs: those of a status as `madlite runs --status`, of cards with a word of `q`, `of` a batch or study.

    `columns` are exact values by the names of COLUMNS; `since` and `until` are UTC times or their beginnings.
    """

    status: str = ""
    q: str = ""
    of: str = ""
    columns: dict[str, str] = {}
    since: str = ""
    until: str = ""


EVERY = RunFilter()
_Keys = dict[int, tuple[str, ...]]
_Facts = dict[int, dict[str, str]]


class SeriesSummary(Value, frozen=True):
    """A series in a line: its key, and how many runs have a number."""

    id: int
    key: tuple[str, ...]
    runs: int


class RunIndex(IndexFile):
    """The index of a folder of runs; all methods may be called from any thread."""

    # another number where the same record gives other columns, keys or facts
    version = f"1 {' '.join((*DIMENSIONS, *StoredRun.__struct_fields__))}"

    def read_runs(self, names: Sequence[str], noted: NotedRuns) -> Iterator[IndexedRun]:
        """Return runs as `list_runs` has them."""
        return (_indexed(open_run(self.folder / name, noted)) for name in names)

    # Runs.

    def runs(
        self,
        filters: RunFilter = EVERY,
        order: Order = "when",
        *,
        descending: bool = False,
        limit: int = 0,
        offset: int = 0,
    ) -> list[StoredRun]:
        """Return runs, with what the index has of their records: enough for a list; `limit` 0 is all.

        Raises:
            UsageProblem: there is no such status.
        """
        where, values = self._where(filters)
        chosen = f"SELECT n FROM runs WHERE {where} ORDER BY {_order(order, descending)} LIMIT ? OFFSET ?"  # noqa: S608
        query = f"{_STORED} WHERE n IN ({chosen}) ORDER BY {_order(order, descending)}"
        return list(map(self._stored, self._all(query, (*values, limit or -1, offset))))

    def newest(self, filters: RunFilter = EVERY, limit: int = 0) -> list[StoredRun]:
        """Return the newest runs, the newest last, as `madlite runs` has them."""
        return self.runs(filters, descending=True, limit=limit)[::-1]

    def count(self, filters: RunFilter = EVERY) -> int:
        """Return how many runs there are.

        Raises:
            UsageProblem: there is no such status.
        """
        where, values = self._where(filters)
        return int(self._all(f"SELECT count(*) FROM runs WHERE {where}", values)[0][0])  # noqa: S608

    def named_by(self, of: str, *, alone: bool = False) -> str:
        """Return how the id of a study or batch begins that `--of` names: by its beginning, else any part of it.

        `last` is the study that the newest run of one belongs to, `last~1` the one before.  With `alone` several ids
        that begin so are an error, too.

        Raises:
            UsageProblem: there are not so many studies, or several ids have the part.
        """
        if back := BACK.fullmatch(of):
            query = "SELECT study FROM runs WHERE study != '' GROUP BY study ORDER BY max(at) DESC LIMIT 1 OFFSET ?"
            if not (found := self._all(query, (int(back[1] or 0),))):
                raise UsageProblem(f"study {of}: there are not so many in {self.folder}", "madlite runs --group study")
            return str(found[0][0])
        every = "SELECT study AS id FROM runs UNION SELECT batch FROM runs"
        rows = self._all(f"SELECT id FROM ({every}) WHERE instr(id, ?) ORDER BY id", (of,)) if of else ()  # noqa: S608
        known = names_with([row[0] for row in rows], of)
        if len(known) > 1 and (alone or not known[0].startswith(of)):
            raise several(of, known, "studies and batches")
        return of if not known or known[0].startswith(of) else str(known[0])

    def ids(self, filters: RunFilter = EVERY, limit: int = 0) -> list[str]:
        """Return the ids of runs, the newest last; with a limit the newest.

        Raises:
            UsageProblem: there is no such status.
        """
        where, values = self._where(filters)
        query = f"SELECT id FROM runs WHERE {where} ORDER BY {_order('when', True)} LIMIT ?"  # noqa: S608
        return [row[0] for row in self._all(query, (*values, limit or -1))][::-1]

    def opened(self, ids: Sequence[str]) -> list[StoredRun]:
        """Return runs with all of their records, read from their folders."""
        noted = NotedRuns(self.folder)
        return [open_run(self.folder / name, noted) for name in ids]

    def states(self) -> dict[str, int]:
        """Return how many runs are in each state."""
        return dict(self._all("SELECT state, count(*) FROM runs GROUP BY state ORDER BY state", ()))

    def values(self, column: str) -> tuple[str, ...]:
        """Return the different texts of one of COLUMNS, sorted; not more than a user would look through."""
        query = f"SELECT DISTINCT {_column(column)} FROM runs WHERE {column} != '' ORDER BY 1 LIMIT {_MOST_VALUES}"  # noqa: S608
        return tuple(row[0] for row in self._all(query))

    def problems(self) -> list[StoredRun]:
        """Return the runs whose records cannot be read, the newest last."""
        few = "SELECT n FROM runs WHERE problem != ''"  # apart, so that their own index is used
        query = f"{_STORED} WHERE n IN ({few}) ORDER BY {_order('when', False)}"
        return list(map(self._stored, self._all(query, ())))

    def _stored(self, row: Sequence[Any]) -> StoredRun:
        run = _decode_run(row[0])
        return replace(run, folder=self.folder / run.folder)

    def _where(self, filters: RunFilter) -> tuple[str, list[object]]:
        """Return the condition of a query and its values."""
        causes = [row[0] for row in self._all("SELECT DISTINCT cause FROM runs")] if filters.status else ()
        status = wanted_status(filters.status, causes)
        parts: list[tuple[str, Sequence[object]]] = []
        if status:
            parts.append(("instr(words, char(31) || ? || char(31))", (status,)))
        if words := filters.q.lower().replace(",", " ").split():
            parts.append((f"({' OR '.join(['instr(names, ?)'] * len(words))})", words))
        if filters.of:
            parts.append(("(instr(batch, ?) = 1 OR instr(study, ?) = 1)", (filters.of,) * 2))
        parts += [(f"{_column(name)} = ?", (text,)) for name, text in filters.columns.items()]
        parts += [("at >= ?", (filters.since,))] if filters.since else []
        parts += [("substr(at, 1, length(?)) <= ?", (filters.until,) * 2)] if filters.until else []
        return " AND ".join(part for part, _ in parts) or "1", [value for _, values in parts for value in values]

    # Results.

    def results(self, where: Mapping[str, str]) -> tuple[tuple[Series, ...], tuple[str, ...]]:
        """Return the results with these dimensions or facts as series, as of the runs' records, and whose they are.

        The ids of the runs are in the order of time, the newest last.
        """
        found = list(self.entries(where))
        return group(entry for _, entry in found), tuple(dict.fromkeys(name for name, _ in found))

    def summaries(self) -> list[SeriesSummary]:
        """Return a line about every series, those with the newest numbers first."""
        query = (
            "SELECT series.text, series.n, count(value), max(CASE WHEN value IS NOT NULL THEN at END) AS last_at "
            "FROM results JOIN series ON series.n = results.series JOIN runs ON runs.n = results.run "
            "GROUP BY series.n ORDER BY last_at DESC, series.n"
        )
        found = (SeriesSummary(id=n, key=_decode_key(text), runs=runs) for text, n, runs, _ in self._all(query))
        return [summary for summary in found if summary.key[-1]]  # runs that failed before they had a metric are none

    def series_of(self, numbers: Sequence[int]) -> list[Series]:
        """Return the series of these numbers; what failed before it had a metric is not counted with them."""
        found = self.entries({}, numbers)
        by_key = {series.key: series for series in group(entry for _, entry in found)}
        keys = (self.series_key(number) for number in numbers)
        return [by_key[key] for key in keys if key is not None and key in by_key]

    def series_key(self, number: int) -> tuple[str, ...] | None:
        """Return the key of the series of a number, in the order of DIMENSIONS."""
        found = self._all("SELECT text FROM series WHERE n = ?", (number,))
        return _decode_key(found[0][0]) if found else None

    def entries(self, where: Mapping[str, str], numbers: Sequence[int] | None = None) -> Iterator[tuple[str, Entry]]:
        """Yield results and the runs that they are of, in the order of the runs.

        `numbers` are those of the series, where the caller knows them.
        """
        dimensions = {name: text for name, text in where.items() if name in DIMENSIONS}
        others = {name: text for name, text in where.items() if name not in DIMENSIONS}

        def read(connection: sqlite3.Connection) -> tuple[_Keys, _Facts, list[Any]]:
            keys = {n: _decode_key(text) for n, text in connection.execute("SELECT n, text FROM series")}
            facts = {n: _decode_facts(text) for n, text in connection.execute("SELECT n, text FROM facts")}
            fitting = keys if numbers is None else keys.keys() & set(numbers)
            only = [n for n in fitting if matches(keys[n], {}, dimensions)]
            of_series = "1" if len(only) == len(keys) else f"results.series IN ({', '.join(map(str, only))})"
            return keys, facts, connection.execute(_ENTRIES.format(of_series)).fetchall()

        # from one state of the tables: other processes may give the numbers of series and facts to others
        keys, facts, found = self.read(read)
        fitting = {n for n, fact in facts.items() if matches((), fact, others)} if others else None
        above = str(self.folder / "x")[:-1]  # as a path is written, without making one each
        for run, status, value, n, series, started, suspect, cv, study in found:
            if fitting is not None and n not in fitting:
                continue
            sample = Sample(
                value=value,
                run=run,
                when=started,
                place=above + run,
                suspect=suspect,
                steady_cv=cv,
                facts=facts[n],
                study=study,
            )
            yield run, Entry(key=keys[series], status=status, sample=sample)

    def _all(self, query: str, values: Iterable[object] = ()) -> list[Any]:
        bound = tuple(values)
        return self.use(lambda connection: connection.execute(query, bound).fetchall())


@contextmanager
def open_index(folder: Path) -> Iterator[RunIndex]:
    """Open the index of a folder of runs, and bring it up to date with them."""
    with RunIndex(folder) as index:
        index.refresh()
        yield index


def _order(order: Order, descending: bool) -> str:
    """Return the order of a query; runs that share a value are in the order of time, those without one last."""
    word = "DESC" if descending else "ASC"
    column = _ORDER_COLUMNS[order]
    nulls = f"{column} IS NULL, " if column in ("number", "duration_s") and not descending else ""  # else they are last
    first = "" if order == "when" else f"{nulls}{column} {word}, "
    return f"{first}at {word}, began {word}, runs.id {word}"


def _column(name: str) -> str:
    if name not in COLUMNS:
        raise KeyError(name)
    return name


# What the index has of a run.

SEPARATOR = "\x1f"  # between the words of a column
# what no list needs of a record: the page of one run reads the record itself, and series have columns of their own
_LEFT_OUT = frozenset(
    (
        *("command", "card_source", "url", "traits", "settings", "args", "env", "inputs", "overrides", "origins"),
        *("context_left_out", "evidence", "diagnosis", "checks", "findings", "node_codes", "outcome", "window"),
        *("compute", "telemetry", "config", "provenance", "image", "data", "rows", "files", "metrics"),
    )
)
_KEPT = tuple(name for name in Record.__struct_fields__ if name not in _LEFT_OUT)
_kept_of = attrgetter(*_KEPT)
_decode_run = msgspec.json.Decoder(StoredRun, dec_hook=lambda kind, text: kind(text)).decode
_decode_key = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_facts = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder(enc_hook=str).encode  # of paths


def _indexed(run: StoredRun) -> IndexedRun:
    record, dimensions, headline = run.record, record_dimensions(run.record), run.headline
    results = of_record(record, "", dimensions, Sample(run=record.id)) if run.is_over else ()  # of it the value alone
    return IndexedRun(
        name=run.folder.name,
        columns=_columns(run, dimensions, headline),
        summary=_summary_of(run, headline),
        facts=_encode(record_facts(record)).decode(),
        results=[(_encode(entry.key).decode(), entry.status, entry.sample.value) for entry in results],
        is_settled=run.state != UNREADABLE and bool(record.card),
    )


def _columns(run: StoredRun, dimensions: Mapping[str, str], headline: Metric | None) -> dict[str, object]:
    record = run.record
    return {
        **{name: dimensions[name] for name in _OF_DIMENSIONS},
        **{name: value_of(run, name) for name in _LISTED},
        "at": run.when,
        "began": began(run.folder),
        "started": record.started,
        "state": run.state,
        "words": _joined(status_words(run)),
        "names": _joined(names_of(run)),
        "runtime": record.runtime,
        "hostname": record.hostname,
        "suspect": "; ".join(record.suspect),
        "number": headline.value if headline else None,
        "steady_cv": record.window.cv if record.window is not None else None,
        "problem": run.problem,
    }


_LISTED = ("card", "cause", "study", "batch", "duration_s", "metric", "origin", "pruned")
_OF_DIMENSIONS = tuple(name for name in DIMENSIONS if name in RUN_COLUMNS)


def _summary_of(run: StoredRun, headline: Metric | None) -> str:
    """Return what lists show of a run, whose record has nothing else."""
    kept = {name: value for name, value in zip(_KEPT, _kept_of(run.record), strict=True) if value}
    record = {**kept, "metrics": (headline,) if headline else ()}
    return _encode({**asdict(run), "folder": run.folder.name, "record": record}).decode()


def _joined(words: Iterable[str]) -> str:
    return SEPARATOR + SEPARATOR.join(filter(None, words)) + SEPARATOR
