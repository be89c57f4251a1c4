"""`madlite report`: results files as HTML, and results into perf.csv, as madengine's `report` does them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from madlite.cli import setup
from madlite.cli.arguments import FILE, contract, contract_option, directory_option, file_option, output_option
from madlite.cli.main import Group
from madlite.cli.options import complete_runs, folder_options, group, read_where, verbose_option, where_option
from madlite.cli.terminal import echo
from madlite.errors import MadliteError, UsageProblem
from madlite.files import write_named
from madlite.model import Reference
from madlite.plan.inputs import RUNS
from madlite.reports.compare import Report
from madlite.reports.comparison import compare_sides
from madlite.reports.html import write_mail, write_page
from madlite.reports.index import RunIndex, open_index
from madlite.reports.page.build import page_data
from madlite.reports.page.render import render_markdown, render_page
from madlite.reports.page.values import Page
from madlite.reports.references import load_references
from madlite.reports.runs import runs_folder
from madlite.reports.selectors import Side, collect, newest_side, read_side, without_shared
from madlite.text import counted


@click.group("report", cls=Group)
def command() -> None:
    """Make pages, Markdown and mails of results; add to perf.csv, or make it again.

    \b
    madlite report html
    madlite report to-html perf.csv
    madlite report to-email --directory results
    """


@command.command("to-html", short_help="One CSV file as a page.")
@click.argument("source", required=False, type=FILE, metavar="[FILE]")
@file_option("--csv-file-path", what="The results file, as madengine has it named.")
@verbose_option
def to_html(source: Path | None, csv_file_path: Path | None) -> None:
    """Write a results file as <name>.html beside it: a page that needs no other file.

    A success whose number is doubtful is shown as SUCCESS (suspect), with the reason, also where perf.csv has no column
    for it. Of a run: madlite report html RUN.

    \b
    madlite report to-html perf.csv
    """
    named = [file for file in (source, csv_file_path) if file is not None]
    if len(named) != 1:
        what = f"two results files are named: {source}, {csv_file_path}" if named else "no results file is named"
        raise UsageProblem(what, "madlite report to-html perf.csv   (or --csv-file-path perf.csv)")
    page, notes = write_page(named[0])
    setup.warn(*notes)
    echo(f"wrote {page}")


@command.command("to-email", short_help="All CSV files of a folder as one mail.")
@directory_option("--directory", "--dir", "--csv-file-path", default=Path(), what="Folder of the CSV files.")
@output_option(default="run_results.html", what="What is written; a relative path starts in that folder.")
@verbose_option
def to_email(directory: Path, output: Path) -> None:
    """Write every CSV file of a folder into one HTML mail: a heading and a table each."""
    setup.warn(*write_mail(directory, directory / output))
    echo(f"wrote {directory / output}")


_source_options = group(
    click.argument("sources", nargs=-1, metavar="[SOURCE...]", shell_complete=complete_runs),
    click.option(
        "--baseline", "--against", "base", default="", metavar="SOURCE", help="Compare with: baseline, file, run."
    ),
    where_option,
    click.option("--title", default="", metavar="TEXT", help="The heading.  [default: Benchmark results of DIR]"),
    folder_options,
)
"""Add what `html` and `md` have in common: which results, and what they are compared with."""


@command.command("html", short_help="Results as one offline page: trends, comparison, steps, failures.")
@_source_options
@output_option(default="report.html")
def html(output: Path, **wanted: Any) -> None:
    """Write results as one HTML file that needs no network.

    SOURCE is a results file, a run's id, a folder, a study or batch, or a baseline; without one the runs of this folder
    and perf.csv.

    \b
    madlite report html
    madlite report html perf.csv --baseline v25.2 -o week.html
    """
    page = _page(**wanted)
    write_named(output, render_page(page))
    totals = page.totals
    results = counted(totals.results, "result")
    echo(
        f"wrote {output}: {results} in {totals.series:,} series, {totals.failed:,} failed, {totals.suspects:,} suspect"
    )


@command.command("md", short_help="Results as Markdown, for mails and wikis.")
@_source_options
@file_option("-o", "--output", what="What is written.  [default: standard output]")
def markdown(output: Path | None, **wanted: Any) -> None:
    """Print results as Markdown tables; sources as `report html` has them.

    \b
    madlite report md perf.csv --against last-month.csv
    """
    text = render_markdown(_page(**wanted))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_named(output, text)
        echo(f"wrote {output}")


def _page(sources: tuple[str, ...], base: str, where: tuple[str, ...], title: str, directory: Path) -> Page:

    filters = read_where(where)
    with open_index(runs_folder(directory)) as index:
        found, runs = collect(sources, directory, index, filters)
        comparison = _compared(base, found, filters, index, is_default=not sources) if base else None
    published, problems = _published(directory)
    notes = (*found.notes, *problems)
    setup.warn(*notes)
    return page_data(
        found.series,
        runs,
        comparison,
        failures=found.failures,
        published=published,
        title=title or f"Benchmark results of {directory.resolve().name or directory.resolve()}",
        sources=(found.label,) if found.label else (),
        notes=(*notes, *([f"compared with {comparison.base}: {comparison.new}"] if comparison else [])),
    )


def _compared(base: str, new: Side, filters: dict[str, str], index: RunIndex, *, is_default: bool) -> Report:
    """Return the comparison with the base: of what is named, else of each series' newest batch or study."""
    side = read_side(base, index, filters)
    if is_default and new.runs:
        new = newest_side(side, index, filters)
    return compare_sides(side, without_shared(side, new), index)


def _published(directory: Path) -> tuple[list[Reference], tuple[str, ...]]:
    """Return the published figures, and why there are none: a report does without them."""
    try:
        return load_references(setup.load(), directory, os.environ), ()
    except MadliteError as error:
        return [], (f"not compared with published figures: {error.message}",)


@command.command("rebuild", short_help="perf.csv from the records of its runs.")
@output_option(default="perf.csv")
@directory_option("--runs", default=Path(RUNS), what="Folder of the runs.")
@click.option("--force", is_flag=True, help="Replace a file that is there, and keep a copy of it.")
@contract_option
@verbose_option
def rebuild(output: Path, runs: Path, force: bool) -> None:
    """Make perf.csv again, from what the records of its runs say was appended, in that order."""
    from madlite.perfcsv.recorded import rebuild
    from madlite.perfcsv.side_files import write_waiting

    done = rebuild(output, runs, force=force, contract=contract())
    completed = write_waiting(runs.parent) if runs.name == RUNS else ()
    setup.warn(*done.notes, *completed)
    echo(f"wrote {output}: {counted(done.rows, 'row')} of {counted(done.runs, 'run')}")


@command.command("update-perf", short_help="Add results to perf.csv.")
@file_option("--single-result", "single", what="JSON of one result.")
@file_option("--exception-result", "exception", what="JSON of a run that failed.")
@file_option("--failed-result", what="Taken and left alone, as madengine 1 does.")
@file_option("--multiple-results", "multiple", what="CSV of several results.")
@click.option("--perf-csv", type=FILE, default=Path("perf.csv"), metavar="FILE", help="The results file.")
@click.option("--model-name", default="", metavar="NAME", help="The model of the results.")
@file_option("--common-info", what="JSON of what multiple results share.")
@verbose_option
def update_perf(failed_result: Path | None, perf_csv: Path, **results: Any) -> None:
    """Add results to a perf.csv that is there: of --multiple-results, --single-result, --exception-result the first."""
    from madlite.perfcsv.update_perf import update_perf

    if failed_result is not None:
        setup.warn("--failed-result adds nothing, nor did it with madengine 1; use --exception-result")
    added = update_perf(perf_csv, **results)
    echo(f"{counted(added, 'row')} added to {perf_csv}")
