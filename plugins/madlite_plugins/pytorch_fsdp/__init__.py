"""AMD's pytorch-training-benchmark, whose script is train_fsdp.py (docs/backends/pytorch_fsdp.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, hookimpl
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp

_RULES = (
    FailureRule(
        pattern=r"madlite: \S+/train_fsdp\.py is not here",
        cause="missing_file",
        hint="run in the image rocm/pytorch-training:v25.2, or name a copy: --set env.TRAIN_FSDP_ROOT=FOLDER",
    ),
    FailureRule(
        pattern=r"No module named '?(transformer_engine|flash_attn|fire)\b",
        cause="missing_package",
        hint="the benchmark needs transformer_engine, flash_attn and fire: run it in rocm/pytorch-training",
    ),
    FailureRule(
        pattern=r"This script is intended to run on single node for testing",
        cause="bad_option",
        hint="train_fsdp.py runs on one node alone",
    ),
)


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `pytorch_fsdp`."""
    return [PytorchFsdp()]


@hookimpl
def madlite_cards() -> Iterable[Path]:
    """Bring the cards of the README's runs: MAD has none."""
    return [Path(__file__).with_name("models.json")]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain what is missing outside the image."""
    return _RULES
