"""One flow for the jobs of submissions: submit what has no job, ask, write rows of what is over, until that is done.

`madlite run --cluster` and `cluster attach` submit and follow, `cluster cancel` ends and follows, `runs collect` looks
once.  Nothing here prints: what people should know goes to a `JobScreen`.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Protocol

from madlite.batch.attempts import exit_code
from madlite.batch.collect import Collected
from madlite.cancellation import Interrupted
from madlite.errors import ExitCode
from madlite.files import tells_no_space
from madlite.jobs import job
from madlite.jobs.job import JobTracker, Patience, RunState, summary_text
from madlite.model import Result, RunPlan
from madlite.plan.schedulers import Unreachable
from madlite.plan.submission import JobRun
from madlite.run.screen import RunOutcome
from madlite.run.stop import Signals
from madlite.text import counted

SUBMIT_S = 600.0  # how long a cluster that does not answer is waited for at the submission
TICK_S = 1.0  # between two looks at the folders of runs
_CANCEL_S = 300.0  # how long the ends of cancelled jobs are waited for
_HOOKS_S = 60.0  # for plugins that are told of a run of this process
_NO_ROOM = "rows wait for room on the disk (df -h .)"
_AGAIN = "the jobs go on, and it is asked again"


class Until(Enum):
    """When jobs are not followed any more."""

    COLLECTED = "all runs have their rows"
    CANCELLED = "all jobs were ended, and their runs have their rows"
    SUBMITTED = "each run has a job, or a row that says why it has none"
    LOOKED = "what is over now has its rows"


class JobScreen(Protocol):
    """What people are told while jobs are followed, and what they are asked."""

    def say(self, text: str) -> None:
        """Print a line."""

    def warn(self, text: str) -> None:
        """Print a warning."""

    def states(self, states: Sequence[RunState]) -> None:
        """Print how far open runs are, where that has changed."""

    def ended(self, done: Collected, plan: RunPlan | None) -> None:
        """Print what a run came to; `plan` is that of its last attempt, None where it cannot be read any more."""

    def asks(self) -> bool:
        """Return whether somebody is there to be asked."""

    def wants_cancel(self) -> bool:
        """Ask whether the jobs are to be ended; an end of the input leaves them running."""


class Follower:
    """Follows the jobs of submissions to the rows of their runs; `results` and `failed` are what these came to."""

    def __init__(self, trackers: Sequence[JobTracker], screen: JobScreen, on_interrupt: str = "") -> None:
        self.trackers, self._screen, self._on_interrupt = trackers, screen, on_interrupt
        self.results: list[Result] = []
        self.failed = False  # whether a run could not be collected
        self._signals, self._patience = Signals(), Patience()
        self._told: set[str] = set()
        self._until = Until.LOOKED
        self._was_fetching = self._was_late = False
        self._is_cancelling = False  # until all clusters have taken that

    @property
    def open_runs(self) -> list[JobRun]:
        """The runs that have neither a row nor a reason for none."""
        return [run for tracker in self.trackers for run in tracker.stored.open_runs]

    def outcome(self, code: int) -> RunOutcome:
        """Return what the runs came to; those that are left count as not started."""
        left = tuple(run.card for run in self.open_runs)
        return RunOutcome(results=tuple(self.results), not_started=left, exit_code=ExitCode(code))

    def submit_and_follow(self, *, detach: bool = False, before: bool = True) -> int:
        """Submit what has no job yet, and follow all jobs, with `detach` no further; return the exit code.

        With `before` runs count that had come to their end, too.
        """
        with self._signals:
            for tracker in self.trackers:
                self._submit(tracker)
                if jobs := [state.job for state in tracker.stored.scripts.values() if state.job]:
                    runs = counted(len(tracker.stored.submission.runs), "run")
                    where = f" to {tracker.stored.submission.cluster}" if len(self.trackers) > 1 else ""
                    names = f"job{'s' if len(jobs) > 1 else ''} {' '.join(jobs)}"
                    self._screen.say(f"submission {tracker.id}{where}: {runs}, {names}")
            for tracker in self.trackers if before else ():
                for done, plan in tracker.before:
                    self._ended(done, plan)
            return self._follow(Until.SUBMITTED if detach and not self._signals.received else Until.COLLECTED)

    def cancel(self) -> int:
        """End the jobs and write the rows of their runs; return 0 where all have come to their end."""
        with self._signals:
            return self._follow(Until.CANCELLED)

    def collect(self) -> int:
        """Write the rows of what is over now; return the exit code of these runs."""
        return self._follow(Until.LOOKED)

    def _submit(self, tracker: JobTracker) -> None:
        for pause_s in tracker.submit(SUBMIT_S):
            self._warn_once(*tracker.notices)
            self._signals.wait(pause_s)
            if self._signals.received:
                break
        self._warn_once(*tracker.notices)

    # From jobs to rows.

    def _follow(self, until: Until) -> int:
        """Follow jobs until then, or until signals end that; return the exit code."""
        self._begin(until)
        is_signalled = False
        while True:
            if self._signals.received and not is_signalled:
                is_signalled = True
                if self._until is not Until.COLLECTED or not self._is_to_cancel():
                    break
                self._begin(Until.CANCELLED)
            elif len(self._signals.received) > 1:
                break
            self._look()
            if self._goes_on():
                self._signals.wait(TICK_S)
            elif is_signalled or not self._signals.received:
                break
        self._await_hooks()
        return self._end()

    def _await_hooks(self) -> None:
        """Let what this process fetched itself come to its end: plugins are told of a run after its result is there."""
        while self._until in (Until.COLLECTED, Until.CANCELLED) and self._is_fetching() and not self._signals.received:
            if self._patience.seconds("hooks") > _HOOKS_S:
                break
            self._signals.wait(TICK_S)

    def _is_fetching(self) -> bool:
        return any(tracker.followers.are_busy() for tracker in self.trackers)

    def _begin(self, until: Until) -> None:
        self._until, self._is_cancelling = until, until is Until.CANCELLED
        self._patience.forget("question")

    def _goes_on(self) -> bool:
        if self._until is Until.COLLECTED:
            return any(tracker.is_followed() for tracker in self.trackers)
        if self._until is Until.CANCELLED:
            is_late = self._patience.seconds(self._until) > _CANCEL_S
            return not is_late and any(tracker.is_followed() for tracker in self.trackers)
        if self._until is Until.LOOKED:
            # files may be seen here a moment later, and what fetches them takes as long as it takes
            was_late, self._was_late = self._was_late, self._patience.seconds(self._until) >= job.GRACE_S + TICK_S
            # a look that began in time may have been too early for a row, however long this process was held up since
            return self._was_fetching or self._is_fetching() or (not was_late and self._has("over"))
        return False

    def _look(self) -> None:
        """Ask the schedulers, which is done seldom, and write the rows of what is over, which is looked at often."""
        self._was_fetching = self._is_fetching()  # before the look, which may miss what ends meanwhile
        is_followed = self._until in (Until.COLLECTED, Until.CANCELLED)
        every_s = job.POLL_S if is_followed else job.GRACE_S if self._has("over") else math.inf
        if self._until is not Until.SUBMITTED and self._patience.is_due("question", every_s):
            self.ask()
        for tracker in self.trackers:
            tracker.follows = self._until is Until.COLLECTED
            with suppress(Unreachable):
                for done, plan in tracker.collect():
                    self._ended(done, plan)
                if tracker.follows and tracker.stored.submission.at_most and tracker.stored.unsubmitted:
                    self._submit(tracker)
            self._warn_once(*tracker.notices)
        if is_followed:
            self._screen.states([state for tracker in self.trackers for state in tracker.states()])

    def ask(self) -> None:
        """Ask each scheduler, or have it end the jobs; one that does not answer is asked again."""
        problems = []
        for tracker in self.trackers:
            try:
                if tracker.stored.open_runs:
                    tracker.poll(cancel=self._is_cancelling)
            except Unreachable as problem:
                problems.append(problem.message)
        if not self._is_cancelling:
            for text in problems:
                self._warn_once(f"{text}; {_AGAIN}")
            if not problems:
                self._told = {text for text in self._told if not text.endswith(_AGAIN)}
        elif problems:
            self._screen.warn(f"{problems[0]}: it is asked again")
        else:
            wait = f"waiting for their results or the jobs' ends, at most {_CANCEL_S:g} s"
            self._screen.say(f"the jobs of {counted(len(self.open_runs), 'run')} are cancelled; {wait}")
            self._is_cancelling = False

    def _ended(self, done: Collected, plan: RunPlan | None) -> None:
        if done.failed:
            self.failed = True
            is_full = tells_no_space(done.message)  # which is said once of all runs
            text = f"{done.run_id}: {done.message}{f'; {_NO_ROOM}' if is_full else ''}"
            self._warn_once(text, what=_NO_ROOM if is_full else done.message)
        elif done.run_id not in self._told:  # it comes with each look until its end could be noted
            self._told.add(done.run_id)
            self.results += [done.result] if done.result is not None else []
            self._screen.ended(done, plan)

    def _warn_once(self, *texts: str, what: str = "") -> None:
        for text in texts:
            if (what or text) not in self._told:
                self._told.add(what or text)
                self._screen.warn(text)

    def _has(self, word: str) -> bool:
        """Return whether an open run is in a state, as far as the schedulers say."""
        return any(state.word == word for tracker in self.trackers for state in tracker.states())

    def _end(self) -> int:
        """Name what is open; return the exit code of a signal, of what is left, or of the runs."""
        for tracker in self.trackers:
            try:
                if not tracker.stored.open_runs:
                    tracker.cancel_left()
            except Unreachable as problem:
                self._screen.warn(f"{problem.message}: whether a job is left is not known (madlite cluster jobs)")
        left = [tracker for tracker in self.trackers if tracker.stored.open_runs]
        for text in self._left_texts(left) if left else ():
            self._screen.say(text)
        if (code := self._signals.exit_code) is not None:
            return int(code)
        is_unsubmitted = self._until is Until.SUBMITTED and self._has("not submitted")
        if is_unsubmitted or (left and self._until in (Until.COLLECTED, Until.CANCELLED)):
            return int(ExitCode.RUN_FAILED)
        if self._until is Until.CANCELLED:
            return int(ExitCode.OK)
        return int(ExitCode.RUN_FAILED if self.failed else exit_code(self.results))

    def _left_texts(self, left: Sequence[JobTracker]) -> Iterator[str]:
        if self._until is Until.SUBMITTED:
            yield "madlite cluster jobs shows how far they are, cluster attach follows them, runs collect writes rows"
        elif self._until is Until.LOOKED:
            for tracker in left:
                yield f"submission {tracker.id}: {summary_text(tracker.states())}; see madlite cluster jobs"
        else:
            ids = " ".join(tracker.id for tracker in left)
            follow = f"madlite cluster attach {ids} follows it, runs collect writes rows of what is over"
            yield f"what is open stays so; {follow}"

    def _is_to_cancel(self) -> bool:
        """Return whether the first signal ends the jobs, as the option, the terminal or its user has it."""
        number = self._signals.received[0]
        if self._on_interrupt:
            return self._on_interrupt == "cancel"
        if number == signal.SIGHUP:
            return False
        if number != signal.SIGINT or not self._screen.asks():
            return True
        if len(self._signals.received) > 1:
            return False
        try:
            with Signals() as others:
                return others.watch_calls(self._screen.wants_cancel)
        except Interrupted:  # another signal, as an end of the input, leaves them running
            return False
