"""`madlite log`: what a run printed, also while it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from madlite.cli.completion import complete_run
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.errors import ExitCode


@click.command("log", cls=Command)
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Byte for byte, with what steers a terminal.")
@dir_option
@verbose_option
def command(run: str, follow: bool, tail: int | None, raw: bool, directory: Path) -> int:
    """Print a run's log; of a running one, what it has so far.

    RUN is a run's id, a part of it that no other has, last, or last~1. What would steer the terminal is
    left out.

    \b
    madlite log last --follow
    madlite log 3fa91c --tail 50
    """
    import sys

    from madlite.reports.log import plain_text, read_log
    from madlite.reports.runs import find_run, runs_folder

    folder = find_run(runs_folder(directory), run)
    chunks = _without_secrets(read_log(folder, follow=follow, tail=tail))
    stream = sys.stdout.buffer
    for piece in chunks if raw else plain_text(chunks):
        stream.write(piece)
        stream.flush()
    return int(ExitCode.OK)


def _without_secrets(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a log without what is a secret by its shape: an earlier madlite may have written it."""
    from madlite.secrets import Redactor

    redactor = Redactor()
    yield from map(redactor.feed, chunks)
    yield redactor.flush()
