"""`madlite cancel`: end jobs, and write the rows of their runs."""

from __future__ import annotations

import click

from madlite.cli.options import Command, verbose_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode


@click.command("cancel", cls=Command)
@click.argument("submission", nargs=-1, required=True)
@verbose_option
def command(submission: tuple[str, ...]) -> int:
    """End the jobs of submissions, and write the rows of their runs.

    SUBMISSION is an id that `madlite jobs` shows, its beginning (20260102T03) or its last six
    characters, or the number of a job.

    \b
    madlite cancel 20261126T195346-4f0c1a
    """
    from madlite.cli.attach import open_submissions
    from madlite.cli.attached import attach
    from madlite.cli.following import cancel_and_collect

    stored = [one for one in open_submissions(submission) if one.open_runs]
    if not stored:
        echo("these jobs have ended")
        return int(ExitCode.OK)
    attached = attach(stored)
    code = cancel_and_collect(attached)
    attached.close(code)
    return code
