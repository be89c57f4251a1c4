"""`madlite references`: published figures, and the line that compares a success with the nearest of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from madlite.cli import setup
from madlite.cli.completion import complete_devices, complete_precisions, complete_reference_keys
from madlite.cli.options import Command, common_options
from madlite.cli.terminal import echo, echo_lines, without_secrets
from madlite.errors import ExitCode, MadliteError
from madlite.model import Reference, Result, RunPlan
from madlite.references import FILE

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.reports.references import Measured, Published
    from madlite.store.record import Record

VARIABLE = "MADLITE_REFERENCES"


@click.command("references", cls=Command)
@click.option("--model", default="", metavar="NAME", help="Only of this model: its name, a part of it, or a card's.")
@click.option("--device", default="", metavar="GPU", shell_complete=complete_devices, help="Only on this GPU.")
@click.option(
    "--precision", default="", metavar="NAME", shell_complete=complete_precisions, help="Only in this number format."
)
@click.option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_reference_keys,
    help="Only where a key has this value, as seq_len=8192; of source and condition a part. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@common_options
def command(
    model: str,
    device: str,
    precision: str,
    where: tuple[str, ...],
    as_json: bool,
    no_plugins: bool,
    verbose: bool,
) -> int:
    """List published figures of trainings, each with its source, date and condition.

    They come from madlite, from plugins, from madlite_references.toml of this folder, and from the files that
    $MADLITE_REFERENCES names.

    \b
    madlite references --model llama-3.1-8b --device MI300X
    madlite references --where seq_len=8192 --where source=README --json
    """
    from madlite.reports.references import as_json as to_object
    from madlite.reports.references import as_table, select

    plugins = setup.load(no_plugins, verbose)
    every = load_references(plugins, Path.cwd())
    setup.print_problems(plugins.problems)
    chosen = select(every, model=model, device=device, precision=precision, where=where)
    if as_json:
        click.echo(without_secrets(json.dumps([to_object(one) for one in chosen], indent=2)))
    elif chosen:
        echo_lines("\n".join(as_table(chosen)))
    else:
        echo(f"none of {len(every)} published figures is one of those" if every else "there are no published figures")
    return int(ExitCode.OK)


def load_references(plugins: Plugins, folder: Path) -> list[Published]:
    """Return every published figure, with where it came from: plugins first, then the user's own files.

    Raises:
        UsageProblem: one of the user's files cannot be used.
    """
    from madlite.references import read_references
    from madlite.reports.references import Published

    found = [
        Published(reference=one, origin=f"plugin {name}", from_plugin=True)
        for name, references in plugins.references().items()
        for one in references
    ]
    for name, file in _own_files(folder):
        found += [Published(reference=one, origin=name) for one in read_references(file)]
    return found


def _own_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the file of the working folder where there is one, and those that the environment names, each by name."""
    from madlite.files import exists, shown

    if exists(folder / FILE):
        yield FILE, folder / FILE
    named = map(Path, filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
    yield from ((shown(file), file) for file in named)


def named_references(plugins: Plugins, folder: Path) -> list[Reference]:
    """Return every published figure, with the user's file in the source of those that are from one.

    Raises:
        UsageProblem: one of the user's files cannot be used.
    """
    return [_named(one) for one in load_references(plugins, folder)]


def compare_planned(plugins: Plugins, folder: Path, plan: RunPlan, result: Result) -> str:
    """Return how a run's success compares with the nearest published figure; "" where none applies.

    A file of the user's that cannot be used is named in its place: the run has its row all the same.
    """
    from madlite.reports.references import of_plan

    return _compared(plugins, folder, of_plan(plan, result))


def compare_recorded(plugins: Plugins, folder: Path, record: Record) -> str:
    """Return the same of a run's record."""
    from madlite.reports.references import of_record

    return _compared(plugins, folder, of_record(record))


def _compared(plugins: Plugins, folder: Path, run: tuple[Measured, Result]) -> str:
    from madlite.reports.references import comparison

    try:
        references = named_references(plugins, folder)
    except MadliteError as error:
        return f"not compared with published figures: {error.message}"
    return without_secrets(comparison(references, *run))


def _named(one: Published) -> Reference:
    """Return a figure whose source names the user's file that it is from, which a workload may have written."""
    if one.from_plugin:
        return one.reference
    return replace(one.reference, source=f"{one.reference.source} in {one.origin}")
