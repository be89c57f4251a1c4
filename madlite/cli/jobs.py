"""Jobs of a cluster: `madlite jobs`, `attach`, `cancel`, and `collect`, which writes what is over to perf.csv."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from madlite.batch.collect import attempts_of, collect_all, collect_cut_off, cut_off_runs, of_other_hosts, without_row
from madlite.batch.recovery.leftovers import left_running
from madlite.batch.runner import exit_code
from madlite.cli import setup
from madlite.cli.arguments import OUTPUT, contract, contract_option
from madlite.cli.attached import attach, follow
from madlite.cli.batch_options import interrupt_option
from madlite.cli.completion import complete_runs
from madlite.cli.options import Command, verbose_option
from madlite.cli.terminal import echo, echo_on, terminal_width
from madlite.errors import ExitCode, UsageProblem
from madlite.jobs.submission import PREFIX, OpenSubmission, stored_submissions
from madlite.perfcsv.append import check_appendable
from madlite.perfcsv.header import new_columns
from madlite.perfcsv.locked import make_folder
from madlite.perfcsv.side_files import write_waiting
from madlite.plan.inputs import RUNS
from madlite.reports.runs import match_runs
from madlite.store.folder import real_folders, uncollected
from madlite.text import counted

if TYPE_CHECKING:
    from madlite.batch.collect import Collected
    from madlite.cli.attached import Attached
    from madlite.jobs.submission import Stored


SHOWN = 8  # so many runs in the same state are named, of more their number


@click.command("jobs", cls=Command)
@click.argument("submission", nargs=-1)
@click.option("--state", default="", metavar="STATE", help="Only runs in this state: PENDING, RUNNING, over, unknown …")
@click.option("--each", is_flag=True, help="A line of each run, however many are in the same state.")
@click.option("--all", "everything", is_flag=True, help="Also submissions whose runs all have come to their end.")
@verbose_option
def command(submission: tuple[str, ...], state: str, each: bool, everything: bool) -> int:
    """List the runs of this folder that are jobs of a cluster, and how far they are.

    Of each: its job, state, reason to wait, nodes, steps, and the end of its time.

    SUBMISSION is an id or a job's number; without one all with open runs are listed.  Of many runs in the same state
    it is told how many they are.

    \b
    madlite jobs
    madlite jobs 20261126T195346-4f0c1a --state PENDING --each
    """
    from madlite.cli.attached import attach, state_lines, summary_text

    stored = open_submissions(submission, settled=everything)
    if not stored:
        echo("no job is open here")
        return int(ExitCode.OK)
    attached = attach(stored)
    attached.poll()
    for tracker in attached.trackers:
        named, states = tracker.stored.submission, tracker.states()
        done = len(named.runs) - len(states)
        ended = f"{done} of {len(named.runs)} ended" if done else counted(len(named.runs), "run")
        count = f", {text}" if (text := summary_text(states)) else ""
        echo(f"{named.id}  cluster {named.cluster}: {ended}{count}")
        listed = [run_state for run_state in states if not state or run_state.word.lower() == state.lower()]
        for text in state_lines(listed, None if each else SHOWN, terminal_width()):
            echo(text)
    return int(ExitCode.OK)


@click.command("attach", cls=Command)
@click.argument("submission", nargs=-1)
@interrupt_option
@verbose_option
def attach_command(submission: tuple[str, ...], on_interrupt: str | None) -> int:
    """Follow jobs that were submitted before, and write the rows of their runs.

    SUBMISSION is the id that `madlite jobs` shows; without one all that are open are followed.  Jobs that were not
    submitted, because the cluster did not answer or the command was killed, are.  Of runs that have their rows it is
    shown again what they came to; the exit code is that of all runs of the submissions.

    \b
    madlite attach
    madlite attach 20261126T195346-4f0c1a --on-interrupt leave
    """
    stored = open_submissions(submission)
    if not stored:
        echo_on("no job is open here")
        return int(ExitCode.OK)
    attached = attach(stored, on_interrupt or "")
    with ExitStack() as opened:
        own = []
        for stored_submission in stored:
            with suppress(BlockingIOError):  # another command is submitting it
                own.append(opened.enter_context(OpenSubmission.reopen(stored_submission.folder, submitting=True)))
        code = follow(attached, *own)
        attached.close(code)
        return code


def open_submissions(wanted: Sequence[str], *, settled: bool = False) -> tuple[Stored, ...]:
    """Return the submissions of this folder that have open runs, or of the wanted ids.

    Raises:
        UsageProblem: one of the ids is none of them.
    """
    found = stored_submissions(Path.cwd())
    if not wanted:
        return tuple(submission for submission in found if settled or submission.open_runs)
    chosen = []
    for name in wanted:
        matching = [submission for submission in found if _has_job(submission, name)] or [
            submission for submission in found if _has_id(submission, name)
        ]
        if len(matching) != 1:
            what = "is none" if not matching else "may be several"
            raise UsageProblem(f"'{name}' {what} of the submissions of this folder", "madlite jobs lists them")
        chosen += matching
    return tuple({submission.submission.id: submission for submission in chosen}.values())


def _has_job(stored: Stored, name: str) -> bool:
    return name in {script.job for script in stored.scripts.values()} or name in stored.jobs.values()


def _has_id(stored: Stored, name: str) -> bool:
    """Return whether a name is a submission's id, its beginning with the day, or its end behind the time.

    No part of it that is a number alone, which may be that of a job of somebody else.
    """
    own = stored.submission.id
    return name in (own, own.rpartition("-")[2]) or ("T" in name and own.startswith(name))


@click.command("cancel", cls=Command)
@click.argument("submission", nargs=-1, required=True)
@verbose_option
def cancel(submission: tuple[str, ...]) -> int:
    """End the jobs of submissions, and write the rows of their runs.

    SUBMISSION is an id that `madlite jobs` shows, its beginning (20260102T03) or its last six
    characters, or the number of a job.

    \b
    madlite cancel 20261126T195346-4f0c1a
    """
    from madlite.cli.attached import attach, cancel_and_collect

    stored = [stored_submission for stored_submission in open_submissions(submission) if stored_submission.open_runs]
    if not stored:
        echo("these jobs have ended")
        return int(ExitCode.OK)
    attached = attach(stored)
    code = cancel_and_collect(attached)
    attached.close(code)
    return code


@click.command("collect", cls=Command)
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@OUTPUT
@contract_option
@verbose_option
def collect(run: tuple[str, ...], output: Path) -> int:
    """Append what runs with --no-rows came to to perf.csv, each once.

    RUN is the id of a run, a part or a pattern of it, or its folder; without one all that wait here are taken, and the
    jobs of a cluster are asked about: a run whose job is over and that left no result gets a row that says why. So does
    a run whose madlite was killed, in the results file that it was for unless -o names one.

    \b
    madlite collect
    madlite collect '20261121*' -o nightly.csv

    Ends with the exit code that the runs would have had; 3 also where one of them cannot be collected.
    """
    here = Path.cwd()
    file = here / output
    given = click.get_current_context().get_parameter_source("output") is not ParameterSource.DEFAULT
    jobs = None if run else _collect_jobs(output if given else None)
    going_on, begin = _of_jobs(here), new_columns(contract())
    folders, cut_off = _folders(run, here, going_on)
    if folders or cut_off:
        check_appendable(file, here)
        make_folder(Path(os.path.realpath(file)))
    if not run:
        setup.warn(
            *(f"{name}: {text}" for name, text in of_other_hosts(here).items() if here / RUNS / name not in going_on)
        )
    running = left_running(here, dict(os.environ), setup.load().runtimes()) if cut_off else {}
    done = [*collect_cut_off(cut_off, here, file, begin, running, named=not given)]  # all, whoever stops reading
    done += collect_all(folders, here, file, begin)
    if not run:
        done += [collected for collected in without_row(here) if here / RUNS / collected.run_id not in going_on]
    for collected in done:
        _print_collected(collected)
    for text in write_waiting(here):
        setup.warn(text)
    if not done and (jobs is None or not jobs.results):
        echo("nothing to collect")
    of_jobs = jobs.results if jobs is not None else []
    code = exit_code([*of_jobs, *(collected.result for collected in done if collected.result is not None)])
    failed = any(collected.failed for collected in done) or (jobs is not None and jobs.failed)
    return int(ExitCode.RUN_FAILED if failed else code)


def _collect_jobs(output: Path | None) -> Attached | None:
    """Write the rows of the runs whose jobs are over, and name those that go on; None where there are no jobs.

    They go to `output`, or to the results file of each command that submitted them.
    """
    here = Path.cwd()
    if not any(folder.name.startswith(PREFIX) for folder in real_folders(here / RUNS)):
        return None
    from madlite.cli.attached import attach, collect_now

    stored = open_submissions(())
    if not stored:
        return None
    for file in dict.fromkeys(here / (output or submission.submission.output) for submission in stored):
        check_appendable(file, here)
    attached = attach(stored, output=output)
    collect_now(attached)
    attached.close(attached.exit_code())
    return attached


def _print_collected(collected: Collected) -> None:
    from madlite.cli.format import outcome_text

    if collected.failed:
        setup.warn(f"{collected.run_id}: {collected.message}")
    else:
        echo(f"{collected.run_id}: {outcome_text(collected.result)}{collected.message}")
    setup.warn(*collected.warnings)


def _of_jobs(here: Path) -> set[Path]:
    """Return the folders of the runs that jobs of a cluster still have: what becomes of them their jobs decide."""
    open_runs = [
        here / RUNS / run.id for submission in stored_submissions(here, warn=False) for run in submission.open_runs
    ]
    return {folder for first in open_runs for folder in (first, *attempts_of(first))}


def _folders(names: Sequence[str], here: Path, going_on: Collection[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of the runs to collect, each once, and of those the runs that were cut off apart.

    Raises:
        UsageProblem: a name stands for no run of this folder, or for several.
    """
    found = cut_off_runs(here, with_file=False, of_other_hosts=bool(names))
    known = [folder for folder in found if folder not in going_on]
    if not names:
        return [folder for folder in uncollected(here) if folder not in going_on], known
    named = dict.fromkeys(folder for name in names for folder in _named(name, here))
    return [folder for folder in named if folder not in known], [folder for folder in named if folder in known]


def _named(name: str, here: Path) -> Iterator[Path]:

    runs = here / RUNS
    path = Path(os.path.normpath(here / name))
    if path.parent == runs:
        name = path.name
    elif "/" in name:
        raise UsageProblem(f"{name} is no run of {here}", f"cd to the folder that has its {RUNS}, and collect there")
    yield from match_runs(runs, name)
