"""Two journals of JSON lines, both out of reach of containers.

`.journal.jsonl` in the folder of runs lists what madlite created and wrote in a working folder: a run's folder with
its inode, that it was imported or pruned; a results file that was rebuilt; a submission to a cluster, a study, the
journal of a batch.  Files that look like madlite's and are not listed were made by another program.

`journal.jsonl` in a run's folder has what the row of a run needs that is cut off, then the rows that are being appended
to a results file, until the run's record has where they are, and what `madlite clean` did with a run that was cut off.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from madlite.files import Folder, read_limited, read_regular
from madlite.model import FileName, Value, json_line
from madlite.model.results import Attempt

JOURNAL, RUN_JOURNAL = ".journal.jsonl", "journal.jsonl"
_CLEANED, _LIMIT_MARK_BYTES = "cleaned", 64 << 10  # what an earlier madlite wrote in place of a line of the journal
_LIMIT_BYTES = 256 << 20  # of a run's journal
_COMPARED_BYTES = 4096  # before the place from which a journal is read on

_Line = TypeVar("_Line", bound=Value)


class Entry(Value, frozen=True, omit_defaults=True):
    """One line of the journal in a folder of runs.

    Of a run: `inode` and `uid` of its folder, and `file`, the results file that its rows are to go to.  Without a run
    `file` is one that is about to be `rebuilt` from the records.

    Of an imported run also `origin`, the archive that it came from, `archived_id`, its id there (its first one, where
    it had been imported before), and `doubt`, what was wrong with its record before it was packed.  Of a run that is
    `pruned`: `files` where its record stays, or `folder`, with the number of its `rows` and the results file that has
    them, `rows_in`.

    Of a submission, a study or a batch: `made`, the name of its folder or file; of a submission also `uid` and the ids
    of its `runs`, which have no line of their own where the disk was full when their jobs began.
    """

    at: str
    run: FileName = ""
    inode: int = 0
    uid: int = -1
    file: str = ""
    rebuilt: bool = False
    origin: str = ""
    archived_id: str = ""
    doubt: str = ""
    pruned: Literal["", "files", "folder"] = ""
    rows: int = 0
    rows_in: str = ""
    made: str = ""
    runs: tuple[str, ...] = ()


def add(runs: Folder, entry: Entry, *, durable: bool = False) -> None:
    """Add a line.

    A `durable` line is on the disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    fd = runs.open_file(JOURNAL, os.O_RDWR | os.O_APPEND)
    try:
        with suppress(OSError):  # machines that share the folder append at once, and NFS alone loses a line then
            fcntl.flock(fd, fcntl.LOCK_EX)
        _append(fd, entry)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _append(fd: int, line: Value) -> None:
    """Write a line in one call at the end of a journal that is open for reading and appending.

    Raises:
        OSError: it was not written completely.
    """
    size = os.fstat(fd).st_size
    torn = bool(size) and os.pread(fd, 1, size - 1) != b"\n"  # by a kill, or a full disk
    data = b"\n" * torn + json_line(line)
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read(runs: Path) -> tuple[Entry, ...]:
    """Return the entries of the journal in a folder of runs; none without one."""
    try:
        with Folder.open(runs) as folder:
            fd = folder.open_file(JOURNAL, os.O_RDONLY, make=False)
    except OSError:
        return ()
    with os.fdopen(fd, "rb") as file:
        data = file.read()
    return tuple(_decoded(data.splitlines(), Entry))


def read_of(runs: Path, run: str) -> tuple[Entry, ...]:
    """Return the entries of one run; of those of others nothing is decoded, for a journal has some of each run."""
    found = _with_text(runs, msgspec.json.encode(run))
    return tuple(entry for entry in found if entry.run == run or run in entry.runs)


def made_here(runs: Path, names: Iterable[str]) -> frozenset[str]:
    """Return those of the submissions, studies and batches of these names that madlite made in a folder of runs."""
    wanted = frozenset(names)
    if not wanted:
        return frozenset()
    return wanted & {entry.made for entry in _with_text(runs, b'"made":')}


def _with_text(runs: Path, text: bytes) -> tuple[Entry, ...]:
    try:
        with Folder.open(runs) as folder:
            fd = folder.open_file(JOURNAL, os.O_RDONLY, make=False)
    except OSError:
        return ()
    with os.fdopen(fd, "rb") as file:
        data = file.read()
    return tuple(_decoded(_lines_with(data, text), Entry))


def _lines_with(data: bytes, text: bytes) -> Iterator[bytes]:
    at = data.find(text)
    while at >= 0:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield data[data.rfind(b"\n", 0, at) + 1 : end]
        at = data.find(text, end)


class Added(Value, frozen=True):
    """Entries of a journal from a place on; `mark` tells a later `read_added` where to go on.

    `restarted`: the journal is another one than before, or has none of the bytes that were read, and these are all.
    """

    entries: tuple[Entry, ...] = ()
    mark: str = ""
    restarted: bool = False


def read_added(runs: Path, mark: str = "") -> Added:
    """Return the entries that the journal in a folder of runs got since an earlier call; all of them without `mark`."""
    try:
        with Folder.open(runs) as folder:
            fd = folder.open_file(JOURNAL, os.O_RDONLY, make=False)
    except OSError:
        return Added(restarted=bool(mark))
    with os.fdopen(fd, "rb") as file:
        inode, size = os.fstat(fd).st_ino, os.fstat(fd).st_size
        begin = _place_of(mark, fd, inode, size)
        file.seek(begin)
        data = file.read()
        data = data[: data.rfind(b"\n") + 1]  # a line that is being written comes with the next call
        end = begin + len(data)
        return Added(
            entries=tuple(_decoded(data.splitlines(), Entry)),
            mark=f"{inode} {end} {_digest_before(fd, end)}",
            restarted=bool(mark) and not begin,
        )


def _place_of(mark: str, fd: int, inode: int, size: int) -> int:
    """Return the end of what was read, 0 where the file is another one by now."""
    known, _, rest = mark.partition(" ")
    place, _, digest = rest.partition(" ")
    if known != str(inode) or not place.isdigit() or int(place) > size:
        return 0
    return int(place) if _digest_before(fd, int(place)) == digest else 0


def _digest_before(fd: int, end: int) -> str:
    begin = max(0, end - _COMPARED_BYTES)
    return hashlib.sha256(os.pread(fd, end - begin, begin)).hexdigest()


def now() -> str:
    """Return the time as entries have it, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def made_entry(name: str) -> Entry:
    """Return the entry of a study or a batch."""
    return Entry(at=now(), made=name)


def submission_entry(home: Folder, name: str, runs: Iterable[str]) -> Entry:
    """Return the entry of a submission of these runs."""
    return Entry(at=now(), made=name, runs=tuple(runs), uid=os.fstat(home.fd).st_uid)


def folder_entry(home: Folder, run_id: str, file: str = "") -> Entry:
    """Return the entry of a run's new folder, and of the results file that its rows are to go to."""
    facts = os.fstat(home.fd)
    return Entry(at=now(), run=run_id, inode=facts.st_ino, uid=facts.st_uid, file=file)


def import_entry(home: Folder, run_id: str, origin: str, *, archived_id: str = "", doubt: str = "") -> Entry:
    """Return the entry of a run that is about to be taken in: of its folder, whose inode stays."""
    fields = {"origin": origin, "archived_id": archived_id, "doubt": doubt}
    return msgspec.structs.replace(folder_entry(home, run_id), **fields)


def imported(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the entries of the runs that were imported, by id."""
    return {entry.run: entry for entry in entries if entry.run and entry.origin}


def own_folders(runs: Path, entries: Iterable[Entry] | None = None) -> frozenset[str]:
    """Return the names of the folders in a folder of runs that madlite made: of the recorded inode and owner."""
    every = read(runs) if entries is None else entries
    return frozenset(name for entry in every for name in (entry.run, *entry.runs) if _is_of(runs, name, entry))


def is_own(folder: Path) -> bool:
    """Return whether a folder of a run is one that madlite made, as `own_folders` has it."""
    return any(_is_of(folder.parent, folder.name, entry) for entry in read_of(folder.parent, folder.name))


def _is_of(runs: Path, name: str, entry: Entry) -> bool:
    is_of_submission = name in entry.runs
    if not name or "/" in name or not (is_of_submission or entry.inode):
        return False
    try:
        facts = (runs / name).lstat()
    except OSError:
        return False
    return facts.st_uid == entry.uid and (is_of_submission or facts.st_ino == entry.inode)


def _decoded(lines: Iterable[bytes], kind: type[_Line]) -> Iterator[_Line]:
    decode = msgspec.json.Decoder(kind).decode
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield decode(line)


class RunRows(Value, frozen=True):
    """The rows of one run, cell by cell as they were appended, and to which file.

    `path` is relative to the working folder where the file is below it.  `at` is when, in UTC, `offset` the size that
    the file had and `columns` the header, none of a new file.  Where `appended` is False after the run, `kept` names
    the file in the run's folder that has them instead.  `strict_header`: they add no columns.
    """

    path: str
    cells: tuple[dict[str, str], ...]
    at: str = ""
    offset: int = 0
    columns: tuple[str, ...] = ()
    appended: bool = False
    kept: FileName = ""
    strict_header: bool = False

    def without(self, columns: Collection[str]) -> RunRows:
        """Return the rows as they are in a file whose header cannot take some columns."""
        left_out = frozenset(columns)
        cells = tuple({name: text for name, text in one.items() if name not in left_out} for one in self.cells)
        return msgspec.structs.replace(self, cells=cells)


class RunStart(Value, frozen=True, omit_defaults=True):
    """What the row and the record of a run need and its plan does not have: with it the next command can write them.

    `columns` are madlite's own that the row is to have, `left_out` the places of secrets of the context, `host` is the
    machine that it runs on: another one may not see its lock.
    """

    strict_header: bool = False
    columns: tuple[str, ...] = ()
    pipeline: str = ""
    build_number: str = ""
    command: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    attempt: Attempt | None = None
    host: str = ""


class RunEntry(Value, frozen=True, omit_defaults=True):
    """One line of a run's journal: its `rows` right before they are appended, or what `clean` did with the run.

    The first line has its `start`, and the results `file` that its rows go to, as `RunRows.path`; none with --no-rows.
    Later ones have the id of the attempt that comes `next`, of a run that is tried again; or before its rows its part
    of the side files, `entries`, as text, and `listed` once the next command has written that.  `interrupted`: its
    madlite was killed, and the rows that follow are a later command's.
    """

    at: str
    start: RunStart | None = None
    rows: RunRows | None = None
    cleaned: str | None = None
    file: str = ""
    next: FileName = ""
    entries: str = ""
    listed: bool = False
    interrupted: bool = False


class RunJournal(Value, frozen=True):
    """Content of the journal of a run's folder.

    `rows` are the last ones recorded; without any, `complete` means that the run certainly has none: a journal that
    could not take the rows is empty.  `cleaned` is what became of the row, of a run that `clean` dealt with.  `began`
    is when the run's folder was made; the other fields are as an entry has them.
    """

    began: str = ""
    start: RunStart | None = None
    rows: RunRows | None = None
    complete: bool = False
    cleaned: str | None = None
    file: str = ""
    next: FileName = ""
    entries: str = ""
    listed: bool = False
    interrupted: bool = False


class RunJournalWriter:
    """Adds lines to the journal of a run's folder; it stays open until `close`, so that no later one fails to open it.

    The caller has the run's lock.
    """

    def __init__(self, home: Folder) -> None:
        self._home = home
        self._fd = -1
        self._has_rows = False

    def open(self) -> None:
        """Open the journal, made where there is none; also instead of one that was removed or replaced.

        Raises:
            OSError: it cannot be opened for writing: it is a link, say.
        """
        if self._fd >= 0 and self._is_current():
            return
        self.close()
        fd = self._home.open_file(RUN_JOURNAL, os.O_RDWR | os.O_APPEND)
        try:
            data = read_limited(fd, _LIMIT_BYTES, RUN_JOURNAL)
            self._has_rows = _content(data).rows is not None
            if (whole := len(_whole_lines(data))) < len(data):  # of an earlier madlite that was killed
                os.ftruncate(fd, whole)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def add(self, entry: RunEntry) -> str:
        """Add a line; return the error message, "" if none.  A line that was not written leaves the others as they are.

        A journal that cannot take its first rows is emptied, which needs no space: it must not be read as complete.
        """
        size = -1
        try:
            self.open()
            size = os.fstat(self._fd).st_size
            _append(self._fd, entry)
        except OSError as error:
            if entry.rows is not None and not self._has_rows:
                self._make_incomplete()
            elif size >= 0:
                self._truncate(size)
            return f"{RUN_JOURNAL} could not be written: {error.strerror}"
        self._has_rows = self._has_rows or entry.rows is not None
        return ""

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self._home.status(RUN_JOURNAL))
        except OSError:
            return False

    def _make_incomplete(self) -> None:
        """Empty the journal, or remove one that is not open: both work without space and without a descriptor."""
        if self._fd < 0 or not self._truncate(0):
            self._home.remove(RUN_JOURNAL)

    def _truncate(self, size: int) -> bool:
        try:
            os.ftruncate(self._fd, size)
        except OSError:
            return False
        return True


def read_run(folder: Path) -> RunJournal:
    """Return the content of the journal of a run's folder; empty where there is none, or it cannot be read.

    Without one, a file `cleaned` of an earlier madlite has what `clean` did with the run.
    """
    try:
        return _content(read_regular(folder / RUN_JOURNAL, _LIMIT_BYTES))
    except FileNotFoundError:
        return RunJournal(cleaned=_read_mark(folder))
    except OSError:
        return RunJournal()


def other_host(folder: Path) -> str:
    """Return the host on which a run began where it is not this one, "" otherwise."""
    start = read_run(folder).start
    return "" if start is None or start.host == socket.gethostname() else start.host


def _read_mark(folder: Path) -> str | None:
    try:
        return read_regular(folder / _CLEANED, _LIMIT_MARK_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _whole_lines(data: bytes) -> bytes:
    """Return what ends with a line's end: a line is written before what it tells of is done, so a torn one is void."""
    return data[: data.rfind(b"\n") + 1]


def _content(data: bytes) -> RunJournal:
    lines = _whole_lines(data).splitlines()
    entries = tuple(_decoded(lines, RunEntry))
    rows = [entry.rows for entry in entries if entry.rows is not None]
    cleaned = [entry.cleaned for entry in entries if entry.cleaned is not None]
    begun = bool(entries) and entries[0].cleaned is None  # else it was emptied, or there was none, before `clean`
    return RunJournal(
        began=entries[0].at if begun else "",
        start=entries[0].start if begun else None,
        rows=rows[-1] if rows else None,
        complete=begun and len(entries) == len(lines),
        cleaned=cleaned[-1] if cleaned else None,
        file=next((entry.file for entry in reversed(entries) if entry.file), ""),
        next=next((entry.next for entry in reversed(entries) if entry.next), ""),
        entries=next((entry.entries for entry in reversed(entries) if entry.entries), ""),
        listed=any(entry.listed for entry in entries),
        interrupted=any(entry.interrupted for entry in entries),
    )
