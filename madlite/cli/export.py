"""`madlite export`: results to the files, databases and trackers of other programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from madlite.cli import setup
from madlite.cli.completion import complete_runs
from madlite.cli.options import Command, common_options, dir_option, read_filters, read_where
from madlite.cli.terminal import echo
from madlite.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins


def _complete_format(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return madlite's own formats; no plugin is loaded for a completion."""
    from madlite.reports.export.exporters import OWN_FORMATS

    return [CompletionItem(name) for name in OWN_FORMATS if name.startswith(incomplete)]


@click.command("export", cls=Command)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", shell_complete=complete_runs)
@click.option("--to", "name", default="", metavar="FORMAT", shell_complete=_complete_format, help="See --list.")
@click.option("-o", "--output", "target", default="", metavar="TARGET", help="The file, database or tracker.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only results with this dimension, column or fact.")
@click.option("--append", is_flag=True, help="Keep what the file has, and add the results that it lacks.")
@click.option("--option", "values", multiple=True, metavar="NAME=VALUE", help="An option of the format.")
@click.option("--list", "show_list", is_flag=True, help="List the formats, also those of plugins.")
@dir_option
@common_options
def command(
    sources: tuple[str, ...],
    name: str,
    target: str,
    where: tuple[str, ...],
    append: bool,
    values: tuple[str, ...],
    show_list: bool,
    directory: Path,
    no_plugins: bool,
    verbose: bool,
) -> int:
    """Write results for other programs: files, databases, trackers; each result once.

    SOURCE is a results file, a folder, a run (an id, last, last~1), a study, a baseline, or KEY=VALUE of the runs of
    this folder. Without any it is this folder: its runs, or else perf.csv.

    \b
    madlite export --to csv -o results.csv
    madlite export perf.csv --to parquet -o results.parquet
    madlite export last --to postgresql -o postgresql://bench@db/results
    madlite export --to prometheus -o /var/lib/node_exporter/textfile/madlite.prom
    """
    from madlite.model import ExportOptions
    from madlite.reports.export.exporters import find_format
    from madlite.reports.export.rows import RowReader
    from madlite.reports.runs import runs_folder

    plugins = _loader(no_plugins, verbose)
    if show_list:
        return _list(plugins)
    if not name:
        raise UsageProblem("no format is named", "--to csv; madlite export --list has all")
    chosen = find_format(name, plugins)
    options = ExportOptions(append=append, values=dict(read_filters(values, "--option", "table=results")))
    reader = RowReader(runs_folder(directory), read_where(where), _mask())
    done = chosen.write(reader.read(sources or (str(directory),)), target, options)
    for note in dict.fromkeys((*reader.notes, *done.notes)):
        setup.warn(note)
    if done.target:
        there = f", {done.present:,} were there" if done.present else ""
        echo(f"exported to {done.target}: {done.new:,} new{there}")
    return int(ExitCode.OK)


def _loader(no_plugins: bool, verbose: bool) -> Callable[[], Plugins]:
    def load() -> Plugins:
        plugins = setup.load(no_plugins, verbose)
        setup.print_problems(plugins.problems)
        return plugins

    return load


def _list(load: Callable[[], Plugins]) -> int:
    from madlite.reports.export.exporters import all_formats
    from madlite.text import align, printable

    rows = [(one.exporter.name, printable(str(getattr(one.exporter, "summary", "")))) for one in all_formats(load)]
    for line in align(rows):
        echo(line.rstrip())
    return int(ExitCode.OK)


def _mask() -> Callable[[str], str]:
    """Return what masks the secrets of the environment and of the command line in a text."""
    from madlite.secrets import Redactor, assigned, collect

    return Redactor((*collect(os.environ), *assigned(sys.argv))).text
