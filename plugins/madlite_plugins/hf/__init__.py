"""Hugging Face's Trainer and accelerate, LoRA by PEFT, and MAD's train_llama.py (docs/backends/hf.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `hf`."""
    book = Path(__file__).with_name("recipes")
    return [LazyBackend("hf", "madlite_plugins.hf.backend:HuggingFace", book)]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that come from this stack's packages, weights and data."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
