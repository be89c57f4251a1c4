"""AMD's FluxBenchmark and AMDiffusionBenchmark: training of diffusion models (docs/backends/flux.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, Reference, hookimpl, read_failure_rules

_README = "README of FluxBenchmark, 8 GPUs"


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `flux`."""
    book = Path(__file__).with_name("recipes.toml")
    return [LazyBackend("flux", "madlite_plugins.flux.backend:Flux", book)]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain what the benchmark lacks outside its image, and what its launcher refuses."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))


@hookimpl
def madlite_references() -> Iterable[Reference]:
    """Bring the published speeds, in pictures per second and GPU."""
    published = (("10", 4.51, "README v25.2, 8 GPUs"), ("1", 2.03, _README), ("10", 4.34, _README))
    return [
        Reference(
            model="Flux",
            device="MI300X",
            metric="FPS_per_GPU",
            value=value,
            source=source,
            columns={"precision": "BF16", "batch_size": batch, "num_gpus": "8"},
        )
        for batch, value, source in published
    ]
