"""`madlite doctor`: examines this machine before a benchmark, and prints what differs from what is right first."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.cli import setup
from madlite.cli.batch_options import check_together
from madlite.cli.options import Command, common_options, selecting_option
from madlite.cli.terminal import echo, echo_json, terminal_width, without_secrets
from madlite.errors import ExitCode, MadliteError
from madlite.text import shortened

if TYPE_CHECKING:
    from madlite.doctor.check import Outcome, Purpose, Target

_WIDTH = 120  # in a pipe or a file
_LONGEST = 100  # characters of a value


_EXCLUDE = (("health", "quick", "it measures with torch, which --quick leaves out"),)


@click.command("doctor", cls=Command)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["develop", "compare", "publish"]),
    default="compare",
    show_default=True,
    help="What the numbers are for: develop needs runs to work, compare also that nothing disturbs them, publish all "
    "that AMD's and NVIDIA's guides require.",
)
@click.option("--quick", is_flag=True, help="Read files alone: no vendor's tool, no torch, no network.")
@click.option("--health", is_flag=True, help="Also measure the GPUs with the torch of python3; a minute or two.")
@click.option("--fix", is_flag=True, help="Print the commands that mend what differs; none of them is run.")
@selecting_option("--gpus", "List the GPUs, and which run has each of them")
@selecting_option("--plugins", "List plugins, and what is wrong with them")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), hidden=True)
@common_options
def command(purpose: Purpose, quick: bool, health: bool, fix: bool, as_json: bool, root: Path, no_plugins: bool) -> int:
    """Check this machine before a benchmark, from its GPUs to its network.

    Each check is ok, differs or unknown; a right value has a source, and without one nothing is judged.  Exit code 6
    where something differs that the purpose needs.  Nothing is changed.

    \b
    madlite doctor
    madlite doctor --for publish --fix
    """
    check_together(_EXCLUDE)
    from madlite.doctor.examine import examine

    target = _target(root, setup.load(no_plugins))
    outcomes = examine(target, purpose, quick=quick, health=health)
    if as_json:
        echo_json(_as_json(target, outcomes, purpose))
    else:
        echo(*(_commands(outcomes) if fix else _page(target, outcomes, purpose)))
    return int(ExitCode.DOCTOR if any(outcome.fails for outcome in outcomes) else ExitCode.OK)


def _target(root: Path, plugins: Plugins) -> Target:
    """Return the machine, with the leases of its GPUs and what plugins can be loaded."""
    from madlite.batch.gpu_allocator import holder_text, lease_states
    from madlite.doctor.examine import make_target
    from madlite.machine.host import Host
    from madlite.store.gpu_leases import lease_folder

    environ = dict(os.environ)
    target = make_target(Host(root=root, path=environ.get("PATH", ""), env=environ), Path.cwd())
    try:
        states = lease_states(lease_folder(environ), target.gpus)
    except MadliteError as error:
        held: tuple[str, ...] = (error.message,)
    else:
        held = tuple(
            f"GPU {gpu} by {holder_text(state.holder)}" for gpu, (state, left) in states.items() if state.locked or left
        )
    plugins.backends()  # which finds what is wrong with them
    problems = tuple(f"{problem.where}: {problem.what}" for problem in plugins.problems)
    return replace(target, plugins=len(plugins.loaded), plugin_problems=problems, leases_held=held)


def _as_json(target: Target, outcomes: Sequence[Outcome], purpose: Purpose) -> dict[str, object]:
    return {
        "for": purpose,
        "machine": {"vendor": target.vendor, "device": target.device, "gpus": len(target.gpus), **target.facts},
        "checks": len(outcomes),
        "failed": sum(outcome.fails for outcome in outcomes),
        "differ": sum(outcome.state == "differs" for outcome in outcomes),
        "unknown": sum(outcome.state == "unknown" for outcome in outcomes),
        "outcomes": to_builtins(outcomes),
    }


def _page(target: Target, outcomes: Sequence[Outcome], purpose: Purpose) -> Iterator[str]:
    """Yield the lines of the page: what fails, what else differs, then by group what is unknown and what is ok."""
    from madlite.doctor.examine import summary

    gpus = f"{len(target.gpus)} x {target.device or target.vendor}" if target.vendor != "CPU" else "no GPU"
    yield ", ".join(filter(None, (gpus, *map(target.facts.get, ("os", "kernel", "cpu")))))
    yield f"to {purpose}: {summary(outcomes)}"
    failed = [outcome for outcome in outcomes if outcome.fails]
    for outcome in (*failed, *(item for item in outcomes if item.state == "differs" and not item.fails)):
        yield from _difference(outcome)
    for state in ("unknown", "ok"):
        groups = dict.fromkeys(outcome.group for outcome in outcomes if outcome.state == state)
        for group in groups:
            texts = [_short(item) for item in outcomes if item.state == state and item.group == group]
            yield from _wrapped(f"{state:8} {group:10} ", "; ".join(texts))
    if any(outcome.fix for outcome in outcomes):
        yield f"madlite doctor --for {purpose} --fix   prints the commands alone"


def _short(outcome: Outcome) -> str:
    name = "" if outcome.name == outcome.group else f"{outcome.name} "
    return f"{name}{shortened(without_secrets(outcome.value), _LONGEST)}"


def _difference(outcome: Outcome) -> Iterator[str]:
    head = f"{'FAIL' if outcome.fails else 'differs':8} {outcome.group:10} "
    yield from _wrapped(head, f"{_short(outcome)}; right: {outcome.right} ({outcome.source})")
    if outcome.fix:
        yield f"{'':{len(head)}}{outcome.fix}"


def _wrapped(head: str, text: str) -> list[str]:
    width = max(60, terminal_width() or _WIDTH)
    return textwrap.wrap(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _commands(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the commands that mend what differs, each below a comment that says what."""
    differing = [outcome for outcome in outcomes if outcome.state == "differs"]
    for outcome in differing:
        yield f"# {outcome.name}: {shortened(without_secrets(outcome.value), _LONGEST)}; right: {outcome.right}"
        yield outcome.fix or "# no command mends it"
    if not differing:
        yield "# nothing differs"
