"""Results in the folders of runs → rows of perf.csv, side files and records, each once.

The rows in the run's journal → perf.csv → the journal, appended → the side files → record.json; then the journal is
removed.  A kill in between leaves a run that is not collected: the next attempt continues there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Result, Value
from madlite.model.results import Attempt
from madlite.plan.inputs import RUNS
from madlite.results.header import STANDARD_COLUMNS
from madlite.results.integrity import Integrity
from madlite.results.pending import are_in_file, rows_path
from madlite.results.record import Record, record_json, result_of
from madlite.results.sidefiles import leave_entries, write_entries, write_waiting
from madlite.results.stored import RunResult, load_result, read_record, uncollected
from madlite.run.recovery.unfinished import append_once, appended_rows, target_of
from madlite.workspace.folder import RECORD, RESULT, RunFolder, exists, is_alive
from madlite.workspace.journal import RunEntry, RunRows, is_own, now, read_of, read_run


class Collected(Value, frozen=True):
    """The outcome of collecting one run: a message, and the result where it is collected now.

    `failed` where it should have been, and was not; `busy` where that is so as another process has the run now.
    """

    run_id: str
    message: str
    result: Result | None = None
    failed: bool = False
    busy: bool = False
    warnings: tuple[str, ...] = ()


def collect_all(
    folders: Iterable[Path], workspace: Path, output: Path, begin: Sequence[str] = STANDARD_COLUMNS
) -> Iterator[Collected]:
    """Collect runs one by one into a results file, a new one with the columns `begin`; yield the outcome of each.

    Their entries of the side files wait: the caller has them written at the end, by `write_waiting`.
    """
    for folder in folders:
        try:
            yield _collect(folder, workspace, output, begin)
        except (RecordError, OSError) as problem:
            what = problem.message if isinstance(problem, RecordError) else problem.strerror or str(problem)
            yield Collected(run_id=folder.name, message=f"not collected: {what}", failed=True)


def collect_recoverable(
    workspace: Path, output: Path, begin: Sequence[str] = STANDARD_COLUMNS, leave: Collection[Path] = ()
) -> list[str]:
    """Write what runs came to whose madlite was killed after their end, and return messages.

    Their rows go to `output`, or to the results file of the working folder that they name.  Those in the folders
    `leave` are tried again.
    """
    messages = []
    for folder in (one for one in uncollected(workspace) if one not in leave):
        named = read_run(folder).file
        path = target_of(RunRows(path=named, cells=()), workspace, output) if named else None
        if path is not None:
            for one in collect_all([folder], workspace, path, begin):
                messages += [f"{one.run_id}: {one.message}", *one.warnings]
    return [*messages, *(write_waiting(workspace) if messages else ())]


def _collect(folder: Path, workspace: Path, output: Path, begin: Sequence[str]) -> Collected:
    """Collect one run.

    Raises:
        RecordError, OSError: it cannot be collected; it stays as it is.
    """
    if not is_own(folder):
        raise RecordError(f"madlite did not make it in this folder: it is not in the journal of {RUNS}")
    if exists(folder / RECORD):
        return Collected(run_id=folder.name, message=_collected_text(read_record(folder)))
    if not exists(folder / RESULT):
        is_running = is_alive(folder)
        raise RecordError(
            "it is still running" if is_running else f"it was cut off: it has no {RESULT} (madlite clean)"
        )
    if folder.lstat().st_uid != os.geteuid():  # an owner can write anything into a folder: the run is theirs to collect
        raise RecordError("it is another user's")
    try:
        run_folder = RunFolder.reopen(folder)
    except BlockingIOError:
        text = "not collected: it is still running, or another command is collecting it"
        return Collected(run_id=folder.name, message=text, failed=True, busy=True)
    try:
        if exists(folder / RECORD):  # by now
            return Collected(run_id=folder.name, message=_collected_text(read_record(folder)))
        return _write(load_result(folder), run_folder, workspace, output, begin)
    finally:
        run_folder.close()


def collect_open(
    result: RunResult, run_folder: RunFolder, workspace: Path, output: Path, begin: Sequence[str]
) -> Collected:
    """Collect one run whose folder is open; its rows go to the results file that it names, else to `output`.

    Raises:
        RecordError, OSError: its rows or its record are not there.
    """
    named = read_run(run_folder.path).file
    path = target_of(RunRows(path=named, cells=()), workspace, output) if named else None
    return _write(result, run_folder, workspace, path or output, begin)


def replaced_by(folder: Path) -> str:
    """Return the attempt that has taken a run's place: one that has a result by now; "" where there is none."""
    following = read_run(folder).next
    if not following:
        return ""
    noted = read_of(folder.parent, following)  # a workload can write such files too
    there = (
        (RECORD, any(one.record for one in noted)),
        (RESULT, any(one.result for one in noted)),
    )
    return following if any(is_ours and exists(folder.parent / following / name) for name, is_ours in there) else ""


def attempts_of(folder: Path) -> tuple[Path, ...]:
    """Return the folders of a run's attempts that are there, the first one's first."""
    found: list[Path] = []
    while exists(folder) and folder not in found:
        found.append(folder)
        record = read_record(folder)
        attempt = record.attempt if record is not None else None
        following = attempt.next if attempt is not None else read_run(folder).next
        if not following:
            break
        folder = folder.parent / following
    return tuple(found)


def _collected_text(record: Record | None) -> str:
    rows = record.rows if record is not None else None
    return f"collected already{f', its rows are in {rows.path}' if rows is not None else ''}"


def _write(result: RunResult, run_folder: RunFolder, workspace: Path, output: Path, begin: Sequence[str]) -> Collected:
    """Write what a result has, except what an earlier attempt has written; the caller holds the run's lock.

    Raises:
        RecordError, OSError: its rows or its record are not there.
    """
    record, message, warnings = result.record, "it has no row", []
    if replaced := replaced_by(run_folder.path):
        attempt = replace(record.attempt or Attempt(), next=replaced)
        record, message = replace(record, rows=None, attempt=attempt), f"no row: it was tried again as {replaced}"
    elif read_run(run_folder.path).next:
        record = replace(record, attempt=replace(record.attempt or Attempt(), given_up=True))
    if record.rows is not None:
        is_first = read_run(run_folder.path).rows is None
        rows, message, reports = append_rows_of(record.rows, run_folder, workspace, output, begin)
        record = replace(record, rows=rows)
        warnings += reports
        if result.entries is not None:
            entries = result.entries
            warnings += leave_entries(workspace, entries) if is_first else write_entries(workspace, entries, again=True)
    if problem := run_folder.write_record(record_json(record)):
        raise RecordError(f"{message}, but {problem}")
    run_folder.end_journal()
    return Collected(run_id=record.id, message=message, result=result_of(record), warnings=tuple(warnings))


def append_rows_of(
    rows: RunRows, run_folder: RunFolder, workspace: Path, output: Path, begin: Sequence[str]
) -> tuple[RunRows, str, list[str]]:
    """Append the rows of an open run folder and record that; return them, a message and reports on the results file.

    An earlier attempt may have appended them, perhaps to another file.

    Raises:
        RecordError, OSError: they are not in the file.
    """
    earlier = read_run(run_folder.path).rows
    if earlier is not None and (done := _earlier(earlier, rows, workspace)) is not None:
        if not earlier.appended:
            run_folder.note(RunEntry(at=now(), rows=done))
        return done, f"its rows are in {done.path}", []
    integrity = Integrity(Path(os.path.realpath(output)), workspace)
    named = replace(rows, path=rows_path(output, workspace))
    done, message = append_once(named, run_folder, workspace, output, integrity, begin)
    run_folder.note(RunEntry(at=now(), rows=done))
    return done, message, list(integrity.reports)


def _earlier(tried: RunRows, rows: RunRows, workspace: Path) -> RunRows | None:
    """Return the rows as an earlier attempt has appended them, perhaps to another file; None where it has not.

    Raises:
        RecordError: its file cannot be read.
    """
    if len(tried.cells) != len(rows.cells):
        return None
    if not all(one.items() <= other.items() for one, other in zip(tried.cells, rows.cells, strict=True)):
        return None  # not an attempt of this run: it could only have omitted columns
    if tried.appended:
        return tried
    there = are_in_file(tried, workspace, appended_rows(workspace))
    if there is None:
        raise RecordError(f"whether its rows are in {tried.path} cannot be seen")
    return replace(tried, appended=True) if there else None
