"""The result of a run that its job kept from having one: written into the run's folder, for `collect` to make a row of.

A run that never began gets its folder here; one that was cut off keeps what it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.jobs.outcomes import JobEnd
from madlite.measure.steps import Steps
from madlite.model import Diagnosis, Result, RunPlan, Runtime, Status
from madlite.plan.context import Options
from madlite.plan.plan_file import read_plan_file
from madlite.run.executor import secrets_for
from madlite.run.result_writer import ResultWriter
from madlite.run.screen import PlannedRun, Screen
from madlite.secrets import Redactor
from madlite.store.folder import RunFolder, exists
from madlite.store.stored import RunResult, load_result, result_text


class _AnySecret(Mapping[str, str]):
    """Values of secrets where none is needed: the run is over."""

    def __getitem__(self, name: str) -> str:
        return ""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def read_plan(plan_file: Path) -> RunPlan:
    """Return the plan of a run that is over, without its secrets.

    Raises:
        UsageProblem: the plan file cannot be read.
    """
    return read_plan_file(plan_file, _AnySecret()).plan


def write_failure(
    plan_file: Path, end: JobEnd, options: Options, screen: Screen, runtimes: Mapping[str, Runtime]
) -> None:
    """Write the result of a run whose job is over.

    Raises:
        BlockingIOError: a process of the run lives on.
        OSError, RecordError: the run's folder cannot be written to.
        UsageProblem: the plan file cannot be read.
    """
    saved = read_plan_file(plan_file, _AnySecret())
    plan = saved.plan
    runtime = runtimes.get(plan.runtime) or next(iter(runtimes.values()))
    one = PlannedRun(plan=plan, backends=(), files=(), runtime=runtime, context=saved.context)
    secrets = secrets_for(one, options.environ)
    mask = Redactor(secrets).text
    folder = RunFolder.reopen(plan.folder) if exists(plan.folder) else RunFolder.create(plan, (), secrets)
    try:
        options = replace(options, rows=False, command=saved.command)
        if problem := ResultWriter(one, options, screen, mask).write_result(_result(plan.id, end), Steps(), folder):
            raise RecordError(problem)
    finally:
        folder.close()


def _result(run_id: str, end: JobEnd) -> Result:
    return Result(
        plan_id=run_id,
        status=Status.FAILURE,
        cause=end.cause,
        reason=end.reason,
        diagnosis=Diagnosis(cause=end.cause.value, line="", hint=end.hint, source="job"),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def name_end(folder: Path, end: JobEnd) -> None:
    """Give the result of a run that a signal ended the reason why the scheduler sent it.

    Raises:
        OSError, RecordError: the result cannot be read or written.
    """
    stored = load_result(folder)
    record = stored.record
    if record.reason.startswith(end.reason):  # it is named, and the row was not written then
        return
    reason = f"{end.reason}; {record.reason}" if record.reason else end.reason
    rows = record.rows
    if rows is not None:
        columns = {"cause": end.cause.value, "reason": reason}
        cells = tuple({**row, **{name: columns[name] for name in columns if name in row}} for row in rows.cells)
        rows = replace(rows, cells=cells)
    diagnosis = Diagnosis(cause=end.cause.value, line="", hint=end.hint, source="job")
    named = replace(record, cause=end.cause.value, ended_by=end.cause, reason=reason, diagnosis=diagnosis, rows=rows)
    run_folder = RunFolder.reopen(folder)
    try:
        if problem := run_folder.write_result(result_text(RunResult(record=named, entries=stored.entries))):
            raise RecordError(problem)
    finally:
        run_folder.close()
