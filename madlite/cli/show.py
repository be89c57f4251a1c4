"""`madlite show`: everything that is known of one run, on a page."""

from __future__ import annotations

from pathlib import Path

import click

from madlite.cli.completion import complete_run
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.cli.terminal import say_status, without_secrets
from madlite.errors import ExitCode


@click.command("show", cls=Command)
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("--json", "wants_json", is_flag=True, help="Print the record itself; without one, what is known.")
@dir_option
@verbose_option
def command(run: str, wants_json: bool, directory: Path) -> int:
    """Show one run: verdict, number, window, power, witnesses, configuration, provenance, files.

    RUN is a run's id, a part of it that no other has, or last.

    \b
    madlite show last
    madlite show 3fa91c --json
    """
    from madlite.cli.show_page import VALUES_AT, page
    from madlite.reports.runs import as_json, find_run, open_run, runs_folder

    found = open_run(find_run(runs_folder(directory), run))
    if wants_json:
        click.echo(without_secrets(as_json(found)), nl=False)
    else:
        for line in page(found):
            say_status(line, VALUES_AT)
    return int(ExitCode.OK)
