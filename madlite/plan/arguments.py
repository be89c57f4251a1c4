"""What of a tag's additions are arguments of what runs, and no keys of its plan: `my_ddp:steps=20:lr=0.01` has both."""

from __future__ import annotations

from msgspec.structs import replace

from madlite.catalog.select import args_of
from madlite.errors import UsageProblem, distance
from madlite.model import Draft, Request
from madlite.plan.values import ALIASES, PLAN_KEYS, VARIANT_KEYS, canonical_key


def argument_keys(request: Request, draft: Draft) -> frozenset[str]:
    """Return the names of the tag's additions that are arguments, of a draft that takes any.

    Raises:
        UsageProblem: one is a slip away from a key of the plan.
    """
    if not draft.tag_args:
        return frozenset()
    known = (*VARIANT_KEYS, *PLAN_KEYS, *draft.settings)
    added = [name for name, _ in request.overrides if not _is_key(name, known)]
    for name in added:
        if meant := next((key for key in (*known, *ALIASES) if distance(name, key) <= len(name) // 5), ""):
            raise UsageProblem(
                f"--tags {request.tag}: '{name}' is no key of this run, and nearly '{meant}'",
                f"did you mean {meant}?   an argument of that name: --set 'args=--{name} …'",
            )
    return frozenset(added)


def args_for(request: Request, draft: Draft, added: frozenset[str]) -> str:
    """Return the card's args with what the tag adds to them; all of it where the card's own script runs."""
    if draft.actions:
        return args_of(request)
    return args_of(replace(request, overrides=tuple(pair for pair in request.overrides if pair[0] in added)))


def _is_key(name: str, known: tuple[str, ...]) -> bool:
    key = canonical_key(name)
    return key.startswith("env.") or key in known or name in known
