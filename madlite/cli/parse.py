"""`madlite parse`: what the logs of trainings show that somebody else ran."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.options import Command, common_options
from madlite.errors import ExitCode, MadliteError
from madlite.types import Backend, Status, Variant

if TYPE_CHECKING:
    from madlite.engine.foreign import Reading
    from madlite.plugins import Plugins

_STDIN = "-"


@click.command("parse", cls=Command)
@click.argument("log", nargs=-1, required=True, metavar="LOG...")
@click.option("--backend", default="", metavar="NAME", help="Whose log it is, over what is recognised.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=Variant(model="").warmup_steps,
    show_default=True,
    metavar="N",
    help="How many first steps say nothing about the speed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an object with every step; a list of them for several.")
@common_options
def command(log: tuple[str, ...], backend: str, warmup: int, as_json: bool, no_plugins: bool, verbose: bool) -> int:
    """Read logs of trainings: steps, steady throughput, verdict.

    A LOG is a file, packed by gzip, xz or bzip2 or not, or - for stdin. Nothing is run or written.

    \b
    madlite parse train.log
    kubectl logs trainer | madlite parse - --json
    """
    from madlite.engine.owner import find_backend

    plugins = setup.load(no_plugins, verbose)
    try:
        given = find_backend(plugins, backend, "--backend")[0] if backend else None
        codes = []
        for place, name in enumerate(log):
            found = _read(name, plugins, given, warmup)
            if isinstance(found, MadliteError):
                if len(log) == 1:
                    raise found
                setup.warn(f"{found.message}; {found.hint}" if found.hint else found.message)
            _show(name, found, place, len(log), as_json)
            codes.append(_code(found))
        return int(max(codes))  # wrong usage, 4, comes before a failed run, 3
    finally:
        setup.tell_problems(plugins.problems)


def _read(name: str, plugins: Plugins, given: Backend | None, warmup: int) -> Reading | MadliteError:
    from madlite.engine.foreign import read_log
    from madlite.engine.log_source import open_log, read_chunks
    from madlite.files import shown

    try:
        if name == _STDIN:
            return read_log("stdin", read_chunks(sys.stdin.buffer, "stdin"), plugins, given, warmup)
        called = shown(Path(name))
        with open_log(Path(name)) as file:
            return read_log(called, read_chunks(file, called), plugins, given, warmup)
    except MadliteError as error:
        return error


def _show(name: str, found: Reading | MadliteError, place: int, count: int, as_json: bool) -> None:
    """Print one of several logs."""
    from madlite.cli.parse_json import json_pieces, problem_json
    from madlite.cli.parse_page import page

    pieces: Iterable[str]
    if isinstance(found, MadliteError):
        pieces = [problem_json(name, found)] if as_json else []
    else:
        pieces = json_pieces(found) if as_json else [page(found)]
    if as_json and count > 1:
        pieces = ["[\n" if place == 0 else ",\n", *pieces, "]\n" if place == count - 1 else ""]
    elif place and pieces:
        pieces = ["\n", *pieces]
    for piece in pieces:
        click.echo(piece, nl=False)


def _code(found: Reading | MadliteError) -> ExitCode:
    if isinstance(found, MadliteError):
        return found.exit_code
    return ExitCode.RUN_FAILED if found.verdict.status is Status.FAILURE else ExitCode.OK
