"""Rows of earlier runs that their results file may lack: of runs that were cut off, and pending ones."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from madlite.model import Value
from madlite.perfcsv.append import is_results_file
from madlite.perfcsv.recorded import NO_ROW, are_in_file, rows_path
from madlite.plan.inputs import RUNS
from madlite.store.events import EventLog, RunImported, Started
from madlite.store.folder import LeftRun, left_runs, real_folders
from madlite.store.journal import RunRows
from madlite.store.record import Record
from madlite.store.stored import NotedRuns, read_record, rows_here

IN_FILE, UNKNOWN = "its row is in {path}", "whether its row is in {path} cannot be seen"
_PERF = "perf.csv"
_MOST_NAMED = 5


def runs_with_pending_rows(workspace: Path) -> Iterator[tuple[LeftRun, Record]]:
    """Yield the runs that have a record, and rows that perf.csv did not take, the oldest first.

    The next run appends them, each once.
    """
    recorded = [run for run in left_runs(workspace) if run.state == "recorded" and run.journal.cleaned is None]
    # the rows of imported ones `madlite import` appends
    imported = frozenset(EventLog.read(workspace / RUNS).ids(RunImported)) if recorded else frozenset()
    for run in recorded:
        record = read_record(run.folder) if run.folder.name not in imported else None
        if record is not None and record.rows is not None and not record.rows.appended:
            yield run, record


def appended_rows(workspace: Path) -> list[RunRows]:
    """Return the rows that runs certainly appended."""
    noted = NotedRuns(workspace / RUNS)
    records = ((folder, read_record(folder)) for folder in real_folders(workspace / RUNS))
    found = (rows_here(folder, record, noted) for folder, record in records if record is not None)
    return [rows for rows in found if rows is not None and rows.appended]


def target_of(name: str, workspace: Path, output: Path, *, may_be_new: bool = False) -> Path | None:
    """Return the file of rows by their `path`; None where a command may not write to it.

    Other files than the `output` have to be results files of the working folder, or of a new one.
    """
    if name == rows_path(output, workspace):
        return output
    path = workspace / name
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(workspace))
    is_new = may_be_new and (not os.path.lexists(path) or (path.is_file() and not path.stat().st_size))
    return path if inside and (is_new or is_results_file(path)) else None


class IncompleteRun(Value, frozen=True):
    """A run that was cut off or has pending rows: its folder, and the state of its row as text.

    `comes` is what the next run does with a pending row, of a run that has its record; else "".
    """

    folder: Path
    row: str
    comes: str = ""


def find_incomplete(workspace: Path) -> tuple[IncompleteRun, ...]:
    """Return the runs of a workspace that were cut off, or whose rows perf.csv did not take."""
    records = {run.folder: record for run, record in runs_with_pending_rows(workspace)}
    left = [run for run in left_runs(workspace) if run.state == "cut off" or run.folder in records]
    # of runs that recorded the same size of the file only the last can have appended to it
    newest = sorted(left, key=lambda run: run.journal.rows.at if run.journal.rows else "", reverse=True)
    ordered = sorted(newest, key=lambda run: run.journal.rows.offset if run.journal.rows else 0)
    appended = appended_rows(workspace) if any(run.journal.rows for run in left) else []
    found = []
    for run in ordered:
        rows = run.journal.rows
        there = are_in_file(rows, workspace, appended) if rows is not None else None
        appended += [rows] if rows is not None and there else []
        found.append(_incomplete(run, records.get(run.folder), there))
    return tuple(sorted(found, key=lambda run: run.folder.name))


def _incomplete(run: LeftRun, record: Record | None, there: bool | None) -> IncompleteRun:
    folder, rows = run.folder, run.journal.rows
    if record is not None and record.rows is not None:
        if there:
            row = IN_FILE.format(path=record.rows.path)
            return IncompleteRun(folder=folder, row=row, comes="the next madlite run notes that")
        kept = f" ({folder.name}/{record.rows.kept})" if record.rows.kept else ""
        row = f"{NO_ROW} in {record.rows.path}{kept}"
        return IncompleteRun(folder=folder, row=row, comes="the next madlite run adds it")
    if rows is None:
        return IncompleteRun(folder=folder, row=NO_ROW if run.journal.complete else UNKNOWN.format(path=_PERF))
    state = UNKNOWN if there is None else IN_FILE if there else NO_ROW
    return IncompleteRun(folder=folder, row=state.format(path=rows.path))


def incomplete_text(runs: Iterable[IncompleteRun]) -> list[str]:
    """Return messages about runs that were cut off or have pending rows."""
    every = tuple(runs)
    cut_off = [f"{run.folder.name} ({run.row})" for run in every if not run.comes]
    lines = [f"{run.folder.name}: {run.row}; {run.comes}" for run in every if run.comes]
    if cut_off:
        were = "runs were" if len(cut_off) > 1 else "run was"
        lines.append(f"{len(cut_off)} earlier {were} cut off: {_first(cut_off)}. madlite clean lists what is left")
    return lines


def uncollected_text(workspace: Path) -> list[str]:
    """Return messages about runs that have ended and whose results are not collected."""
    names = [run.folder.name for run in left_runs(workspace) if run.state == "uncollected"]
    if not names:
        return []
    what, rows = ("1 run is", "its row") if len(names) == 1 else (f"{len(names)} runs are", "their rows")
    return [f"{what} not collected: {_first(names)}. madlite runs collect adds {rows}"]


def planted_text(workspace: Path) -> list[str]:
    """Return messages about folders that look like runs and that madlite did not make."""
    others = (run for run in left_runs(workspace, planted=True) if run.journal.cleaned is None)
    found = [run.folder.name for run in others if run.state == "cut off" or run.journal.rows is not None]
    if not found:
        return []
    why = "(not in the event log of this folder): left alone"
    # one of a run that the log has may be a copy with the only row
    if len(found) == 1 and found[0] not in EventLog.read(workspace / RUNS).ids(Started):
        part = f"{RUNS}/{found[0]}"
        return [f"{part} looks like a run that madlite did not make {why}; rm -r {shlex.quote(part)} removes it"]
    look = "look like runs" if len(found) > 1 else "looks like a run"
    names = _first([f"{RUNS}/{name}" for name in found])
    return [f"{names} {look} that madlite did not make {why}, no row of it is taken"]


def _first(names: list[str]) -> str:
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
