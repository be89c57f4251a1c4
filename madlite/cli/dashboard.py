"""`madlite dashboard`: the runs of a folder in a browser, live."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from madlite.cli import setup
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.cli.terminal import printable_lines, without_secrets
from madlite.errors import ExitCode, UsageProblem

_LOOPBACK = "127.0.0.1"
_PACKAGES = ("starlette", "uvicorn")
_OPEN = "everybody who reaches this machine can read the runs, without a token"
_UNENCRYPTED = "the token travels unencrypted; who reads along on the network can use it"


@click.command("dashboard", cls=Command)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, metavar="PORT", help="0: any free one."
)
@click.option(
    "--host",
    default=_LOOPBACK,
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on; on another than this machine's own the token travels unencrypted.",
)
@click.option("--no-token", is_flag=True, help="Show the runs to everybody who reaches the address.")
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@dir_option
@verbose_option
def command(port: int, host: str, no_token: bool, opens: bool, directory: Path) -> int:
    """Show the runs of this folder in a browser, and how far those are that go on.

    It reads and changes nothing, answers this machine alone, and ends with Ctrl-C. The printed address has a token,
    which the browser keeps as a cookie; scripts send it as 'Authorization: Bearer TOKEN'. Filters are in the address,
    and /api/openapi.json describes the same as JSON. It needs: pip install 'madlite[dashboard]'

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
    token = "" if no_token else secrets.token_hex(24)
    if not _is_loopback(host):
        setup.warn(f"--host {host}: {_OPEN if no_token else _UNENCRYPTED}")
    with ExitStack() as stack:

        def started(url: str) -> None:
            # the address as it is: what masks secrets masks the token
            click.echo(f"{printable_lines(without_secrets(str(runs)))} at {url}   (Ctrl-C ends)")
            if opens:
                _open(stack.enter_context(_private(url)) if token else url)

        words = Words(details=sections, duration=duration, status=status_text)
        serve(runs, words, host=host, port=port, token=token, started=started)
    return int(ExitCode.OK)


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _private(url: str) -> Iterator[str]:
    """Yield the address of a file of this user that leads to another: the words of a command are for every user."""
    with TemporaryDirectory(prefix="madlite-") as folder:
        file = Path(folder) / "dashboard.html"
        file.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(url)}">\n')
        yield file.as_uri()


def _open(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        setup.warn("no browser could be started: open the printed address")
