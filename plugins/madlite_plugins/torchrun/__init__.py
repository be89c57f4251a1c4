"""A training script of the user's own, started by torchrun (docs/backends/torchrun.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `torchrun`."""
    book = Path(__file__).with_name("recipes.toml")
    return [LazyBackend("torchrun", "madlite_plugins.torchrun.backend:Torchrun", book)]


@hookimpl
def madlite_cards() -> Iterable[Path]:
    """Bring a card for a script that --set names, and one whose small script comes along."""
    return [Path(__file__).with_name("models.json")]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain what the scripts that come along lack."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
