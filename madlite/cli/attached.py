"""Submissions that a command follows: their state, rows and results, and the signals that end that."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from madlite.batch.attempts import exit_code
from madlite.cli import setup
from madlite.cli.terminal import echo_on
from madlite.errors import ExitCode
from madlite.files import tells_no_space
from madlite.jobs.follow import GRACE_S, POLL_S, JobTracker
from madlite.jobs.followers import scheduler_of
from madlite.jobs.submit import submit_all
from madlite.plan.context import Options
from madlite.plan.schedulers import Unreachable
from madlite.run.screen import RunOutcome
from madlite.store.folder import LOG, exists
from madlite.store.study import SUMMARY
from madlite.text import counted

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.batch.collect import Collected
    from madlite.jobs.follow import RunState
    from madlite.jobs.submission import OpenSubmission, Stored
    from madlite.model import Json, Result
    from madlite.plan.schedulers import Scheduler
    from madlite.plan.submission import JobRun, Submission


_STEPS_S = 30.0  # between two lines about the steps of running runs
_NO_ROOM = "rows wait for room on the disk (df -h .)"
_SHOWN = 8  # so many runs are named, of more their numbers


def attach(stored: Sequence[Stored], on_interrupt: str = "", output: Path | None = None) -> Attached:
    """Return submissions with what their rows are written with, into `output` or the results file of each."""
    here = Path.cwd()
    options = Options(workspace=here, output=here / (output or "perf.csv"), environ=dict(os.environ))
    return Attached(stored, options, setup.load(), on_interrupt, output)


def _scheduler_of(submission: Submission) -> Scheduler:
    """Return the scheduler of a submission, as the cluster file was then."""
    cluster = replace(submission.description, name=submission.cluster, scheduler=submission.scheduler)
    return scheduler_of(cluster, dict(os.environ))


class Attached:
    """Submissions that are followed, and where their rows go; `scheduler` is theirs where it is known already."""

    def __init__(
        self,
        stored: Sequence[Stored],
        options: Options,
        plugins: Plugins,
        on_interrupt: str,
        output: Path | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        from madlite.cli.batches import compare_run
        from madlite.cli.screens import DirectSink, PlainScreen, Sink

        self.on_interrupt = on_interrupt
        self.results: list[Result] = []
        self.failed = False
        self.study: Json = None  # what the last study that came to its end did
        self.lines: list[str] = []  # of studies, for the end
        self.screen = PlainScreen(DirectSink(sys.stdout.fileno()), live=False, compare=partial(compare_run, plugins))
        self._options = options
        self._shown = ""
        self._told: set[str] = set()
        self._steps_s = 0.0
        silent = PlainScreen(Sink(sys.stderr.fileno()), live=False)
        runtimes = setup.make_runtimes(plugins)
        self.trackers: list[JobTracker] = []
        for each in stored:
            named = each.submission
            file = options.workspace / (output or named.output)
            own = replace(options, output=file, columns=named.columns, strict_header=named.strict_header)
            self.trackers.append(JobTracker(each, scheduler or _scheduler_of(named), own, silent, runtimes))

    @property
    def is_open(self) -> bool:
        """Whether a run has neither a row nor a reason for none, and may get one."""
        return any(tracker.is_followed for tracker in self.trackers)

    @property
    def open_runs(self) -> list[JobRun]:
        """The runs that have neither a row nor a reason for none."""
        return [run for tracker in self.trackers for run in tracker.stored.open_runs]

    def has_words(self, *words: str) -> bool:
        """Return whether an open run is in one of some states, as far as the schedulers say."""
        return any(state.word in words for tracker in self.trackers for state in tracker.states())

    def poll(self) -> None:
        """Ask each scheduler; one that does not answer is told once and asked again later."""
        for tracker in self.trackers:
            if not tracker.stored.open_runs:
                continue
            try:
                tracker.poll()
            except Unreachable as problem:
                self._tell(f"{problem.message}; the jobs go on, and it is asked again")
            else:
                self._told = {text for text in self._told if "asked again" not in text}

    def collect(self, *, follows: bool = False) -> None:
        """Write the rows of what is over; with `follows` those of the others are waited for."""
        for tracker in self.trackers:
            tracker.follows = follows
            with suppress(Unreachable):
                for run, done in tracker.collect():
                    self._print(tracker, run, done)
                tracker.keep_limit()
            for text in tracker.notices:
                self._tell(text)

    def show(self) -> None:
        """Print how many runs wait and run, where that has changed, and now and then the steps of a few."""
        states = [state for tracker in self.trackers for state in tracker.states()]
        text = summary_text(states)
        if text != self._shown:
            self._shown = text
            if text:
                echo_on(text)
        if time.monotonic() - self._steps_s >= _STEPS_S:
            self._steps_s = time.monotonic()
            for state in states[:_SHOWN]:
                if state.progress is not None and state.progress.step is not None:
                    echo_on(f"  {state_line(state)}")

    def recall(self) -> None:
        """Take in, and print, what those runs came to whose end an earlier command has seen."""
        for tracker in self.trackers:
            for run, done in tracker.before:
                self._print(tracker, run, done)

    def cancel(self) -> bool:
        """End the jobs of all open runs, give up those that have none, and return whether the clusters took it."""
        problems = []
        for tracker in self.trackers:
            try:
                tracker.cancel()
            except Unreachable as problem:
                problems.append(problem)
        if problems:
            setup.warn(f"{problems[0].message}: it is asked again")
        else:
            of = counted(len(self.open_runs), "run")
            wait = f"waiting for their results or the jobs' ends, at most {_CANCEL_S:g} s"
            echo_on(f"the jobs of {of} are cancelled; {wait}")
        return not problems

    def finish(self) -> None:
        """End jobs that are left of runs that all have their rows; write what studies came to, and keep its lines."""
        for tracker in self.trackers:
            named = tracker.stored.submission
            if tracker.stored.open_runs:
                continue
            try:
                tracker.cancel_left()
            except Unreachable as problem:
                setup.warn(f"{problem.message}: whether a job is left is not known (squeue --me)")
            if named.study:
                self._finish_study(named.id, tracker.workspace)

    def _finish_study(self, study_id: str, workspace: Path) -> None:
        from madlite.cli.studies import answer_of_study
        from madlite.study.engine import runs_of_text, save_answer

        answer = answer_of_study(workspace, study_id)
        if answer is None:
            return
        self.study = msgspec.to_builtins(answer.content)
        self.lines += [*answer.lines, runs_of_text(study_id, (SUMMARY, *answer.files))]
        for text in save_answer(study_id, workspace, answer):
            setup.warn(text)

    def exit_code(self) -> int:
        """Return the exit code of the runs that have come to their end."""
        return int(ExitCode.RUN_FAILED if self.failed else exit_code(self.results))

    def outcome(self, code: int) -> RunOutcome:
        """Return what the runs came to; those that are left count as not started."""
        left = tuple(run.card for run in self.open_runs)
        return RunOutcome(results=tuple(self.results), not_started=left, exit_code=ExitCode(code))

    def close(self, code: int) -> None:
        """Print the totals of what has ended, and what studies came to."""
        from madlite.cli.batches import print_totals

        if self.results or self.lines:
            files = ", ".join(dict.fromkeys(str(tracker.output) for tracker in self.trackers))
            print_totals(self.screen, self.outcome(code), files, self.lines, self._options.contract)

    def _print(self, tracker: JobTracker, run: JobRun, done: Collected) -> None:
        if done.failed:
            full = tells_no_space(done.message)
            if (key := _NO_ROOM if full else done.message) not in self._told:  # once of all runs
                self._told.add(key)
                setup.warn(f"{done.run_id}: {done.message}{f'; {_NO_ROOM}' if full else ''}")
            self.failed = True
            return
        self.screen.end([f"{done.run_id}: {done.message}"])
        if done.result is not None:
            self.results.append(done.result)
            self._print_end(tracker, run, done.result)
        for text in done.warnings:
            setup.warn(text)

    def _print_end(self, tracker: JobTracker, run: JobRun, result: Result) -> None:
        """Print what a run on this machine ends with, too."""
        from madlite.cli.format import outcome_text, short_reason

        plan = tracker.plan_of(run, result)
        if plan is None:
            self.screen.end([f"      {outcome_text(result)}{short_reason(result)}"])
            return
        if exists(plan.folder / LOG):
            self.screen.logs(plan)
        self.screen.finished(plan, result)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            setup.warn(text)


def summary_text(states: Sequence[RunState]) -> str:
    """Return how many runs wait, run and the like: `2 running, 18 pending (Resources)`."""
    counts = Counter((state.word, state.state.reason if state.word == "PENDING" else "") for state in states)
    words = [f"{n} {word.lower()}{f' ({reason})' if reason else ''}" for (word, reason), n in counts.items()]
    return ", ".join(words)


def state_line(run_state: RunState) -> str:
    """Return a line about one open run."""
    reason = f" ({run_state.state.reason})" if run_state.state.reason else ""
    where = f" on {run_state.state.nodes}" if run_state.state.nodes else ""
    ends = f", time until {run_state.state.ends}" if run_state.state.ends and run_state.word == "RUNNING" else ""
    progress = run_state.progress
    steps = ""
    if progress is not None and progress.step is not None:
        steps = f", step {progress.step}{f' of {progress.steps}' if progress.steps else ''}"
    job = f" job {run_state.job}" if run_state.job else ""
    return f"{run_state.run.id}:{job} {run_state.word}{reason}{where}{steps}{ends}"


def state_lines(states: Sequence[RunState], most: int | None, width: int | None) -> Iterator[str]:
    """Yield lines about open runs, those in the same state and with no step in one where they are more than `most`.

    In a terminal of `width` columns a longer line is broken.
    """
    alike = Counter(map(_sort, states))
    told: set[tuple[str, str]] = set()
    for run_state in states:
        sort = _sort(run_state)
        if most is None or alike[sort] <= most or run_state.progress is not None:
            yield from _broken(state_line(run_state), width)
        elif sort not in told:
            told.add(sort)
            yield from _broken(_alike_line([each for each in states if _sort(each) == sort]), width)


def _sort(run_state: RunState) -> tuple[str, str]:
    return run_state.word, run_state.state.reason if run_state.progress is None else run_state.run.id


def _alike_line(states: Sequence[RunState]) -> str:
    """Return a line about runs in the same state: `1000 runs: PENDING (Resources), jobs 12_1 to 12_1000, 600 of a`."""
    first, last = states[0], states[-1]
    reason = f" ({first.state.reason})" if first.state.reason else ""
    jobs = f", jobs {first.job} to {last.job}" if first.job else ""
    cards = Counter(state.run.card for state in states).most_common()
    named = ", ".join(f"{count} of {card}" for card, count in cards[:3])
    more = f" and {len(cards) - 3} more cards" if len(cards) > 3 else ""
    return f"{len(states)} runs: {first.word}{reason}{jobs}, {named}{more}"


def _broken(text: str, width: int | None) -> Iterator[str]:
    """Yield a line, where it is too wide what it is about and the rest, indented."""
    if width is None or len(text) + 2 <= width:
        yield f"  {text}"
        return
    head, _, rest = text.partition(": ")
    yield f"  {head}:"
    yield from textwrap.wrap(rest, max(20, width), initial_indent=" " * 4, subsequent_indent=" " * 4)


_TICK_S = 1.0  # between two looks at the folders of runs
_CANCEL_S = 300.0  # how long the ends of cancelled jobs are waited for
_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED, signal.SIGHUP: ExitCode.HANGUP}


class _Stop:
    """The signals that came while jobs are followed; one that comes while the user is asked ends the question."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.asks = False
        self._came = threading.Event()

    @contextmanager
    def handled(self) -> Iterator[None]:
        before = {}
        for number in _CODES:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        self._came.set()
        if self.asks:
            raise KeyboardInterrupt

    def wait(self, limit_s: float) -> None:
        """Wait so long, or until a signal comes."""
        self._came.wait(limit_s)
        self._came.clear()

    def __call__(self) -> bool:
        return bool(self.received)


def follow(attached: Attached, *opened: OpenSubmission, detach: bool = False) -> int:
    """Submit what has no job yet, and follow all to their rows; return the exit code."""
    stop = _Stop()
    with stop.handled():
        for tracker in attached.trackers:
            if own := [each for each in opened if each.path == tracker.stored.folder]:
                tracker.reload()  # another command may have submitted it before the lock was this one's
                with suppress(Unreachable):
                    tracker.find_jobs()  # an earlier command may have been cut off before it noted a job
                tracker.stored = submit_all(
                    own[0], tracker.stored, tracker.scheduler, setup.warn, sleep=stop.wait, stopped=stop
                )
            _print_jobs(tracker.stored)
        attached.recall()
        return _leave(attached) if detach and not stop() else _follow(attached, stop)


def _leave(attached: Attached) -> int:
    attached.collect()  # what was refused has its row
    attached.finish()
    if attached.open_runs:
        echo_on("madlite cluster jobs shows how far they are, cluster attach follows them, runs collect writes rows")
    is_left = attached.has_words("submitting", "not submitted")
    return int(ExitCode.RUN_FAILED) if is_left else attached.exit_code()


def _print_jobs(stored: Stored) -> None:
    jobs = [state.job for state in stored.scripts.values() if state.job]
    runs = counted(len(stored.submission.runs), "run")
    if jobs:
        echo_on(f"submission {stored.submission.id}: {runs}, job{'s' if len(jobs) > 1 else ''} {' '.join(jobs)}")


def _follow(attached: Attached, stop: _Stop, *, cancel: bool = False) -> int:
    """Follow runs to their rows, with `cancel` after their jobs were ended; return the exit code.

    Results are looked at often, and the schedulers asked seldom; what was cancelled is followed for a limited time.
    """
    begun_s = time.monotonic()
    asked_s, deadline_s = (begun_s, begun_s + _CANCEL_S) if cancel else (float("-inf"), float("inf"))
    ends = cancel and not attached.cancel()  # whether not all clusters have taken that the jobs are to be ended
    first: int | None = None
    while attached.is_open or (stop.received and first is None):
        if stop.received and first is None:
            first = stop.received[0]
            if cancel or not _cancels(attached.on_interrupt, first, stop):
                break
            ends, asked_s, deadline_s = True, float("-inf"), time.monotonic() + _CANCEL_S
        elif len(stop.received) > 1 or time.monotonic() > deadline_s:
            break
        if time.monotonic() - asked_s >= POLL_S:
            asked_s = time.monotonic()
            if ends:
                ends = not attached.cancel()
            else:
                attached.poll()
        attached.collect(follows=not cancel)
        attached.show()
        if attached.is_open:
            stop.wait(_TICK_S)
    return _end(attached, first, cancelled=cancel)


def _end(attached: Attached, number: int | None, *, cancelled: bool) -> int:
    """Name what is open; return the exit code of a signal, of what is left, or of the runs, where these were wanted."""
    attached.finish()
    if ids := " ".join(tracker.stored.submission.id for tracker in attached.trackers if tracker.stored.open_runs):
        echo_on(
            f"what is open stays so; madlite cluster attach {ids} follows it, runs collect writes rows of what is over"
        )
    if number is not None:
        return int(_CODES[signal.Signals(number)])
    if ids:
        return int(ExitCode.RUN_FAILED)
    return int(ExitCode.OK) if cancelled else attached.exit_code()


def _cancels(on_interrupt: str, number: int, stop: _Stop) -> bool:
    """Return whether a signal ends the jobs, as the option, the terminal or its user has it."""
    if on_interrupt:
        return on_interrupt == "cancel"
    if number == signal.SIGHUP:
        return False
    if number != signal.SIGINT or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return len(stop.received) == 1 and _is_asked_to_cancel(stop)


def _is_asked_to_cancel(stop: _Stop) -> bool:
    """Ask whether to end the jobs; another signal and an end of the input leave them running."""
    stop.asks = True
    try:
        question = "\nthe jobs go on: leave them running, or cancel them"
        answer = click.prompt(question, type=click.Choice(["leave", "cancel"]), default="leave")
    except (KeyboardInterrupt, click.Abort):
        return False
    finally:
        stop.asks = False
    return bool(answer == "cancel")


def collect_now(attached: Attached) -> None:
    """Write the rows of what is over now, and name what goes on."""
    attached.poll()
    attached.collect()
    until_s = time.monotonic() + GRACE_S + _TICK_S
    # its files may be seen here a moment later, and what fetches them takes as long as it takes
    while any(tracker.scheduler.is_fetching for tracker in attached.trackers) or (
        attached.has_words("over") and time.monotonic() < until_s
    ):
        time.sleep(_TICK_S)
        attached.collect()
    attached.finish()
    for tracker in attached.trackers:
        if tracker.stored.open_runs:
            echo_on(
                f"submission {tracker.stored.submission.id}: {summary_text(tracker.states())}; see madlite cluster jobs"
            )


def cancel_and_collect(attached: Attached) -> int:
    """End the jobs, write the rows of their runs, and return 0 where all have come to their end."""
    stop = _Stop()
    with stop.handled():
        return _follow(attached, stop, cancel=True)
