"""The index: an SQLite file that caches records and log of a folder of runs, so that many runs are listed in a moment.

The folders stay the truth: `IndexFile.refresh` brings the index up to date with them before it answers.  The file may
be removed at any time; one of another version or folder is emptied, a damaged one removed, and both are filled again.
A folder with few runs, or one that cannot be written to, has its index in memory.  What it has: docs/record.md.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from madlite.store.folder import RECORD, is_run
from madlite.store.record import NotedRuns, Record
from madlite.text import readable

if TYPE_CHECKING:
    import sqlite3

    from typing_extensions import Self

T = TypeVar("T")
FILE = "index.sqlite3"
FEWEST_RUNS = 500  # a smaller folder is read as quickly as a file of it
CHECK_S = 60.0  # how long a record of a run that is over is taken for unchanged without a look at its file
BUSY_S = 10.0  # another process writes for a fraction of a second at a time
RUN_COLUMNS = (
    *("at", "began", "started", "state", "words", "names", "card", "backend", "recipe", "mode", "precision"),
    *("seq_len", "micro_batch", "global_batch", "device", "gpus", "nodes", "runtime", "hostname", "cause", "suspect"),
    *("study", "batch", "duration_s", "metric", "number", "steady_cv", "problem", "origin", "pruned"),
)
"""What the table of runs has of each run, by which lists are filtered and sorted."""
_AT_ONCE = 500  # runs of one transaction: a tenth of a second
_MOST_REPLACED = 3  # times that a process makes the file again
_RECENT_NS = 2 * 10**9  # a file that changed so shortly before may change again without another time
_TABLES = (
    "CREATE TABLE checked(at REAL NOT NULL)",  # when the files of all records were looked at
    # `stamp` is that of the record that was read, NULL where the run is read again each time
    f"CREATE TABLE runs(n INTEGER PRIMARY KEY, id NOT NULL UNIQUE, stamp TEXT, facts INTEGER, {','.join(RUN_COLUMNS)})",
    "CREATE TABLE summaries(run INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE TABLE series(n INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE facts(n INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    """CREATE TABLE results(
        run INTEGER NOT NULL, place INTEGER NOT NULL, series INTEGER NOT NULL, status TEXT NOT NULL, value REAL,
        PRIMARY KEY(run, place)) WITHOUT ROWID""",
)
_INDICES = (  # made once the tables are filled, which takes half the time then
    *(
        f"CREATE INDEX IF NOT EXISTS runs_by_{name} ON runs({name}{', at' * (name != 'at')}, began, id)"
        for name in ("at", "card", "backend", "device", "state", "number")
    ),
    *(
        f"CREATE INDEX IF NOT EXISTS runs_by_{name} ON runs({name})"
        for name in ("mode", "precision", "hostname", "cause")
    ),
    "CREATE INDEX IF NOT EXISTS runs_with_problem ON runs(id) WHERE problem != ''",
    "CREATE INDEX IF NOT EXISTS runs_by_stamp ON runs(id, stamp)",
    "CREATE INDEX IF NOT EXISTS results_by_series ON results(series)",
)
_log = logging.getLogger(__name__)


class IndexedRun(NamedTuple):
    """A run as the tables have it: RUN_COLUMNS, what lists show of it, what it ran with, and its results.

    Of each result the key of its series as text, its status, and its number where it has one.  Without `is_settled` the
    run is read again each time.
    """

    name: str
    columns: Mapping[str, object]
    summary: str
    facts: str
    results: Sequence[tuple[str, str, float | None]]
    is_settled: bool


class IndexFile:
    """A connection to the index of a folder of runs, for all threads of a process: one statement or block at a time."""

    version = ""  # changes with what `read_runs` makes of a record: an index of another version is made anew

    def __init__(self, folder: Path) -> None:
        """Open the index, which is made where there is none; never raises for what its file holds."""
        self.folder = folder
        self.notes: tuple[str, ...] = ()  # what is unexpected about the file; a small folder has none, which is not
        self.path: Path | None = None  # None: in memory
        self._lock = threading.RLock()
        self._inode = self._replaced = 0
        self._connection = self._open(folder / FILE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read_runs(self, names: Sequence[str], noted: NotedRuns) -> Iterable[IndexedRun]:
        """Return the runs in folders of these names; `noted` are those that were imported or pruned."""
        raise NotImplementedError

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a function reads from the connection.

        A file that turns out damaged, or was removed, is made again and filled before.
        """
        import sqlite3

        with self._lock:
            # SQLite would take the rollback journal of a file that another process made in its place for its own
            if self.path is not None and _inode(self.path) != self._inode:
                self._replace(self.path, None)
            try:
                return work(self._connection)
            except sqlite3.DatabaseError as error:
                if self.path is None:
                    raise
                self._replace(self.path, error)
            return self.use(work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """As `use`, from one state of the tables, whatever other processes write meanwhile."""
        return self.use(lambda connection: _in_transaction(connection, work, "BEGIN"))

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """As `use`, in one transaction."""
        return self.use(lambda connection: _in_transaction(connection, work, "BEGIN IMMEDIATE"))

    def close(self) -> None:
        """Close the file; nothing is left beside it."""
        import sqlite3

        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    # The file.

    def _open(self, path: Path, *, is_new: bool = False) -> sqlite3.Connection:
        """Open the file; a damaged one is removed and made again, and one that cannot be used is made in memory."""
        import sqlite3

        try:
            return self._open_file(path) if _is_wanted(path) else self._in_memory()
        except (sqlite3.Error, OSError) as error:
            if is_new or not _is_damage(error):
                return self._in_memory(f"the index {path} is not used: {_reason(error)}")
            _log.debug("%s: %s", path, error)
            _remove(path)
            return self._open(path, is_new=True)

    def _open_file(self, path: Path) -> sqlite3.Connection:
        _check_file(path)
        version = _version(f"{self.version} {path.parent.stat().st_ino}")
        connection = _connected(f"file:{quote(str(path))}?mode=rw")
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            if _version_of(connection) != version:
                _in_transaction(connection, lambda inner: _make_anew(inner, version), "BEGIN IMMEDIATE")
        except BaseException:
            connection.close()
            raise
        self.path, self._inode = path, _inode(path)
        return connection

    def _in_memory(self, why: str = "") -> sqlite3.Connection:
        self.path = None
        self.notes += (f"{why}; it is made in memory",) if why else ()
        connection = _connected("file::memory:")
        _make_anew(connection, 1)
        return connection

    def _replace(self, path: Path, error: sqlite3.DatabaseError | None) -> None:
        """Make a damaged or removed file again, and fill it; one that cannot be written to is left alone."""
        self.close()
        self._replaced += 1
        if error is not None and not _is_damage(error):
            self._connection = self._in_memory(f"the index {path} cannot be written: {error}")
        elif self._replaced > _MOST_REPLACED:
            self._connection = self._in_memory(f"the index {path} is damaged or removed again and again")
        else:
            if error is not None:
                self.notes += (f"the index {path} was damaged and is made again",)
                _remove(path)
            self._connection = self._open(path)
        self.refresh()

    # Up to date.

    def refresh(self) -> int:
        """Bring the index up to date with folders and log, as others may at the same time; return how many it read."""
        now = time.time()
        names = _scan(self.folder)
        noted = NotedRuns(self.folder)  # behind it: a run that is imported has its line before its folder is there
        checked = self.use(lambda connection: _all(connection, "SELECT max(at) FROM checked"))[0][0]
        is_full = not 0 <= now - (checked or 0.0) < CHECK_S
        known = dict(self.use(lambda connection: _all(connection, "SELECT id, stamp FROM runs")))
        looked_at = {name for name in names if is_full or known.get(name) is None}
        stamps = _stamps_of(self.folder, looked_at)
        no_runs = {name for name in looked_at if stamps[name] is None and not is_run(self.folder / name)}
        changed = [name for name in looked_at if stamps[name] is None or stamps[name] != known.get(name)]
        changed = sorted({*changed, *(self.use(_stale(noted)) & names)} - no_runs)
        for begin in range(0, len(changed), _AT_ONCE):
            self._read(changed[begin : begin + _AT_ONCE], stamps, noted)
        gone = known.keys() - (names - no_runs)
        if is_full:
            self.write(lambda connection: _end_check(connection, now))
        if gone:
            self.write(lambda connection: _forget(connection, gone))
        return len(changed)

    def _read(self, names: Sequence[str], stamps: Mapping[str, str | None], noted: NotedRuns) -> None:
        runs = list(self.read_runs(names, noted))
        self.write(lambda connection: _insert(connection, runs, stamps))


# The file.


def _is_wanted(path: Path) -> bool:
    """Return whether there is a file already, or there are enough runs for one."""
    if os.path.lexists(path):
        return True
    try:
        with os.scandir(path.parent) as found:
            return sum(1 for _ in found) >= FEWEST_RUNS
    except OSError:
        return False


def _check_file(path: Path) -> None:
    """Make the file where there is none, and refuse one that another user could have filled.

    Raises:
        OSError: it is a link, say, or it or its folder belongs to another user.
    """
    for file in (path.parent, path, _journal_of(path)):
        with suppress(FileNotFoundError):
            facts = file.lstat()
            if facts.st_uid != os.geteuid():
                raise PermissionError(1, f"{file.name} belongs to another user (uid {facts.st_uid})")
            if file != path.parent and not stat.S_ISREG(facts.st_mode):
                raise OSError(1, f"{file.name} is a link, or no plain file")
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-journal")


def _remove(path: Path) -> None:
    for file in (path, _journal_of(path)):
        with suppress(OSError):
            file.unlink()


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def _is_damage(error: Exception) -> bool:
    """Return whether a file is at fault, and not a full disk, another process or a missing permission."""
    import sqlite3

    return type(error) is sqlite3.DatabaseError or (
        isinstance(error, sqlite3.OperationalError) and ("no such" in str(error) or "malformed" in str(error))
    )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _connected(uri: str) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def _version(text: str) -> int:
    """Return the one number that tells whether an index is of these tables, this record and this folder."""
    every = "\n".join((*_TABLES, *_INDICES, *Record.__struct_fields__, text))
    return int.from_bytes(hashlib.blake2b(every.encode(), digest_size=4).digest(), "big") >> 1 or 1


def _version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _make_anew(connection: sqlite3.Connection, version: int) -> None:
    """Drop whatever there is and make the tables, unless another process has done so meanwhile."""
    if _version_of(connection) == version:
        return
    found = _all(connection, "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')")
    for kind, name in found:
        quoted = name.replace('"', '""')
        connection.execute(f'DROP {kind} "{quoted}"')
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {version}")


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
    connection.execute(begin)
    try:
        found = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found


def _all(connection: sqlite3.Connection, query: str, values: Iterable[object] = ()) -> list[tuple[Any, ...]]:
    return connection.execute(query, tuple(values)).fetchall()


# What is there.


def _scan(runs: Path) -> set[str]:
    """Return the names of the folders; one with bytes that are no text is no run's."""
    try:
        with os.scandir(runs) as entries:
            return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and _is_text(entry.name)}
    except OSError:
        return set()


def _is_text(name: str) -> bool:
    return readable(name) == name


def _stamps_of(runs: Path, names: Iterable[str]) -> dict[str, str | None]:
    """Return what changes with the record of each run; None of one without a settled record."""
    recent_ns, above = time.time_ns() - _RECENT_NS, str(runs)
    found: dict[str, str | None] = {}
    for name in names:
        found[name] = None
        with suppress(OSError):
            facts = os.lstat(f"{above}/{name}/{RECORD}")
            if stat.S_ISREG(facts.st_mode) and max(facts.st_ctime_ns, facts.st_mtime_ns) <= recent_ns:
                found[name] = f"{facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
    return found


def _stale(noted: NotedRuns) -> Callable[[sqlite3.Connection], set[str]]:
    """Return a query for the runs that were imported or pruned since they were read."""
    pruned = {name for name, event in noted.pruned.items() if not event.folder}

    def find(connection: sqlite3.Connection) -> set[str]:
        was_imported = {name for (name,) in connection.execute("SELECT id FROM runs WHERE origin != ''")}
        was_pruned = {name for (name,) in connection.execute("SELECT id FROM runs WHERE pruned")}
        return (was_imported ^ noted.imported.keys()) | (was_pruned ^ pruned)

    return find


# What is written.


_INSERT_RUN = (
    f"INSERT INTO runs(id, stamp, facts, {', '.join(RUN_COLUMNS)}) "  # noqa: S608 - names of ours
    f"VALUES (:id, :stamp, :facts, {', '.join(f':{name}' for name in RUN_COLUMNS)})"
)


def _insert(connection: sqlite3.Connection, runs: Sequence[IndexedRun], stamps: Mapping[str, str | None]) -> None:
    _remove_runs(connection, [run.name for run in runs])
    number_of_facts, number_of_series = _numbers(connection, "facts"), _numbers(connection, "series")
    for run in runs:
        stamp = stamps.get(run.name) if run.is_settled else None
        row = {**run.columns, "id": run.name, "stamp": stamp, "facts": number_of_facts(run.facts)}
        n = connection.execute(_INSERT_RUN, row).lastrowid
        connection.execute("INSERT INTO summaries VALUES (?, ?)", (n, run.summary))
        results = ((n, place, number_of_series(key), *rest) for place, (key, *rest) in enumerate(run.results))
        connection.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", list(results))


def _numbers(connection: sqlite3.Connection, table: str) -> Callable[[str], int]:
    """Return a function that returns the number of a text that many runs share, and which is there once."""

    @lru_cache(_AT_ONCE)
    def number(text: str) -> int:
        connection.execute(f"INSERT OR IGNORE INTO {table}(text) VALUES (?)", (text,))  # noqa: S608
        return int(_all(connection, f"SELECT n FROM {table} WHERE text = ?", (text,))[0][0])  # noqa: S608

    return number


def _end_check(connection: sqlite3.Connection, now: float) -> None:
    for statement in _INDICES:
        connection.execute(statement)
    connection.execute("DELETE FROM checked")
    connection.execute("INSERT INTO checked VALUES (?)", (now,))


def _forget(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Remove runs that are gone, and what no other run shares with them."""
    _remove_runs(connection, names)
    connection.execute("DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM results WHERE results.series = series.n)")
    connection.execute("DELETE FROM facts WHERE n NOT IN (SELECT facts FROM runs)")


def _remove_runs(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    ids = [(name,) for name in names]
    for table in ("results", "summaries"):
        connection.executemany(f"DELETE FROM {table} WHERE run = (SELECT n FROM runs WHERE id = ?)", ids)  # noqa: S608
    connection.executemany("DELETE FROM runs WHERE id = ?", ids)
