"""`madlite attach`: follow jobs that were submitted before, to their rows; and which ones a command means."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli.attached import attach
from madlite.cli.batch_options import interrupt_option
from madlite.cli.following import follow
from madlite.cli.options import Command, verbose_option
from madlite.cli.terminal import echo_on
from madlite.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from madlite.jobs.submission import Stored


@click.command("attach", cls=Command)
@click.argument("submission", nargs=-1)
@interrupt_option
@verbose_option
def command(submission: tuple[str, ...], on_interrupt: str | None) -> int:
    """Follow jobs that were submitted before, and write the rows of their runs.

    SUBMISSION is the id that `madlite jobs` shows; without one all that are open are followed.  Jobs that were not
    submitted, because the cluster did not answer or the command was killed, are.  Of runs that have their rows it is
    shown again what they came to; the exit code is that of all runs of the submissions.

    \b
    madlite attach
    madlite attach 20261126T195346-4f0c1a --on-interrupt leave
    """
    from madlite.jobs.submission import OpenSubmission

    stored = open_submissions(submission)
    if not stored:
        echo_on("no job is open here")
        return int(ExitCode.OK)
    attached = attach(stored, on_interrupt or "")
    with ExitStack() as opened:
        own = []
        for one in stored:
            with suppress(BlockingIOError):  # another command is submitting it
                own.append(opened.enter_context(OpenSubmission.reopen(one.folder, submitting=True)))
        code = follow(attached, *own)
        attached.close(code)
        return code


def open_submissions(wanted: Sequence[str], *, settled: bool = False) -> tuple[Stored, ...]:
    """Return the submissions of this folder that have open runs, or of the wanted ids.

    Raises:
        UsageProblem: one of the ids is none of them.
    """
    from madlite.jobs.submission import stored_submissions

    found = stored_submissions(Path.cwd())
    if not wanted:
        return tuple(one for one in found if settled or one.open_runs)
    chosen = []
    for name in wanted:
        matching = [one for one in found if _has_job(one, name)] or [one for one in found if _has_id(one, name)]
        if len(matching) != 1:
            what = "is none" if not matching else "may be several"
            raise UsageProblem(f"'{name}' {what} of the submissions of this folder", "madlite jobs lists them")
        chosen += matching
    return tuple({one.submission.id: one for one in chosen}.values())


def _has_job(stored: Stored, name: str) -> bool:
    return name in {script.job for script in stored.scripts.values()} or name in stored.jobs.values()


def _has_id(stored: Stored, name: str) -> bool:
    """Return whether a name is a submission's id, its beginning with the day, or its end behind the time.

    No part of it that is a number alone, which may be that of a job of somebody else.
    """
    own = stored.submission.id
    return name in (own, own.rpartition("-")[2]) or ("T" in name and own.startswith(name))
