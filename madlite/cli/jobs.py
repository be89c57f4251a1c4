"""`madlite jobs`: the runs of this folder that were given to a cluster, and how far they are."""

from __future__ import annotations

import click

from madlite.cli.options import Command, verbose_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode


@click.command("jobs", cls=Command)
@click.argument("submission", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Also submissions whose runs all have come to their end.")
@verbose_option
def command(submission: tuple[str, ...], everything: bool) -> int:
    """List the runs of this folder that are jobs of a cluster, and how far they are.

    Of each: its job, state, reason to wait, nodes, steps, and the end of its time.

    SUBMISSION is an id or a job's number; without one all with open runs are listed.
    """
    from madlite.cli.attach import open_submissions
    from madlite.cli.attached import attach, state_line, summary_text

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
        for state in states:
            echo(f"  {state_line(state)}")
    return int(ExitCode.OK)
