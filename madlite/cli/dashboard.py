"""`madlite dashboard`: the runs of a folder in a browser, live."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from madlite.cli import setup
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.cli.terminal import echo
from madlite.errors import ExitCode, UsageProblem

_LOOPBACK = "127.0.0.1"
_PACKAGES = ("starlette", "uvicorn")


@click.command("dashboard", cls=Command)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, metavar="PORT", help="0: any free one."
)
@click.option(
    "--host",
    default=_LOOPBACK,
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on; on another than this machine's own everybody who reaches it sees the runs.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@dir_option
@verbose_option
def command(port: int, host: str, opens: bool, directory: Path) -> int:
    """Show the runs of this folder in a browser, and how far those are that go on.

    It reads and changes nothing, answers this machine alone, and ends with Ctrl-C. Filters are in the address, and
    /api/openapi.json describes the same as JSON. It needs: pip install 'madlite[dashboard]'

    \b
    madlite dashboard
    madlite dashboard --dir ~/bench --port 0 --open
    """
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UsageProblem(f"the dashboard needs {' and '.join(missing)}", "pip install 'madlite[dashboard]'")
    from madlite.cli.format import duration, status_text
    from madlite.cli.show import sections
    from madlite.reports.dashboard import Words, serve
    from madlite.reports.runs import runs_folder

    runs = runs_folder(directory)
    if not _is_loopback(host):
        setup.warn(f"--host {host}: everybody who reaches this machine can read the runs, without a password")

    def started(url: str) -> None:
        echo(f"{runs} at {url}   (Ctrl-C ends)")
        if opens:
            _open(url)

    words = Words(details=sections, duration=duration, status=status_text)
    serve(runs, words, host=host, port=port, started=started)
    return int(ExitCode.OK)


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        setup.warn(f"no browser could be started: open {url}")
