"""AMD's FluxBenchmark and AMDiffusionBenchmark: training of diffusion models (docs/backends/flux.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `flux`."""
    book = Path(__file__).with_name("recipes.toml")
    return [LazyBackend("flux", "madlite_plugins.flux.backend:Flux", book)]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain what the benchmark lacks outside its image, and what its launcher refuses."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
