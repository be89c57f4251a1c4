"""torchtune: fine-tuning with PyTorch's own recipes, full, LoRA and QLoRA (docs/backends/torchtune.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, Card, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `torchtune`."""
    book = Path(__file__).with_name("recipes")
    return [LazyBackend("torchtune", "madlite_plugins.torchtune.backend:Torchtune", book)]


@hookimpl
def madlite_cards() -> Iterable[Card | Path]:
    """Bring cards of a tiny model, which needs neither a GPU nor a download."""
    return [Path(__file__).with_name("models.json")]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that torchtune words itself."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
