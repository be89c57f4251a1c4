"""The rows that runs recorded, and their results file: whether it has them, and the file made again from them.

A run records its rows right before it appends them, and removes its journal once its record has where they are.  For a
run that was killed in between, the results file is searched for them.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from itertools import groupby, takewhile
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import RecordError, UsageProblem
from madlite.files import Folder, folder_of, half_made, open_plain, sync_folder
from madlite.model import Value
from madlite.perfcsv.append import (
    LockedFile,
    as_record_error,
    check_replaceable,
    joining_columns,
    left_out_text,
    locked,
    widened,
)
from madlite.perfcsv.rows import Header, comparable, csv_line, new_columns, read_header, recorded_row, text_of
from madlite.plan.inputs import RUNS
from madlite.store.events import EVENTS, EventLog, RebuildStarted, append
from madlite.store.folder import RunRows, exists, is_alive, is_run, is_uncollected, read_run, real_folders, rows_path
from madlite.store.record import NotedRuns, load_record, rows_here
from madlite.text import unlimited_fields


def are_in_file(rows: RunRows, workspace: Path, others: Sequence[RunRows]) -> bool | None:
    """Return whether a run's rows are in their file; None where it cannot be read.

    `others` are the rows that runs certainly appended.  Two runs can have equal rows (both failed before they began,
    say), so equal rows are counted: there have to be more than the others account for.  Where no column has joined
    since and the file was not rebuilt, only rows behind the recorded size count, and runs that began there or later.
    """
    try:
        with reading_rows(workspace / rows.path) as (header, there):
            columns = header.columns if header is not None else ()
            wanted = [recorded_row(cells, columns) for cells in rows.cells] if columns else []
            found = list(ends_of(wanted, there))
    except FileNotFoundError:
        return False
    except (OSError, csv.Error, RecordError):
        return None
    # as the file has them: a row whose own column never joined it looks like another one without
    of_file = (each for each in others if each.path == rows.path and len(each.cells) == len(wanted))
    same_file = [each for each in of_file if [recorded_row(cells, columns) for cells in each.cells] == wanted]
    rebuilt = _rebuilt_at(rows.path, workspace)
    if rows.at >= rebuilt and (columns == rows.columns or not rows.columns):
        found = [end for end in found if end > rows.offset]
        same_file = [
            run_rows
            for run_rows in same_file
            if (run_rows.offset >= rows.offset or run_rows.at > rows.at) and (run_rows.at >= rebuilt or not rows.offset)
        ]
    return len(found) > len(same_file)


def count_written(rows: RunRows, workspace: Path, others: Sequence[RunRows]) -> int:
    """Return how many of a run's rows the file has, where a kill amid their write left the first ones alone; else 0.

    Where one of the `others`, which certainly appended, began there or before it, and later, nothing of this run had
    been written.
    """
    if any(
        run_rows.path == rows.path and run_rows.offset <= rows.offset and run_rows.at >= rows.at for run_rows in others
    ):
        return 0
    with suppress(OSError, csv.Error, RecordError), reading_rows(workspace / rows.path) as (header, there):
        if header is None or rows.at < _rebuilt_at(rows.path, workspace):
            return 0
        wanted = [recorded_row(cells, header.columns) for cells in rows.cells]
        behind = [cells for cells, end in there if end > rows.offset]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, behind, strict=False)))
        return same if same < len(wanted) else 0  # all of them are another run's, which has the same
    return 0


def _rebuilt_at(path: str, workspace: Path) -> str:
    """Return when a results file was last rebuilt from the records, "" if never."""
    times = [
        rebuild_started.at
        for rebuild_started in EventLog.read(workspace / RUNS).of(RebuildStarted)
        if rebuild_started.file == path
    ]
    return times[-1] if times else ""


_EndedRow = tuple[tuple[str, ...], int]


@contextmanager
def reading_rows(path: Path) -> Iterator[tuple[Header | None, Iterator[_EndedRow]]]:
    """Open a results file: its header, and its rows as they are compared, with where each ends."""
    fd = open_plain(Path(os.path.realpath(path)), links=False)
    try:
        with text_of(fd) as text, unlimited_fields():
            header = read_header(path, text)
            text.seek(0)
            rows = _ended_rows(text)
            next(rows, None)  # the header
            yield header, rows
    finally:
        os.close(fd)


def _ended_rows(text: Iterable[str]) -> Iterator[_EndedRow]:
    end = 0

    def lines() -> Iterator[str]:
        nonlocal end
        for line in text:
            end += len(line.encode("utf-8", "surrogateescape"))
            yield line.replace("\0", "\\x00")  # which Python 3.10 does not read

    for cells in csv.reader(lines()):
        if cells:
            yield comparable(cells), end


def ends_of(wanted: Sequence[tuple[str, ...]], rows: Iterator[_EndedRow]) -> Iterator[int]:
    """Yield the end of each place where all wanted rows stand one after the other; no row is counted twice."""
    last: deque[tuple[str, ...]] = deque(maxlen=len(wanted))
    for cells, end in rows if wanted else ():
        last.append(cells)
        if list(last) == wanted:
            yield end
            last.clear()


class RowsInFile:
    """The results files of a working folder, each read once: whether they have the rows of a run."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._read = cache(_read)

    def has(self, rows: RunRows) -> bool:
        """Return whether a file has all of the rows.

        Raises:
            RecordError: it cannot be read, or has become shorter.
        """
        columns, known, size = self._read(self._workspace / rows.path)
        if not columns or size <= rows.offset:
            raise RecordError("another file has its name by now, it is shorter than the one that had the row")
        return all(recorded_row(cells, columns) in known for cells in rows.cells)


def _read(path: Path) -> tuple[tuple[str, ...], frozenset[tuple[str, ...]], int]:
    """Return the columns of a results file, its rows as they are compared, and its size."""
    try:
        with reading_rows(path) as (header, rows):
            columns = header.columns if header is not None else ()
            return columns, frozenset(cells for cells, _ in rows), path.stat().st_size
    except FileNotFoundError:
        raise RecordError("there is no such file") from None
    except (OSError, csv.Error) as error:
        raise RecordError(getattr(error, "strerror", "") or str(error)) from None


def save_copy(folder: Folder, file: LockedFile) -> str:
    """Copy the file beside it and return the new name: a hard link would change with the file if a kill left both.

    Raises:
        OSError: there is no room; nothing of it is left.
    """
    copy_name = f"{file.target.name}.before-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}"
    beside = half_made(f"{copy_name}.csv")  # a name that `clean` recognises as half a file
    with folder.atomic(copy_name, beside), os.fdopen(folder.create(beside), "wb") as copied:
        folder.copy_owner_and_mode(file.target.name, copied.fileno())
        with os.fdopen(os.dup(file.fd), "rb") as old:
            old.seek(0)
            shutil.copyfileobj(old, copied)
        copied.flush()
        os.fsync(copied.fileno())
    return copy_name


NO_ROW = "no row"  # how a run that was cut off is marked, where that is certain


class Rebuilt(Value, frozen=True):
    """What was written, and notes on runs without rows."""

    rows: int
    runs: int
    notes: tuple[str, ...] = ()


def rebuild(output: Path, runs: Path, *, force: bool = False, contract: int = 0) -> Rebuilt:
    """Write the rows of the runs below `runs`, in the order in which they were appended.

    Taken are the rows that went to `output`, or where none did, to the one file that all of them name.  A file that
    exists is replaced only with `force`, atomically, and copied to another name before.  It begins with the columns
    that a new file has under `contract`.

    Raises:
        UsageProblem: there are no runs, they name several files, or a file is there.
        RecordError: the file cannot be written.
    """
    if not runs.is_dir():
        raise UsageProblem(f"there are no runs in {runs}", "name their folder: --runs DIR")
    if not force and output.exists() and output.stat().st_size:
        raise UsageProblem(
            f"{output} is there already", f"--force replaces it, or write another file: -o new-{output.name}"
        )
    # under its lock nobody appends: rows on their way are in a run's folder
    with as_record_error(output), locked(output) as file:
        try:
            check_replaceable(output, file)
            found, notes = _find(runs)
            chosen = [_joined(run_rows) for run_rows in _choose(found, output, runs.parent)]
            notes += _left_out(found, chosen)
            in_order = sorted(chosen, key=lambda rows: (rows.at, rows.offset))
            header, ordered = _table(in_order, notes, new_columns(contract))
            _note_rebuild(output, runs, found)
            notes += _replace(file, header, ordered)
        except BaseException:
            if file.is_new:
                file.target.unlink(missing_ok=True)
            raise
    return Rebuilt(rows=sum(len(run_rows.cells) for run_rows in ordered), runs=len(ordered), notes=tuple(notes))


def _note_rebuild(output: Path, runs: Path, rows: Iterable[RunRows]) -> None:
    """Record in the event log that a file is about to be rebuilt: sizes of it recorded earlier are invalid then.

    Raises:
        RecordError: it cannot be recorded.
    """
    name = rows_path(output, runs.parent)
    if name in {run_rows.path for run_rows in rows}:
        with as_record_error(runs / EVENTS), Folder.open(runs) as folder:
            append(folder, RebuildStarted(file=name))


def _find(runs: Path) -> tuple[list[RunRows], list[str]]:
    """Return the rows of all runs, and notes on those that have none."""
    found: list[RunRows] = []
    notes: list[str] = []
    log = EventLog.read(runs)
    noted, own = NotedRuns(runs), log.own_runs()
    for folder in real_folders(runs):
        if not is_run(folder):
            continue
        try:
            record = load_record(folder)
        except RecordError as problem:
            notes.append(f"{folder.name}: {problem.message}")
            continue
        is_pending = record is None or (record.rows is not None and not record.rows.appended)
        if is_pending and log and folder.name not in own:
            notes.append(f"{folder.name}: left out, it did not begin in this folder: it is not in its event log")
            continue
        rows = rows_here(folder, record, noted) if record is not None else _of_cut_off(folder, notes)
        if rows is not None:
            found.append(rows)
    return found, [*notes, *_pruned(runs, noted)]


def _pruned(runs: Path, noted: NotedRuns) -> Iterator[str]:
    """Yield notes on runs whose records were removed with their folders: their rows are in no record."""
    gone = [event for event in noted.pruned.values() if event.folder and event.rows and not exists(runs / event.run)]
    for path, several in groupby(sorted(gone, key=lambda event: event.rows_in), key=lambda event: event.rows_in):
        those = list(several)
        count = sum(event.rows for event in those)
        have = f"{len(those)} pruned runs" if len(those) > 1 else "1 pruned run"
        yield f"{have} cannot be rebuilt: {count} row{'s' if count > 1 else ''} of {path} had no other copy"


def _of_cut_off(folder: Path, notes: list[str]) -> RunRows | None:
    """Return the rows of a run without a record, where they may be in the file: it was killed right after them."""
    if is_uncollected(folder):
        notes.append(f"{folder.name}: left out, it is not collected (madlite runs collect)")
        return None
    is_running, run_journal = is_alive(folder), read_run(folder)
    if run_journal.rows is not None and (is_running or run_journal.cleaned != NO_ROW):
        if not is_running:
            notes.append(f"{folder.name}: cut off while its row was written; the row is taken in")
        return run_journal.rows
    row = "so no row" if is_running or run_journal.complete else "a row that it may have is left out"
    notes.append(f"{folder.name}: no record, and {row}: {'it is still running' if is_running else 'it was cut off'}")
    return None


def _choose(rows: Sequence[RunRows], output: Path, workspace: Path) -> list[RunRows]:
    paths = list(dict.fromkeys(run_rows.path for run_rows in rows))
    if not rows:
        raise UsageProblem("no run has a record with rows", "madlite runs lists them")
    wanted = rows_path(output, workspace)
    if wanted not in paths:
        if len(paths) > 1:
            raise UsageProblem(
                f"no run appended to {wanted}; files that runs appended to: {', '.join(paths)}",
                f"madlite report rebuild -o {paths[0]}",
            )
        wanted = paths[0]
    return [run_rows for run_rows in rows if run_rows.path == wanted]


def _left_out(rows: Sequence[RunRows], chosen: Sequence[RunRows]) -> Iterator[str]:
    others = {run_rows.path for run_rows in rows} - {run_rows.path for run_rows in chosen}
    if others:
        yield f"left out: rows of runs that appended to {', '.join(sorted(others))}"


def _table(rows: Sequence[RunRows], notes: list[str], begin: Sequence[str]) -> tuple[Header, list[RunRows]]:
    """Return the header and the rows, without columns of pending rows for which it has no room."""
    header, taken = _header_of((run_rows for run_rows in rows if run_rows.appended), begin), []
    for run_rows in rows:
        header, left_out = widened(header, replace(run_rows, strict_header=False))
        if left_out:
            notes.append(left_out_text(f"{_model(run_rows)} of {run_rows.at}", left_out))
        taken.append(run_rows.without(left_out))
    return _header_of(taken, begin), taken


def _header_of(rows: Iterable[RunRows], begin: Sequence[str]) -> Header:
    joining = joining_columns((), (cells for run_rows in rows for cells in run_rows.cells))
    return Header(columns=(*begin, *joining))


def _joined(rows: RunRows) -> RunRows:
    """Return rows with the columns that they have in their file: they may have been appended without new ones."""
    return rows.without(joining_columns(rows.columns, rows.cells)) if rows.strict_header else rows


def _model(rows: RunRows) -> str:
    return rows.cells[0].get("model", "") if rows.cells else ""


def _replace(file: LockedFile, header: Header, ordered: Sequence[RunRows]) -> list[str]:
    """Replace the file; return a note on what was saved of it."""
    notes: list[str] = []
    with folder_of(file.target) as (folder, name), folder.replacing(name) as fd:
        with open(fd, "w", encoding="utf-8", newline="", errors="backslashreplace", closefd=False) as new:
            new.write(header.line)
            cells = (cells for run_rows in ordered for cells in run_rows.cells)
            new.writelines(csv_line(header.arrange(cell), header.newline) for cell in cells)
        os.fsync(fd)
        if not file.is_current():
            raise RecordError(f"{file.target} was replaced by another program meanwhile", "run it again")
        if os.fstat(file.fd).st_size:
            notes.append(f"the old {name} was saved as {save_copy(folder, file)}")
    sync_folder(file.target.parent)
    return notes
