"""From jobs to rows: the states of submitted runs, and what becomes of each that is over.

A run's own result.json is the truth.  The scheduler's word counts where there is none, and where a signal ended the
run: then it says why the signal came.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from madlite.batch.collect import Collected, attempts_of, collect_all
from madlite.errors import RecordError, UsageProblem
from madlite.files import tells_no_space
from madlite.jobs.outcomes import (
    JobEnd,
    JobEnds,
    Retrying,
    end_of,
    last_error,
    name_end,
    read_plan,
    refused_end,
    why_never,
    why_waits,
    write_failure,
)
from madlite.jobs.schedulers import JobState, Refused, Scheduler, Unreachable
from madlite.jobs.submission import (
    PLANS,
    UNKNOWN_JOB,
    JobRun,
    OpenSubmission,
    ScriptState,
    Stored,
    read_stored,
)
from madlite.model import Cause, Result, RunPlan, Runtime, Status, Value
from madlite.perfcsv.side_files import write_waiting
from madlite.plan.context import Options
from madlite.plan.inputs import RUNS
from madlite.run.screen import Screen
from madlite.store.events import JobEvent, is_own
from madlite.store.folder import (
    RECORD,
    RESULT,
    Progress,
    RunFolder,
    exists,
    is_alive,
    is_uncollected,
    read_progress,
    was_disk_full,
)
from madlite.store.journal import read_run
from madlite.store.record import result_of
from madlite.store.stored import load_result, read_record

CANCELLED = "cancelled before it was submitted"  # in the place of a refusal
GRACE_S = 5.0  # after the end of a job, for its files to be seen here
_NEVER_S = 25.0  # how long a job waits for what never comes before it is cancelled
_TRIES = 3  # of collecting a run that cannot be


class RunState(Value, frozen=True):
    """How far a submitted run is: its job, the scheduler's word, and the run's own.

    `word` is a state for people: `PENDING`, `RUNNING`, …, `not submitted`, `refused`, `submitting`.
    """

    run: JobRun
    job: str
    word: str
    state: JobState = JobState()
    progress: Progress | None = None


class Settling:
    """The runs of one submission, until each has its row or a reason for none."""

    def __init__(
        self,
        stored: Stored,
        scheduler: Scheduler,
        options: Options,
        screen: Screen,
        runtimes: Mapping[str, Runtime],
        begin: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stored, self.scheduler = stored, scheduler
        self._options, self._screen, self._runtimes, self._begin = options, screen, runtimes, begin
        self._clock = clock
        self._never: dict[str, float] = {}
        self._failures: Counter[str] = Counter()  # of collecting a run
        self._ends = JobEnds(scheduler, clock, self._tell)
        self._cancelled: set[str] = set()  # jobs that were ended here
        self._noted_before = frozenset(stored.settled)
        self._failed_runs = 0  # whose end was seen here
        self._limited = -1  # the poll after which jobs were ended for the failures of others
        self.queue: dict[str, JobState] = {}
        self._polls = 0
        self._again: dict[str, int] = {}  # the poll at which the job of a run that had begun was seen to wait
        self.polled = False  # whether the scheduler has answered, so that what it does not list is over
        self.follows = False  # whether somebody waits for runs that go on
        self.notices: list[str] = []  # for people, once each
        self._retrying = Retrying(clock, self.notices.append)

    @property
    def workspace(self) -> Path:
        """The working folder of the runs."""
        return self.stored.folder.parent.parent

    @property
    def output(self) -> Path:
        """The results file."""
        return self._options.output

    @property
    def is_followed(self) -> bool:
        """Whether an open run may still come to its end: it has a job, or is being given one."""
        return any(self._may_end(run) for run in self.stored.open_runs)

    def _may_end(self, run: JobRun) -> bool:
        if self._failures[run.id] >= _TRIES:
            return False
        return bool(self.stored.job_of(run) or self.stored.state_of(run).refused or self.stored.is_submitting())

    def cancel_left(self) -> None:
        """End jobs that wait though all runs have their rows: a controller that was down queues such again.

        Raises:
            Unreachable: the scheduler does not answer.
        """
        jobs = [job for job in self.stored.jobs.values() if job and job != UNKNOWN_JOB]
        states = self.scheduler.queue(jobs) if jobs else {}
        if waiting := [job for job, state in states.items() if state.state == "PENDING"]:
            self.scheduler.cancel(waiting)

    def reload(self) -> None:
        """Read the submission again: another process may have added to it."""
        again = read_stored(self.stored.folder)
        self.stored = again if again is not None else self.stored

    def poll(self) -> None:
        """Ask the scheduler about every open run by one question.

        Raises:
            Unreachable: it does not answer; what was known stays.
        """
        if not self.stored.is_submitting():
            self.find_jobs()
        self._ask()

    def _ask(self) -> None:
        jobs = self._open_jobs()
        self.queue = self.scheduler.queue(jobs) if jobs else {}
        self.polled = True
        self._polls += 1
        self._tell_waiting()

    def _open_jobs(self) -> list[str]:
        return [job for run in self.stored.open_runs if (job := self.stored.job_of(run))]

    def cancel(self) -> None:
        """End the jobs of all open runs, give up those that have none, and ask by one question what is left.

        Raises:
            Unreachable: the scheduler does not answer.
        """
        try:
            if not self.stored.is_submitting():
                self.find_jobs()
            if jobs := [job for job in self._open_jobs() if not job.startswith(UNKNOWN_JOB)]:
                self.scheduler.cancel(jobs)
                self._cancelled.update(jobs)
            self._ask()
        finally:
            self.give_up()

    @cached_property
    def before(self) -> tuple[tuple[JobRun, Collected], ...]:
        """The runs whose end an earlier command has noted, and what they came to."""
        return tuple(self._noted())

    def _noted(self) -> Iterator[tuple[JobRun, Collected]]:
        for run in self.stored.submission.runs:
            if run.id in self._noted_before:
                folder = self._attempts(run)[-1]
                done = self._with_result(Collected(run_id=folder.name, message=self.stored.settled[run.id]))
                what = "its record is gone, and what it came to with it"
                yield run, done if done.result is not None else replace(done, message=what, failed=True)

    def plan_of(self, run: JobRun, result: Result) -> RunPlan | None:
        """Return the plan of the attempt of a run that a result is of; None where it cannot be read any more."""
        try:
            plan = read_plan(self.stored.folder / PLANS / f"{run.number}.json")
        except UsageProblem:
            return None
        return replace(plan, id=result.plan_id, folder=self.workspace / RUNS / result.plan_id)

    def states(self) -> tuple[RunState, ...]:
        """Return how far each open run is, by the last answer of the scheduler."""
        return tuple(map(self._state, self.stored.open_runs))

    def settle(self) -> Iterator[tuple[JobRun, Collected]]:
        """Write the rows of the runs that are over, note them, and yield what became of each."""
        jobs = {job: run for run in self.stored.open_runs if (job := self.stored.job_of(run))}
        attempts = {job: self._latest(run) for job, run in jobs.items()}
        self.scheduler.fetch(self.stored.folder, attempts, ended=not self.follows)
        settled: dict[str, str] = {}
        there = _names(self.workspace / RUNS)
        try:
            for run in self.stored.open_runs:
                if run.id not in there and self._is_waiting(run):
                    continue
                done = self._settle(run)
                if done is not None:
                    settled |= {} if done.failed else {run.id: done.message}
                    self._failed_runs += done.result is not None and done.result.status is Status.FAILURE
                    # a full disk passes: what has no row for want of room is tried for as long as that takes
                    self._failures[run.id] += done.failed and not tells_no_space(done.message)
                    yield run, done
        finally:
            for text in write_waiting(self.workspace):
                self._tell(text)
            if settled:  # after the rows: of a run that is not noted its record says that it has them
                with suppress(OSError), OpenSubmission.reopen(self.stored.folder) as opened:
                    opened.settle(settled)
                with suppress(Unreachable):
                    self.scheduler.release([job for job, run in jobs.items() if run.id in settled])
                self.reload()

    def keep_limit(self) -> None:
        """End the jobs that wait once as many runs have failed as the command allows.

        Raises:
            Unreachable: the scheduler does not answer; it is asked again after the next poll.
        """
        if not self._is_limit_reached() or self._limited == self._polls:
            return
        self._limited = self._polls
        waits = [job for job in self._open_jobs() if self.queue.get(job, JobState()).state == "PENDING"]
        if jobs := [job for job in waits if job not in self._cancelled]:
            self.scheduler.cancel(jobs)
            self._cancelled.update(jobs)
            what = f"{self._limit_text()}: the job{'s' if len(jobs) > 1 else ''} of {len(jobs)} that wait"
            self.notices.append(f"{what}{'' if len(jobs) > 1 else 's'} {'are' if len(jobs) > 1 else 'is'} cancelled")

    def _is_limit_reached(self) -> bool:
        limit = self.stored.submission.max_failures
        return bool(limit) and self._failed_before + self._failed_runs >= limit

    def _limit_text(self) -> str:
        count = self.stored.submission.max_failures
        return f"{count} run{'s have' if count > 1 else ' has'} failed (--max-failures {count})"

    @cached_property
    def _failed_before(self) -> int:
        """How many runs had failed whose end an earlier command has seen."""
        before = self.before
        return sum(done.result is not None and done.result.status is Status.FAILURE for _, done in before)

    def _is_waiting(self, run: JobRun) -> bool:
        """Return whether a job waited at the last answer, and may start."""
        state = self.queue.get(self.stored.job_of(run))
        return state is not None and state.state == "PENDING" and why_never(state) is None

    def give_up(self) -> None:
        """Note the runs that have no job as cancelled, unless another command is submitting them now.

        Of a script that may have a job all the same only once the scheduler said that it has none.  Runs are not tried
        again from now on.
        """
        if self._has_jobs_of_attempts:
            with suppress(OSError), OpenSubmission.reopen(self.stored.folder) as opened:
                scripts = {self.stored.script_of[run.id].number for run in self.stored.open_runs}
                opened.note(*(JobEvent(script=number, is_last=True) for number in sorted(scripts)))
            self.reload()
        missing = [
            script.number
            for script in self.stored.submission.scripts
            if not (self._script(script.number).job or self._script(script.number).refused)
            and (self.polled or not self._script(script.number).begun)
        ]
        if not missing:
            return
        with suppress(OSError), OpenSubmission.reopen(self.stored.folder, submitting=True) as opened:
            opened.note(*(JobEvent(script=number, refused=CANCELLED) for number in missing))
        self.reload()

    def find_jobs(self) -> None:
        """Find the jobs of scripts whose submission was cut off between sbatch and its note.

        Raises:
            Unreachable: the scheduler does not answer.
        """
        scripts = self.stored.submission.scripts
        lost = [
            script for script in scripts if self._script(script.number).begun and not self._script(script.number).job
        ]
        lost = [script for script in lost if not self._script(script.number).refused]
        if not lost:
            return
        found = self.scheduler.find([script.name for script in lost])
        found |= {
            script.name: job
            for script in lost
            if script.name not in found and (job := self._job_in_output(script.number))
        }
        notes = [JobEvent(script=script.number, job=found[script.name]) for script in lost if script.name in found]
        if notes:
            with OpenSubmission.reopen(self.stored.folder) as opened:
                opened.note(*notes)
            self.reload()

    def _job_in_output(self, number: int) -> str:
        """Return the job of a script that has begun by what its runs wrote; "" where none has."""
        script = next(script for script in self.stored.submission.scripts if script.number == number)
        for run in self.stored.submission.runs[script.first - 1 : script.first - 1 + script.count]:
            if exists(self.workspace / RUNS / run.id):
                return UNKNOWN_JOB
        return ""

    def _script(self, number: int) -> ScriptState:
        return self.stored.scripts.get(number, ScriptState())

    def _state(self, run: JobRun) -> RunState:
        job, script = self.stored.job_of(run), self.stored.state_of(run)
        if script.refused:
            return RunState(run=run, job="", word="refused")
        if not job:
            submitting = self.stored.is_submitting() or script.begun
            return RunState(run=run, job="", word="submitting" if submitting else "not submitted")
        if self._has_jobs_of_attempts and self._waits_for_retry(run):
            return RunState(run=run, job=job, word="PENDING", state=JobState(state="PENDING", reason="Retry"))
        state = self.queue.get(job, JobState())
        progress = read_progress(self._attempts(run)[-1]) if state.state in ("RUNNING", "COMPLETING") else None
        return RunState(run=run, job=job, word=state.state or "over", state=state, progress=progress)

    def _tell_waiting(self) -> None:
        for run in self.stored.open_runs:
            state = self.queue.get(self.stored.job_of(run), JobState())
            if hint := why_waits(state):
                self._tell(f"job {self.stored.job_of(run).partition('_')[0]} waits: {state.reason}; {hint}")

    def _tell(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def _settle(self, run: JobRun) -> Collected | None:
        """Return what became of a run; None where it goes on."""
        attempts = self._attempts(run)
        folder = attempts[-1]
        if exists(folder / RECORD):
            return self._with_result(Collected(run_id=run.id, message="collected already"))
        if exists(folder / RESULT):
            stands = is_uncollected(folder) and not self._is_tried_again(run, folder)
            return self._collect(run, attempts) if stands else None
        script = self.stored.state_of(run)
        if script.refused == CANCELLED:
            return self._fail(run, JobEnd(cause=Cause.INTERRUPTED, reason=CANCELLED))
        if script.refused:
            return self._fail(run, refused_end(script.refused))
        job = self.stored.job_of(run)
        if not job or not self.polled:
            return None
        if job in self.queue:
            return None if exists(folder) and self._cancel_queued_again(run) else self._cancel_never(run, job)
        return self._fail_over(run, job, attempts)

    def _attempts(self, run: JobRun) -> tuple[Path, ...]:
        """Return the folders of a run's attempts; the first one's also where it is not there yet."""
        folder = self.workspace / RUNS / run.id
        return (attempts_of(folder) if self.stored.submission.retry.is_active else ()) or (folder,)

    @property
    def _has_jobs_of_attempts(self) -> bool:
        """Whether a run that is tried again gets another job."""
        return bool(self.stored.submission.retry.retries) and not self.scheduler.retries_inside

    def _latest(self, run: JobRun) -> JobRun:
        """Return a run under the id of the attempt whose job is the last one."""
        return replace(run, id=self.stored.state_of(run).attempt or run.id)

    def _waits_for_retry(self, run: JobRun) -> bool:
        """Return whether a run has failed and its next attempt has no job yet."""
        folder, state = self._attempts(run)[-1], self.stored.state_of(run)
        following = read_run(folder).next
        return bool(following) and following != state.attempt and not state.is_last and is_uncollected(folder)

    def _is_tried_again(self, run: JobRun, folder: Path) -> bool:
        """Return whether a run's last result is followed by another attempt, which gets its job when it is due."""
        state, job = self.stored.state_of(run), self.stored.job_of(run)
        following = read_run(folder).next
        if not self._has_jobs_of_attempts or following == state.attempt != "":
            if state.is_last and job in self.queue:
                self.scheduler.cancel([job])
            return bool(following) and (not self.polled or job in self.queue)
        if state.is_last:
            return False
        try:
            following = self._retrying.follow(self.stored, run, folder)
        except BlockingIOError:
            return True
        except (RecordError, UsageProblem, OSError):
            return False
        if following and (self._retrying.is_due(following) or not self.follows):
            return self._submit_again(run, following)
        return bool(following)

    def _submit_again(self, run: JobRun, attempt: str) -> bool:
        """Give a further attempt of a run to the cluster; return whether it goes on."""
        self.reload()
        state, script = self.stored.state_of(run), self.stored.script_of[run.id]
        if state.is_last or state.attempt == attempt:  # by now
            return not state.is_last
        try:
            self.scheduler.release([self.stored.job_of(run)])
            job = self.scheduler.submit(self.stored.folder, script, attempt)
            note = JobEvent(script=script.number, job=job, attempt=attempt)
            self.queue[job] = JobState(state="PENDING")
        except Refused as problem:
            self.notices.append(f"{run.id} is not tried again: {problem.message}")
            note = JobEvent(script=script.number, is_last=True)
        except Unreachable:
            self._retrying.postpone(attempt)
            return True
        with OpenSubmission.reopen(self.stored.folder) as opened:
            opened.note(note)
        self.reload()
        return not note.is_last

    def _collect(self, run: JobRun, attempts: Sequence[Path]) -> Collected | None:
        folder = attempts[-1]
        with suppress(RecordError, OSError):
            record = load_result(folder).record
            if record.status is Status.FAILURE and record.ended_by is Cause.INTERRUPTED and self.stored.job_of(run):
                state = self._end_of_interrupted(run)
                if state is None:
                    return None  # it is not over yet, or the cluster does not answer
                if state.restarts or state.state not in ("", "DELETED", "COMPLETED", "FAILED"):
                    job = self.stored.job_of(run)
                    end = end_of(state, job, last_error(self.stored, run), started=True)
                    name_end(folder, self._named(end) if job in self._cancelled else end)
        done = self._rows(folder)
        for earlier in filter(is_uncollected, attempts[:-1]):  # of which this one has taken the place
            self._rows(earlier)
        return done

    def _end_of_interrupted(self, run: JobRun) -> JobState | None:
        """Return why the job of a run was ended by a signal; nobody has to be asked who did it himself."""
        job = self.stored.job_of(run)
        if job in self._cancelled:
            return JobState(state="CANCELLED", nodes=self.queue.get(job, JobState()).nodes)
        self._cancel_queued_again(run)
        return self._end(job)

    def _rows(self, folder: Path) -> Collected | None:
        """Return what became of a run with a result; None while another command writes its rows."""
        if not is_own(folder):  # an attempt of a run of ours: the disk was too full for its job to note it
            with suppress(OSError):
                RunFolder.reopen(folder, begun=True).close()
        done = next(iter(collect_all([folder], self.workspace, self._options.output, self._begin)))
        return None if done.busy else self._with_result(done)

    def _with_result(self, done: Collected) -> Collected:
        """Return what became of a run with its result, which another command may have collected."""
        record = read_record(self.workspace / RUNS / done.run_id) if done.result is None and not done.failed else None
        return replace(done, result=result_of(record)) if record is not None else done

    def _cancel_queued_again(self, run: JobRun) -> bool:
        """End a job that the scheduler queued again after its run had begun, which is not to be repeated.

        A run may have begun, and ended, since the scheduler was asked: what waits still at the next time is meant.
        """
        job = self.stored.job_of(run)
        if not self.scheduler.queues_again or self.stored.submission.retry.retries:
            return False
        if self.queue.get(job, JobState()).state != "PENDING":
            return False
        if self._again.setdefault(run.id, self._polls) < self._polls:
            self.scheduler.cancel([job])
        return True

    def _cancel_never(self, run: JobRun, job: str) -> Collected | None:
        end = why_never(self.queue[job])
        if end is None:
            self._never.pop(run.id, None)
            return None
        since = self._never.setdefault(run.id, self._clock())
        if self._clock() - since < _NEVER_S:
            return None
        self.scheduler.cancel([job])
        return self._fail(run, end)

    def _fail_over(self, run: JobRun, job: str, attempts: Sequence[Path]) -> Collected | None:
        state = self._end(job, GRACE_S)
        if state is None:
            return None
        if any(map(is_alive, attempts)):
            self._tell(f"{run.id}: job {job} is over and the run's processes live on; it is waited for")
            return None
        if exists(attempts[-1] / RESULT):  # by now
            return None
        if standing := [attempt for attempt in attempts if is_uncollected(attempt)]:  # what followed it came to nothing
            return self._collect(run, standing)
        started, full = exists(attempts[0]), any(map(was_disk_full, attempts))
        end = end_of(state, job, last_error(self.stored, run), started=started, disk_full=full)
        return self._fail(run, end if started else self._named(end))

    def _named(self, end: JobEnd) -> JobEnd:
        """Return the end of a job that was cancelled with the failures of others, where those were the reason."""
        if end.cause is not Cause.INTERRUPTED or not self._is_limit_reached():
            return end
        return replace(end, reason=f"{self._limit_text()}: {end.reason}")

    def _end(self, job: str, grace_s: float = 0.0) -> JobState | None:
        """Return how a job ended; None where it has not, or the cluster does not answer now."""
        if job in self.queue:
            return None
        others = [open_job for open_job in self._open_jobs() if not (open_job in self.queue or open_job in self._ends)]
        return self._ends.of(job, others, patient=self.follows, grace_s=grace_s)

    def _fail(self, run: JobRun, end: JobEnd) -> Collected | None:
        plan_file = self.stored.folder / PLANS / f"{run.number}.json"
        folder = self.workspace / RUNS / run.id
        begun = exists(folder)
        try:
            write_failure(plan_file, end, self._options, self._screen, self._runtimes)
        except BlockingIOError:
            return None
        except (RecordError, UsageProblem) as problem:
            if not (begun or tells_no_space(problem.message)) and exists(folder):  # by another command, at this moment
                return None
            return Collected(run_id=run.id, message=f"no row: {problem.message}", failed=True)
        except OSError as problem:
            return Collected(run_id=run.id, message=f"no row: {problem.strerror or problem}", failed=True)
        return self._rows(folder)


def _names(folder: Path) -> frozenset[str]:
    """Return the names in a folder by one call: most runs of many wait, and have none there."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone
    except OSError:
        return frozenset()
