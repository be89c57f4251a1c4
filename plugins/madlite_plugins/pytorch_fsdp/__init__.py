"""AMD's pytorch-training-benchmark, whose script is train_fsdp.py (docs/backends/pytorch_fsdp.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `pytorch_fsdp`."""
    book = Path(__file__).with_name("recipes.toml")
    return [LazyBackend("pytorch_fsdp", "madlite_plugins.pytorch_fsdp.backend:PytorchFsdp", book)]


@hookimpl
def madlite_cards() -> Iterable[Path]:
    """Bring the cards of the README's runs: MAD has none."""
    return [Path(__file__).with_name("models.json")]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain what is missing outside the image."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
