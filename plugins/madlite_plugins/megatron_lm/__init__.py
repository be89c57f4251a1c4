"""Megatron-LM: pretraining with the fork of ROCm, by the scripts of its examples (docs/backends/megatron_lm.md)."""

from __future__ import annotations

from collections.abc import Iterable

from madlite import Backend, FailureRule, hookimpl
from madlite_plugins.megatron_lm.backend import MegatronLM
from madlite_plugins.megatron_lm.failures import RULES


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `megatron_lm`."""
    return [MegatronLM()]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that the fork's scripts and Megatron word themselves."""
    return RULES
