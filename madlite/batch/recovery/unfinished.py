"""Unfinished work of earlier commands: reported by the next command, listed and resolved by `clean`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from madlite.batch.recovery.leftovers import Leftover, Leftovers, find_leftovers, still_running
from madlite.errors import RecordError
from madlite.model import Runtime, Value
from madlite.perfcsv.append import is_results_file
from madlite.perfcsv.pending import are_in_file, rows_path
from madlite.perfcsv.rebuild import NO_ROW
from madlite.plan.inputs import RUNS
from madlite.store.batches import interrupted_batches
from madlite.store.events import EventLog, RunImported, Started
from madlite.store.folder import left_runs, real_folders, uncollected, unfinished
from madlite.store.journal import (
    RunJournal,
    RunRows,
    read_run,
)
from madlite.store.record import Record
from madlite.store.stored import NotedRuns, load_result, read_record, rows_here
from madlite.store.study import cut_off_studies, has_caches

# Pending rows, which perf.csv did not take when their run ended: the next run appends them, each once.


def runs_with_pending_rows(workspace: Path) -> Iterator[Path]:
    """Yield the folders of runs that have a record, and rows that perf.csv did not take, the oldest first.

    Folders that madlite did not make are skipped: their content is not trusted.
    """
    recorded = [run for run in left_runs(workspace) if run.state == "recorded" and run.journal.cleaned is None]
    # the rows of imported ones `madlite import` appends
    imported = frozenset(EventLog.read(workspace / RUNS).ids(RunImported)) if recorded else frozenset()
    for run in recorded:
        if run.is_own and run.folder.name not in imported:
            record = read_record(run.folder)
            if record is not None and record.rows is not None and not record.rows.appended:
                yield run.folder


def appended_rows(workspace: Path) -> list[RunRows]:
    """Return the rows that runs certainly appended."""
    noted = NotedRuns(workspace / RUNS)
    records = ((folder, read_record(folder)) for folder in real_folders(workspace / RUNS))
    found = (rows_here(folder, record, noted) for folder, record in records if record is not None)
    return [rows for rows in found if rows is not None and rows.appended]


def target_of(rows: RunRows, workspace: Path, output: Path) -> Path | None:
    """Return the file that rows may go to; None where a command may not write to it."""
    if rows.path == rows_path(output, workspace):
        return output
    path = workspace / rows.path
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(workspace))
    return path if inside and is_results_file(path) else None


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
    appended = appended_rows(workspace) if any(run_journal.rows for run_journal in journals.values()) else []
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
    return tuple(sorted(found, key=lambda run: run.folder.name))


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
    cut_off = [run for run in every if not run.recorded]
    lines = [f"{run.folder.name}: {run.row}; {run.comes}" for run in every if run.recorded]
    if cut_off:
        names = ", ".join(f"{run.folder.name} ({run.row})" for run in cut_off[:5])
        more = f", and {len(cut_off) - 5} more" if len(cut_off) > 5 else ""
        were = "runs were" if len(cut_off) > 1 else "run was"
        lines.append(f"{len(cut_off)} earlier {were} cut off: {names}{more}. madlite clean lists what is left")
    return lines


def recovery_report(workspace: Path, resumed: str = "", told: Iterable[str] = ()) -> list[str]:
    """Return messages about all unfinished work of earlier commands, apart from the study that is `resumed`.

    Runs that the messages `told` begin with are not named again.
    """
    known = {text.partition(":")[0] for text in told}
    batches = [
        (text, batch.is_of_run and batch.is_own) for batch in interrupted_batches(workspace) for text in batch.messages
    ]
    return [
        *incomplete_text(run for run in find_incomplete(workspace) if run.folder.name not in known),
        *running_text(workspace),
        *(f"{text}. {f'{RESUME}, ' if resumable else ''}{ACKNOWLEDGE}" for text, resumable in batches),
        *(
            f"study {name} was cut off and its caches are left. madlite clean --yes removes them"
            for name, folder in cut_off_studies(workspace)
            if name != resumed and has_caches(folder)
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
    others = (run for run in left_runs(workspace) if not run.is_own and run.journal.cleaned is None)
    found = [f"{RUNS}/{run.folder.name}" for run in others if run.state == "cut off" or run.journal.rows is not None]
    if not found:
        return []
    why = "(not in the event log of this folder): left alone"
    if len(found) == 1 and not _is_noted(workspace, found[0]):
        part = found[0]
        return [f"{part} looks like a run that madlite did not make {why}; rm -r {shlex.quote(part)} removes it"]
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
    incomplete = {str(run.folder): run for run in find_incomplete(workspace)}
    listed = [
        replace(
            leftover,
            text=f"unfinished, {incomplete[leftover.handle].row}, {leftover.handle}",
            row=incomplete[leftover.handle].row,
        )
        if leftover.kind == "run" and leftover.handle in incomplete
        else leftover
        for leftover in found.leftovers
    ]
    pending = [_as_leftover(run) for run in incomplete.values() if run.recorded]
    return replace(found, leftovers=(*listed, *pending, *_uncollectable(workspace)))


def _uncollectable(workspace: Path) -> Iterator[Leftover]:
    """Yield the runs whose results cannot be collected, because they cannot be read."""
    for folder in uncollected(workspace):
        try:
            load_result(folder)
        except RecordError as problem:
            text = f"{NO_ROW}, and its result cannot be collected: {problem.message}; {folder}"
            yield Leftover(kind="run", run_id=folder.name, text=text, handle=str(folder), row=NO_ROW)


def _as_leftover(run: IncompleteRun) -> Leftover:
    text = f"{run.row}; {run.comes} unless it is cleaned; {run.folder}"
    return Leftover(kind="run", run_id=run.folder.name, text=text, handle=str(run.folder), row=run.row)
