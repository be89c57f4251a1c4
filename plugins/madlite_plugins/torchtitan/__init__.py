"""torchtitan: pretraining with PyTorch's own trainer (docs/backends/torchtitan.md)."""

from __future__ import annotations

from collections.abc import Iterable

from madlite import Backend, FailureRule, hookimpl
from madlite_plugins.torchtitan.backend import Torchtitan
from madlite_plugins.torchtitan.failures import RULES


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `torchtitan`."""
    return [Torchtitan()]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that torchtitan words itself."""
    return RULES
