"""Jobs of a cluster on the screen: how far they are, what their runs came to, and what a signal does with them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.collect import Collected
from madlite.cli import setup
from madlite.cli.batches import compare_run, print_totals
from madlite.cli.format import outcome_text, short_reason
from madlite.cli.screens import DirectSink, PlainScreen
from madlite.cli.terminal import echo_on
from madlite.jobs.follow import Follower
from madlite.jobs.job import JobTracker, Patience, RunState, summary_text
from madlite.jobs.submission import Stored, stored_submissions
from madlite.model import Json, RunPlan
from madlite.plan.context import Options
from madlite.platforms.registry import scheduler_of
from madlite.store.batches import SUMMARY
from madlite.store.folder import LOG, exists
from madlite.text import first_of

_STEPS_S = 30.0  # between two lines about the steps of running runs
SHOWN = 8  # so many runs (in the same state) are named, of more their number


class ClusterScreen:
    """What is printed while jobs are followed; `study` and `lines` are of the studies that came to their end."""

    def __init__(self, options: Options, plugins: Plugins) -> None:
        self.plain = PlainScreen(DirectSink(sys.stdout.fileno()), live=False, compare=partial(compare_run, plugins))
        self.study: Json = None
        self.lines: list[str] = []
        self._options, self._shown = options, ""
        self._patience = Patience()

    def follower(self, stored: Sequence[Stored], on_interrupt: str | None = "", output: Path | None = None) -> Follower:
        """Return what follows submissions, whose rows go into `output` or the results file of each.

        Their schedulers are as the cluster file was when they were made.
        """
        trackers = []
        for each in stored:
            named = each.submission
            cluster = replace(named.description, name=named.cluster, scheduler=named.scheduler)
            file = self._options.workspace / (output or named.output)
            own = {"columns": named.columns, "strict_header": named.strict_header, "environ": dict(os.environ)}
            options = replace(self._options, output=file, **own)
            trackers.append(JobTracker(each, scheduler_of(cluster, dict(os.environ)), options))
        return Follower(trackers, self, on_interrupt or "")

    def say(self, text: str) -> None:
        """Print a line, which is discarded where nobody reads them any more."""
        echo_on(text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        setup.warn(text)

    def states(self, states: Sequence[RunState]) -> None:
        """Print how many runs wait and run, where that has changed, and now and then the steps of a few."""
        text = summary_text(states)
        if text and text != self._shown:
            echo_on(text)
        self._shown = text
        if self._patience.is_due("steps", _STEPS_S):
            for state in states[:SHOWN]:
                if state.progress is not None and state.progress.step is not None:
                    echo_on(f"  {state_line(state)}")

    def ended(self, done: Collected, plan: RunPlan | None) -> None:
        """Print what a run on this machine ends with, too."""
        self.plain.end([f"{done.run_id}: {done.message}"])
        if done.result is not None and plan is None:
            self.plain.end([f"      {outcome_text(done.result)}{short_reason(done.result)}"])
        elif done.result is not None and plan is not None:
            if exists(plan.folder / LOG):
                self.plain.logs(plan)
            self.plain.finished(plan, done.result)
        setup.warn(*done.warnings)

    def asks(self) -> bool:
        """Return whether there is a terminal to ask in."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    def wants_cancel(self) -> bool:
        """Ask whether to end the jobs; an end of the input leaves them running."""
        question = "\nthe jobs go on: leave them running, or cancel them"
        try:
            return bool(click.prompt(question, type=click.Choice(["leave", "cancel"]), default="leave") == "cancel")
        except click.Abort:
            return False

    def write_studies(self, follower: Follower) -> None:
        """Write what studies came to whose runs all have their rows."""
        from madlite.cli.studies import answer_of_study
        from madlite.study.engine import runs_of_text, save_answer

        workspace = self._options.workspace
        studies = {tracker.stored.batch for tracker in follower.trackers if tracker.stored.submission.study}
        every = stored_submissions(workspace, warn=False) if studies else ()
        for study_id, _ in sorted(studies.difference(stored.batch for stored in every if stored.open_runs)):
            answer = answer_of_study(workspace, study_id)
            if answer is not None:
                self.study = msgspec.to_builtins(answer.content)
                self.lines += [*answer.lines, runs_of_text(study_id, (SUMMARY, *answer.files))]
                setup.warn(*save_answer(study_id, workspace, answer))

    def close(self, follower: Follower, code: int) -> int:
        """Write what studies came to, print the totals of what has ended, and return the exit code."""
        self.write_studies(follower)
        if follower.results or self.lines:
            files = ", ".join(dict.fromkeys(str(tracker.output) for tracker in follower.trackers))
            print_totals(self.plain, follower.outcome(code), files, self.lines, self._options.contract)
        return code


def open_jobs(
    stored: Sequence[Stored], on_interrupt: str | None = "", output: Path | None = None
) -> tuple[ClusterScreen, Follower]:
    """Return the screen of submissions of the working folder, and what follows them."""
    here = Path.cwd()
    options = Options(workspace=here, output=here / (output or "perf.csv"), environ=dict(os.environ))
    screen = ClusterScreen(options, setup.load())
    return screen, screen.follower(stored, on_interrupt, output)


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


def state_lines(states: Sequence[RunState], most: int | None) -> Iterator[str]:
    """Yield lines about open runs, those in the same state and with no step in one where they are more than `most`."""
    alike = Counter(map(_sort, states))
    told: set[tuple[str, str]] = set()
    for run_state in states:
        sort = _sort(run_state)
        if most is None or alike[sort] <= most or run_state.progress is not None:
            yield f"  {state_line(run_state)}"
        elif sort not in told:
            told.add(sort)
            yield f"  {_alike_line([each for each in states if _sort(each) == sort])}"


def _sort(run_state: RunState) -> tuple[str, str]:
    return run_state.word, run_state.state.reason if run_state.progress is None else run_state.run.id


def _alike_line(states: Sequence[RunState]) -> str:
    """Return a line about runs in the same state: `1000 runs: PENDING (Resources), jobs 12_1 to 12_1000, 600 of a`."""
    first, last = states[0], states[-1]
    reason = f" ({first.state.reason})" if first.state.reason else ""
    jobs = f", jobs {first.job} to {last.job}" if first.job else ""
    cards = Counter(state.run.card for state in states).most_common()
    named = first_of([f"{count} of {card}" for card, count in cards], 3, more=" and {} more cards")
    return f"{len(states)} runs: {first.word}{reason}{jobs}, {named}"
