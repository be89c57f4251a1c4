"""`madlite prepare`: what runs need, here before they start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from madlite.assets.cache import size_text
from madlite.cli import setup
from madlite.cli.format import duration
from madlite.cli.options import TagsCommand, common_options, plan_options, tag_words, tags_option
from madlite.cli.screens import PlainScreen, Sink
from madlite.cli.setup import cards_option
from madlite.run.prepare import Prepared, Requirement, Resolution
from madlite.text import align, printable

if TYPE_CHECKING:
    from madlite.plan.context import Options


@click.command("prepare", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option("-n", "--dry-run", is_flag=True, help="Show what is needed and whether it can be had, and fetch nothing.")
@click.option("-l", "--live-output", is_flag=True, help="Show also what a run prints that prepares data.")
@click.option("--machine", default="", metavar="NxGPU", help="Prepare for this machine, e.g. 8xMI300X.")
@click.option("--offline", is_flag=True, help="Use no network: list what is missing.")
@click.option(
    "--refresh", is_flag=True, help="Check files that are here against the hub again, too: branches move, disks err."
)
@click.option("--no-image", is_flag=True, help="Leave container images out.")
@plan_options
@common_options
def command(**params: Any) -> int:
    """Fetch what the models that tags select need: weights, data, image.

    \b
    madlite prepare --tags pyt_train_llama-3.1-8b --dry-run
    madlite prepare --tags pyt_train_llama-3.1-8b --mode pretrain
    madlite prepare --tags pyt_train_llama-3.1-8b --machine 8xMI300X --no-image

    Access to every repository is checked, and room on the disk, before anything is fetched. A run of the same tag and
    options then uses what is here and fetches nothing.
    """
    from madlite.cli.planning import plan_all
    from madlite.run.executor import secrets_for
    from madlite.run.prepare import PrepareOptions, resolve
    from madlite.secrets import Redactor

    plugins = setup.load(params["no_plugins"], params["verbose"])
    options = setup.make_options(params)
    planned = plan_all(plugins, options, params)
    wanted = PrepareOptions(offline=params["offline"], refresh=params["refresh"], images=not params["no_image"])
    found = resolve(planned, plugins, options, wanted)
    setup.print_problems(plugins.problems)
    token = [found.access.token.value.reveal()] if found.access.token else []
    mask = Redactor([*token, *(text for one in planned for text in secrets_for(one, options.environ))]).text
    click.echo(mask(table(found)))
    found.check()
    if params["dry_run"]:
        return 0
    return _prepare(found, options, mask)


def _prepare(found: Resolution, options: Options, mask: Any) -> int:
    from madlite.cli.screens import make_screen
    from madlite.run.prepare import prepare_all

    sink = Sink(sys.stdout.fileno())
    screen = make_screen(sink, live=options.live_output)
    try:
        lines = PrepareLines(screen, mask)
        done = prepare_all(found, options, lines, mask)
        lines.total(done)
    finally:
        screen.close()
        sink.close()
    return int(done.exit_code)


# `madlite prepare` on the screen.

_SHOW_EVERY_S = 0.2
_HEADS = ("what", "from", "size", "state", "where")


def table(found: Resolution) -> str:
    """Return a table of requirements, and how much is still to fetch."""
    if not found.requirements:
        return "nothing is needed from elsewhere"
    rows = [_HEADS, *(_cells(one) for one in found.requirements)]
    notes = [f"note: {one.what}: {printable(one.note)}" for one in found.requirements if one.note]
    missing = sum(one.missing for one in found.requirements)
    return "\n".join([*align(rows), *notes, *([f"to fetch: {size_text(missing)}"] if missing else [])])


def _cells(one: Requirement) -> tuple[str, ...]:
    size = "-" if one.what.startswith("image ") else "?" if one.size is None else size_text(one.size)
    state = f"partly here, {size_text(one.missing)} left" if one.state == "partly here" else one.state
    return tuple(map(printable, (one.what, one.source, size, state, one.place)))


class PrepareLines:
    """Shows preparations on a screen of runs."""

    def __init__(
        self, screen: PlainScreen, mask: Callable[[str], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen, self._mask, self._clock = screen, mask, clock
        self._began_s = self._shown_s = 0.0

    def requirement_started(self, requirement: Requirement, position: int, total: int) -> None:
        """Name what is fetched now."""
        self._began_s, self._shown_s = self._clock(), float("-inf")
        self._lines(
            "",
            [f"[{position}/{total}] {requirement.what} · {requirement.source}"],
            begin=True,
            size=requirement.missing or None,
        )

    def requirement_advanced(self, done: int, total: int) -> None:
        """Report progress and speed; a terminal's progress line adds the remaining time."""
        now = self._clock()
        if now - self._shown_s < _SHOW_EVERY_S and done < total:
            return
        self._shown_s = now
        speed = max(done, 0) / max(now - self._began_s, 0.1)
        self._screen.advance(done, f"{size_text(max(done, 0))} of {size_text(total)}, {size_text(int(speed))}/s")

    def requirement_message(self, text: str) -> None:
        """Show a message of the download."""
        self._screen.phase(self._mask(text))

    def requirement_output(self, chunk: bytes, stream: int) -> None:
        """Show the output of a preparation with --live-output."""
        self._screen.output(chunk, stream)

    def requirement_here(self, requirement: Requirement, place: str) -> None:
        """Report where a requirement was stored."""
        self._lines("      ", [f"READY {place}", f"  took {duration(self._clock() - self._began_s)}"])

    def requirement_failed(self, requirement: Requirement, message: str, hint: str) -> None:
        """Report why a requirement could not be fetched."""
        self._lines("      ", [f"FAILURE {requirement.what}: {message}", *([f"  hint: {hint}"] if hint else [])])

    def total(self, done: Prepared) -> None:
        """Report the overall outcome."""
        for word, names in (("failed", done.failed), ("not fetched", done.left)):
            if names:
                rest = "files that came are kept, the next try fetches the rest"
                self._lines("", [f"{word}: {', '.join(names)}; {rest}"])
        if not done.failed and not done.left:
            rest = f", but for what each run fetches: {', '.join(done.by_runs)}" if done.by_runs else ""
            self._lines("", [f"everything is here{rest}"])

    def _lines(self, indent: str, lines: Iterable[str], begin: bool = False, size: int | None = None) -> None:
        texts = [indent + printable(self._mask(line)) for line in lines]
        if begin:
            self._screen.begin(texts, size)
        else:
            self._screen.end(texts)
