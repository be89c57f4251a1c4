"""Args that set what the plan decides: they would go before it, and the row would describe another run.

A backend names the options of its trainer that do (`RunSpec.planned_options`); the core knows none.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise

from madlite.errors import UsageProblem
from madlite.model import RunPlan


def refuse_planned_options(plan: RunPlan, planned: Mapping[str, str], source: str) -> None:
    """Refuse args of a run that set an option whose value the plan decides; `source` is where they come from.

    Raises:
        UsageProblem: they do.
    """
    keys = {_plain(option): key for option, key in planned.items()}
    found = [(word, value, keys[name]) for name, word, value in _options(plan.run_args) if name in keys]
    if found:
        words = ", ".join(f"{word}={value}" if value else word for word, value, _ in found)
        wanted = {key: value if value.isdecimal() else "…" for _, value, key in found}
        what = f"{source}: args set {words}, and the plan decides {', '.join(wanted)}: the row would differ"
        raise UsageProblem(what, f"{' '.join(f'--set {key}={value}' for key, value in wanted.items())} instead")


def _options(args: str) -> Iterator[tuple[str, str, str]]:
    """Yield each option's plain name, the name as written, and its value; also of `a=1` and hydra's `+a=1`."""
    try:
        words = shlex.split(args)
    except ValueError:
        return  # rendering refuses them
    for word, after in pairwise([*words, "-"]):
        name, equals, value = word.partition("=")
        if equals:
            yield _plain(name), name, value
        elif word.startswith("-"):
            yield _plain(word), word, "" if after.startswith("-") else after


def _plain(name: str) -> str:
    """Return an option's name without what introduces it; most trainers take `-` and `_` for the same."""
    return name.lstrip("-+~").replace("-", "_")
