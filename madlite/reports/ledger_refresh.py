"""Brings the ledger to what the folders of runs hold: one look at each folder, and only what changed is read.

A run whose record lies there unchanged (inode, size, times), in a folder that is the same, is not read again, unless
the event log has a new line of it.  All others are read as `list_runs` reads them: those that go
on, were cut off or wait to be collected each time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from madlite.model import Value
from madlite.perfcsv.stored import NotedRuns
from madlite.plan.inputs import RUNS
from madlite.reports.ledger_file import LedgerFile, LedgerReplaced, digest, get_meta, set_meta
from madlite.reports.listing import groups_of, names_of, status_words
from madlite.reports.runs import UNREADABLE, StoredRun, began, is_run, open_run, with_card
from madlite.reports.series import Entry, of_record
from madlite.reports.series_key import DIMENSIONS, as_key, record_dimensions, record_facts
from madlite.store import events
from madlite.store.batches import interrupted_batches, requested_cards
from madlite.store.folder import RECORD
from madlite.store.record import Record

if TYPE_CHECKING:
    import sqlite3

SEPARATOR = "\x1f"  # between the words of a column
_AT_ONCE = 200  # runs of one transaction: some tenths of a second
_RECENT_NS = 2 * 10**9  # a file that changed so shortly before may change again without another time
# what no list needs of a record: the page of one run reads the record itself, and series have columns of their own
_LEFT_OUT = frozenset(
    (
        *(
            "command",
            "card_source",
            "url",
            "traits",
            "settings",
            "args",
            "env",
            "inputs",
            "overrides",
            "origins",
            "context_left_out",
        ),
        *("evidence", "diagnosis", "checks", "findings", "node_codes", "outcome", "window", "compute", "telemetry"),
        *("config", "provenance", "image", "data", "rows", "files", "metrics"),
    )
)
_KEPT = tuple(name for name in Record.__struct_fields__ if name not in _LEFT_OUT)
_RUN_COLUMNS = (
    *("id", "at", "began", "started", "state", "words", "names", "card", "backend", "recipe", "mode", "precision"),
    *("seq_len", "micro_batch", "global_batch", "device", "gpus", "nodes", "runtime", "hostname", "cause", "suspect"),
    *("study", "batch", "duration_s", "metric", "number", "steady_cv", "doubt", "problem", "collected", "origin"),
    *("pruned", "facts"),
    *("folder_inode", "folder_uid", "record_inode", "record_size", "record_mtime_ns", "record_ctime_ns"),
)
Stamp = tuple[int, int, int, int, int, int]
"""Of a folder its inode and owner; of the record in it inode, size, and when it was written and changed."""


class Refreshed(Value, frozen=True):
    """What a refresh did: runs that are there, that were read, and that are gone; how long it took."""

    runs: int
    read: int
    removed: int
    took_s: float


def refresh(file: LedgerFile) -> Refreshed:
    """Bring a ledger up to date; other processes may do so at the same time.

    Raises:
        LedgerReplaced: it had to be made again, and is empty.
    """
    begun = time.monotonic()
    found = _scan(file.runs)
    _take_journal(file)  # behind it: a run that is taken in has its line before its folder is there
    known = file.use(_stamps)
    cards, missing = requested_cards(file.runs), _begun_without_folder(file.runs)
    names = [*found, *(name for name in missing if name not in found)]
    changed = [name for name in names if found.get(name) is None or known.get(name) != found[name]]
    for part in _parts(changed):
        _read(file, part, found, cards)
    gone = known.keys() - names
    for part in _parts(gone):
        file.write(lambda connection, part=part: _forget(connection, part))  # type: ignore[misc]
    return Refreshed(runs=len(names), read=len(changed), removed=len(gone), took_s=time.monotonic() - begun)


def db_name(name: str) -> str | bytes:
    """Return a folder's name as the ledger has it: text, or bytes where they are no UTF-8."""
    return name if _is_text(name) else os.fsencode(name)


def file_name(found: str | bytes) -> str:
    """Return a folder's name from the ledger's."""
    return found if isinstance(found, str) else os.fsdecode(found)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(text: str) -> str:
    """Return text that SQLite can keep: file names may hold bytes that are none."""
    return text if _is_text(text) else text.encode("utf-8", "replace").decode()


def _parts(names: Iterable[str]) -> Iterator[list[str]]:
    left = iter(names)
    while part := list(islice(left, _AT_ONCE)):
        yield part


# What is there.


def _stamps(connection: sqlite3.Connection) -> dict[str, Stamp]:
    columns = ", ".join(_RUN_COLUMNS[-6:])
    found = connection.execute(f"SELECT id, {columns} FROM runs")  # noqa: S608 - names of ours
    return {file_name(row[0]): row[1:] for row in found}


def _scan(runs: Path) -> dict[str, Stamp | None]:
    """Return the runs with their stamps; None of one without a settled record, which is read each time."""
    found: dict[str, Stamp | None] = {}
    recent_ns = time.time_ns() - _RECENT_NS
    try:
        with os.scandir(runs) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stamp = _stamp(entry, recent_ns)
                    if stamp is not None or is_run(runs / entry.name):
                        found[entry.name] = stamp
    except OSError:
        return found
    return found


def _stamp(entry: os.DirEntry[str], recent_ns: int) -> Stamp | None:
    try:
        record = os.lstat(f"{entry.path}/{RECORD}")
        folder = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(record.st_mode) or max(record.st_ctime_ns, record.st_mtime_ns) > recent_ns:
        return None
    times = record.st_mtime_ns, record.st_ctime_ns
    return (_signed(folder.st_ino), folder.st_uid, _signed(record.st_ino), record.st_size, *times)


def _begun_without_folder(runs: Path) -> list[str]:
    """Return the runs that a kill kept from having a folder's files, which the journal of their batch names."""
    if runs.name != RUNS:
        return []
    return [one.id for batch in interrupted_batches(runs.parent) for one in batch.begun if "/" not in one.id]


# The journal of the folder of runs: which runs were imported or pruned.


def _take_journal(file: LedgerFile) -> None:
    """Take over the lines that were added; the runs they are of are read again."""
    before = file.use(lambda connection: get_meta(connection, "journal"))
    added = events.read_added(file.runs, before)
    if added.mark != before:
        file.write(lambda connection: _add_entries(connection, before, added))


def _add_entries(connection: sqlite3.Connection, before: str, added: events.Added) -> None:
    if get_meta(connection, "journal") != before:  # another process has taken them over meanwhile
        return
    if added.restarted or not before:
        connection.execute("DELETE FROM journal")
        connection.execute("UPDATE runs SET record_inode = NULL")
    rows = [
        (db_name(one.run), msgspec.json.encode(one).decode())
        for one in added.events
        if isinstance(one, events.RunImported | events.RunPruned)
    ]
    connection.executemany("INSERT INTO journal VALUES (?, ?)", rows)
    if before and not added.restarted:
        stale = {(row[0],) for row in rows}
        connection.executemany("UPDATE runs SET record_inode = NULL WHERE id = ?", stale)
    set_meta(connection, "journal", added.mark)


def _signed(inode: int) -> int:
    """Return an inode as SQLite keeps it: some file systems use all 64 bits."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode


def _noted(connection: sqlite3.Connection, runs: Path, names: Sequence[str]) -> NotedRuns:
    marks = ", ".join("?" * len(names))
    query = f"SELECT line FROM journal WHERE run IN ({marks}) ORDER BY rowid"  # noqa: S608
    rows = connection.execute(query, [db_name(name) for name in names])
    entries = [msgspec.json.decode(line, type=events.AnyEvent) for (line,) in rows]
    return NotedRuns(runs, entries)


# Runs that are read.


def _read(file: LedgerFile, names: Sequence[str], found: Mapping[str, Stamp | None], cards: Mapping[str, str]) -> None:
    noted = noted_runs(file, names)
    runs = [open_run(file.runs / name, noted) for name in names]
    rows = [_Row(with_card(run, cards), found.get(run.folder.name)) for run in runs]
    file.write(lambda connection: _Writer(connection).write(rows))


def noted_runs(file: LedgerFile, names: Sequence[str]) -> NotedRuns:
    """Return what the journal has about some runs, without reading all of it."""
    return file.use(lambda connection: _noted(connection, file.runs, names))


class _Row:
    """A run as the tables have it."""

    def __init__(self, run: StoredRun, stamp: Stamp | None) -> None:
        self.run = run
        is_settled = stamp is not None and run.state != UNREADABLE and bool(run.record.card)
        self.stamp: tuple[int | None, ...] = stamp if stamp is not None and is_settled else (None,) * 6

    def cells(self, facts: int) -> tuple[object, ...]:
        """Return the columns of the table of runs; `facts` is the number of what it ran with."""
        run, record, headline = self.run, self.run.record, self.run.headline
        dimensions = record_dimensions(record)
        batch, study = groups_of(run)
        values = {
            "id": db_name(run.folder.name),
            "at": _text(run.when),
            "began": began(run.folder),
            "started": _text(record.started),
            "state": run.state,
            "words": _joined(status_words(run)),
            "names": _joined(names_of(run)),
            **{name: _text(text) for name, text in dimensions.items() if name in _RUN_COLUMNS},
            "card": _text(record.card),
            "runtime": _text(record.runtime),
            "hostname": _text(record.hostname),
            "cause": _text(record.cause),
            "suspect": _text("; ".join(record.suspect)),
            "study": _text(study),
            "batch": _text(batch),
            "duration_s": record.durations_s.get("total"),
            "metric": _text(headline.metric) if headline else "",
            "number": headline.value if headline else None,
            "steady_cv": record.window.cv if record.window is not None else None,
            "doubt": _text(run.doubt),
            "problem": _text(run.problem),
            "collected": run.collected,
            "origin": _text(run.origin),
            "pruned": run.pruned,
            "facts": facts,
        }
        return (*(values[name] for name in _RUN_COLUMNS[:-6]), *self.stamp)

    @property
    def summary(self) -> str:
        record = self.run.record
        kept = {name: value for name in _KEPT if (value := getattr(record, name))}
        metrics = (self.run.headline,) if self.run.headline else ()
        return msgspec.json.encode({**kept, "id": _text(record.id), "metrics": metrics}).decode()

    @property
    def entries(self) -> list[Entry]:
        """Its results, where it is over; those of a run in doubt are there, and left out of series."""
        run = self.run
        return list(of_record(run.record, "")) if run.state == run.record.status.value else []


def record_of(summary: str) -> Record:
    """Return what the ledger has of a record."""
    return msgspec.json.decode(summary, type=Record)


def _joined(words: Iterable[str]) -> str:
    return _text(SEPARATOR + SEPARATOR.join(filter(None, words)) + SEPARATOR)


class _Writer:
    """Writes runs in one transaction; series and facts that many runs share are there once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._series: dict[tuple[str, ...], int] = {}
        self._facts: dict[bytes, int] = {}

    def write(self, rows: Iterable[_Row]) -> None:
        columns = ", ".join(_RUN_COLUMNS)
        changes = ", ".join(f"{name} = excluded.{name}" for name in _RUN_COLUMNS[1:])
        marks = ", ".join("?" * len(_RUN_COLUMNS))
        insert = f"INSERT INTO runs({columns}) VALUES ({marks}) ON CONFLICT(id) DO UPDATE SET {changes}"  # noqa: S608
        for row in rows:
            self._connection.execute(insert, row.cells(self._facts_number(record_facts(row.run.record))))
            n = self._number("SELECT n FROM runs WHERE id = ?", (db_name(row.run.folder.name),))
            self._connection.execute("INSERT OR REPLACE INTO summaries VALUES (?, ?)", (n, row.summary))
            self._connection.execute("DELETE FROM results WHERE run = ?", (n,))
            self._connection.executemany(
                "INSERT INTO results VALUES (?, ?, ?, ?, ?)",
                [(n, place, *self._result(entry)) for place, entry in enumerate(row.entries)],
            )

    def _result(self, entry: Entry) -> tuple[object, ...]:
        key = tuple(map(_text, as_key(entry.dimensions)))
        value = None if entry.sample is None else entry.sample.value
        return self._series_number(key), _text(entry.status), value

    def _series_number(self, key: tuple[str, ...]) -> int:
        if key not in self._series:
            names = ", ".join(DIMENSIONS)
            marks = ", ".join("?" * len(key))
            self._connection.execute(f"INSERT OR IGNORE INTO series({names}) VALUES ({marks})", key)  # noqa: S608
            where = " AND ".join(f"{name} = ?" for name in DIMENSIONS)
            self._series[key] = self._number(f"SELECT n FROM series WHERE {where}", key)  # noqa: S608
        return self._series[key]

    def _facts_number(self, facts: Mapping[str, str]) -> int:
        data = msgspec.json.encode({_text(name): _text(text) for name, text in facts.items()})
        key = digest(data)
        if key not in self._facts:
            self._connection.execute("INSERT OR IGNORE INTO facts(hash, facts) VALUES (?, ?)", (key, data.decode()))
            self._facts[key] = self._number("SELECT n FROM facts WHERE hash = ?", (key,))
        return self._facts[key]

    def _number(self, query: str, values: Sequence[object]) -> int:
        return int(self._connection.execute(query, values).fetchone()[0])


def _forget(connection: sqlite3.Connection, names: Sequence[str]) -> None:
    """Remove runs that are gone, and what no other run shares with them."""
    ids = [(db_name(name),) for name in names]
    connection.executemany("DELETE FROM results WHERE run = (SELECT n FROM runs WHERE id = ?)", ids)
    connection.executemany("DELETE FROM summaries WHERE run = (SELECT n FROM runs WHERE id = ?)", ids)
    connection.executemany("DELETE FROM runs WHERE id = ?", ids)
    connection.execute("DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM results WHERE results.series = series.n)")
    connection.execute("DELETE FROM facts WHERE n NOT IN (SELECT facts FROM runs)")


def refreshed(file: LedgerFile) -> Refreshed:
    """As `refresh`, again where the file had to be replaced meanwhile."""
    with suppress(LedgerReplaced):
        return refresh(file)
    with suppress(LedgerReplaced):  # its folder may be full only now
        return refresh(file)
    return refresh(file)
