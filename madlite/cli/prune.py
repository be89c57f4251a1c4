"""`madlite prune`: old or large runs, listed and removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.amounts import AGE, SIZE, counted
from madlite.cli.options import Command, common_options, dir_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from madlite.archive.prune import Prunable, Rules


@click.command("prune", cls=Command)
@click.option("--older-than", type=AGE, metavar="AGE", help="Runs that ended longer ago: 12h, 30d, 4w.")
@click.option("--keep-last", type=click.IntRange(min=0), metavar="N", help="Never the newest N runs.")
@click.option("--larger-than", type=SIZE, metavar="SIZE", help="Runs whose removal frees more: 500M, 2G.")
@click.option("--max-size", type=SIZE, metavar="SIZE", help="The oldest, until all runs together have no more.")
@click.option("--keep-log", is_flag=True, help="Leave log and steps too.")
@click.option(
    "--all", "folders", is_flag=True, help="Remove the folders with their records: no rebuild has their rows."
)
@click.option("-y", "--yes", is_flag=True, help="Remove what is listed.")
@dir_option
@common_options
def command(
    older_than: float | None,
    keep_last: int | None,
    larger_than: int | None,
    max_size: int | None,
    keep_log: bool,
    folders: bool,
    yes: bool,
    directory: Path,
    no_plugins: bool,
    verbose: bool,
) -> int:
    """List, and with --yes remove, the files of old or large runs.

    Log, steps, outputs and checkpoints go. Record, plan and rendered files stay: runs, show, reproduce and report
    rebuild work as before. With --all the whole folder goes. Meant are the runs to which every given option applies. A
    run stays in any case while it is running, waits for clean or collect, has rows that are not in perf.csv, or is
    named by a baseline.

    \b
    madlite prune --older-than 30d
    madlite prune --max-size 50G --keep-last 20 --yes

    Ends with exit code 3 where something could not be removed.
    """
    from madlite.archive.prune import Rules, find_prunable
    from madlite.reports.runs import runs_folder

    rules = Rules(
        older_than_s=older_than,
        keep_last=keep_last,
        larger_than_bytes=larger_than,
        max_size_bytes=max_size,
        folders=folders,
        keep_logs=keep_log,
    )
    if all(limit is None for limit in (older_than, keep_last, larger_than, max_size)):
        raise UsageProblem("no age and no size is given", "madlite prune --older-than 30d   or --max-size 50G")
    if folders and keep_log:
        raise UsageProblem("--all removes logs too", "leave out --all or --keep-log")
    environ = dict(os.environ)
    found = find_prunable(runs_folder(directory), rules, environ, setup.load(no_plugins, verbose).runtimes())
    for note in found.notes:
        setup.warn(note)
    going = [one for one in found.runs if not one.why]
    for one in found.runs:
        if one.why:
            echo(f"stays    {_line(one)}: {one.why}")
    failed = _remove(going, rules) if yes else _list(going, rules)
    return int(ExitCode.RUN_FAILED if failed else ExitCode.OK)


def _list(going: Sequence[Prunable], rules: Rules) -> bool:
    from madlite.assets.cache import size_text

    for one in going:
        echo(f"{'folder' if rules.folders else 'files':8} {_line(one)}")
    if not going:
        echo("nothing to remove")
        return False
    size = size_text(sum(one.bytes for one in going))
    stays = "their folders; no record stays" if rules.folders else "these files; the records stay"
    echo(f"{counted(len(going), 'run')}, {size}: the same command with --yes removes {stays}")
    return False


def _remove(going: Sequence[Prunable], rules: Rules) -> bool:
    from madlite.archive.prune import prune
    from madlite.assets.cache import size_text

    freed, failed = 0, False
    for one in going:
        problem = prune(one, rules)
        failed |= bool(problem)
        freed += 0 if problem else one.bytes
        echo(f"{'not removed' if problem else 'removed'} {_line(one)}{f': {problem}' if problem else ''}")
    echo(f"{size_text(freed)} freed" if going else "nothing to remove")
    return failed


def _line(one: Prunable) -> str:
    from madlite.assets.cache import size_text

    days = one.age_s / 86400
    age = f"{days:.0f} days old" if days >= 2 else f"{one.age_s / 3600:.0f} hours old"
    return f"{one.run.folder.name}  {one.run.record.card or '-'}  {age}  {size_text(one.bytes)}"
