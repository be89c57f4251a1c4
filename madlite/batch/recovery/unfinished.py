"""Unfinished work of earlier commands: reported by the next command, listed and resolved by `clean`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from madlite.batch.recovery.leftovers import Leftover, Leftovers, find_leftovers, still_running
from madlite.errors import RecordError, inline_hint
from madlite.model import Row, Runtime, Value
from madlite.perfcsv.append import append_rows, cut_torn, is_results_file, left_out_text
from madlite.perfcsv.entries import read_entries
from madlite.perfcsv.header import STANDARD_COLUMNS
from madlite.perfcsv.pending import are_in_file, count_written, rows_path
from madlite.perfcsv.rebuild import NO_ROW
from madlite.perfcsv.side_files import write_entries, write_waiting
from madlite.plan.inputs import RUNS
from madlite.store.batches import interrupted_batches
from madlite.store.events import EventLog, RunImported, Started, now
from madlite.store.folder import RunFolder, left_runs, real_folders, uncollected, unfinished
from madlite.store.journal import (
    RunEntry,
    RunJournal,
    RunRows,
    read_run,
)
from madlite.store.record import VERSION, Record, record_json
from madlite.store.stored import NotedRuns, load_result, read_record, rows_here
from madlite.store.study import cut_off_studies, has_caches

# Pending rows, which perf.csv did not take when their run ended: the next run appends them, each once.


def runs_with_pending_rows(workspace: Path) -> Iterator[Path]:
    """Yield the folders of runs that have a record, and rows that perf.csv did not take, the oldest first.

    Folders that madlite did not make are skipped: their content is not trusted.
    """
    recorded = [one for one in left_runs(workspace) if one.state == "recorded" and one.journal.cleaned is None]
    # the rows of imported ones `madlite import` appends
    imported = frozenset(EventLog.read(workspace / RUNS).ids(RunImported)) if recorded else frozenset()
    for one in recorded:
        if one.is_own and one.folder.name not in imported:
            record = read_record(one.folder)
            if record is not None and record.rows is not None and not record.rows.appended:
                yield one.folder


def appended_rows(workspace: Path) -> list[RunRows]:
    """Return the rows that runs certainly appended."""
    noted = NotedRuns(workspace / RUNS)
    records = ((folder, read_record(folder)) for folder in real_folders(workspace / RUNS))
    found = (rows_here(folder, record, noted) for folder, record in records if record is not None)
    return [rows for rows in found if rows is not None and rows.appended]


def append_pending(workspace: Path, output: Path, begin: Sequence[str] = STANDARD_COLUMNS) -> list[str]:
    """Append pending rows of earlier runs and return messages; rows that still cannot be appended stay pending.

    Rows go to `output`, the results file of the command at hand, or to a results file of the working folder; a new one
    gets the columns `begin`.
    """
    return [
        message
        for folder in list(runs_with_pending_rows(workspace))
        for message in _add(folder, workspace, output, begin)
    ]


def _add(folder: Path, workspace: Path, output: Path, begin: Sequence[str]) -> Iterator[str]:
    if folder.lstat().st_uid != os.geteuid():  # an owner can write anything into a folder: the rows are theirs to add
        return
    try:
        with closing(RunFolder.reopen(folder)) as run_folder:
            yield from _add_locked(run_folder, workspace, output, begin)
    except BlockingIOError:  # another command does it
        return
    except OSError as error:
        yield f"{folder.name}: no row was added: {error.strerror or error}"


def _add_locked(run_folder: RunFolder, workspace: Path, output: Path, begin: Sequence[str]) -> Iterator[str]:
    folder = run_folder.path
    record = read_record(folder)
    if record is None or record.rows is None or record.rows.appended or record.version != VERSION:
        return
    path = target_of(record.rows, workspace, output)
    if path is None:
        yield _other_file_text(folder, record.rows)
        return
    try:
        rows, message = append_once(record.rows, run_folder, workspace, path, begin)
        _update_record(run_folder, replace(record, rows=rows))
        yield f"{folder.name}: {message}"
    except RecordError as problem:
        hint = f" ({inline_hint(problem.hint)})" if problem.hint else ""
        yield f"{folder.name}: no row was added: {problem.message}{hint}"


def target_of(rows: RunRows, workspace: Path, output: Path) -> Path | None:
    """Return the file that rows may go to; None where a command may not write to it."""
    if rows.path == rows_path(output, workspace):
        return output
    path = workspace / rows.path
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(workspace))
    return path if inside and is_results_file(path) else None


def _other_file_text(folder: Path, rows: RunRows) -> str:
    rows_are, they = ("rows are", "they stay") if len(rows.cells) != 1 else ("row is", "it stays")
    return (
        f"{folder.name}: its {rows_are} for {rows.path}, which is neither this command's results file nor one of this "
        f"folder: {they} in {RUNS}/{folder.name}; madlite run -o {shlex.quote(rows.path)} … takes what is for that file"
    )


def append_once(
    rows: RunRows, run_folder: RunFolder, workspace: Path, path: Path, begin: Sequence[str]
) -> tuple[RunRows, str]:
    """Append rows of an open run folder unless their file has them, and return a message; a new file gets `begin`.

    They can be there: an earlier attempt was killed before it wrote its record, or the file was rebuilt.

    Raises:
        RecordError, OSError: they are not in the file.
    """
    earlier = read_run(run_folder.path).rows
    earlier = earlier if earlier is not None and earlier.path == rows.path else None
    others = appended_rows(workspace) if earlier is not None else ()
    in_file = are_in_file(earlier, workspace, others) if earlier is not None else False
    if in_file is None:
        raise RecordError(f"{rows.path} cannot be read", "")
    # a kill amid the write left the first ones: the others join them
    written = count_written(earlier, workspace, others) if earlier is not None and not in_file else 0
    is_in, was_added = ("row is", "row was") if len(rows.cells) == 1 else ("rows are", "rows were")
    if in_file and earlier is not None:
        return replace(earlier, appended=True, kept=""), f"its {is_in} in {rows.path}"
    if earlier is not None and path.exists():
        cut_torn(path, [Row(cells=cells) for cells in earlier.cells], earlier.offset)
    attempts, messages = [rows], [f"its {was_added} added to {rows.path}"]

    def leave_out(columns: tuple[str, ...]) -> None:
        attempts.append(rows.without(columns))
        messages.append(left_out_text(rows.path, columns))

    def before_write(size: int, columns: tuple[str, ...]) -> None:
        begin_at = earlier.offset if earlier is not None and written else size
        attempts.append(replace(attempts[-1], at=now(), offset=begin_at, columns=columns, kept=""))
        # a row without an entry could be appended twice
        if problem := run_folder.note(RunEntry(at=attempts[-1].at, rows=attempts[-1])):
            place = f"{RUNS}/{run_folder.path.name}"
            raise RecordError(f"{place}: {problem}", f"df -h {place}; ls -l {place}")

    append_rows(
        path,
        [Row(cells=cells) for cells in rows.cells[written:]],
        strict_header=rows.strict_header,
        before_write=before_write,
        leave_out=leave_out,
        target=Path(os.path.realpath(path)),
        begin=begin,
    )
    return replace(attempts[-1], appended=True), "; ".join(messages)


def _update_record(run_folder: RunFolder, record: Record) -> None:
    """Write where the rows are into the record; until then the run's journal stays."""
    if not run_folder.write_record(record_json(record)):
        run_folder.end_journal()


# Entries of perf_super, whose run was killed after its rows and before the side files.


def complete_side_files(workspace: Path) -> Iterator[str]:
    """Write what the side files lack of runs that were cut off after their rows, each once; yield messages."""
    yield from write_waiting(workspace)
    for folder in unfinished(workspace):
        noted = read_run(folder)
        if not noted.entries or noted.rows is None or noted.listed:
            continue
        try:
            if folder.lstat().st_uid == os.geteuid():  # an owner can write anything into a folder
                with closing(RunFolder.reopen(folder)) as run_folder:
                    yield from _add_entries(run_folder, workspace)
        except BlockingIOError:  # another command does it
            continue
        except OSError as error:
            yield f"{folder.name}: no entry was added: {error.strerror or error}"


def _add_entries(run_folder: RunFolder, workspace: Path) -> Iterator[str]:
    noted = read_run(run_folder.path)
    entries = read_entries(noted.entries.encode())
    if entries is None or noted.rows is None or noted.listed:
        return
    if are_in_file(noted.rows, workspace, appended_rows(workspace)):
        if problems := write_entries(workspace, entries, again=True):
            yield from problems
            return
        run_folder.note(RunEntry(at=now(), listed=True))
        yield f"{run_folder.path.name}: perf_super.json has its entry now"


IN_FILE, UNKNOWN = "its row is in {path}", "whether its row is in {path} cannot be seen"
_PERF = "perf.csv"
ACKNOWLEDGE = "madlite clean --yes acknowledges it"
RESUME = "madlite run --resume goes on with it"
_COMES, _IS_THERE = "the next madlite run adds it", "the next madlite run notes that"


class IncompleteRun(Value, frozen=True):
    """A run that was cut off or has pending rows: its folder, and the state of its row as text.

    `recorded` where the run itself ended and only its row was not appended; `there` where the row is in the file by
    now, and the record does not have that.
    """

    folder: Path
    row: str
    recorded: bool = False
    there: bool = False

    @property
    def comes(self) -> str:
        """What the next run does with the pending row."""
        return _IS_THERE if self.there else _COMES


def find_incomplete(workspace: Path) -> tuple[IncompleteRun, ...]:
    """Return the runs of a workspace that were cut off, or whose rows perf.csv did not take."""
    dead = [*unfinished(workspace), *runs_with_pending_rows(workspace)]
    journals = {folder: read_run(folder) for folder in dead}
    # of runs that recorded the same size of the file only the last can have appended to it
    newest = sorted(dead, key=lambda folder: rows.at if (rows := journals[folder].rows) else "", reverse=True)
    ordered = sorted(newest, key=lambda folder: rows.offset if (rows := journals[folder].rows) else 0)
    appended = appended_rows(workspace) if any(one.rows for one in journals.values()) else []
    found = []
    for folder in ordered:
        rows = journals[folder].rows
        there = are_in_file(rows, workspace, appended) if rows is not None else None
        appended += [rows] if rows is not None and there else []
        record = read_record(folder)
        found.append(
            _with_record(folder, record, there)
            if record is not None
            else _without_record(folder, journals[folder], there)
        )
    return tuple(sorted(found, key=lambda one: one.folder.name))


def _with_record(folder: Path, record: Record, there: bool | None) -> IncompleteRun:
    path = record.rows.path if record.rows is not None else _PERF
    if there:
        return IncompleteRun(folder=folder, row=IN_FILE.format(path=path), recorded=True, there=True)
    kept = f" ({folder.name}/{record.rows.kept})" if record.rows and record.rows.kept else ""
    return IncompleteRun(folder=folder, row=f"{NO_ROW} in {path}{kept}", recorded=True)


def _without_record(folder: Path, run_journal: RunJournal, there: bool | None) -> IncompleteRun:
    if run_journal.rows is None:
        return IncompleteRun(folder=folder, row=NO_ROW if run_journal.complete else UNKNOWN.format(path=_PERF))
    state = UNKNOWN if there is None else IN_FILE if there else NO_ROW
    return IncompleteRun(folder=folder, row=state.format(path=run_journal.rows.path))


def incomplete_text(runs: Iterable[IncompleteRun]) -> list[str]:
    """Return messages about runs that were cut off or have pending rows."""
    every = tuple(runs)
    cut_off = [one for one in every if not one.recorded]
    lines = [f"{one.folder.name}: {one.row}; {one.comes}" for one in every if one.recorded]
    if cut_off:
        names = ", ".join(f"{one.folder.name} ({one.row})" for one in cut_off[:5])
        more = f", and {len(cut_off) - 5} more" if len(cut_off) > 5 else ""
        were = "runs were" if len(cut_off) > 1 else "run was"
        lines.append(f"{len(cut_off)} earlier {were} cut off: {names}{more}. madlite clean lists what is left")
    return lines


def recovery_report(workspace: Path, resumed: str = "", told: Iterable[str] = ()) -> list[str]:
    """Return messages about all unfinished work of earlier commands, apart from the study that is `resumed`.

    Runs that the messages `told` begin with are not named again.
    """
    known = {text.partition(":")[0] for text in told}
    batches = [(text, one.is_of_run and one.is_own) for one in interrupted_batches(workspace) for text in one.messages]
    return [
        *incomplete_text(one for one in find_incomplete(workspace) if one.folder.name not in known),
        *running_text(workspace),
        *(f"{text}. {f'{RESUME}, ' if resumable else ''}{ACKNOWLEDGE}" for text, resumable in batches),
        *(
            f"study {one} was cut off and its caches are left. madlite clean --yes removes them"
            for one, folder in cut_off_studies(workspace)
            if one != resumed and has_caches(folder)
        ),
        *uncollected_text(workspace),
        *planted_text(workspace),
    ]


def running_text(workspace: Path) -> list[str]:
    """Return messages about runs that were cut off and still have processes."""
    return [f"{name}: {text}" for name, text in still_running(workspace).items()]


def uncollected_text(workspace: Path) -> list[str]:
    """Return messages about runs that have ended and whose results are not collected."""
    names = [folder.name for folder in uncollected(workspace)]
    if not names:
        return []
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    what, rows = ("1 run is", "its row") if len(names) == 1 else (f"{len(names)} runs are", "their rows")
    return [f"{what} not collected: {', '.join(names[:5])}{more}. madlite collect adds {rows}"]


def planted_text(workspace: Path) -> list[str]:
    """Return messages about folders that look like runs and that madlite did not make."""
    others = (one for one in left_runs(workspace) if not one.is_own and one.journal.cleaned is None)
    found = [f"{RUNS}/{one.folder.name}" for one in others if one.state == "cut off" or one.journal.rows is not None]
    if not found:
        return []
    why = "(not in the event log of this folder): left alone"
    if len(found) == 1 and not _is_noted(workspace, found[0]):
        one = found[0]
        return [f"{one} looks like a run that madlite did not make {why}; rm -r {shlex.quote(one)} removes it"]
    names = ", ".join(found[:5]) + (f", and {len(found) - 5} more" if len(found) > 5 else "")
    look = "look like runs" if len(found) > 1 else "looks like a run"
    return [f"{names} {look} that madlite did not make {why}, no row of it is taken"]


def _is_noted(workspace: Path, folder: str) -> bool:
    """Return whether the event log has a run of this name: its folder may be a copy with the only row."""
    return Path(folder).name in EventLog.read(workspace / RUNS).ids(Started)


def find_all(
    workspace: Path, environ: Mapping[str, str], runtimes: Mapping[str, Runtime] = MappingProxyType({})
) -> Leftovers:
    """Return everything that `clean` deals with; of each run the state of its row."""
    found = find_leftovers(workspace, environ, runtimes)
    incomplete = {str(one.folder): one for one in find_incomplete(workspace)}
    listed = [
        replace(one, text=f"unfinished, {incomplete[one.handle].row}, {one.handle}", row=incomplete[one.handle].row)
        if one.kind == "run" and one.handle in incomplete
        else one
        for one in found.leftovers
    ]
    pending = [_as_leftover(one) for one in incomplete.values() if one.recorded]
    return replace(found, leftovers=(*listed, *pending, *_uncollectable(workspace)))


def _uncollectable(workspace: Path) -> Iterator[Leftover]:
    """Yield the runs whose results cannot be collected, because they cannot be read."""
    for folder in uncollected(workspace):
        try:
            load_result(folder)
        except RecordError as problem:
            text = f"{NO_ROW}, and its result cannot be collected: {problem.message}; {folder}"
            yield Leftover(kind="run", run_id=folder.name, text=text, handle=str(folder), row=NO_ROW)


def _as_leftover(one: IncompleteRun) -> Leftover:
    text = f"{one.row}; {one.comes} unless it is cleaned; {one.folder}"
    return Leftover(kind="run", run_id=one.folder.name, text=text, handle=str(one.folder), row=one.row)
