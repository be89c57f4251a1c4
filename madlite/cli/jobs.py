"""Jobs of a cluster: `madlite cluster jobs`, `attach`, `cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from madlite.cli.batch_options import interrupt_option
from madlite.cli.job_screen import SHOWN, open_jobs, state_lines
from madlite.cli.options import Command, verbose_option
from madlite.cli.submit import cluster
from madlite.cli.terminal import echo, echo_on
from madlite.errors import ExitCode, UsageProblem
from madlite.jobs.job import summary_text
from madlite.jobs.submission import Stored, stored_submissions
from madlite.text import counted


@cluster.command("jobs", cls=Command)
@click.argument("submission", nargs=-1)
@click.option("--each", is_flag=True, help="A line of each run, however many are in the same state.")
@click.option("--all", "everything", is_flag=True, help="Also submissions whose runs all have come to their end.")
@verbose_option
def command(submission: tuple[str, ...], each: bool, everything: bool) -> int:
    """List the runs of this folder that are jobs of a cluster, and how far they are.

    Of each: its job, state, reason to wait, nodes, steps, and the end of its time.

    SUBMISSION is an id or a job's number; without one all with open runs are listed.  Of many runs in the same state
    it is told how many they are.

    \b
    madlite cluster jobs
    madlite cluster jobs 20261126T195346-4f0c1a --each
    """
    stored = open_submissions(submission, settled=everything)
    if not stored:
        echo("no job is open here")
        return int(ExitCode.OK)
    _, follower = open_jobs(stored)
    follower.ask()
    for tracker in follower.trackers:
        named, states = tracker.stored.submission, tracker.states()
        done = len(named.runs) - len(states)
        ended = f"{done} of {len(named.runs)} ended" if done else counted(len(named.runs), "run")
        count = f", {text}" if (text := summary_text(states)) else ""
        echo(f"{named.id}  cluster {named.cluster}: {ended}{count}")
        for text in state_lines(states, None if each else SHOWN):
            echo(text)
    return int(ExitCode.OK)


@cluster.command("attach", cls=Command)
@click.argument("submission", nargs=-1)
@interrupt_option
@verbose_option
def attach_command(submission: tuple[str, ...], on_interrupt: str | None) -> int:
    """Follow jobs that were submitted before, and write the rows of their runs.

    SUBMISSION is an id of `madlite cluster jobs`; without one all that are open are followed.  Jobs that were not
    submitted, because the cluster did not answer or the command was killed, are.  Of runs that have their rows it is
    shown again what they came to; the exit code is that of all runs of the submissions.

    \b
    madlite cluster attach
    madlite cluster attach 20261126T195346-4f0c1a --on-interrupt leave
    """
    stored = open_submissions(submission)
    if not stored:
        echo_on("no job is open here")
        return int(ExitCode.OK)
    screen, follower = open_jobs(stored, on_interrupt)
    return screen.close(follower, follower.submit_and_follow())


def open_submissions(wanted: Sequence[str], *, settled: bool = False) -> tuple[Stored, ...]:
    """Return the submissions of this folder that have open runs, or of the wanted ids.

    Raises:
        UsageProblem: one of the ids is none of them.
    """
    found = stored_submissions(Path.cwd())
    if not wanted:
        return tuple(submission for submission in found if settled or submission.open_runs)
    chosen = []
    for name in wanted:
        matching = [submission for submission in found if _is_meant(submission, name)]
        if len(matching) != 1:
            what = "is none" if not matching else "may be several"
            raise UsageProblem(f"'{name}' {what} of the submissions of this folder", "madlite cluster jobs lists them")
        chosen += matching
    return tuple({submission.submission.id: submission for submission in chosen}.values())


def _is_meant(stored: Stored, name: str) -> bool:
    """Return whether a name is a submission's id, its beginning with the day, its last part, or one of its jobs.

    No part of an id that is a number alone, which may be that of a job of somebody else.
    """
    own = stored.submission.id
    jobs = (*stored.jobs.values(), *(script.job for script in stored.scripts.values()))
    return name in (own, own.rpartition("-")[2], *jobs) or ("T" in name and own.startswith(name))


@cluster.command("cancel", cls=Command)
@click.argument("submission", nargs=-1, required=True)
@verbose_option
def cancel(submission: tuple[str, ...]) -> int:
    """End the jobs of submissions, and write the rows of their runs.

    SUBMISSION is an id that `madlite cluster jobs` shows, its beginning (20260102T03) or its last six
    characters, or the number of a job.

    \b
    madlite cluster cancel 20261126T195346-4f0c1a
    """
    stored = [stored_submission for stored_submission in open_submissions(submission) if stored_submission.open_runs]
    if not stored:
        echo("these jobs have ended")
        return int(ExitCode.OK)
    screen, follower = open_jobs(stored)
    return screen.close(follower, follower.cancel())
