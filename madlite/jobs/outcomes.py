"""The ends of jobs: what each says of a run that left no result, its row, and whether another attempt follows.

A run that never began gets its folder here; one that was cut off keeps what it has.  The journal of a failed attempt
names the next one, then the event log names its job: whoever follows may be killed between the two.

States and reasons: `man squeue`, sections JOB STATE CODES and JOB REASON CODES, of Slurm 22.05 to 24.11.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.batch.attempts import next_attempt
from madlite.errors import RecordError
from madlite.files import read_regular, tells_no_space
from madlite.jobs.schedulers import JobState, Scheduler, Unreachable
from madlite.jobs.submission import OUTPUT, PLANS, JobRun, Stored
from madlite.measure.steps import Steps
from madlite.model import Cause, Diagnosis, Result, RunPlan, Runtime, Status, Value
from madlite.plan.context import Options
from madlite.plan.plan_file import read_plan_file
from madlite.run.executor import secrets_for
from madlite.run.result_writer import ResultWriter
from madlite.run.screen import PlannedRun, Screen
from madlite.secrets import Redactor
from madlite.store.events import now
from madlite.store.folder import RunFolder, exists, new_run_id
from madlite.store.journal import RunEntry, read_run
from madlite.store.record import result_of
from madlite.store.stored import RunResult, load_result, result_text

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
    "JobHeldUser": "it is held: scontrol release starts it, madlite cancel ends it",
    "JobHeldAdmin": "who runs the cluster holds it: ask; madlite cancel ends it",
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


POLL_S = 10.0  # between two questions to the scheduler
LONG_S = 60.0  # after the end of a job, by the cluster's clock, its files certainly are seen here
_PATIENCE_S = 600.0  # for accounting that does not answer, where the controller has forgotten a job
_LIMIT_BYTES = 1 << 20
_ERROR = re.compile(
    rb"^(?:(?:error|slurmstepd(?:-[\w.-]+)?: error|srun: error|sbatch: error):|/\S+: line \d+:)\s*(.+)$", re.MULTILINE
)


class JobEnds:
    """The ends of jobs as far as the scheduler has told them; `tell` gets what people are told, once each."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._scheduler, self._clock, self._tell = scheduler, clock, tell
        self._ends: dict[str, JobState] = {}
        self._over_s: dict[str, float] = {}  # since when a job is seen to be over
        self._ask_from = 0.0  # when those whose end could not be told may be asked about again

    def __contains__(self, job: object) -> bool:
        return job in self._ends

    def of(self, job: str, others: Collection[str], *, patient: bool, grace_s: float) -> JobState | None:
        """Return how a job in no queue ended, and ask about `others` with it; None where that is not known now.

        Its files may come so much later than it is seen to be over, but for one that ended a minute ago.
        """
        over_s = self._clock() - self._over_s.setdefault(job, self._clock())
        if job not in self._ends and self._clock() >= self._ask_from:
            self._ask(job, others, over_s, grace_s, patient=patient)
        state = self._ends.get(job)
        if state is None or (over_s < grace_s and not 0 < state.ended_s < time.time() - LONG_S):
            return None
        return state

    def _ask(self, job: str, others: Collection[str], over_s: float, grace_s: float, *, patient: bool) -> None:
        found: Mapping[str, JobState] | None = None
        with suppress(Unreachable):
            found = self._scheduler.ended(list(dict.fromkeys((job, *others))))
            self._ends |= {name: state for name, state in found.items() if state.state and state.is_over}
        state = JobState() if found is None else found.get(job, JobState())
        if found is None or not state.is_over or (patient and self._waits_for_accounting(job, state, over_s)):
            self._ask_from = self._clock() + POLL_S
        elif over_s >= grace_s:
            self._ends.setdefault(job, state)
        elif job not in self._ends:
            self._ask_from = self._clock() + min(POLL_S, grace_s - over_s)

    def _waits_for_accounting(self, job: str, state: JobState, over_s: float) -> bool:
        """Return whether the end of a job that only accounting knows may still be told."""
        if state.state or not state.reason:
            return False
        self._tell(f"how job {job.partition('_')[0]} ended is not known yet: {state.reason}; accounting is waited for")
        return over_s < _PATIENCE_S


def last_error(stored: Stored, run: JobRun) -> str:
    """Return the last error line of the output of a run's job, as madlite, srun or Slurm wrote it; "" for none."""
    script = stored.script_of[run.id]
    name = f"{script.number}-{run.number - script.first + 1}.out" if script.count > 1 else f"{script.number}.out"
    try:
        data = read_regular(stored.folder / OUTPUT / name, _LIMIT_BYTES)
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
    run = PlannedRun(plan=plan, backends=(), files=(), runtime=runtime, context=saved.context)
    secrets = secrets_for(run, options.environ)
    mask = Redactor(secrets).text
    folder = RunFolder.reopen(plan.folder) if exists(plan.folder) else RunFolder.create(plan, (), secrets)
    try:
        options = replace(options, rows=False, command=saved.command)
        if problem := ResultWriter(run, options, screen, mask).write_result(_result(plan.id, end), Steps(), folder):
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


_BUSY_S = 10.0  # until a cluster that did not answer is asked again


class Retrying:
    """When the further attempts of a submission's runs are due; `say` gets what is told of them."""

    def __init__(self, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._clock, self._say = clock, say
        self._due_s: dict[str, float] = {}  # by the id of the attempt

    def follow(self, stored: Stored, run: JobRun, folder: Path) -> str:
        """Return the id of the attempt that follows the one of a folder, which has a result; "" where that stands.

        Raises:
            BlockingIOError: another process decides that now.
            OSError, RecordError, UsageProblem: the result or the plan cannot be read, or the next one not be noted.
        """
        if following := read_run(folder).next:
            return following
        record = load_result(folder).record
        result = result_of(record)
        plan = read_plan(stored.folder / PLANS / f"{run.number}.json")
        policy = replace(stored.submission.retry, oom_fallback=False)  # its plan stays
        earlier = result.attempt.earlier if result.attempt is not None else ()
        found = next_attempt(policy, plan, result, earlier)
        if found is None:
            return ""
        opened = RunFolder.reopen(folder)
        try:
            if following := read_run(folder).next:  # by now
                return following
            following = new_run_id(run.card)
            opened.note(RunEntry(at=now(), next=following))
        finally:
            opened.close()
        self._due_s[following] = self._clock() + found.wait_s
        self._say(f"{folder.name}: FAILURE [{result.code}] {result.reason}; {found.when}, as {following}")
        return following

    def is_due(self, attempt: str) -> bool:
        """Return whether an attempt has waited for long enough; one that an earlier command noted has."""
        return self._clock() >= self._due_s.get(attempt, 0.0)

    def postpone(self, attempt: str) -> None:
        """Wait a moment longer: the cluster does not answer."""
        self._due_s[attempt] = self._clock() + _BUSY_S
