"""The ends of jobs: what each says of a run that left no result, and its row.

A run that never began gets its folder here; one that was cut off keeps what it has.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from pathlib import Path

from msgspec.structs import replace

from madlite.batch.attempts import attempt_after
from madlite.batch.collect import make_result
from madlite.batch.resume import failed_before
from madlite.errors import RecordError
from madlite.files import read_plain, tells_no_space
from madlite.jobs.submission import Stored
from madlite.model import Cause, Diagnosis, Result, RunPlan, Status
from madlite.plan.context import Options
from madlite.plan.plan_file import read_plan_file
from madlite.plan.schedulers import JobEnd, JobState
from madlite.plan.submission import OUTPUT, JobRun
from madlite.run.executor import secrets_of
from madlite.run.state import context_file
from madlite.secrets import Redactor
from madlite.store.events import now
from madlite.store.folder import RunFolder, RunStart, exists
from madlite.store.record import RunResult, load_result, result_text

CANCELLED = "cancelled before it was submitted"  # in the place of a refusal
_TERM = 128 + 15
_AGAIN = "--retry N tries a run again whose job is queued again"


def why_never(state: JobState) -> JobEnd | None:
    """Return why a waiting job can never start as it was asked for; None where it may."""
    if not state.never:
        return None
    reason = f"the job could never start ({state.reason}) and was cancelled"
    return JobEnd(cause=Cause.JOB_NEVER, reason=reason, hint=state.never)


def refused_end(text: str) -> JobEnd:
    """Return the end of a run whose job the scheduler did not take: its words, and behind the last `; ` a hint."""
    if text == CANCELLED:
        return JobEnd(cause=Cause.INTERRUPTED, reason=text)
    message, _, hint = text.rpartition("; ")
    return JobEnd(cause=Cause.JOB_REFUSED, reason=message or text, hint=hint if message else "")


def end_of(
    state: JobState, job: str, last_error: str = "", *, started: bool = False, disk_full: bool = False
) -> JobEnd:
    """Return why a run has no result, of a job that is over.

    `last_error` is the last error line of the job's output; `started` whether the run had begun, `disk_full` whether
    there was no room for its files.
    """
    if state.restarts and started:
        return _queued_again(state, job)
    if state.ended_by is not None:
        return replace(state.ended_by, reason=f"{state.ended_by.reason} ({_facts(state, job)})")
    if disk_full or tells_no_space(last_error):
        reason = f"the disk of the working folder was full, so the run left no result ({_facts(state, job)})"
        return JobEnd(cause=Cause.DISK, reason=reason, hint="df -h in the working folder; then run it again")
    if not state.state:
        asked = f" ({state.reason})" if state.reason else ""
        reason = f"the cluster does not know job {job} any more{asked}, and the run left no result"
        return JobEnd(Cause.JOB, reason, "the job's output in the submission's folder")
    return _failed(state, job, last_error)


def _queued_again(state: JobState, job: str) -> JobEnd:
    again = _AGAIN
    if state.earlier is None:
        return JobEnd(
            Cause.PREEMPTED, f"the job was queued again after the run had begun ({_facts(state, job)})", again
        )
    reason = f"{state.earlier.reason}, and the job was queued again ({_facts(state, job)})"
    return JobEnd(state.earlier.cause, reason, again)


def _failed(state: JobState, job: str, last_error: str) -> JobEnd:
    """Return the end of a job whose script ended by itself."""
    facts = f"({_facts(state, job)}){f': {last_error}' if last_error else ''}"
    if not state.succeeded and (state.code == _TERM or state.signal == 15):
        hint = "who sent it; a time limit of the site?"
        return JobEnd(Cause.KILLED, f"something ended the job by SIGTERM {facts}", hint)
    if state.signal == 9 or state.code == 128 + 9:
        return JobEnd(
            Cause.KILLED, f"something killed the job {facts}", "dmesg of the node shows whether memory ran out"
        )
    if state.succeeded and not state.derived:
        return JobEnd(
            Cause.JOB, f"the job ended without a result {facts}", "is the working folder the same on every node?"
        )
    return JobEnd(Cause.JOB, f"the job failed before the run had a result {facts}")


def _facts(state: JobState, job: str) -> str:
    code = f", exit code {state.code}" if state.code else ""
    signal = f", signal {state.signal}" if state.signal else ""
    derived = f", a step's exit code {state.derived}" if state.derived and state.derived != state.code else ""
    reason = f", {state.reason}" if state.reason not in ("", state.state) else ""
    return f"job {job} {state.state}{code}{signal}{derived}{reason}"


_LIMIT_BYTES = 1 << 20
# a line of a job's output about an error: of madlite, srun, Slurm, or bash about the script
_ERROR = re.compile(
    rb"^(?:(?:error|slurmstepd(?:-[\w.-]+)?: error|srun: error|sbatch: error):|/\S+: line \d+:)\s*(.+)$", re.MULTILINE
)


def last_error(stored: Stored, run: JobRun) -> str:
    """Return the last error line of the output of a run's job; "" for none."""
    script = stored.script_of[run.id]
    name = f"{script.number}-{run.number - script.first + 1}.out" if script.count > 1 else f"{script.number}.out"
    try:
        data = read_plain(stored.folder / OUTPUT / name, links=False, limit_bytes=_LIMIT_BYTES)
    except OSError:
        return ""
    found = _ERROR.findall(data[-65536:])
    return found[-1].decode("utf-8", "replace").strip()[:300] if found else ""


class _AnySecret(dict[str, str]):
    """Values of secrets where none is needed: the run is over."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return ""


def read_plan(plan_file: Path) -> RunPlan:
    """Return the plan of a run that is over, without its secrets.

    Raises:
        UsageProblem: the plan file cannot be read.
    """
    return read_plan_file(plan_file, _AnySecret()).plan


def write_failure(plan_file: Path, end: JobEnd, options: Options) -> None:
    """Write the result of a run whose job is over.

    Raises:
        BlockingIOError: a process of the run lives on.
        OSError, RecordError: the run's folder cannot be written to.
        UsageProblem: the plan file cannot be read.
    """
    saved = read_plan_file(plan_file, _AnySecret())
    plan, environ = saved.plan, options.environ
    secrets = secrets_of(plan, saved.context, environ)
    mask = Redactor(secrets).text
    left_out = context_file(saved.context, mask).left_out
    start = RunStart(
        strict_header=options.strict_header,
        columns=options.columns,
        pipeline=environ.get("pipeline", ""),
        build_number=environ.get("BUILD_NUMBER", "0"),
        command=saved.command,
        left_out=tuple(dict.fromkeys(left_out)),
    )
    result = Result(
        plan_id=plan.id,
        status=Status.FAILURE,
        cause=end.cause,
        reason=end.reason,
        diagnosis=Diagnosis(cause=end.cause.value, line="", hint=end.hint, source="job"),
        started=now("seconds"),
        attempt=attempt_after(failed_before(plan).get(plan.id)),
    )
    opened = RunFolder.reopen(plan.folder) if exists(plan.folder) else RunFolder.create(plan, (), secrets)
    with closing(opened) as folder:
        if problem := folder.write_result(result_text(make_result(plan, result, start, mask))):
            raise RecordError(problem)


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
    with closing(RunFolder.reopen(folder)) as run_folder:
        if problem := run_folder.write_result(result_text(RunResult(record=named, entries=stored.entries))):
            raise RecordError(problem)


def name_queued_again(folder: Path) -> None:
    """Give the result of a run that was interrupted as its job was queued again that as its reason."""
    with suppress(RecordError, OSError):  # whoever follows it reports these
        if load_result(folder).record.ended_by is Cause.INTERRUPTED:
            reason = "the job was queued again: another one preempted it, or its node was lost"
            name_end(folder, JobEnd(cause=Cause.PREEMPTED, reason=reason, hint=_AGAIN))
