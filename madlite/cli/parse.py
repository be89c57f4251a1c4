"""`madlite parse`: what the logs of trainings show, of those that somebody else ran and of runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.completion import complete_runs
from madlite.cli.options import Command, common_options, dir_option
from madlite.cli.result_options import FAIL_ON_SUSPECT
from madlite.cli.run_or_file import run_of
from madlite.cli.terminal import coloured, has_colour
from madlite.errors import ExitCode, MadliteError
from madlite.model import Backend, Status, Value, Variant

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.run.foreign import Reading

_STDIN = "-"
_WARMUP_STEPS = Variant(model="").warmup_steps


class _Asked(Value, frozen=True):
    """What a command line says of how logs are read."""

    backend: Backend | None
    warmup: int | None
    directory: Path


@click.command("parse", cls=Command)
@click.argument("log", nargs=-1, required=True, metavar="LOG...", shell_complete=complete_runs)
@click.option("--backend", default="", metavar="NAME", help="Whose log it is, over what is recognised.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"How many first steps say nothing about the speed.  [default: {_WARMUP_STEPS}, or the run's]",
)
@click.option("--json", "as_json", is_flag=True, help="Print an object with every step; a list of them for several.")
@FAIL_ON_SUSPECT
@dir_option
@common_options
def command(
    log: tuple[str, ...],
    backend: str,
    warmup: int | None,
    as_json: bool,
    fail_on_suspect: bool,
    directory: Path,
    no_plugins: bool,
    verbose: bool,
) -> int:
    """Read logs of trainings: steps, steady throughput, verdict.

    A LOG is a file, packed by gzip, xz or bzip2 or not, - for stdin, or a run: its id, a part of it that no other has,
    or last. Nothing is run or written.

    \b
    madlite parse train.log
    madlite parse last
    kubectl logs trainer | madlite parse - --json
    """
    from madlite.run.owner import find_backend

    plugins = setup.load(no_plugins, verbose)
    try:
        given = find_backend(plugins, backend, "--backend")[0] if backend else None
        asked = _Asked(backend=given, warmup=warmup, directory=directory)
        codes = []
        for place, name in enumerate(log):
            found = _read(name, plugins, asked)
            if isinstance(found, MadliteError):
                if len(log) == 1:
                    raise found
                setup.warn(f"{found.message}; {found.hint}" if found.hint else found.message)
            _show(name, found, place, len(log), as_json)
            codes.append(_code(found, fail_on_suspect))
        return int(max(codes))  # wrong usage, 4, comes before a failed run, 3
    finally:
        setup.tell_problems(plugins.problems)


def _read(name: str, plugins: Plugins, asked: _Asked) -> Reading | MadliteError:
    from madlite.files import shown
    from madlite.run.foreign import read_log
    from madlite.run.log_source import open_log, read_chunks

    warmup = _WARMUP_STEPS if asked.warmup is None else asked.warmup
    try:
        if name == _STDIN:
            return read_log("stdin", read_chunks(sys.stdin.buffer, "stdin"), plugins, asked.backend, warmup)
        if (folder := run_of(name, asked.directory)) is not None:
            return _read_run(folder, plugins, asked)
        called = shown(Path(name))
        with open_log(Path(name)) as file:
            return read_log(called, read_chunks(file, called), plugins, asked.backend, warmup)
    except MadliteError as error:
        return error


def _read_run(folder: Path, plugins: Plugins, asked: _Asked) -> Reading:
    """Return what a run's log shows, by its own backend and warm-up where the command line names no others."""
    from madlite.reports.log import read_log
    from madlite.reports.runs import open_run
    from madlite.run.foreign import read_log as read

    record = open_run(folder).record
    own = plugins.backends().get(record.backend) if record.rendered else None
    backend = asked.backend or (own[0] if own else None)
    warmup = record.variant.warmup_steps if record.variant and asked.warmup is None else asked.warmup
    steps = _WARMUP_STEPS if warmup is None else warmup
    return read(f"run {folder.name}", read_log(folder), plugins, backend, steps)


def _show(name: str, found: Reading | MadliteError, place: int, count: int, as_json: bool) -> None:
    """Print one of several logs."""
    from madlite.cli.parse_json import json_pieces, problem_json
    from madlite.cli.parse_page import page

    pieces: Iterable[str]
    if isinstance(found, MadliteError):
        pieces = [problem_json(name, found)] if as_json else []
    else:
        pieces = json_pieces(found) if as_json else _in_colour(page(found))
    if as_json and count > 1:
        pieces = ["[\n" if place == 0 else ",\n", *pieces, "]\n" if place == count - 1 else ""]
    elif place and pieces:
        pieces = ["\n", *pieces]
    for piece in pieces:
        click.echo(piece, nl=False)


def _in_colour(text: str) -> Iterator[str]:
    colour = coloured if has_colour(sys.stdout.isatty()) else str
    yield from (colour(line) for line in text.splitlines(keepends=True))


def _code(found: Reading | MadliteError, fail_on_suspect: bool) -> ExitCode:
    if isinstance(found, MadliteError):
        return found.exit_code
    doubted = fail_on_suspect and bool(found.verdict.suspect)
    return ExitCode.RUN_FAILED if doubted or found.verdict.status is Status.FAILURE else ExitCode.OK
