"""Megatron-LM: pretraining with the fork of ROCm, by the scripts of its examples (docs/backends/megatron_lm.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `megatron_lm`."""
    book = Path(__file__).with_name("recipes")
    return [LazyBackend("megatron_lm", "madlite_plugins.megatron_lm.backend:MegatronLM", book)]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that the fork's scripts and Megatron word themselves."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
