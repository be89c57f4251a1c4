"""Runs beyond their folder: `madlite archive`, `import`, `verify`; `clean --old` for what they leave on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from madlite.archive.import_ import Item, append_imported, import_runs
from madlite.archive.pack import PackedRun, pack, why_not_packed
from madlite.archive.prune import Prunable, Rules, find_prunable
from madlite.backends.loader import Plugins
from madlite.catalog.datasets import read_credentials
from madlite.cli import setup
from madlite.cli.arguments import AGE, FILE, OUTPUT, SIZE, contract, contract_option, file_option
from madlite.cli.options import Command, common_options, complete_runs, dir_option, folder_options, verbose_option
from madlite.cli.terminal import echo, echo_json
from madlite.errors import ExitCode, UsageProblem
from madlite.files import exists
from madlite.perfcsv.append import check_appendable, make_folder
from madlite.perfcsv.rows import new_columns
from madlite.reports.index import RunFilter, open_index
from madlite.reports.runs import StoredRun, match_runs, open_run, runs_folder
from madlite.secrets import collect, is_secret
from madlite.text import counted, first_of, size_text

if TYPE_CHECKING:
    from madlite.archive.verify import Verified


_max_size = click.option(
    "--max-size", type=SIZE, default=16 << 30, metavar="SIZE", help="Refuse what unpacks to more.  [default: 16G]"
)
_MASKED = 20  # files of a run in which a secret was masked and that are shown
_NAMED = 3  # files of a run that are left out and shown, the largest


@click.command("archive", cls=Command)
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@click.option("--of", default="", metavar="ID", help="Those of a batch or a study: the beginning of its id, or last.")
@click.option("--status", default="", metavar="WORD", help="As for madlite runs.")
@file_option("-o", "--output", required=True, what="What is written: x.tar.gz.")
@click.option("--max-file", type=SIZE, default=256 << 20, metavar="SIZE", help="Largest file.  [default: 256M]")
@click.option("--binary", is_flag=True, help="Also pack results that cannot be read as text: secrets may be in them.")
@folder_options
def command(
    run: tuple[str, ...], of: str, status: str, output: Path, max_file: int, binary: bool, directory: Path
) -> None:
    """Pack runs into one file, without secrets and weights.

    RUN is the id of a run, a part or a pattern of it, last, or last~1. Packed are record, plan, rendered files, log,
    steps, and results that are text; left out are weights, data, caches, secret files and links. Secrets are masked in
    every file, and the files are named. The same runs give the same bytes.

    \b
    madlite archive last -o run.tar.gz
    madlite archive --of 20261121T1436 -o sweep.tar.gz
    madlite archive '*' --status success -o all.tar.gz
    """
    runs = runs_folder(directory)
    chosen = _choose(runs, run, of, status)
    manifest, size = pack(chosen, output, _secrets(runs.parent), max_file, binary=binary)
    for packed in manifest.runs:
        echo(*_lines(packed))
    what = f"{counted(len(manifest.runs), 'run')}, {counted(len(manifest.sizes()), 'file')}"
    echo(f"wrote {output}: {what}, {size_text(size)}")


def _lines(packed_run: PackedRun) -> Iterator[str]:
    yield f"{packed_run.id}  {packed_run.card}  {counted(len(packed_run.files), 'file')}, {size_text(packed_run.bytes)}"
    masked = [f"{file.path} ({file.masks})" for file in packed_run.files if file.masked]
    if masked:
        named = first_of(masked, _MASKED, more=", and {} more")
        yield f"  secrets masked in {counted(len(masked), 'file')}: {named}"
    if packed_run.left_out_files:
        largest = sorted(packed_run.left_out, key=lambda file: -file.bytes)[:_NAMED]
        named = ", ".join(f"{file.path} ({file.why})" for file in largest)
        rest = ", …" if packed_run.left_out_files > len(largest) else ""
        size = size_text(packed_run.left_out_bytes)
        yield f"  left out: {counted(packed_run.left_out_files, 'file')}, {size}: {named}{rest}"


def _choose(runs: Path, names: Sequence[str], of: str, status: str) -> list[StoredRun]:
    """Return the runs to pack; those of a selection that cannot be packed are named.

    Raises:
        UsageProblem: no run is named or selected, or a named one cannot be packed.
    """
    if not (names or of or status):
        raise UsageProblem("no run is named", "madlite archive last -o run.tar.gz   ('*' are all)")
    ids = {folder.name for name in names for folder in match_runs(runs, name)}
    with open_index(runs) as index:
        filters = RunFilter(status=status, of=index.named_by(of))
        chosen = index.opened([id for id in index.ids(filters) if not names or id in ids])
    good = []
    for stored in chosen:
        why = why_not_packed(stored)
        if why and len(chosen) == len(names):
            raise UsageProblem(f"run {stored.folder.name} is not packed: {why}", "madlite runs")
        if why:
            setup.warn(f"left out: run {stored.folder.name}: {why}")
        else:
            good.append(stored)
    if not good:
        raise UsageProblem(f"none of {counted(len(chosen), 'run')} in {runs} can be packed", "madlite runs lists them")
    return good


def _secrets(workspace: Path) -> tuple[str, ...]:
    """Return the secrets of the environment, and of the working folder's credential.json."""
    tables = read_credentials(workspace) or {}
    known = (text for table in tables.values() for name, text in table.items() if is_secret(name, text))
    return tuple(dict.fromkeys((*collect(os.environ), *known)))


@click.command("import", cls=Command)
@click.argument("file", type=FILE, metavar="FILE")
@click.option("--rows", is_flag=True, help="Also append their rows to the results file, each once.")
@OUTPUT
@_max_size
@dir_option
@contract_option
@verbose_option
def import_(file: Path, rows: bool, output: Path, max_size: int, directory: Path) -> int:
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
    if not directory.is_dir():
        raise UsageProblem(f"{directory} is no folder", "name the one that the runs are to be in: --dir DIR")
    workspace = Path(os.path.abspath(directory))  # noqa: PTH100 - links stay as they are
    target = workspace / output
    if rows:
        check_appendable(target, workspace)
    taken = import_runs(file, workspace, max_size)
    if rows:
        make_folder(Path(os.path.realpath(target)))
        taken = tuple(append_imported(taken, workspace, target, new_columns(contract())))
    for imported in taken:
        (setup.warn if imported.refused else echo)(f"{imported.run.id}: {imported.message}")
    echo(
        f"{counted(sum(imported.is_new for imported in taken), 'run')} taken in, {counted(len(taken), 'run')} in {file}"
    )
    return int(ExitCode.RUN_FAILED if any(imported.refused for imported in taken) else ExitCode.OK)


_LONGEST = 160  # characters of a value
_WORDS = {"ok": "OK", "differs": "differs", "unchecked": "OK as far as it can be checked"}


@click.command("verify", cls=Command)
@click.argument("what", nargs=-1, required=True, metavar="FILE|RUN...", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="Print a list of runs, each with every check.")
@click.option("--strict", is_flag=True, help="End with exit code 5 also where something cannot be checked.")
@_max_size
@dir_option
@common_options
def verify(what: tuple[str, ...], as_json: bool, strict: bool, max_size: int, directory: Path, no_plugins: bool) -> int:
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
    plugins = setup.load(no_plugins)
    try:
        found = [verified for name in what for verified in _verified(name, directory, plugins, max_size)]
    finally:
        setup.print_problems(plugins.problems)
    if as_json:
        from madlite.archive.verify import as_json as values

        echo_json(values(found))
    else:
        _print_verified(found)
    bad = [verified for verified in found if verified.outcome == "differs" or (strict and verified.outcome != "ok")]
    return int(ExitCode.RESULT_CHECK_FAILED if bad else ExitCode.OK)


def _verified(name: str, directory: Path, plugins: Plugins, max_size: int) -> Iterator[Verified]:
    from madlite.archive.verify import verify_archive, verify_run

    if "/" in name or exists(Path(name)):
        yield from verify_archive(Path(name), plugins, max_size)
        return
    for folder in match_runs(runs_folder(directory), name):
        yield verify_run(open_run(folder), plugins)


def _print_verified(found: Sequence[Verified]) -> None:
    for verified in found:
        summary = f"{len(verified.of('ok'))} of {counted(len(verified.checks), 'check')}"
        echo(f"{verified.run}  {verified.card}  {_WORDS[verified.outcome]}  ({summary})")
        for item in (*verified.of("differs"), *verified.of("unchecked")):
            echo(f"  {_text(item)}")
        for note in verified.notes:
            echo(f"  note: {note}")
    differ = sum(verified.outcome == "differs" for verified in found)
    if len(found) > 1 or differ:
        echo(f"{counted(len(found), 'run')}, {differ or 'none'} with differences")


def _text(item: Item) -> str:
    recorded, found = item.recorded[:_LONGEST], item.found[:_LONGEST]
    if item.outcome == "differs":
        source = "the log gives" if item.what.split()[0] in _OF_LOG else "found"
        return f"{item.what} differs: recorded {recorded}, {source} {found}"
    values = f" (recorded {recorded}, the log gives {found})" if recorded or found else ""
    return f"{item.what} cannot be checked: {item.why}{values}"


_OF_LOG = frozenset(("number", "status", "steps", "window", "steps.jsonl", "TFLOP/s/GPU", "MFU"))


@click.command("clean --old", cls=Command)
@click.option("--older-than", "older_than_s", type=AGE, metavar="AGE", help="Runs that ended longer ago: 12h, 30d, 4w.")
@click.option("--keep-last", type=click.IntRange(min=0), metavar="N", help="Never the newest N runs.")
@click.option("--max-size", type=SIZE, metavar="SIZE", help="The oldest, until all runs together have no more.")
@click.option("--all", "folders", is_flag=True, help="Remove the folders with their records, rows included.")
@click.option("-y", "--yes", is_flag=True, help="Remove what is listed.")
@dir_option
@common_options
def prune(yes: bool, directory: Path, no_plugins: bool, **limits: Any) -> int:
    """List, and with --yes remove, the files of old or large runs.

    Log, steps, outputs and checkpoints go. Record, plan and rendered files stay: runs, show, reproduce and report
    rebuild work as before. With --all the whole folder goes. Meant are the runs to which every given option applies. A
    run stays in any case while it is running, waits for clean or collect, has rows that are not in perf.csv, or is
    named by a baseline.

    \b
    madlite clean --old --older-than 30d
    madlite clean --old --max-size 50G --keep-last 20 --yes

    Ends with exit code 3 where something could not be removed.
    """
    rules = Rules(**limits)
    if all(limit is None for limit in (rules.older_than_s, rules.keep_last, rules.max_size)):
        raise UsageProblem("no age and no size is given", "madlite clean --old --older-than 30d   or --max-size 50G")
    environ = dict(os.environ)
    found, notes = find_prunable(runs_folder(directory), rules, environ, setup.load(no_plugins).runtimes())
    setup.warn(*notes)
    going = [prunable for prunable in found if not prunable.why]
    for prunable in found:
        if prunable.why:
            echo(f"stays    {_line(prunable)}: {prunable.why}")
    failed = _remove(going, rules) if yes else _list(going, rules)
    return int(ExitCode.RUN_FAILED if failed else ExitCode.OK)


def _list(going: Sequence[Prunable], rules: Rules) -> bool:

    for prunable in going:
        echo(f"{'folder' if rules.folders else 'files':8} {_line(prunable)}")
    if not going:
        echo("nothing to remove")
        return False
    size = size_text(sum(prunable.bytes for prunable in going))
    stays = "their folders; no record stays" if rules.folders else "these files; the records stay"
    echo(f"{counted(len(going), 'run')}, {size}: the same command with --yes removes {stays}")
    return False


def _remove(going: Sequence[Prunable], rules: Rules) -> bool:
    from madlite.archive.prune import prune

    freed, failed = 0, False
    for prunable in going:
        problem = prune(prunable, rules)
        failed |= bool(problem)
        freed += 0 if problem else prunable.bytes
        echo(f"{'not removed' if problem else 'removed'} {_line(prunable)}{f': {problem}' if problem else ''}")
    echo(f"{size_text(freed)} freed" if going else "nothing to remove")
    return failed


def _line(prunable: Prunable) -> str:

    days = prunable.age_s / 86400
    age = f"{days:.0f} days old" if days >= 2 else f"{prunable.age_s / 3600:.0f} hours old"
    return f"{prunable.run.folder.name}  {prunable.run.record.card or '-'}  {age}  {size_text(prunable.bytes)}"
