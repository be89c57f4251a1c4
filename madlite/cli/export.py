"""Results for other programs: `madlite export` to files, databases and trackers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from madlite.backends.loader import SWITCH, load_plugins
from madlite.cli import setup
from madlite.cli.arguments import without
from madlite.cli.options import (
    Command,
    ExportCommand,
    common_options,
    complete_runs,
    dir_option,
    read_filters,
    read_where,
    where_option,
)
from madlite.cli.terminal import echo, masker
from madlite.errors import UsageProblem
from madlite.model import ExportOptions
from madlite.reports.export import RowReader, find_format, formats_of
from madlite.reports.index import open_index
from madlite.reports.runs import runs_folder
from madlite.text import align, printable


class _Export(Command):
    """The command that follows, or the one that a plugin brings for what `--to` names."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Make the context of the command that these words are for."""
        if any(word.startswith("--to") for word in args):
            words = [
                word
                for word in args
                if not ("--no-plugins".startswith(word.replace("_", "-")) and len(word) > len("--n"))
            ]
            found = load_plugins(os.environ.get(SWITCH, ""), only_built_in=len(words) < len(args)).exporters()
            for name, (exporter, _) in found.items():
                if isinstance(exporter, ExportCommand) and (left := without([f"--to {name}"], words)) is not None:
                    return exporter.make_context(f"{info_name} --to {name}", left, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("export", cls=_Export)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", shell_complete=complete_runs)
@click.option("--to", "name", default="", metavar="FORMAT", help="See --list.")
@click.option("-o", "--output", "target", default="", metavar="TARGET", help="The file, database or tracker.")
@where_option
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
) -> None:
    """Write results for other programs: files, databases, trackers; each result once.

    SOURCE is a results file, a folder, a run (an id, last, last~1), a study, a baseline, or KEY=VALUE of the runs of
    this folder. Without any it is this folder: its runs, or else perf.csv.

    \b
    madlite export --to csv -o results.csv
    madlite export perf.csv --to parquet -o results.parquet
    madlite export last --to postgresql -o postgresql://bench@db/results
    madlite export --to prometheus -o /var/lib/node_exporter/textfile/madlite.prom
    """
    plugins = setup.load(no_plugins)
    formats = formats_of(plugins)
    setup.print_problems(plugins.problems)
    if show_list:
        echo(*align([(known, printable(str(getattr(formats[known].exporter, "summary", "")))) for known in formats]))
        return
    if not name:
        raise UsageProblem("no format is named", "--to csv; madlite export --list has all")
    chosen = find_format(name, formats)
    options = ExportOptions(append=append, values=dict(read_filters(values, "--option", "table=results")))
    with open_index(runs_folder(directory)) as index:
        reader = RowReader(index, read_where(where), masker())
        done = chosen.write(reader.read(sources or (str(directory),)), target, options)
    setup.warn(*dict.fromkeys((*reader.notes, *done.notes)))
    if done.target:
        there = f", {done.present:,} were there" if done.present else ""
        echo(f"exported to {done.target}: {done.new:,} new{there}")
