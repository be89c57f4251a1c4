"""What a session does, and in which folder."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from madlite.plan.given import Given
from madlite.types import (
    Action,
    Card,
    RunPlan,
)

MODEL_DIR = "{model_dir}"
_PLACE = re.compile(r"\{(?:args|encapsulate)\}")


def make_actions(given: Given) -> tuple[Action, ...]:
    """Return the draft's actions with `{args}` and `{encapsulate}` filled in; `{model_dir}` waits for its claim."""
    drafted = given.draft.actions or (Action(kind="run", argv=("bash", "run.sh"), cwd="{folder}"),)
    known = given.context.known
    fill = {
        "{args}": _run_args(given),
        "{encapsulate}": f"{known.encapsulate_script} " if known.encapsulate_script else "",
    }
    return tuple(replace(action, argv=tuple(_filled(word, fill) for word in action.argv)) for action in drafted)


def _run_args(given: Given) -> str:
    """Return the args the run gets: the context's model_args replace the card's, whose the row keeps."""
    replaced = given.context.known.model_args
    return given.args if replaced is None else replaced


def settle_model_dir(plan: RunPlan, name: str) -> RunPlan:
    """Return the plan with `name` as the folder its script runs in.

    `{model_dir}` counts only as a whole word or folder: text of a card's args that looks like it stays what it is.
    """
    actions = tuple(
        replace(
            action,
            argv=tuple(name if word == MODEL_DIR else word for word in action.argv),
            cwd=name if action.cwd == MODEL_DIR else action.cwd,
        )
        for action in plan.actions
    )
    return replace(plan, actions=actions, model_dir=name if plan.model_dir else "")


def model_dir(card: Card) -> str:
    """Return the folder a MAD script runs in: the repository's name, else run_directory."""
    name = re.split(r"[/:]", card.url.rstrip("/"))[-1].removesuffix(".git") if card.url else ""
    return name if name not in ("", ".", "..") else "run_directory"


def _filled(word: str, fill: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: fill.get(found[0], found[0]), word)
