"""The ledger's SQLite file: made, migrated, and replaced by memory or made again where it cannot be used.

Everything in it comes from the folders of runs and can be read there again, so whatever is wrong with the file is never
an error: it is made again, or the process works without it and says so in a note.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from madlite.store.record import Record

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
FILE = ".ledger.sqlite3"
FEWEST_RUNS = 500  # a smaller folder is read as quickly as a file of it
BUSY_S = 10.0  # another process writes for a fraction of a second at a time
_BESIDE = ("", "-wal", "-shm", "-journal")  # what SQLite keeps under a file's name
_log = logging.getLogger(__name__)

# Each step takes a ledger from the version before to its own; `PRAGMA user_version` is the number of steps taken.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE runs(
            n INTEGER PRIMARY KEY, id UNIQUE NOT NULL, at TEXT NOT NULL, began INTEGER NOT NULL, started TEXT NOT NULL,
            state TEXT NOT NULL, words TEXT NOT NULL, names TEXT NOT NULL, card TEXT NOT NULL, backend TEXT NOT NULL,
            recipe TEXT NOT NULL, mode TEXT NOT NULL, precision TEXT NOT NULL, seq_len TEXT NOT NULL,
            micro_batch TEXT NOT NULL, global_batch TEXT NOT NULL, device TEXT NOT NULL, gpus TEXT NOT NULL,
            nodes TEXT NOT NULL, runtime TEXT NOT NULL, hostname TEXT NOT NULL, cause TEXT NOT NULL,
            suspect TEXT NOT NULL, study TEXT NOT NULL, batch TEXT NOT NULL, duration_s REAL, metric TEXT NOT NULL,
            number REAL, steady_cv REAL, doubt TEXT NOT NULL, problem TEXT NOT NULL, collected INTEGER NOT NULL,
            origin TEXT NOT NULL, pruned INTEGER NOT NULL, facts INTEGER NOT NULL, folder_inode INTEGER,
            folder_uid INTEGER, record_inode INTEGER, record_size INTEGER, record_mtime_ns INTEGER,
            record_ctime_ns INTEGER)""",
        "CREATE INDEX runs_by_time ON runs(at, began, id)",
        "CREATE INDEX runs_by_card ON runs(card, at, began, id)",
        "CREATE INDEX runs_by_backend ON runs(backend, at, began, id)",
        "CREATE INDEX runs_by_device ON runs(device, at, began, id)",
        "CREATE INDEX runs_by_state ON runs(state, at, began, id)",
        "CREATE INDEX runs_by_number ON runs(number, at, began, id)",
        "CREATE INDEX runs_by_mode ON runs(mode)",
        "CREATE INDEX runs_by_precision ON runs(precision)",
        "CREATE INDEX runs_by_machine ON runs(hostname)",
        "CREATE INDEX runs_by_cause ON runs(cause)",
        "CREATE TABLE summaries(run INTEGER PRIMARY KEY, record TEXT NOT NULL)",
        """CREATE TABLE series(
            n INTEGER PRIMARY KEY, model TEXT NOT NULL, backend TEXT NOT NULL, recipe TEXT NOT NULL, mode TEXT NOT NULL,
            precision TEXT NOT NULL, seq_len TEXT NOT NULL, micro_batch TEXT NOT NULL, global_batch TEXT NOT NULL,
            device TEXT NOT NULL, gpus TEXT NOT NULL, nodes TEXT NOT NULL, metric TEXT NOT NULL,
            UNIQUE(model, backend, recipe, mode, precision, seq_len, micro_batch, global_batch, device, gpus, nodes,
            metric))""",
        "CREATE TABLE facts(n INTEGER PRIMARY KEY, hash BLOB UNIQUE NOT NULL, facts TEXT NOT NULL)",
        """CREATE TABLE results(
            run INTEGER NOT NULL, place INTEGER NOT NULL, series INTEGER NOT NULL, status TEXT NOT NULL, value REAL,
            PRIMARY KEY(run, place)) WITHOUT ROWID""",
        "CREATE INDEX results_by_series ON results(series)",
    ),
    (  # which runs were imported or pruned, from the journal of the folder of runs: read once, then only what is added
        "CREATE TABLE journal(run NOT NULL, line TEXT NOT NULL)",
        "CREATE INDEX journal_by_run ON journal(run)",
        "CREATE INDEX runs_in_doubt ON runs(id) WHERE doubt != '' OR problem != ''",
        "UPDATE runs SET record_inode = NULL",  # they are read again, with the journal
    ),
    (  # the values of a study's point are a dimension
        "DELETE FROM results",
        "DROP TABLE series",
        """CREATE TABLE series(
            n INTEGER PRIMARY KEY, model TEXT NOT NULL, backend TEXT NOT NULL, recipe TEXT NOT NULL, mode TEXT NOT NULL,
            precision TEXT NOT NULL, seq_len TEXT NOT NULL, micro_batch TEXT NOT NULL, global_batch TEXT NOT NULL,
            device TEXT NOT NULL, gpus TEXT NOT NULL, nodes TEXT NOT NULL, varied TEXT NOT NULL, metric TEXT NOT NULL,
            UNIQUE(model, backend, recipe, mode, precision, seq_len, micro_batch, global_batch, device, gpus, nodes,
            varied, metric))""",
        "UPDATE runs SET record_inode = NULL",  # they are read again
    ),
    (  # what asks for other work is: runtime, args, settings, the user's variables
        "DELETE FROM results",
        "DROP TABLE series",
        """CREATE TABLE series(
            n INTEGER PRIMARY KEY, model TEXT NOT NULL, backend TEXT NOT NULL, recipe TEXT NOT NULL, mode TEXT NOT NULL,
            precision TEXT NOT NULL, seq_len TEXT NOT NULL, micro_batch TEXT NOT NULL, global_batch TEXT NOT NULL,
            runtime TEXT NOT NULL, args TEXT NOT NULL, settings TEXT NOT NULL, env TEXT NOT NULL, device TEXT NOT NULL,
            gpus TEXT NOT NULL, nodes TEXT NOT NULL, varied TEXT NOT NULL, metric TEXT NOT NULL,
            UNIQUE(model, backend, recipe, mode, precision, seq_len, micro_batch, global_batch, runtime, args, settings,
            env, device, gpus, nodes, varied, metric))""",
        "UPDATE runs SET record_inode = NULL",  # they are read again
    ),
)
VERSION = len(MIGRATIONS)
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.sshfs", "9p", "afs")


class LedgerFile:
    """A connection to the ledger of a folder of runs, for all threads of a process: one statement or block at a time.

    It is a file where the folder has many runs and belongs to this user, else memory; `notes` say why where that is
    unexpected.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.notes: tuple[str, ...] = ()
        self.path: Path | None = None  # None: in memory
        self._lock = threading.RLock()
        self._connection = self._open()

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a function reads from the connection; the ledger is replaced where its file turns out broken.

        Raises:
            LedgerReplaced: it was, and is empty now.
        """
        import sqlite3

        with self._lock:
            try:
                return work(self._connection)
            except sqlite3.DatabaseError as error:
                if self.path is None:
                    raise
                self._replace(error)
                raise LedgerReplaced from error

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """As `use`, in one transaction."""
        return self.use(lambda connection: _in_transaction(connection, work))

    def close(self) -> None:
        """Let go of the file."""
        import sqlite3

        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        path = self.runs / FILE
        try:
            return self._open_file(path) if _is_wanted(self.runs, path) else _in_memory()
        except sqlite3.OperationalError as error:
            return self._copied(path, f"the ledger {path} is not used: {error}")
        except sqlite3.DatabaseError as error:
            _log.debug("%s: %s", path, error)
            _remove(path)
            return self._reopen(path)
        except OSError as error:
            return self._copied(path, f"the ledger {path} is not used: {error.strerror}")

    def _reopen(self, path: Path) -> sqlite3.Connection:
        """Make the file again after it was removed."""
        import sqlite3

        try:
            return self._open_file(path)
        except (sqlite3.Error, OSError) as error:
            return self._copied(path, f"the ledger {path} cannot be made: {error}")

    def _open_file(self, path: Path) -> sqlite3.Connection:
        _check_owner(self.runs, path)
        connection = _connected(f"file:{quote(str(path))}?mode=rwc")
        try:
            found = _version(connection)
            if found > VERSION:
                connection.close()
                beside = path.with_name(f".ledger-{VERSION}.sqlite3")
                self._note(f"{path} is of version {found}, of a newer madlite: this one keeps {beside.name}")
                _check_owner(self.runs, beside)
                path, connection = beside, _connected(f"file:{quote(str(beside))}?mode=rwc")
            _prepare(connection, self.runs, path)
        except BaseException:
            connection.close()
            raise
        self.path = path
        return connection

    def _copied(self, path: Path, why: str) -> sqlite3.Connection:
        """Return memory, with what a file has that can be read though not written."""
        memory = _in_memory()
        self.path = None
        if not _copy(path, self.runs, memory):
            self._note(f"{why}; it is made in memory")
        return memory

    def _replace(self, error: sqlite3.DatabaseError) -> None:
        """Make a broken file again; one that cannot be written to is left alone."""
        import sqlite3

        path, self.path = self.path, None
        self.close()
        if path is not None and type(error) is sqlite3.DatabaseError:  # malformed, or no database at all
            _remove(path)
            self._note(f"the ledger {path} was damaged and is made again")
            self._connection = self._reopen(path)
        else:
            self._note(f"the ledger {path} cannot be written: {error}; it is made in memory")
            self._connection = _in_memory()

    def _note(self, text: str) -> None:
        self.notes = (*self.notes, text)


class LedgerReplaced(Exception):
    """The ledger was made again while it was used."""


def _is_wanted(runs: Path, path: Path) -> bool:
    """Return whether a ledger is there already, or there are enough runs for one."""
    if os.path.lexists(path):
        return True
    try:
        with os.scandir(runs) as found:
            return sum(1 for _ in found) >= FEWEST_RUNS
    except OSError:
        return False


def _check_owner(runs: Path, path: Path) -> None:
    """Refuse a ledger that another user could have filled.

    Raises:
        OSError: it belongs to another user, or is none.
    """
    if (owner := runs.stat().st_uid) != os.geteuid():
        raise PermissionError(1, f"its folder belongs to another user (uid {owner})")
    for beside in _BESIDE:
        with suppress(FileNotFoundError):
            facts = path.with_name(path.name + beside).lstat()
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
                raise OSError(1, "it is a link, or no plain file")
            if facts.st_uid not in (os.geteuid(), 0):
                raise PermissionError(1, f"it belongs to another user (uid {facts.st_uid})")


def _connected(uri: str) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def _in_memory() -> sqlite3.Connection:
    connection = _connected("file::memory:")
    _migrate(connection, 0)
    return connection


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _prepare(connection: sqlite3.Connection, runs: Path, path: Path) -> None:
    """Make or migrate the tables; what was made for another folder, or by somebody else's statements, is dropped."""
    import sqlite3

    with suppress(sqlite3.OperationalError):  # a process that makes it at the same time sets it, too
        connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if _is_network(runs) else 'WAL'}")
    connection.execute("PRAGMA synchronous = NORMAL")
    _in_transaction(connection, lambda inner: _migrate(inner, _version(inner), _identity(runs, path)))


def _migrate(connection: sqlite3.Connection, version: int, identity: str = "") -> None:
    import sqlite3

    if version and (_schema(connection) != _expected_schema(version) or _meta(connection, "identity") != identity):
        raise sqlite3.DatabaseError("it was made for another folder or by another program")
    for step in MIGRATIONS[version:]:
        for statement in step:
            connection.execute(statement)
    if version < VERSION:
        connection.execute(f"PRAGMA user_version = {VERSION}")
        set_meta(connection, "identity", identity)


def _identity(runs: Path, path: Path) -> str:
    """Return what a copy of a folder of runs, or a file that came with it, does not have: the two inodes.

    And the fields of a record: those of an older madlite are read again.
    """
    fields = digest(" ".join(Record.__struct_fields__).encode()).hex()
    return f"{runs.stat().st_ino} {path.stat().st_ino} {fields}"


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [(str(name), str(sql)) for name, sql in found]


def _expected_schema(version: int) -> list[tuple[str, str]]:
    memory = _connected("file::memory:")
    try:
        for step in MIGRATIONS[:version]:
            for statement in step:
                memory.execute(statement)
        return _schema(memory)
    finally:
        memory.close()


def _meta(connection: sqlite3.Connection, name: str) -> str:
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return str(found[0]) if found else ""


def get_meta(connection: sqlite3.Connection, name: str) -> str:
    """Return a value that belongs to the ledger as a whole; "" without one."""
    return _meta(connection, name)


def set_meta(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a value that belongs to the ledger as a whole."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found


def _copy(path: Path, runs: Path, memory: sqlite3.Connection) -> bool:
    """Fill memory from a file that can be read though not written; False where that is not possible."""
    import sqlite3

    try:
        _check_owner(runs, path)
        before = path.stat()
        with suppress(FileNotFoundError):
            if path.with_name(path.name + "-wal").stat().st_size:
                return False  # it is not whole without that
        with _closing(_connected(f"file:{quote(str(path))}?mode=ro&immutable=1")) as file:
            if _version(file) != VERSION or _schema(file) != _expected_schema(VERSION):
                return False
            if _meta(file, "identity") != _identity(runs, path):
                return False
            file.backup(memory)
        after = path.stat()
    except (OSError, sqlite3.Error):
        return False
    if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
        return True
    for table in ("runs", "summaries", "series", "facts", "results", "journal", "meta"):
        memory.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours
    return False


@contextmanager
def _closing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield connection
    finally:
        connection.close()


def _remove(path: Path) -> None:
    for beside in _BESIDE:
        with suppress(OSError):
            path.with_name(path.name + beside).unlink()


def _is_network(runs: Path) -> bool:
    """Return whether machines may share the file: SQLite's write-ahead log needs memory that all writers share."""
    with suppress(OSError):
        device = runs.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2:3] == [number]:
                return rest.split()[:1][0] in _NETWORK
    return False


def digest(data: bytes) -> bytes:
    """Return a short hash that tells texts apart, none that has to withstand an attack."""
    return hashlib.blake2b(data, digest_size=16).digest()
