"""`madlite archive`: runs packed into one file for a colleague, without secrets, weights and data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.amounts import SIZE, counted
from madlite.cli.completion import complete_runs, complete_status
from madlite.cli.credentials import read_credentials
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from madlite.archive.manifest import PackedRun
    from madlite.reports.runs import StoredRun

_MASKED = 20  # files of a run in which a secret was masked and that are shown
_NAMED = 3  # files of a run that are left out and shown, the largest


@click.command("archive", cls=Command)
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@click.option("--of", default="", metavar="ID", help="Those of a batch or of a study: the beginning of its id.")
@click.option("--status", default="", metavar="WORD", shell_complete=complete_status, help="As for madlite runs.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="What is written: x.tar.gz."
)
@click.option(
    "--max-file", type=SIZE, default=256 << 20, metavar="SIZE", help="Leave larger files out.  [default: 256M]"
)
@click.option("--binary", is_flag=True, help="Also pack results that cannot be read as text: secrets may be in them.")
@click.option(
    "--force", is_flag=True, help="Also pack an imported run whose record was changed before it came; it stays marked."
)
@dir_option
@verbose_option
def command(
    run: tuple[str, ...], of: str, status: str, output: Path, max_file: int, binary: bool, force: bool, directory: Path
) -> int:
    """Pack runs into one file, without secrets and weights.

    RUN is the id of a run, a part or a pattern of it, last, or last~1. Packed are record, plan, rendered files, log,
    steps, and results that are text; left out are weights, data, caches, secret files and links. Secrets are masked in
    every file, and the files are named. The same runs give the same bytes.

    \b
    madlite archive last -o run.tar.gz
    madlite archive --of 20261121T1436 -o sweep.tar.gz
    madlite archive '*' --status success -o all.tar.gz
    """
    from madlite.archive.pack import pack
    from madlite.assets.cache import size_text
    from madlite.reports.runs import runs_folder

    runs = runs_folder(directory)
    chosen = _choose(runs, run, of, status, force)
    packed = pack(chosen, output, _secrets(runs.parent), max_file, binary=binary)
    for one in packed.manifest.runs:
        for line in _lines(one):
            echo(line)
    files = sum(len(one.files) for one in packed.manifest.runs)
    what = f"{counted(len(packed.manifest.runs), 'run')}, {counted(files, 'file')}"
    echo(f"wrote {output}: {what}, {size_text(packed.bytes)}")
    return int(ExitCode.OK)


def _lines(one: PackedRun) -> Iterator[str]:
    from madlite.assets.cache import size_text

    yield f"{one.id}  {one.card}  {counted(len(one.files), 'file')}, {size_text(one.bytes)}"
    masked = [file for file in one.files if file.masked]
    if masked:
        named = ", ".join(f"{file.path} ({file.masks})" for file in masked[:_MASKED])
        more = f", and {len(masked) - _MASKED} more" if len(masked) > _MASKED else ""
        yield f"  secrets masked in {counted(len(masked), 'file')}: {named}{more}"
    if one.doubt:
        yield f"  packed although {one.doubt}"
    if one.left_out_files:
        largest = sorted(one.left_out, key=lambda file: -file.bytes)[:_NAMED]
        named = ", ".join(f"{file.path} ({file.why})" for file in largest)
        rest = ", …" if one.left_out_files > len(largest) else ""
        yield f"  left out: {counted(one.left_out_files, 'file')}, {size_text(one.left_out_bytes)}: {named}{rest}"


def _choose(runs: Path, names: Sequence[str], of: str, status: str, force: bool) -> list[StoredRun]:
    """Return the runs to pack; those of a selection that cannot be packed are named.

    Raises:
        UsageProblem: no run is named or selected, or a named one cannot be packed.
    """
    from madlite.archive.pack import why_not_packed
    from madlite.reports.listing import select_runs
    from madlite.reports.runs import list_runs, match_runs

    if not (names or of or status):
        raise UsageProblem("no run is named", "madlite archive last -o run.tar.gz   ('*' are all)")
    ids = {folder.name for name in names for folder in match_runs(runs, name)}
    every = [one for one in list_runs(runs) if not names or one.folder.name in ids]
    chosen, good = select_runs(every, status=status, of=of), []
    for one in chosen:
        why = why_not_packed(one, force=force)
        if why and len(chosen) == len(names):
            raise UsageProblem(f"run {one.folder.name} is not packed: {why}", "madlite runs")
        if why:
            setup.warn(f"left out: run {one.folder.name}: {why}")
        else:
            good.append(one)
    if not good:
        raise UsageProblem(f"none of {counted(len(chosen), 'run')} in {runs} can be packed", "madlite runs lists them")
    return good


def _secrets(workspace: Path) -> tuple[str, ...]:
    """Return the secrets of the environment, and of the working folder's credential.json."""
    from madlite.secrets import collect, is_secret

    tables = read_credentials(workspace) or {}
    known = (text for table in tables.values() for name, text in table.items() if is_secret(name, text))
    return tuple(dict.fromkeys((*collect(os.environ), *known)))
