"""The way of a job from the cluster's queue to the row of its run: pending → running → over → collected.

A run's own result.json is the truth.  The scheduler's word counts where there is none, and where a signal ended the
run: then it says why the signal came.  Nothing here prints, and nothing waits.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from madlite.batch.collect import Collected, collect_all
from madlite.errors import RecordError, RuntimeProblem
from madlite.files import tells_no_space
from madlite.jobs.followers import Followers
from madlite.jobs.outcomes import (
    CANCELLED,
    Left,
    Over,
    end_of,
    last_error,
    left_by,
    madlite_ended,
    note_next,
    refused_end,
    why_never,
    write_end,
)
from madlite.jobs.submission import UNKNOWN_JOB, Stored, note, read_stored, settle, submitting
from madlite.model import Cause, RunPlan, Value
from madlite.perfcsv.rows import new_columns
from madlite.perfcsv.side_files import write_waiting
from madlite.plan.context import Options
from madlite.plan.inputs import RUNS, expand_hosts
from madlite.plan.schedulers import JobEnd, JobState, Refused, Scheduler, Unreachable, cancelled_end
from madlite.plan.submission import HEALTH, JobRun, JobScript, RetryPolicy
from madlite.platforms.node_check import unhealthy
from madlite.store.events import EVENTS, JobEvent, is_own
from madlite.store.folder import (
    RESULT,
    Progress,
    RunFolder,
    exists,
    is_alive,
    is_uncollected,
    read_progress,
    was_disk_full,
)
from madlite.store.record import read_plan as plan_in
from madlite.store.record import read_record, result_of

POLL_S = 10.0  # between two questions to the scheduler
GRACE_S = 5.0  # after the end of a job, for its files to be seen here
_NEVER_POLLS = 3  # for which a job waits for what never comes before it is cancelled
_TRIES = 3  # of collecting a run that cannot be
_MOST_SICK = 3  # nodes that a run may be refused by
_SUBMIT = RetryPolicy(wait_s=2.0)
_LONGEST_PAUSE_S = 30.0

NOT_ASKED = JobState(stage="unknown")  # of a job that the scheduler has not been asked about yet
_SUBMITTED = JobState(state="PENDING", stage="pending")
_RETRIED = replace(_SUBMITTED, reason="Retry")

Done: TypeAlias = tuple[Collected, RunPlan | None]
"""What became of a run, and the plan of the attempt that its result is of, where that can be read."""


class Patience:
    """The one clock of what is waited for: since when it is, in seconds and in answers of a scheduler."""

    def __init__(self) -> None:
        self.answers = 0
        self._since: dict[Hashable, tuple[float, int]] = {}

    def _begin(self, what: Hashable) -> tuple[float, int]:
        return self._since.setdefault(what, (time.monotonic(), self.answers))

    def seconds(self, what: Hashable) -> float:
        """Return for how long this is so, which begins with the first question."""
        return time.monotonic() - self._begin(what)[0]

    def polls(self, what: Hashable) -> int:
        """Return how often the scheduler has answered since the first question."""
        return self.answers - self._begin(what)[1]

    def is_due(self, what: Hashable, every_s: float) -> bool:
        """Return whether this is to be done now, the first time and then every so often; it counts as done."""
        if what in self._since and self.seconds(what) < every_s:
            return False
        self.forget(what)
        self._begin(what)
        return True

    def forget(self, what: Hashable) -> None:
        """Let this begin anew."""
        self._since.pop(what, None)


class RunState(Value, frozen=True):
    """How far a submitted run is: its job, the scheduler's word, and the run's own.

    `word` is a state for people: `PENDING`, `RUNNING`, …, `over`, `unknown`, `not submitted`, `refused`.
    """

    run: JobRun
    job: str
    word: str
    state: JobState = JobState()
    progress: Progress | None = None


def summary_text(states: Sequence[RunState]) -> str:
    """Return how many runs wait, run and the like: `2 running, 18 pending (Resources)`."""
    counts = Counter((state.word, state.state.reason if state.word == "PENDING" else "") for state in states)
    words = [f"{n} {word.lower()}{f' ({reason})' if reason else ''}" for (word, reason), n in counts.items()]
    return ", ".join(words)


class Job:
    """What this process has seen of one job of a run; its id is "" where none is known."""

    def __init__(self, run: JobRun, job_id: str, state: JobState = NOT_ASKED) -> None:
        self.run, self.id = run, job_id
        self.state = state  # the scheduler's last word
        self.is_cancelled = False  # by this process
        self.failures = 0  # of collecting the run
        self.nodes = ""  # the last ones that it was seen on
        self.retry_s = 0.0  # when a further attempt may begin


class JobTracker:
    """The runs of one submission and their jobs, until each run has its row or a reason for none."""

    def __init__(self, stored: Stored, scheduler: Scheduler, options: Options) -> None:
        self.stored, self.scheduler, self.followers = stored, scheduler, Followers()
        self.id, self.workspace, self.output = stored.submission.id, stored.folder.parent.parent, options.output
        self._options, self._patience = options, Patience()
        self._jobs: dict[tuple[str, str], Job] = {}
        self._noted_before = frozenset(stored.settled)
        self.follows = False  # whether somebody waits for runs that go on
        self.notices: list[str] = []  # for people, once each

    def is_followed(self) -> bool:
        """Return whether an open run may still come to its end: it has a job, or another command is giving it one."""
        is_submitting = self.stored.is_submitting()
        if self.stored.unsubmitted:
            self.reload()
        return any(
            job.failures < _TRIES and (job.id or self.stored.state_of(job.run).refused or is_submitting)
            for job in self._open_jobs()
        )

    def note(self, *events: JobEvent, reload: bool = True) -> None:
        """Record events of the submission, and with `reload` read what others have recorded.

        Raises:
            RuntimeProblem: they cannot be written; a job goes on, and its name finds it.
        """
        try:
            note(self.stored.folder, *events)
        except OSError as error:
            of_jobs = "".join(f", of job {event.job}, which goes on" for event in events if event.job)
            what = f"{RUNS}/{EVENTS} takes nothing of submission {self.id}{of_jobs}: {error.strerror or error}"
            raise RuntimeProblem(what, f"df -h . shows room; then madlite cluster attach {self.id}") from error
        if reload:
            self.reload()

    def reload(self) -> None:
        """Read the submission again: another process may have added to it."""
        self.stored = read_stored(self.stored.folder) or self.stored

    def _open_jobs(self) -> list[Job]:
        return list(map(self._job, self.stored.open_runs))

    def _job(self, run: JobRun) -> Job:
        """Return the job that a run has now."""
        key = run.id, self.stored.job_of(run)
        if key not in self._jobs:
            self._jobs[key] = Job(run, key[1])
        return self._jobs[key]

    def _tell(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    # Questions to the scheduler.

    def poll(self, *, cancel: bool = False) -> None:
        """Ask the scheduler about every open run by one question, and by another how jobs ended that are in no queue.

        With `cancel` their jobs are ended before that, and those that have none are given up.

        Raises:
            Unreachable: it does not answer; what was known stays.
        """
        try:
            if not self.stored.is_submitting():
                self._find_jobs()
            jobs = self._open_jobs()
            ids = [job.id for job in jobs if job.id]
            if cancel and (known := [job for job in jobs if job.id and not job.id.startswith(UNKNOWN_JOB)]):
                self.scheduler.cancel([job.id for job in known])
                for job in known:
                    job.is_cancelled = True
            asked = [job_id for job_id in ids if not self.followers.gave_up(job_id)]
            states = self.scheduler.queue(asked) if asked else {}
            if gone := [job_id for job_id in ids if job_id not in states]:
                states = {**states, **self.scheduler.ended(gone)}
            self._patience.answers += 1
        finally:
            if cancel:
                self._give_up()
        for job in jobs:
            job.state = states.get(job.id, JobState())
            job.nodes = job.state.nodes or job.nodes
            if job.state.waits:
                self._tell(f"job {job.id.partition('_')[0]} waits: {job.state.reason}; {job.state.waits}")

    # From plans to jobs: of each script it is noted that it is about to be submitted, then it is submitted, then its
    # job is noted.  Whoever submits may be killed between any two of these: the job's name finds it in the queue.

    def submit(self, limit_s: float) -> Iterator[float]:
        """Give each script without a job to the cluster, and yield how long to wait before each try.

        What it refuses is noted; one that does not answer for `limit_s` in all gets no further script.

        Raises:
            RuntimeProblem: what is done cannot be noted.
        """
        if any(map(self._is_full, self.stored.unsubmitted[:1])):
            return
        try:
            yield from self._submit(limit_s)
        finally:  # once: of a thousand scripts each event would be read a thousand times
            self.reload()

    def _submit(self, limit_s: float) -> Iterator[float]:
        with suppress(BlockingIOError), submitting(self.stored.folder):  # else another command submits it
            self.reload()  # it may have done so before the lock was this one's
            with suppress(Unreachable):
                self._find_jobs()  # an earlier command may have been cut off before it noted a job
            for script in self.stored.unsubmitted:
                if self._is_full(script):
                    return
                yield 0.0
                event, was_begun = JobEvent(script=script.number), self.stored.is_begun(script)
                self.note(event, reload=False)
                for tries in count():
                    try:
                        # it may have taken the job, and its answer did not come
                        found = self.scheduler.find([script.name]) if was_begun or tries else {}
                        job = found.get(script.name) or self.scheduler.submit(self.stored.folder, script)
                        event = replace(event, job=job)
                        break
                    except Refused as problem:
                        text = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
                        event = replace(event, refused=text)
                        break
                    except Unreachable as problem:
                        if self._patience.seconds("submission") > limit_s:
                            again = f"madlite cluster attach {self.id} tries again"
                            self.notices.append(f"{script.name} is not submitted; {again}")
                            return
                        self._tell(f"{problem.message}; it is asked again")
                    yield min(_SUBMIT.pause_s(tries), _LONGEST_PAUSE_S)
                self._patience.forget("submission")
                self.note(event, reload=bool(self.stored.submission.at_most))

    def _is_full(self, script: JobScript) -> bool:
        """Return whether more runs would go on at the same time with a script than may.

        An array has a limit of its own, of which the others know nothing: one of more runs goes on alone.
        """
        limit = self.stored.submission.at_most
        going = sum(bool(self.stored.job_of(run)) for run in self.stored.open_runs) if limit else 0
        return bool(going) and going + script.count > limit

    def _find_jobs(self) -> None:
        """Find the jobs of scripts whose submission was cut off between sbatch and its note.

        Raises:
            Unreachable: the scheduler does not answer.
        """
        lost = [script for script in self.stored.unsubmitted if self.stored.is_begun(script)]
        if not lost:
            return
        found, there = self.scheduler.find([script.name for script in lost]), _names(self.workspace / RUNS)
        for script in lost:
            if any(run.id in there for run in script.of(self.stored.submission.runs)):
                found.setdefault(script.name, UNKNOWN_JOB)  # its runs have begun, so it had one
        self.note(*(JobEvent(script=script.number, job=found[script.name]) for script in lost if script.name in found))

    def cancel_left(self) -> None:
        """End jobs that wait though all runs have their rows: a controller that was down queues such again.

        Raises:
            Unreachable: the scheduler does not answer.
        """
        jobs = [job for job in self.stored.jobs.values() if job and job != UNKNOWN_JOB]
        states = self.scheduler.queue(jobs) if jobs else {}
        if waiting := [job for job, state in states.items() if state.stage == "pending"]:
            self.scheduler.cancel(waiting)

    def _give_up(self) -> None:
        """Note the runs that have no job as cancelled, unless another command is submitting them now.

        Of a script that may have a job all the same only once the scheduler said that it has none.  Runs are not tried
        again from now on.
        """
        if self._has_jobs_of_attempts:
            with suppress(RuntimeProblem):
                numbers = {self.stored.script_of[job.run.id].number for job in self._open_jobs() if job.id}
                self.note(*(JobEvent(script=number, refused=CANCELLED) for number in sorted(numbers)))
        is_answered = self._patience.answers > 0
        scripts = [script for script in self.stored.unsubmitted if is_answered or not self.stored.is_begun(script)]
        with suppress(OSError, RuntimeProblem), submitting(self.stored.folder):
            self.note(*(JobEvent(script=script.number, refused=CANCELLED) for script in scripts))

    # What is known of each run.

    @cached_property
    def before(self) -> tuple[Done, ...]:
        """What the runs came to whose end an earlier command has noted."""
        found = []
        for run in (run for run in self.stored.submission.runs if run.id in self._noted_before):
            noted = Collected(run_id=self._left(run).folders[-1].name, message=self.stored.settled[run.id])
            done, plan = self._with_result(noted)
            if done.result is None:
                done = replace(done, message="its record is gone, and what it came to with it", failed=True)
            found.append((done, plan))
        return tuple(found)

    def _with_result(self, done: Collected) -> Done:
        """Return what became of a run with its result, which another command may have collected, and its plan."""
        record = read_record(self.workspace / RUNS / done.run_id) if done.result is None and not done.failed else None
        done = replace(done, result=result_of(record)) if record is not None else done
        if done.result is None:
            return done, None
        plan = plan_in(folder := self.workspace / RUNS / done.result.plan_id)  # a plan file takes four times as long
        plan = replace(plan, id=folder.name, folder=folder, workspace=self.workspace) if plan is not None else None
        return done, plan

    def states(self) -> tuple[RunState, ...]:
        """Return how far each open run is, by the last answer of the scheduler."""
        return tuple(map(self._run_state, self._open_jobs()))

    def _run_state(self, job: Job) -> RunState:
        if not job.id:
            is_refused = self.stored.state_of(job.run).refused
            return RunState(run=job.run, job="", word="refused" if is_refused else "not submitted")
        if self._has_jobs_of_attempts:
            left, script = self._left(job.run), self.stored.state_of(job.run)
            is_noted = left.stage == "ended" and left.following not in ("", script.attempt)
            if is_noted and not script.refused:  # and has no job yet
                return RunState(run=job.run, job=job.id, word="PENDING", state=_RETRIED)
        progress = read_progress(self._left(job.run).folders[-1]) if job.state.stage == "running" else None
        word = job.state.stage if job.state.stage == "over" else job.state.state or job.state.stage
        return RunState(run=job.run, job=job.id, word=word, state=job.state, progress=progress)

    # From the end of a job to the row of its run: what is left, how the job ended → result.json → row, record → event.

    def collect(self) -> list[Done]:
        """Write the rows of the runs that are over, all together, note them, and return what became of each."""
        jobs, there = self._open_jobs(), _names(self.workspace / RUNS)
        for job in jobs:
            self._fetch(job)
        over: dict[Job, Over] = {}
        with suppress(Unreachable):  # the others are asked about with the next look
            for job in jobs:
                if job.run.id not in there and job.state.stage == "pending" and not job.state.never:
                    self._patience.forget((job, "never"))
                elif (found := self._outcome(job, self._left(job.run))) is not None:
                    over[job] = found
        done = {job: self._with_result(collected) for job, collected in self._write_rows(over).items()}
        for text in write_waiting(self.workspace):
            self._tell(text)
        for job, (collected, _) in done.items():
            # a full disk passes: what has no row for want of room is tried for as long as that takes
            job.failures += collected.failed and not tells_no_space(collected.message)
        settled = {job.run.id: collected.message for job, (collected, _) in done.items() if not collected.failed}
        if settled:  # after the rows: of a run that is not noted its record says that it has them
            with suppress(OSError):
                self.stored = settle(self.stored.folder, settled) or self.stored
            with suppress(Unreachable):
                self.scheduler.release([job.id for job in jobs if job.id and job.run.id in settled])
        return [*done.values()]

    def _fetch(self, job: Job) -> None:
        """Begin to bring a run here whose job does not write to the working folder."""
        runtime = self.scheduler.runtime_of(job.id, ended=not self.follows) if job.id else None
        if runtime is not None:
            run = replace(job.run, id=self.stored.state_of(job.run).attempt or job.run.id)
            self.followers.follow(self.stored.folder, job.id, run, runtime, self._options.environ)

    def _left(self, run: JobRun) -> Left:
        return left_by(self.workspace / RUNS / run.id, with_attempts=self.stored.submission.retry.is_active)

    def _write_rows(self, over: Mapping[Job, Over]) -> dict[Job, Collected]:
        """Write the result of each run that left none, and all rows; return what became of runs that are done now."""
        done = {job: write_end(each, self.stored.plan_file(job.run), self._options) for job, each in over.items()}
        folders = [folder for job, each in over.items() if done[job] is None for folder in each.folders]
        for folder in folders:
            # an attempt of a run of ours: the disk was too full for its job to note it
            if folder.name not in self.stored.script_of and not is_own(folder):
                with suppress(OSError):
                    RunFolder.reopen(folder, begun=True).close()
        rows = collect_all(folders, self.workspace, self.output, new_columns(self._options.contract)) if folders else ()
        of_folder = dict(zip(folders, rows, strict=True))
        found = {job: done[job] or of_folder[each.folders[0]] for job, each in over.items()}
        return {job: collected for job, collected in found.items() if not collected.busy}  # else another command does

    def _outcome(self, job: Job, left: Left) -> Over | None:
        """Return what a run came to; None where it goes on, or its end is still to be seen."""
        if left.stage == "collected":
            return Over(left.folders[-1:])
        if left.stage == "ended":
            return None if self._is_tried_again(job, left) else self._with_named_end(job, left.folders)
        if job.id and job.state.stage == "over":
            return self._without_result(job, left)
        end = self._end_before_begin(job, is_begun=left.stage == "begun")
        return Over(left.folders[:1], end) if end is not None else None

    def _end_before_begin(self, job: Job, *, is_begun: bool) -> JobEnd | None:
        """Return why a run never begins: its job was refused, or could wait for ever and is cancelled."""
        if job.id and (job.state.stage == "unknown" or (is_begun and self._cancel_queued_again(job))):
            return None
        if not job.id:
            refused = self.stored.state_of(job.run).refused
            return refused_end(refused) if refused else None
        end = why_never(job.state)
        if end is None:
            self._patience.forget((job, "never"))
        elif self._patience.polls((job, "never")) >= _NEVER_POLLS:
            self.scheduler.cancel([job.id])
            return end
        return None

    def _with_named_end(self, job: Job, folders: Sequence[Path]) -> Over | None:
        """Return a run with results, that of its last attempt last, and where a signal ended that why it came.

        None where the job is not over yet, or the cluster does not answer.
        """
        found = Over((folders[-1], *filter(is_uncollected, folders[:-1])))  # it has taken the earlier ones' place
        cause = madlite_ended(folders[-1]) if job.id else None
        if cause is not Cause.INTERRUPTED and not (cause is Cause.PREEMPTED and self.scheduler.queues_again):
            return found
        if job.is_cancelled:  # nobody has to be asked who did it
            end = cancelled_end(job.state.nodes)
            state: JobState | None = JobState(state="CANCELLED", nodes=job.state.nodes, ended_by=end)
        else:
            self._cancel_queued_again(job)
            state = self._end(job, 0.0)
        if state is None:
            return None
        # one of no cause but the job's own says nothing of who sent the signal
        is_told = state.restarts or (state.ended_by is not None and state.ended_by.cause is not Cause.JOB)
        return replace(found, end=self._end_of(job, state, started=True)) if is_told else found

    def _cancel_queued_again(self, job: Job) -> bool:
        """End a job that the scheduler queued again after its run had begun, which is not to be repeated.

        A run may have begun, and ended, since the scheduler was asked: what waits still at the next time is meant.
        """
        if not self.scheduler.queues_again or self.stored.submission.retry.retries or job.state.stage != "pending":
            return False
        if self._patience.polls((job, "queued again")):
            self.scheduler.cancel([job.id])
        return True

    def _without_result(self, job: Job, left: Left) -> Over | None:
        """Return what a run without a result came to whose job is over; None where that may still come."""
        state = self._end(job, GRACE_S)
        if state is None:
            return None
        if any(map(is_alive, left.folders)):
            self._tell(f"{job.run.id}: job {job.id} is over and the run's processes live on; it is waited for")
            return None
        if exists(left.folders[-1] / RESULT):  # by now
            return None
        if standing := [*filter(is_uncollected, left.folders)]:  # what followed it came to nothing
            return self._with_named_end(job, standing)
        started, full = exists(left.folders[0]), any(map(was_disk_full, left.folders))
        found, nodes = ({} if started else unhealthy(self.stored.folder / HEALTH)), expand_hosts(state.nodes)
        sick = {node: why for (node, number), why in found.items() if number == job.run.number}
        if why := "; ".join(f"node {node} fails its check: {', '.join(sick[node])}" for node in nodes if node in sick):
            end = self._begin_elsewhere(job, f"{why} (job {job.id})", len(sick), sorted({node for node, _ in found}))
        else:
            end = self._end_of(job, state, started=started, disk_full=full)
        return Over(left.folders[:1], end) if end is not None else None

    def _begin_elsewhere(self, job: Job, why: str, count: int, exclude: Sequence[str]) -> JobEnd | None:
        """Give a run whose job its nodes refused to the cluster again, without those that fail their check.

        `count` nodes refused this run, `exclude` has those that refused others, too.  One that is bound to its node has
        the check as its end, and so has the run that meets another such node after `_MOST_SICK`: there the check itself
        may be at fault.
        """
        stored, script = self.stored, self.stored.script_of[job.run.id]
        end = JobEnd(Cause.NODE, why, f"madlite cluster check {stored.submission.cluster} --health")
        if script.node or count > _MOST_SICK or job.is_cancelled:
            return end
        with suppress(BlockingIOError), submitting(stored.folder):  # else another command gives it a job
            self.reload()
            if self.stored.job_of(job.run) != job.id:  # by now
                return None
            try:
                found = self.scheduler.find([script.name]).get(script.name, job.id)  # of a command that was killed here
                new = found if found != job.id else self.scheduler.submit(stored.folder, script, exclude=exclude)
            except Refused as problem:
                return replace(end, reason=f"{end.reason}, and elsewhere {problem.message}")
            self._tell(f"{job.run.id}: {end.reason}; it begins elsewhere as job {new}")
            self._jobs[job.run.id, new] = Job(job.run, new, _SUBMITTED)
            self.note(JobEvent(script=script.number, job=new))
        return None

    def _end_of(self, job: Job, state: JobState, *, started: bool, disk_full: bool = False) -> JobEnd:
        """Return why a run has no result, or a signal ended it, by the scheduler's word and its job's output."""
        error = last_error(self.stored, job.run)
        state = replace(state, nodes=state.nodes or job.nodes)  # one that was queued again has none
        if state.restarts and state.earlier is None:
            state = replace(state, earlier=self.scheduler.end_in(error, state.nodes))
        return end_of(state, job.id, error, started=started, disk_full=disk_full)

    def _end(self, job: Job, grace_s: float) -> JobState | None:
        """Return how a job ended; None where it has not, that is not known now, or its files may still come.

        They come within `grace_s` after it is seen to be over.  One that nobody knows is asked about once more.
        """
        if job.state.stage != "over":
            return None
        over_s, answers = self._patience.seconds((job, "over")), self._patience.polls((job, "over"))
        is_late = over_s >= grace_s if job.state.state else over_s >= GRACE_S and answers > 0
        return job.state if is_late else None

    # Further attempts, of schedulers whose jobs do not try again inside.  The journal of a failed attempt names the
    # next one, then the event log names its job: whoever follows may be killed between the two.

    @property
    def _has_jobs_of_attempts(self) -> bool:
        """Whether a run that is tried again gets another job."""
        return bool(self.stored.submission.retry.retries) and not self.scheduler.retries_inside

    def _is_tried_again(self, job: Job, left: Left) -> bool:
        """Return whether a run's last result is followed by another attempt, which gets its job when it is due."""
        script, following = self.stored.state_of(job.run), left.following
        if not self._has_jobs_of_attempts:
            return bool(following) and job.state.stage != "over"
        if following and following == script.attempt:
            if script.refused and job.state.stage in ("pending", "running"):
                self.scheduler.cancel([job.id])
            return job.state.stage != "over"
        if script.refused:
            return False
        if not following:
            policy = replace(self.stored.submission.retry, oom_fallback=False)  # its plan stays
            try:
                following, wait_s, text = note_next(left.folders[-1], policy)
            except (RecordError, OSError) as problem:
                return isinstance(problem, BlockingIOError)
            job.retry_s = time.monotonic() + wait_s
            self.notices += filter(None, [text])
        is_due = time.monotonic() >= job.retry_s or not self.follows
        return self._submit_again(job, following) if following and is_due else bool(following)

    def _submit_again(self, job: Job, attempt: str) -> bool:
        """Give a further attempt of a run to the cluster; return whether it goes on."""
        self.reload()
        state, script = self.stored.state_of(job.run), self.stored.script_of[job.run.id]
        if state.refused or state.attempt == attempt:  # by now
            return not state.refused
        try:
            self.scheduler.release([job.id])
            event = JobEvent(job=self.scheduler.submit(self.stored.folder, script, attempt), attempt=attempt)
            self._jobs[job.run.id, event.job] = Job(job.run, event.job, _SUBMITTED)
        except Refused as problem:
            self.notices.append(f"{job.run.id} is not tried again: {problem.message}")
            event = JobEvent(refused=problem.message)
        except Unreachable:
            job.retry_s = time.monotonic() + POLL_S
            return True
        self.note(replace(event, script=script.number))
        return not event.refused


def _names(folder: Path) -> frozenset[str]:
    """Return the names in a folder by one call: most runs of many wait, and have none there."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone
    except OSError:
        return frozenset()
