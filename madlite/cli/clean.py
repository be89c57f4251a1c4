"""`madlite clean`: what a killed madlite left behind."""

from __future__ import annotations

import os
from pathlib import Path

import click

from madlite.cli.options import Command, common_options
from madlite.errors import ExitCode


@click.command("clean", cls=Command)
@click.option("-y", "--yes", is_flag=True, help="Remove what is listed.")
@click.option("--kept", is_flag=True, help="Also remove containers that were kept alive on request.")
@common_options
def command(yes: bool, kept: bool, no_plugins: bool, verbose: bool) -> int:
    """List, and with --yes remove, what a killed madlite left behind.

    Only containers with madlite's label, processes with its mark and unfinished runs of this folder are ever touched;
    runs of a madlite that is alive are not.
    """
    from madlite.run.leftovers import find_leftovers, remove

    found = find_leftovers(Path.cwd(), dict(os.environ))
    for note in found.notes:
        click.echo(f"warning: {note}", err=True)
    failed = False
    for item in found.leftovers:
        if not yes or (item.kept and not kept):
            kept_alive = "  (kept alive on request: madlite clean --kept --yes)" if item.kept else ""
            click.echo(f"{item.kind:9} {item.run_id}  {item.text}{kept_alive}")
            continue
        problem = remove(item, dict(os.environ))
        failed |= problem is not None
        done = "marked as ended, its folder stays:" if item.kind == "run" else "removed"
        click.echo(f"{'not removed' if problem else done} {item.kind} {item.run_id}  {problem or item.text}")
    if not found.leftovers:
        click.echo("nothing is left behind")
    elif not yes and not all(item.kept for item in found.leftovers):
        click.echo("madlite clean --yes removes this")
    return int(ExitCode.RUN_FAILED if failed else ExitCode.OK)
