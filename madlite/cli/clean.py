"""`madlite clean`: what a killed madlite left behind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from madlite.batch.collect import Collected, collect_all, cut_off_runs, cut_off_text, of_other_hosts, row_elsewhere
from madlite.batch.leftovers import NO_RUN, RUNNING, Leftover, end_journals, find_leftovers, remove, still_running
from madlite.cli.options import Command, common_options, selecting_option
from madlite.cli.setup import load, warn
from madlite.cli.terminal import echo
from madlite.errors import ExitCode
from madlite.jobs.submission import folders_of_jobs
from madlite.model import Runtime
from madlite.perfcsv.side_files import write_waiting
from madlite.platforms.registry import outliving_runtimes
from madlite.store.special_files import special_files

_DONE = {"run": "marked as ended, its folder stays:"}
_MOST_SPECIAL = 20


@click.command("clean", cls=Command)
@click.option("-y", "--yes", is_flag=True, help="Remove what is listed.")
@click.option("--kept", is_flag=True, help="Also remove containers that were kept alive on request.")
@click.option("--everywhere", is_flag=True, help="Also end what dead runs of other folders left running.")
@selecting_option("--old", "The files of old or large runs instead")
@common_options
def command(yes: bool, kept: bool, everywhere: bool, no_plugins: bool) -> int:
    """List, and with --yes remove, what a killed madlite left behind.

    Touched are only containers with madlite's label, processes with its mark, and in this folder unfinished runs,
    sessions of plugin runtimes, Jobs of Kubernetes that no submission has, and incomplete files; nothing that
    belongs to a running madlite. A run that was cut off gets its FAILURE row by --yes. What runs of other folders left
    running is listed, and ended only with --everywhere. Setuid and setgid files and device nodes, which a container can
    leave here, are listed and stay.
    """
    environ, here = dict(os.environ), Path.cwd()
    runtimes = {**load(no_plugins).runtimes(), **outliving_runtimes(environ)}
    found = find_leftovers(here, environ, runtimes)
    warn(*found.notes)
    of_jobs = {str(folder) for folder in folders_of_jobs(here)}  # which may go on in their jobs
    found = replace(found, leftovers=tuple(item for item in found.leftovers if item.handle not in of_jobs))
    elsewhere, with_row = of_other_hosts(here), _with_row(here)
    waiting, adds_row, removed = False, False, []
    for item in found.leftovers:
        meant = everywhere or not item.elsewhere
        if yes and meant and (kept or not item.kept):
            removed.append(item)
        else:
            run = "" if item.run_id == NO_RUN else f"{item.run_id}  "  # a column
            refused = elsewhere.get(item.run_id, "") if item.kind == "run" else ""
            no_row = row_elsewhere(Path(item.handle), here, here / "perf.csv") if item.kind == "run" else ""
            why = f"; {refused or no_row}" if refused or no_row else ""
            echo(f"{item.kind:9} {run}{item.text}{why}{_removal_hint(item, everywhere)}")
            waiting |= meant and not item.kept and not refused
            adds_row |= item.kind == "run" and Path(item.handle) in with_row
    failed = _remove_all(removed, environ, runtimes)
    if yes:
        end_journals(here, found)
    has_special = _list_special_files()
    if not has_special and not any(everywhere or not item.elsewhere for item in found.leftovers):
        echo("nothing is left behind" + (" in this folder" if found.leftovers else ""))
    elif waiting:
        also = ", and adds the row of a run that was cut off" if adds_row else ""
        echo(f"madlite clean{' --everywhere' if everywhere else ''} --yes removes this{also}")
    return int(ExitCode.RUN_FAILED if failed else ExitCode.OK)


def _remove_all(items: Sequence[Leftover], environ: Mapping[str, str], runtimes: Mapping[str, Runtime]) -> bool:
    """Remove leftovers, and say so of each; a run that was cut off gets its row.  Return whether any of that failed."""
    elsewhere = of_other_hosts(Path.cwd())
    running = [item for item in items if item.kind in RUNNING]
    failed = [_remove(item, environ, runtimes) for item in running]
    rows = _write_rows() if len(items) > len(running) else {}
    for item in items[len(running) :]:
        if item.kind == "run" and item.run_id in rows:
            echo(cut_off_text(rows[item.run_id]))
            failed.append(rows[item.run_id].failed)
        elif item.kind == "run" and item.run_id in elsewhere:
            echo(f"not touched: {item.run_id}  {elsewhere[item.run_id]}")
        else:
            failed.append(_remove(item, environ, runtimes))
    return any(failed)


def _remove(item: Leftover, environ: Mapping[str, str], runtimes: Mapping[str, Runtime]) -> bool:
    """Remove a leftover and say so; return whether that failed."""
    problem = remove(item, environ, runtimes)
    done = _DONE.get(item.kind, "removed")
    what = f"{item.kind} {item.run_id}  " if item.run_id != NO_RUN else f"{item.kind}: "
    echo(f"{'not removed' if problem else done} {what}{problem or item.text}")
    return problem is not None


def _with_row(here: Path) -> list[Path]:
    """Return the folders of the runs that were cut off and get their row."""
    return [folder for folder in cut_off_runs(here) if not row_elsewhere(folder, here, here / "perf.csv")]


def _write_rows() -> dict[str, Collected]:
    """Write the rows of the runs that were cut off; return what became of each, by its id."""
    here, output = Path.cwd(), Path.cwd() / "perf.csv"
    done = collect_all(_with_row(here), here, output, running=still_running(here), named=True)
    warn(*(text for collected in done for text in collected.warnings), *write_waiting(here))
    return {collected.run_id: collected for collected in done}


def _list_special_files() -> bool:
    """Print the files with special rights in this folder; return whether there are any."""
    found = special_files(Path.cwd())
    for special in found[:_MOST_SPECIAL]:
        echo(
            f"{special.kind:9} {special.name}  (of user {special.uid}; it stays: rm it where nothing of yours needs it)"
        )
    if len(found) > _MOST_SPECIAL:
        echo(f"and {len(found) - _MOST_SPECIAL} more of such files")
    return bool(found)


def _removal_hint(item: Leftover, everywhere: bool) -> str:
    """Return why something is not removed with the rest, and the command that removes it."""
    kept = " --kept" if item.kept else ""
    if item.elsewhere and not everywhere:
        return f"  (of {item.elsewhere}: madlite clean --everywhere{kept} --yes)"
    if item.kept:
        return f"  (kept alive on request: madlite clean{' --everywhere' if item.elsewhere else ''} --kept --yes)"
    return ""
