"""The ends of jobs: what each says of a run that left no result, and its row.

A run that never began gets its folder here; one that was cut off keeps what it has.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from madlite.batch.attempts import attempt_after, next_attempt
from madlite.batch.collect import Collected, attempts_of
from madlite.batch.resume import failed_before
from madlite.errors import RecordError, UsageProblem
from madlite.files import read_plain, tells_no_space
from madlite.jobs.submission import Stored
from madlite.model import Cause, Diagnosis, Result, Status, Value
from madlite.perfcsv.side_files import make_result
from madlite.plan.context import Options
from madlite.plan.plan_file import read_plan_file
from madlite.plan.schedulers import JobEnd, JobState
from madlite.plan.submission import OUTPUT, JobRun, RetryPolicy
from madlite.run.executor import secrets_of
from madlite.run.state import context_file
from madlite.secrets import Redactor
from madlite.store.events import now
from madlite.store.folder import RECORD, RESULT, RunEntry, RunFolder, RunStart, exists, left_run, new_run_id, read_run
from madlite.store.record import RunResult, load_result, read_plan, result_of, result_text

CANCELLED = "cancelled before it was submitted"  # in the place of a refusal
_TERM = 128 + 15
_AGAIN = "--retry N tries a run again whose job is queued again"


class Left(NamedTuple):
    """What a run left: the folders of its attempts, the first one's also where it is not there yet.

    `stage` is how far the last one is: `ended` once no madlite writes to it any more, `collected` with its record.
    `following` is the attempt that comes after it.
    """

    folders: tuple[Path, ...]
    stage: Literal["", "begun", "ended", "collected"]
    following: str = ""


def left_by(folder: Path, *, with_attempts: bool) -> Left:
    """Return what a run left in the folder of its first attempt, and where it may have others in theirs."""
    folders = (attempts_of(folder) if with_attempts else ()) or (folder,)
    last = folders[-1]
    if exists(last / RECORD):
        return Left(folders, "collected")
    if exists(last / RESULT) and (run := left_run(last)) is not None and run.state == "uncollected":
        return Left(folders, "ended", run.journal.next)
    return Left(folders, "begun" if exists(last) else "")


class Over(Value, frozen=True):
    """A run that has come to its end: the folders with its results, that of its last attempt first.

    `end` is why its job ended where the run itself left no result, or does not know it.
    """

    folders: tuple[Path, ...]
    end: JobEnd | None = None


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
    facts, earlier = _facts(state, job), state.earlier
    if earlier is None:
        return JobEnd(Cause.PREEMPTED, f"the job was queued again after the run had begun ({facts})", _AGAIN)
    return JobEnd(earlier.cause, f"{earlier.reason}, and the job was queued again ({facts})", _AGAIN)


def _failed(state: JobState, job: str, last_error: str) -> JobEnd:
    """Return the end of a job whose script ended by itself."""
    facts = f"({_facts(state, job)}){f': {last_error}' if last_error else ''}"
    cause, what, hint = Cause.JOB, "the job failed before the run had a result", ""
    if not state.succeeded and (state.code == _TERM or state.signal == 15):
        cause, what, hint = Cause.KILLED, "something ended the job by SIGTERM", "who sent it; a time limit of the site?"
    elif state.signal == 9 or state.code == 128 + 9:
        cause, what, hint = Cause.KILLED, "something killed the job", "dmesg of the node shows whether memory ran out"
    elif state.succeeded and not state.derived:
        what, hint = "the job ended without a result", "is the working folder the same on every node?"
    return JobEnd(cause, f"{what} {facts}", hint)


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


def write_end(over: Over, plan_file: Path, options: Options) -> Collected | None:
    """Write why a run's job ended to its result, which is made where there is none; return what kept it from that.

    Of a result that is there the end is named if that can be done.
    """
    folder = over.folders[0]
    if over.end is None:
        return None
    if exists(folder / RESULT):
        _name_end(folder, over.end)
        return None
    begun = exists(folder)
    try:
        _write_failure(plan_file, over.end, options)
    except (RecordError, UsageProblem, OSError) as problem:
        what = getattr(problem, "message", "") or getattr(problem, "strerror", "") or str(problem)
        # a process of the run lives on, or another command has made its folder at this moment
        by_another = not (isinstance(problem, OSError) or begun or tells_no_space(what)) and exists(folder)
        busy = isinstance(problem, BlockingIOError) or by_another
        return Collected(run_id=folder.name, message=f"no row: {what}", failed=True, busy=busy)
    return None


def _write_failure(plan_file: Path, end: JobEnd, options: Options) -> None:
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
    start = RunStart(
        strict_header=options.strict_header,
        columns=options.columns,
        pipeline=environ.get("pipeline", ""),
        build_number=environ.get("BUILD_NUMBER", "0"),
        command=saved.command,
        left_out=tuple(dict.fromkeys(context_file(saved.context, mask).left_out)),
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


def _name_end(folder: Path, end: JobEnd) -> None:
    """Give the result of a run that a signal ended the reason why the scheduler sent it, if that can be done."""
    try:
        stored = load_result(folder)
    except (RecordError, OSError):
        return
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
    with suppress(RecordError, OSError), closing(RunFolder.reopen(folder)) as run_folder:
        run_folder.write_result(result_text(RunResult(record=named, entries=stored.entries)))


def madlite_ended(folder: Path) -> Cause | None:
    """Return why madlite itself ended a run that failed; None of any other, or where that cannot be read."""
    with suppress(RecordError, OSError):
        record = load_result(folder).record
        return record.ended_by if record.status is Status.FAILURE else None
    return None


def note_next(folder: Path, policy: RetryPolicy) -> tuple[str, float, str]:
    """Note the attempt that follows one with a result: its id, after how long it begins, and a sentence on it.

    The id is "" where the result stands.

    Raises:
        BlockingIOError: another process decides that now.
        OSError, RecordError: the result cannot be read, or the next one not be noted.
    """
    result, plan = result_of(load_result(folder).record), read_plan(folder)
    earlier = result.attempt.earlier if result.attempt is not None else ()
    found = next_attempt(policy, plan, result, earlier) if plan is not None else None
    if plan is None or found is None:
        return "", 0.0, ""
    with closing(RunFolder.reopen(folder)) as opened:
        if following := read_run(folder).next:  # by now
            return following, 0.0, ""
        following = new_run_id(plan.card.name)
        opened.note(RunEntry(at=now(), next=following))
    why = f"{folder.name}: FAILURE [{result.code}] {result.reason}"
    return following, found.wait_s, f"{why}; {found.when}, as {following}"


def name_queued_again(folder: Path) -> None:
    """Give the result of a run that was interrupted as its job was queued again that as its reason."""
    if madlite_ended(folder) is Cause.INTERRUPTED:
        reason = "the job was queued again: another one preempted it, or its node was lost"
        _name_end(folder, JobEnd(cause=Cause.PREEMPTED, reason=reason, hint=_AGAIN))
