"""`madlite jobs`: the runs of this folder that were given to a cluster, and how far they are."""

from __future__ import annotations

import click

from madlite.cli.options import Command, verbose_option
from madlite.cli.terminal import echo, terminal_width
from madlite.errors import ExitCode

SHOWN = 8  # so many runs in the same state are named, of more their number


@click.command("jobs", cls=Command)
@click.argument("submission", nargs=-1)
@click.option("--state", default="", metavar="STATE", help="Only runs in this state: PENDING, RUNNING, over, …")
@click.option("--each", is_flag=True, help="A line of each run, however many are in the same state.")
@click.option("--all", "everything", is_flag=True, help="Also submissions whose runs all have come to their end.")
@verbose_option
def command(submission: tuple[str, ...], state: str, each: bool, everything: bool) -> int:
    """List the runs of this folder that are jobs of a cluster, and how far they are.

    Of each: its job, state, reason to wait, nodes, steps, and the end of its time.

    SUBMISSION is an id or a job's number; without one all with open runs are listed.  Of many runs in the same state
    it is told how many they are.

    \b
    madlite jobs
    madlite jobs 20261126T195346-4f0c1a --state PENDING --each
    """
    from madlite.cli.attach import open_submissions
    from madlite.cli.attached import attach, state_lines, summary_text

    stored = open_submissions(submission, settled=everything)
    if not stored:
        echo("no job is open here")
        return int(ExitCode.OK)
    attached = attach(stored)
    attached.poll()
    for one in attached.settlings:
        named, states = one.stored.submission, one.states()
        done = len(named.runs) - len(states)
        ended = (
            f"{done} of {len(named.runs)} ended"
            if done
            else f"{len(named.runs)} run{'s' if len(named.runs) > 1 else ''}"
        )
        count = f", {text}" if (text := summary_text(states)) else ""
        echo(f"{named.id}  cluster {named.cluster}: {ended}{count}")
        listed = [one for one in states if not state or one.word.lower() == state.lower()]
        for text in state_lines(listed, None if each else SHOWN, terminal_width()):
            echo(text)
    return int(ExitCode.OK)
