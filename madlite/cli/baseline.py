"""`madlite baseline`: named results that later ones are compared with."""

from __future__ import annotations

from pathlib import Path

import click

from madlite.cli.completion import complete_runs
from madlite.cli.main import Group
from madlite.cli.options import dir_option, read_where, verbose_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode, UsageProblem


@click.group("baseline", cls=Group, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Name results that later ones are compared with.

    \b
    madlite baseline set v25.2 old/perf.csv
    madlite compare v25.2 perf.csv
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        raise click.UsageError("no command of baseline is named", ctx)


@command.command("set", short_help="Keep results under a name.")
@click.argument("name")
@click.argument("source", shell_complete=complete_runs)
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only results with this dimension, column or fact.")
@click.option("--force", is_flag=True, help="Replace a baseline that is there.")
@dir_option
@verbose_option
def set_(name: str, source: str, where: tuple[str, ...], force: bool, directory: Path) -> int:
    """Keep the results of SOURCE as baseline NAME: a results file, a folder, a run, a study or KEY=VALUE.

    The baseline has the numbers themselves: it stays when the runs are gone.

    \b
    madlite baseline set v25.2 old/perf.csv
    madlite baseline set tuesday last
    """
    from madlite.reports.baselines import baseline_names, save_baseline
    from madlite.reports.runs import runs_folder
    from madlite.reports.sides import read_side

    runs = runs_folder(directory)
    if name in baseline_names(runs) and not force:
        raise UsageProblem(f"there is a baseline '{name}'", f"madlite baseline set {name} {source} --force replaces it")
    side = read_side(source, runs, read_where(where))
    saved = save_baseline(runs, name, side.label, side.series, side.runs)
    numbers = sum(len(one.values) for one in saved.series)
    echo(f"baseline {name}: {len(saved.series)} series, {numbers} results of {side.label}")
    return int(ExitCode.OK)


@command.command("list", short_help="List the baselines of this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the baselines, with their numbers.")
@dir_option
@verbose_option
def list_(as_json: bool, directory: Path) -> int:
    """List the baselines of this folder: name, when, how many series and results, of what."""
    from madlite.cli import setup
    from madlite.cli.terminal import without_secrets
    from madlite.model import to_json
    from madlite.reports.baselines import baseline_names, load_baseline
    from madlite.reports.runs import runs_folder
    from madlite.text import align, printable

    runs, found = runs_folder(directory), []
    for name in baseline_names(runs):
        try:
            found.append(load_baseline(runs, name))
        except UsageProblem as problem:
            setup.warn(problem.message)
    if as_json:
        click.echo(without_secrets(to_json(found)), nl=False)
        return int(ExitCode.OK)
    rows = [("NAME", "WHEN (UTC)", "SERIES", "RESULTS", "OF")]
    for one in found:
        numbers = sum(len(series.values) for series in one.series)
        when = one.at[:19].replace("T", " ")
        rows.append((one.name, when, str(len(one.series)), str(numbers), printable(one.source)))
    for line in align(rows) if found else [f"no baselines in {runs}; madlite baseline set NAME perf.csv"]:
        echo(line)
    return int(ExitCode.OK)


@command.command("drop", short_help="Remove a baseline.")
@click.argument("name")
@dir_option
@verbose_option
def drop(name: str, directory: Path) -> int:
    """Remove a baseline; runs and results files stay as they are."""
    from madlite.reports.baselines import drop_baseline
    from madlite.reports.runs import runs_folder

    drop_baseline(runs_folder(directory), name)
    echo(f"baseline {name} is gone")
    return int(ExitCode.OK)
