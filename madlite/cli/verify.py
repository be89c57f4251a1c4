"""`madlite verify`: whether the numbers, hashes and plans of runs are what their files give."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.amounts import SIZE, counted
from madlite.cli.completion import complete_runs
from madlite.cli.options import Command, common_options, dir_option
from madlite.cli.terminal import echo, without_secrets
from madlite.errors import ExitCode, RecordError, UsageProblem

if TYPE_CHECKING:
    from madlite.archive.unpack import Mismatch
    from madlite.archive.verify import Item, Verified
    from madlite.backends.loader import Plugins
    from madlite.reports.runs import StoredRun

_LONGEST = 160  # characters of a value
_WORDS = {"ok": "OK", "differs": "differs", "unchecked": "OK as far as it can be checked"}


@click.command("verify", cls=Command)
@click.argument("what", nargs=-1, required=True, metavar="FILE|RUN...", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="Print a list of runs, each with every check.")
@click.option("--strict", is_flag=True, help="End with exit code 5 also where something cannot be checked.")
@click.option(
    "--max-size", type=SIZE, default=16 << 30, metavar="SIZE", help="Refuse what unpacks to more.  [default: 16G]"
)
@dir_option
@common_options
def command(
    what: tuple[str, ...],
    as_json: bool,
    strict: bool,
    max_size: int,
    directory: Path,
    no_plugins: bool,
    verbose: bool,
) -> int:
    """Read the logs of runs again, and compare what they give with what is recorded.

    A log is read as its run read it: by the backend and the rules of its plan. Compared are hashes (manifest, rendered
    files), plan, status, numbers, steps, steady window, rows. A FILE is an archive of `madlite archive`; RUN is the id
    of a run, a part or a pattern of it, last, or last~1. Nothing is changed.

    \b
    madlite verify last
    madlite verify sweep.tar.gz --json
    madlite verify '2026*'

    Ends with exit code 5 where something differs, 4 where an archive or a record cannot be read.
    """
    plugins = setup.load(no_plugins, verbose)
    try:
        found = [one for name in what for one in _verified(name, directory, plugins, max_size)]
    finally:
        setup.print_problems(plugins.problems)
    if as_json:
        from madlite.archive.verify import as_json as values

        click.echo(without_secrets(json.dumps(values(found), indent=2)))
    else:
        _print(found)
    bad = [one for one in found if one.outcome == "differs" or (strict and one.outcome != "ok")]
    return int(ExitCode.RESULT_CHECK_FAILED if bad else ExitCode.OK)


def _verified(name: str, directory: Path, plugins: Plugins, max_size: int) -> Iterator[Verified]:
    from madlite.files import exists
    from madlite.reports.runs import match_runs, open_run, runs_folder

    if "/" in name or exists(Path(name)):
        yield from _of_archive(Path(name), plugins, max_size)
        return
    runs = runs_folder(directory)
    for folder in match_runs(runs, name):
        yield _of_run(open_run(folder), plugins)


def _of_run(run: StoredRun, plugins: Plugins) -> Verified:
    from madlite.archive.rows_in_file import RowsInFile
    from madlite.archive.verify import Item, Place, Verified, verify
    from madlite.reports.runs import CUT_OFF, RUNNING, UNREADABLE

    why = {RUNNING: "it is still running", CUT_OFF: "it was cut off: it has no record"}.get(run.state)
    if run.state == UNREADABLE:
        raise UsageProblem(f"run {run.folder.name}: {run.problem}", "madlite runs")
    if why is not None:
        return Verified(
            run=run.folder.name,
            card=run.record.card,
            items=(Item(what="record", outcome="unchecked", why=why),),
        )
    place = Place(folder=run.folder, pruned=run.pruned, imported=run.from_elsewhere)
    return verify(run.record, place, plugins, RowsInFile(run.folder.parent.parent))


def _of_archive(file: Path, plugins: Plugins, max_size: int) -> Iterator[Verified]:
    from madlite.archive.rows_in_file import RowsInFile
    from madlite.archive.unpack import Limits, unpack
    from madlite.archive.verify import Place, Verified, of_manifest, verify
    from madlite.files import Folder
    from madlite.store.stored import load_record

    with tempfile.TemporaryDirectory(prefix="madlite-verify-") as name, Folder.open(Path(name)) as into:
        found = unpack(file, into, Limits(bytes=max_size))
        mismatches: dict[str, list[Mismatch]] = {}
        for one in found.mismatches:
            mismatches.setdefault(one.name.partition("/")[0], []).append(one)
        for run in found.manifest.runs:
            wrong = tuple(mismatches.pop(run.id, ()))
            place = Place(folder=Path(name) / run.id, packed=run, mismatches=wrong)
            try:
                record = load_record(place.folder)
                problem = "it has no record.json" if record is None else ""
            except RecordError as error:
                record, problem = None, error.message
            if record is not None:
                yield verify(record, place, plugins, RowsInFile(Path(name)))
            elif wrong:
                yield Verified(run=run.id, card=run.card, items=of_manifest(wrong), notes=(problem,))
            else:
                raise UsageProblem(f"run {run.id} of {file}: {problem}", "pip install --upgrade madlite")
        if mismatches:  # of files of no run
            yield Verified(run=file.name, card="", items=of_manifest(chain.from_iterable(mismatches.values())))


def _print(found: Sequence[Verified]) -> None:
    for one in found:
        echo(f"{one.run}  {one.card}  {_WORDS[one.outcome]}  ({_summary(one)})")
        for item in (*one.of("differs"), *one.of("unchecked")):
            echo(f"  {_text(item)}")
        for note in one.notes:
            echo(f"  note: {note}")
    differ = sum(one.outcome == "differs" for one in found)
    if len(found) > 1 or differ:
        echo(f"{counted(len(found), 'run')}, {differ or 'none'} with differences")


def _summary(one: Verified) -> str:
    good, count = len(one.of("ok")), len(one.items)
    return f"{good} of {counted(count, 'check')}"


def _text(item: Item) -> str:
    recorded, found = item.recorded[:_LONGEST], item.found[:_LONGEST]
    if item.outcome == "differs":
        source = "the log gives" if item.what.split()[0] in _OF_LOG else "found"
        return f"{item.what} differs: recorded {recorded}, {source} {found}"
    values = f" (recorded {recorded}, the log gives {found})" if recorded or found else ""
    return f"{item.what} cannot be checked: {item.why}{values}"


_OF_LOG = frozenset(("number", "status", "steps", "window", "steps.jsonl", "TFLOP/s/GPU", "MFU"))
