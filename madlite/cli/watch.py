"""Runs as they go on: `madlite runs --watch` on a terminal, `madlite dashboard` in a browser."""

from __future__ import annotations

import importlib.util
import ipaddress
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from madlite.batch.leftovers import still_running
from madlite.cli import setup
from madlite.cli.arguments import FiniteRange, number_option
from madlite.cli.format import study_text
from madlite.cli.options import Command, folder_options
from madlite.cli.terminal import coloured, echo, echo_status, printable_lines, without_secrets
from madlite.errors import UsageProblem
from madlite.reports.runs import RUNNING, runs_folder
from madlite.reports.watch import Watch, WatchedRun, changes
from madlite.text import align, duration, figure, printable, shortened, status_text

_HEAD = ("RUN", "CARD", "STATE", "STEP", "SPEED", "LOSS", "ELAPSED", "LEFT")
_LONGEST = 48  # characters of a cell


@click.command("runs --watch", cls=Command)
@click.option("--once", is_flag=True, help="Print how far they are, and end.")
@click.option("-f", "--follow", is_flag=True, help="Wait for further runs when none is running.")
@click.option("--json", "as_json", is_flag=True, help="Print an object per line, for each change.")
@number_option("--interval", FiniteRange(min=0.1), 1.0, "SECONDS", "Between two looks.")
@folder_options
def command(once: bool, follow: bool, as_json: bool, interval: float, directory: Path) -> None:
    """Show how far the runs of this folder are, as long as they go on.

    It reads what runs leave in their folders, so it may run on any machine that sees them; no run waits for it. Where
    none goes on, the last batch is shown.

    \b
    madlite runs --watch
    madlite runs --watch --json --follow | jq .progress.step
    """
    folder = runs_folder(directory)
    watch = Watch(folder)
    runs = watch.read()
    setup.warn(*(f"{name}: {text}" for name, text in still_running(folder.parent).items()))
    if not runs and not follow and not watch.is_batch_running:
        _print(watch.last(), as_json)
        if not as_json:
            echo(f"no run is running in {folder}")
    elif once:
        _print(runs, as_json)
    elif sys.stdout.isatty() and not as_json:
        _show(_poll(watch, runs, follow, interval))
    else:
        _follow(_poll(watch, runs, follow, interval), as_json)


def _follow(polls: Iterable[tuple[WatchedRun, ...]], as_json: bool) -> None:
    """Print a line for each change."""
    before: tuple[WatchedRun, ...] = ()
    for now in polls:
        for watched_run in changes(before, now):
            echo(_json(watched_run) if as_json else _line(watched_run))
        sys.stdout.flush()
        before = now


def _show(polls: Iterable[tuple[WatchedRun, ...]]) -> None:
    """Keep a table on the terminal up to date; it stays as it was at the end."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def table(runs: Iterable[WatchedRun]) -> Text:
        lines = (coloured(line) for line in _lines(runs, console.width))
        return Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")

    console = Console(file=sys.stdout, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        for now in polls:
            live.update(table(now), refresh=True)


def _poll(
    watch: Watch, runs: tuple[WatchedRun, ...], follow: bool, interval_s: float
) -> Iterator[tuple[WatchedRun, ...]]:
    """Yield the runs at each poll, until none is running."""
    while True:
        yield runs
        if not follow and not any(run.state == RUNNING for run in runs) and not watch.is_batch_running:
            return
        time.sleep(interval_s)
        runs = watch.read()


def _print(runs: Iterable[WatchedRun], as_json: bool) -> None:
    if as_json:
        echo(*map(_json, runs))
    else:
        echo_status(*_lines(runs))


def _lines(runs: Iterable[WatchedRun], width: int | None = None) -> list[str]:
    """Return the lines of a table, its head first; a narrow terminal cuts the cards."""
    rows = [_HEAD, *map(_cells, runs)]
    if len(rows) == 1:
        return []
    numbers = range(_HEAD.index("STATE") + 1, len(_HEAD))
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        wide[1] = max(len(_HEAD[1]), min(wide[1], width - (sum(wide) - wide[1]) - 2 * len(numbers) - 4))
    rows = [(row[0], shortened(row[1], wide[1]), *row[2:]) for row in rows]
    return align(rows, numbers)


def _json(watched_run: WatchedRun) -> str:

    return without_secrets(msgspec.json.encode(watched_run).decode())


def _line(watched_run: WatchedRun) -> str:
    """Return a run in a line of a pipe, without what is blank."""
    run, card, state, *rest = _cells(watched_run)
    return "  ".join([run, card, state, *(cell for cell in rest if cell != "-")])


def _cells(watched_run: WatchedRun) -> tuple[str, ...]:
    progress = watched_run.progress
    card = watched_run.card + (f" ({study_text(watched_run.study)})" if watched_run.study else "")
    of = f"/{progress.steps}" if progress.steps else ""
    step = "-" if progress.step is None else f"{progress.step}{of}"
    speed = "-" if progress.speed is None else f"{figure(progress.speed)} {progress.unit}"
    loss = figure(progress.loss, "-")
    elapsed = "-" if watched_run.elapsed_s is None else duration(watched_run.elapsed_s)
    left = duration(progress.left_s) if watched_run.state == RUNNING and progress.left_s is not None else "-"
    cells = (
        watched_run.id.rpartition("-")[2],
        card or "-",
        _state(watched_run),
        step,
        watched_run.number or speed,
        loss,
        elapsed,
        left,
    )
    return tuple(shortened(printable(without_secrets(cell)), _LONGEST) for cell in cells)


def _state(watched_run: WatchedRun) -> str:
    if watched_run.state != RUNNING:
        return status_text(watched_run.state, ("suspect",) if watched_run.suspect else (), watched_run.cause)
    progress = watched_run.progress
    return progress.state + (f": {progress.doing}" if progress.doing and progress.doing != progress.state else "")


_LOOPBACK = "127.0.0.1"
_PACKAGES = ("starlette", "uvicorn")
_OPEN = "everybody who reaches this machine can read the runs, without a token"
_UNENCRYPTED = "the token travels unencrypted; who reads along on the network can use it"


@click.command("dashboard", cls=Command)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, metavar="PORT", help="0: any.  [default: 8080]")
@click.option("--host", default=_LOOPBACK, metavar="ADDRESS", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--no-token", is_flag=True, help="Show the runs to everybody who reaches the address.")
@folder_options
def dashboard(port: int, host: str, no_token: bool, directory: Path) -> None:
    """Show the runs of this folder in a browser, also as they go on.

    It reads and changes nothing, answers this machine alone, and ends with Ctrl-C. The printed address has a token,
    which the browser keeps as a cookie; scripts send it as 'Authorization: Bearer TOKEN'. Filters are in the address.
    It needs: pip install 'madlite[dashboard]'

    \b
    madlite dashboard
    madlite dashboard --dir ~/bench --port 0
    """
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UsageProblem(f"the dashboard needs {' and '.join(missing)}", "pip install 'madlite[dashboard]'")
    from madlite.cli.show import sections
    from madlite.reports.dashboard.server import serve

    runs = runs_folder(directory)
    token = "" if no_token else secrets.token_hex(24)
    if not _is_loopback(host):
        setup.warn(f"--host {host}: {_OPEN if no_token else _UNENCRYPTED}")

    def started(url: str) -> None:
        # the address as it is: what masks secrets masks the token
        click.echo(f"{printable_lines(without_secrets(str(runs)))} at {url}   (Ctrl-C ends)")

    serve(runs, sections, host=host, port=port, token=token, started=started)


def _is_loopback(host: str) -> bool:

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
