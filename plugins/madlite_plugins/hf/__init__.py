"""Hugging Face Trainer with PEFT: LoRA fine-tuning from a configuration, without weights (docs/backends/hf.md)."""

from __future__ import annotations

from collections.abc import Iterable

from madlite import Backend, FailureRule, hookimpl
from madlite_plugins.hf.backend import HuggingFace

_RULES = (
    FailureRule(
        pattern=r"No module named '?(transformers|peft|accelerate)\b",
        cause="missing_package",
        hint="install transformers, peft and accelerate where the run happens",
    ),
    FailureRule(
        pattern=r"Found an incompatible version of torchao",
        cause="package_conflict",
        hint="PEFT refuses this torchao: uninstall it, or install torchao>=0.16",
    ),
)


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `hf`."""
    return [HuggingFace()]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that come from this stack's packages."""
    return _RULES
