"""torchtitan: pretraining with PyTorch's own trainer (docs/backends/torchtitan.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `torchtitan`."""
    book = Path(__file__).with_name("recipes")
    return [LazyBackend("torchtitan", "madlite_plugins.torchtitan.backend:Torchtitan", book)]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that torchtitan words itself."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
