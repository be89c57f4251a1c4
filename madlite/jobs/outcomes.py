"""The ends of jobs: what each says of a run that left no result, and its row.

A run that never began gets its folder here; one that was cut off keeps what it has.

States and reasons: `man squeue`, sections JOB STATE CODES and JOB REASON CODES, of Slurm 22.05 to 24.11.
"""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.batch.collect import make_result
from madlite.errors import RecordError
from madlite.files import read_plain, tells_no_space
from madlite.jobs.submission import Stored
from madlite.model import Cause, Diagnosis, Result, RunPlan, Status, Value
from madlite.plan.context import Options
from madlite.plan.plan_file import read_plan_file
from madlite.plan.schedulers import JobState
from madlite.plan.submission import OUTPUT, JobRun
from madlite.run.executor import secrets_of
from madlite.run.state import context_file, left_out_before
from madlite.secrets import Redactor
from madlite.store.folder import RunFolder, exists
from madlite.store.journal import RunStart
from madlite.store.stored import RunResult, load_result, result_text

CANCELLED = "cancelled before it was submitted"  # in the place of a refusal
_TERM = 128 + 15


class JobEnd(Value, frozen=True):
    """Why a run has no result of its own, as its row and its record have it."""

    cause: Cause
    reason: str
    hint: str = ""


# Reasons of a waiting job that no other job's end changes, each with what to do.
_NEVER = {
    "PartitionNodeLimit": "--nodes, or another partition: sinfo -o '%P %D %s' has the limits",
    "PartitionTimeLimit": "time of the cluster file: sinfo -o '%P %l' has each partition's limit",
    "PartitionInactive": "another partition: sinfo -s",
    "BadConstraints": "constraint, gres and nodes of the cluster file: sinfo -o '%N %f %G'",
    "InvalidAccount": "account of the cluster file: sacctmgr show assoc user=$USER",
    "InvalidQOS": "qos of the cluster file: sacctmgr show qos",
    "QOSNotAllowed": "qos of the cluster file: sacctmgr show assoc user=$USER",
    "AccountNotAllowed": "account or partition of the cluster file: scontrol show partition",
    "DependencyNeverSatisfied": "directives of the cluster file: the job that it waits for has failed",
    "ReservationDeleted": "reservation of the cluster file: scontrol show reservation",
    "PartitionConfig": "another partition: sinfo -s",
    "JobHoldMaxRequeue": "slurmd's log of the node; madlite cluster check finds bad nodes",
    "JobLaunchFailure": "slurmd's log of the node; madlite cluster check finds bad nodes",
    "launch_failed_requeued_held": "slurmd's log of the node; madlite cluster check finds bad nodes",
}
# Reasons that somebody has to end, each with how.
_HELD = {
    "JobHeldUser": "it is held: scontrol release starts it, madlite cluster cancel ends it",
    "JobHeldAdmin": "who runs the cluster holds it: ask; madlite cluster cancel ends it",
}
_NEVER_PATTERN = re.compile(r"(?:Assoc|QOS)Max\w*Per(?:Job|Node)\w*|QOSMin\w+|AssocMaxWallDurationPerJobLimit")
_LIMIT = re.compile(r"(?:Assoc|QOS)\w*(?:Limit|GRES|Grp\w+|CPUs|Node|Jobs)")  # which others of the group use up
_LIMIT_HINT = "a limit of the account or QOS: sacctmgr show assoc user=$USER; squeue -A ACCOUNT shows who uses it"


def why_never(state: JobState) -> JobEnd | None:
    """Return why a waiting job can never start as it was asked for; None where it may."""
    if state.state != "PENDING":
        return None
    hint = _NEVER.get(state.reason)
    if hint is None and _NEVER_PATTERN.fullmatch(state.reason):
        hint = _LIMIT_HINT
    if hint is None:
        return None
    return JobEnd(
        cause=Cause.JOB_NEVER, reason=f"the job could never start ({state.reason}) and was cancelled", hint=hint
    )


def why_waits(state: JobState) -> str:
    """Return a hint where a job is held, or waits for a limit of its group, and may do so for ever; "" for others."""
    if state.state != "PENDING" or why_never(state):
        return ""
    return _HELD.get(state.reason) or (_LIMIT_HINT if _LIMIT.fullmatch(state.reason) else "")


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
        return _queued_again(state, job, last_error)
    what = _ended_by(state)
    if what is not None:
        cause, reason, hint = what
        return JobEnd(cause=cause, reason=f"{reason} ({_facts(state, job)})", hint=hint)
    if disk_full or tells_no_space(last_error):
        reason = f"the disk of the working folder was full, so the run left no result ({_facts(state, job)})"
        return JobEnd(cause=Cause.DISK, reason=reason, hint="df -h in the working folder; then run it again")
    if not state.state:
        asked = f" ({state.reason})" if state.reason else ""
        return JobEnd(
            cause=Cause.JOB,
            reason=f"the cluster does not know job {job} any more{asked}, and the run left no result",
            hint="the job's output in the submission's folder",
        )
    return _failed(state, job, last_error)


# What slurmstepd writes into a job's output: `CANCELLED AT … DUE TO NODE FAILURE, SEE …`.
_DUE_TO = {"NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED", "JOB REQUEUE": "REQUEUED"}


def _queued_again(state: JobState, job: str, last_error: str) -> JobEnd:
    earlier = state.earlier or next((name for words, name in _DUE_TO.items() if f"DUE TO {words}" in last_error), "")
    what = _ended_by(replace(state, state=earlier))
    again = "--retry N tries a run again whose job is queued again"
    if what is None:
        reason = f"the job was queued again after the run had begun ({_facts(state, job)})"
        return JobEnd(cause=Cause.PREEMPTED, reason=reason, hint=again)
    return JobEnd(cause=what[0], reason=f"{what[1]}, and the job was queued again ({_facts(state, job)})", hint=again)


def _ended_by(state: JobState) -> tuple[Cause, str, str] | None:
    """Return cause, reason and hint of a job that its scheduler ended; None of others."""
    on = f" on {state.nodes}" if state.nodes else ""
    return {
        "TIMEOUT": (Cause.TIMEOUT, f"the job's time was over{on}", "a longer time in the cluster file, or fewer steps"),
        "DEADLINE": (Cause.TIMEOUT, "the job's deadline was over", "directives of the cluster file"),
        "NODE_FAIL": (Cause.NODE, f"a node of the job failed{on}", f"madlite run --exclude {state.nodes or 'NODE'}"),
        "BOOT_FAIL": (Cause.NODE, f"a node of the job did not boot{on}", "madlite run --exclude NODE"),
        "PREEMPTED": (Cause.PREEMPTED, f"the job was preempted{on}", "submit it again, or another qos"),
        "OUT_OF_MEMORY": (Cause.HOST_MEMORY, f"the job ran out of memory{on}", "mem of the cluster file"),
        "CANCELLED": (Cause.INTERRUPTED, f"the job was cancelled{on}", ""),
        "DELETED": (
            Cause.JOB,
            "the job is gone, and its log was not read before",
            "who deleted it? kubectl get events",
        ),
        "REVOKED": (Cause.INTERRUPTED, "the job was revoked", ""),
    }.get(state.state)


def _failed(state: JobState, job: str, last_error: str) -> JobEnd:
    """Return the end of a job whose script ended by itself."""
    error = f": {last_error}" if last_error else ""
    if state.state == "FAILED" and (state.code == _TERM or state.signal == 15):
        reason = f"something ended the job by SIGTERM ({_facts(state, job)}){error}"
        return JobEnd(cause=Cause.KILLED, reason=reason, hint="who sent it; a time limit of the site?")
    if state.signal == 9 or state.code == 128 + 9:
        reason = f"something killed the job ({_facts(state, job)}){error}"
        return JobEnd(cause=Cause.KILLED, reason=reason, hint="dmesg of the node shows whether memory ran out")
    if state.state == "COMPLETED" and not state.derived:
        reason = f"the job ended without a result ({_facts(state, job)}){error}"
        return JobEnd(cause=Cause.JOB, reason=reason, hint="is the working folder the same on every node?")
    return JobEnd(
        cause=Cause.JOB, reason=f"the job failed before the run had a result ({_facts(state, job)}){error}", hint=""
    )


def _facts(state: JobState, job: str) -> str:
    code = f", exit code {state.code}" if state.code else ""
    signal = f", signal {state.signal}" if state.signal else ""
    derived = f", a step's exit code {state.derived}" if state.derived and state.derived != state.code else ""
    reason = f", {state.reason}" if state.reason and state.reason not in ("NonZeroExitCode", state.state) else ""
    return f"job {job} {state.state}{code}{signal}{derived}{reason}"


_LIMIT_BYTES = 1 << 20
_ERROR = re.compile(
    rb"^(?:(?:error|slurmstepd(?:-[\w.-]+)?: error|srun: error|sbatch: error):|/\S+: line \d+:)\s*(.+)$", re.MULTILINE
)


def last_error(stored: Stored, run: JobRun) -> str:
    """Return the last error line of the output of a run's job, as madlite, srun or Slurm wrote it; "" for none."""
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
    left_out = (*left_out_before(saved.command, plan.workspace), *context_file(saved.context, mask).left_out)
    start = RunStart(
        strict_header=options.strict_header,
        columns=options.columns,
        pipeline=environ.get("pipeline", ""),
        build_number=environ.get("BUILD_NUMBER", "0"),
        command=saved.command,
        left_out=tuple(dict.fromkeys(left_out)),
    )
    with closing(
        RunFolder.reopen(plan.folder) if exists(plan.folder) else RunFolder.create(plan, (), secrets)
    ) as folder:
        if problem := folder.write_result(result_text(make_result(plan, _result(plan.id, end), start, mask))):
            raise RecordError(problem)


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
    with closing(RunFolder.reopen(folder)) as run_folder:
        if problem := run_folder.write_result(result_text(RunResult(record=named, entries=stored.entries))):
            raise RecordError(problem)
