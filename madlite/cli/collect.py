"""`madlite collect`: results of runs with `--no-rows` → rows, side files and records."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from madlite.cli.arguments import OUTPUT, contract, contract_option
from madlite.cli.completion import complete_runs
from madlite.cli.options import Command, verbose_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode

if TYPE_CHECKING:
    from madlite.batch.collect import Collected
    from madlite.cli.attached import Attached


@click.command("collect", cls=Command)
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@OUTPUT
@contract_option
@verbose_option
def command(run: tuple[str, ...], output: Path) -> int:
    """Append what runs with --no-rows came to to perf.csv, each once.

    RUN is the id of a run, a part or a pattern of it, or its folder; without one all that wait here are taken, and the
    jobs of a cluster are asked about: a run whose job is over and that left no result gets a row that says why. So does
    a run whose madlite was killed, in the results file that it was for unless -o names one.

    \b
    madlite collect
    madlite collect '20261121*' -o nightly.csv

    Ends with the exit code that the runs would have had; 3 also where one of them cannot be collected.
    """
    from madlite.batch.collect import collect_all, collect_cut_off, of_other_hosts, without_row
    from madlite.batch.recovery.leftovers import left_running
    from madlite.batch.recovery.unfinished import complete_side_files
    from madlite.batch.runner import exit_code
    from madlite.cli import setup
    from madlite.perfcsv.append import check_appendable
    from madlite.perfcsv.header import new_columns
    from madlite.perfcsv.locked import make_folder
    from madlite.perfcsv.side_files import write_waiting
    from madlite.plan.inputs import RUNS

    here = Path.cwd()
    file = here / output
    given = click.get_current_context().get_parameter_source("output") is not ParameterSource.DEFAULT
    jobs = None if run else _settle_jobs(output if given else None)
    going_on, begin = _of_jobs(here), new_columns(contract())
    folders, cut_off = _folders(run, here, going_on)
    if folders or cut_off:
        check_appendable(file, here)
        make_folder(Path(os.path.realpath(file)))
    setup.warn_of(complete_side_files(here))
    if not run:
        setup.warn_of(
            f"{name}: {text}" for name, text in of_other_hosts(here).items() if here / RUNS / name not in going_on
        )
    running = left_running(here, dict(os.environ), setup.load(False, False).runtimes()) if cut_off else {}
    done = [*collect_cut_off(cut_off, here, file, begin, running, named=not given)]  # all, whoever stops reading
    done += collect_all(folders, here, file, begin)
    if not run:
        done += [one for one in without_row(here) if here / RUNS / one.run_id not in going_on]
    for one in done:
        _print(one)
    for text in write_waiting(here):
        setup.warn(text)
    if not done and (jobs is None or not jobs.results):
        echo("nothing to collect")
    of_jobs = jobs.results if jobs is not None else []
    code = exit_code([*of_jobs, *(one.result for one in done if one.result is not None)])
    failed = any(one.failed for one in done) or (jobs is not None and jobs.failed)
    return int(ExitCode.RUN_FAILED if failed else code)


def _settle_jobs(output: Path | None) -> Attached | None:
    """Write the rows of the runs whose jobs are over, and name those that go on; None where there are no jobs.

    They go to `output`, or to the results file of each command that submitted them.
    """
    from madlite.jobs.submission import PREFIX
    from madlite.perfcsv.append import check_appendable
    from madlite.plan.inputs import RUNS
    from madlite.store.folder import real_folders

    here = Path.cwd()
    if not any(folder.name.startswith(PREFIX) for folder in real_folders(here / RUNS)):
        return None
    from madlite.cli.attach import open_submissions
    from madlite.cli.attached import attach
    from madlite.cli.following import settle_now

    stored = open_submissions(())
    if not stored:
        return None
    for file in dict.fromkeys(here / (output or one.submission.output) for one in stored):
        check_appendable(file, here)
    attached = attach(stored, output=output)
    settle_now(attached)
    attached.close(attached.exit_code())
    return attached


def _print(one: Collected) -> None:
    from madlite.cli import setup
    from madlite.cli.format import outcome_text

    if one.failed:
        setup.warn(f"{one.run_id}: {one.message}")
    else:
        echo(f"{one.run_id}: {outcome_text(one.result)}{one.message}")
    setup.warn_of(one.warnings)


def _of_jobs(here: Path) -> set[Path]:
    """Return the folders of the runs that jobs of a cluster still have: what becomes of them their jobs decide."""
    from madlite.batch.collect import attempts_of
    from madlite.jobs.submission import stored_submissions
    from madlite.plan.inputs import RUNS

    open_runs = [here / RUNS / run.id for one in stored_submissions(here, warn=False) for run in one.open_runs]
    return {folder for first in open_runs for folder in (first, *attempts_of(first))}


def _folders(names: Sequence[str], here: Path, going_on: Collection[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of the runs to collect, each once, and of those the runs that were cut off apart.

    Raises:
        UsageProblem: a name stands for no run of this folder, or for several.
    """
    from madlite.batch.collect import cut_off_runs
    from madlite.store.stored import uncollected

    found = cut_off_runs(here, with_file=False, of_other_hosts=bool(names))
    known = [folder for folder in found if folder not in going_on]
    if not names:
        return [folder for folder in uncollected(here) if folder not in going_on], known
    named = dict.fromkeys(folder for name in names for folder in _named(name, here))
    return [folder for folder in named if folder not in known], [folder for folder in named if folder in known]


def _named(name: str, here: Path) -> Iterator[Path]:
    from madlite.errors import UsageProblem
    from madlite.plan.inputs import RUNS
    from madlite.reports.runs import match_runs

    runs = here / RUNS
    path = Path(os.path.normpath(here / name))
    if path.parent == runs:
        name = path.name
    elif "/" in name:
        raise UsageProblem(f"{name} is no run of {here}", f"cd to the folder that has its {RUNS}, and collect there")
    yield from match_runs(runs, name)
