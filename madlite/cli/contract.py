"""Contract mode: what scripts around version 1 or 2 of madengine expect to see, and nobody else wants on the screen.

Chosen by `--contract`, else by $MADLITE_CONTRACT, else by the name that the program was called by: `madengine` stands
for version 2.  Formats: madengine 1.0.0 and 2.1.0, observed; docs/differences.md has what is other all the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from madlite.errors import UsageProblem
from madlite.model import Json, Status

if TYPE_CHECKING:
    from madlite.run.screen import RunOutcome

F = TypeVar("F", bound=Callable[..., Any])
VARIABLE = "MADLITE_CONTRACT"
_NAME = "madengine"  # of a link to the program
_VERSIONS = {1: "1.0.0", 2: "2.1.0"}
_ALWAYS = ("name", "url", "dockerfile", "scripts", "data", "n_gpus", "owner", "training_precision", "tags", "args")
_OURS = frozenset(("backend", "recipe", "image", "runtimes"))  # fields of a card that madengine has never heard of
_KEY = "madlite.contract"  # in what the contexts of one command line share


def contract_option(function: F) -> F:
    """Add --contract; `contract` says which one counts."""
    return click.option(
        "--contract",
        type=click.Choice([str(version) for version in _VERSIONS]),
        expose_value=False,
        callback=_note,
        help=f"Be like this version of madengine where scripts look.  [${VARIABLE}; 2 under the name {_NAME}]",
    )(function)


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_KEY] = int(value)


def contract() -> int:
    """Return the version of madengine that this command line is to be like, 0 for none.

    Raises:
        UsageProblem: the environment names another one.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return 0
    if _KEY in context.meta:
        return int(context.meta[_KEY])
    named = os.environ.get(VARIABLE, "").strip()
    if named and named not in map(str, _VERSIONS):
        raise UsageProblem(f"{VARIABLE}={named} is no contract", f"{VARIABLE}=1 or 2, or unset {VARIABLE}")
    return int(named) if named else 2 if Path(sys.argv[0]).name == _NAME else 0


def version_line() -> str:
    """Return what `--version` prints: madlite's own version, or that of the contract in madengine's words."""
    from madlite import __version__

    version = contract()
    told = {0: f"madlite {__version__}", 1: _VERSIONS[1], 2: f"🚀 {_NAME} version {_VERSIONS[2]}"}
    return told[version]


def cards_text(version: int, cards: Sequence[Mapping[str, Json]], as_json: bool) -> str:
    """Return what `discover` prints of cards in MAD's schema: names one a line, or of those that tags selected JSON."""
    listed = json.dumps([_with_blanks(card) for card in cards], indent=4) if as_json else ""
    names = [str(card["name"]) for card in cards]
    if version == 1:
        told = [listed] if as_json else [f"Number of models in total: {len(names)}", *names]
        return "\n".join(["Discovering all models in the project", *told])
    head = f"📊 Available Models ({len(names)} total):"
    lines = [head, *(f"  {name}" for name in names)]
    lines = [f"📋 Selected Models ({len(names)} models):", listed] if as_json else lines
    return "\n".join([*lines, "✅ Model discovery completed successfully"])


def _with_blanks(card: Mapping[str, Json]) -> dict[str, Json]:
    """Return a card as a models.json of MAD has it: what every card has, blank or not; nothing of madlite alone."""
    rest = {name: value for name, value in card.items() if name not in _OURS and (name, value) != ("timeout", -1)}
    return {**{name: card.get(name, "") for name in _ALWAYS}, **rest}


def closing_lines(version: int, outcome: RunOutcome, *, from_manifest: bool) -> Iterator[str]:
    """Yield the last lines of a batch; a run that never started is one that failed."""
    failed = sum(result.status is Status.FAILURE for result in outcome.results) + len(outcome.not_started)
    if version == 1:
        yield from ["===== EXCEPTION ====="] if failed else []
        yield "Some models failed to run." if failed else "All models ran successfully."
    elif version == 2 and from_manifest:
        well = "🎉 All model executions completed successfully!"
        yield f"💥 Execution failed for {failed} models" if failed else well
    elif version == 2:
        well = "🎉 Complete workflow finished successfully!"
        yield f"💥 Workflow completed but {failed} model executions failed" if failed else well
