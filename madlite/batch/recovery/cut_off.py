"""The result of a run whose madlite was killed, from what its folder has; `collect` makes row and record of it.

Where the run had its rows already, and only its record is missing, they are its result.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Cause, Diagnosis, Metric, Result, RunPlan, Status
from madlite.perfcsv.entries import RunOutput, make_output, read_entries
from madlite.perfcsv.header import as_number, plain_cells
from madlite.secrets import Redactor
from madlite.store.folder import HANDLE, LOG, RESULT, read_progress
from madlite.store.journal import RunRows, RunStart, read_run
from madlite.store.record import make_record
from madlite.store.stored import RunResult, read_run_plan

_HINT = "madlite run --resume runs it again"


def has_known_result(folder: Path) -> bool:
    """Return whether enough is known of a run that was cut off for its row."""
    noted = read_run(folder)
    is_known = noted.rows is not None or noted.complete  # else it may have a row that nobody knows of
    if not noted.file and os.path.lexists(folder / RESULT):
        return False  # with --no-rows it may be its result, whose line in the journal is missing
    return is_known and noted.cleaned is None and read_run_plan(folder) is not None


def result_of_cut_off(folder: Path) -> RunResult:
    """Return what is known of a run that was cut off, as a result; the caller has its lock.

    Raises:
        RecordError: what is known is not enough.
    """
    noted, plan = read_run(folder), read_run_plan(folder)
    if plan is None or not has_known_result(folder):
        raise RecordError("it was cut off, and its plan or its row is not known (madlite clean)")
    plan = replace(plan, id=folder.name, folder=folder, workspace=folder.parent.parent)
    start = noted.start or RunStart()
    own = None if noted.interrupted else noted.rows  # made before the kill
    result = _of_rows(own, folder.name) if own is not None else _interrupted(folder, start)
    progress = read_progress(folder)
    result = replace(
        result,
        attempt=start.attempt,
        started=progress.started if progress is not None and progress.started else noted.began[:19] + "+00:00",
    )
    result = replace(result, durations_s=_durations_s(folder, result.started))
    output = _output(plan, result, start) if own is None else RunOutput()
    cells = own.cells if own is not None else tuple(plain_cells(row) for row in output.rows)
    rows = RunRows(path="", cells=cells, strict_header=start.strict_header) if cells else None
    record = make_record(plan, result, rows, command=start.command, left_out=start.left_out)
    entries = read_entries(noted.entries.encode()) if own is not None else output.entries
    return RunResult(record=record, entries=entries)


def _interrupted(folder: Path, start: RunStart) -> Result:
    return Result(
        plan_id=folder.name,
        status=Status.FAILURE,
        cause=Cause.INTERRUPTED,
        reason=f"madlite was killed before the run had ended{_last_known(folder)}",
        diagnosis=Diagnosis(cause=Cause.INTERRUPTED.value, hint=_HINT if start.command[:1] == ("run",) else ""),
    )


def _last_known(folder: Path) -> str:
    progress = read_progress(folder)
    if progress is None or not progress.doing:
        return ""
    of = f" of {progress.steps}" if progress.steps is not None else ""
    step = f", step {progress.step}{of}" if progress.step is not None else ""
    return f" (last seen: {progress.doing}{step})"


def _of_rows(rows: RunRows, run_id: str) -> Result:
    """Return the result that rows show, which were made before the kill."""
    known = {one.value: one for one in Status}
    metrics = tuple(
        Metric(
            metric=cells.get("metric", ""),
            text=cells["performance"],
            status=known.get(cells.get("status", ""), Status.FAILURE),
            value=float(cells["performance"]) if as_number(cells["performance"]) is not None else None,
        )
        for cells in rows.cells
        if cells.get("performance")
    )
    statuses = [known.get(cells.get("status", ""), Status.FAILURE) for cells in rows.cells]
    status = next((one for one in statuses if one is not Status.SUCCESS), Status.SUCCESS)
    why = "madlite was killed after the run had its row: the record has what the row says"
    return Result(
        plan_id=run_id, status=status, metrics=metrics, reason="" if status is Status.SUCCESS else why, findings=(why,)
    )


def _durations_s(folder: Path, started: str) -> dict[str, float]:
    """Return how long the run and its session went on, as far as its log and the handle of the session show."""
    found = {"total": 0.0}
    with suppress(OSError, ValueError):
        end_s = (folder / LOG).lstat().st_mtime
        found["total"] = max(0.0, round(end_s - datetime.fromisoformat(started).timestamp(), 3))
        found["run"] = max(0.0, round(end_s - (folder / HANDLE).lstat().st_mtime, 3))
    return found


def _output(plan: RunPlan, result: Result, start: RunStart) -> RunOutput:
    return make_output(
        plan,
        result,
        pipeline=start.pipeline,
        build_number=start.build_number,
        strict_header=start.strict_header,
        columns=start.columns,
        mask=Redactor().text,
    )
