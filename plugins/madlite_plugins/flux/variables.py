"""A run's variables: the book's `all` and `AMD`, and those of the script of MAD's that is followed."""

from __future__ import annotations

from collections.abc import Mapping

from madlite import RunSpec
from madlite_plugins.flux.figures import of_fluxbenchmark

_YES = ("true", "yes", "on", "1")


def variables_of(
    spec: RunSpec, requested: Mapping[str, str], vendor: str, tables: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Return the RunSpec's variables with those of the year whose script is followed."""
    year = requested.get("environment", spec.settings["environment"])
    env = {**spec.env, **tables.get(f"{vendor} {year}", {})}
    if year == "2025" and of_fluxbenchmark(spec):
        env.pop("HSA_NO_SCRATCH_RECLAIM", None)
    if requested.get("expandable_segments", str(spec.settings["expandable_segments"])).lower() in _YES:
        env[f"PYTORCH_{'HIP' if vendor == 'AMD' else 'CUDA'}_ALLOC_CONF"] = "expandable_segments:True"
    return env
