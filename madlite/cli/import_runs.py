"""`madlite import`: the runs of an archive, taken into this folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.amounts import SIZE, counted
from madlite.cli.arguments import OUTPUT, contract, contract_option
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from madlite.archive.taking_in import TakenIn


@click.command("import", cls=Command)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--rows", is_flag=True, help="Also append their rows to the results file, each once.")
@OUTPUT
@click.option(
    "--max-size", type=SIZE, default=16 << 30, metavar="SIZE", help="Refuse what unpacks to more.  [default: 16G]"
)
@dir_option
@contract_option
@verbose_option
def command(file: Path, rows: bool, output: Path, max_size: int, directory: Path) -> int:
    """Take in the runs of a file that `madlite archive` packed.

    Each gets an id that is made here. They are listed as imported, and `show`, `log`, `parse`, `verify` and `reproduce`
    know them, also by the ids that they had. A run that is here already is left as it is. One that is here with another
    content is refused by its name, and the others are taken in. With --rows their rows are appended, also those of runs
    that were taken in before.

    \b
    madlite import sweep.tar.gz
    madlite import sweep.tar.gz --dir ../colleague --rows

    Ends with exit code 3 where a run was refused, or its rows could not be appended.
    """
    from madlite.archive.taking_in import append_imported, take_in
    from madlite.archive.unpack import Limits
    from madlite.perfcsv.append import check_appendable
    from madlite.perfcsv.header import new_columns
    from madlite.perfcsv.locked import make_folder

    if not directory.is_dir():
        raise UsageProblem(f"{directory} is no folder", "name the one that the runs are to be in: --dir DIR")
    workspace = Path(os.path.abspath(directory))  # noqa: PTH100 - links stay as they are
    target = workspace / output
    if rows:
        check_appendable(target, workspace)
    taken = take_in(file, workspace, Limits(bytes=max_size))
    if rows:
        make_folder(Path(os.path.realpath(target)))
        taken = tuple(append_imported(taken, workspace, target, new_columns(contract())))
    for one in taken:
        _print(one)
    echo(f"{counted(sum(one.is_new for one in taken), 'run')} taken in, {counted(len(taken), 'run')} in {file}")
    return int(ExitCode.RUN_FAILED if any(one.refused for one in taken) else ExitCode.OK)


def _print(one: TakenIn) -> None:
    if one.refused:
        setup.warn(f"{one.run.id}: {one.words}")
    else:
        echo(f"{one.run.id}: {one.words}")
    if one.run.doubt:
        setup.warn(f"{one.run.id}: packed although {one.run.doubt}")
