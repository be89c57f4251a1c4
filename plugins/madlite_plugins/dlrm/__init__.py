"""AMD's DLRMBenchmark: a recommender of MLPerf's shape on made-up data (docs/backends/dlrm.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `dlrm`."""
    book = Path(__file__).with_name("recipes.toml")
    return [LazyBackend("dlrm", "madlite_plugins.dlrm.backend:Dlrm", book)]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain what is missing outside the image."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
