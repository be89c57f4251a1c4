"""Whose card it is: the backend that was asked for, the one that the card names, else all who claim it highest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from madlite.backends.loader import Plugin, Plugins
from madlite.errors import UsageProblem
from madlite.model import Backend, Card
from madlite.run.shared import Owner

Known = Mapping[str, tuple[Backend, Plugin]]
"""Backends by name, as `Plugins.backends` returns them."""


def find_owners(card: Card, known: Known, plugins: Plugins, workspace: Path, asked: str = "") -> list[Owner]:
    """Return the backends that run the card in this folder: several where they share it; `asked` is --backend.

    Raises:
        UsageProblem: nobody brings the backend that is named, or nobody claims the card.
    """
    if asked:
        return [find_backend(plugins, asked, "--backend")]
    if card.backend:
        return [find_backend(plugins, card.backend, f"card '{card.name}'")]
    owners = claimants(card, known, plugins, workspace)
    if not owners:
        raise _nobody(card)
    return [known[name] for name in owners]


def claimants(card: Card, known: Known, plugins: Plugins, workspace: Path) -> list[str]:
    """Return the names of the backends that claim the card highest: one, none, or several that share it."""
    claims = {
        name: int(plugins.ask(backend, "claim", card, workspace, otherwise=0) or 0)
        for name, (backend, _) in known.items()
    }
    highest = max(claims.values(), default=0)
    return sorted(name for name, claim in claims.items() if claim == highest > 0)


def find_backend(plugins: Plugins, name: str, where: str) -> Owner:
    """Return the backend of that name.

    Raises:
        UsageProblem: there is none; the message names who asked for it.
    """
    known = plugins.backends()
    if name in known:
        return known[name]
    from madlite.errors import did_you_mean

    raise UsageProblem(
        f"{where} names backend '{name}', which no plugin brings (known: {', '.join(sorted(known))})",
        did_you_mean(name, known, most=1) or "madlite plugins lists what is installed and what is broken",
    )


def _nobody(card: Card) -> UsageProblem:
    if not card.scripts:
        return UsageProblem(
            f"nothing can run card '{card.name}' here: no backend claims it and it names no script",
            "name a backend with --backend; madlite plugins lists them",
        )
    return UsageProblem(
        f"card '{card.name}' needs a MAD checkout: no backend has a recipe for it, and its script {card.scripts} is "
        "not in this folder",
        "git clone https://github.com/ROCm/MAD, and run it in there",
    )
