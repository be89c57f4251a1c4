"""What a run on this host would look for in vain: its paths, and packages of madlite's own interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from madlite import Finding, RunPlan, Variant

PATHS = ("model_id", "dataset", "tokenizer_id", "config_file")


def here_findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is not here; nothing of a container, or of a machine that is pretended."""
    if plan.traits.containerised or plan.machine.pretended:
        return
    for name in PATHS:
        path = str(plan.settings[name])
        if path.startswith("/") and not _is_there(Path(path)):
            yield Finding(
                message=f"{name} '{path}' is not there",
                hint=f"--set {name}= to a path of it",
                fatal=True,
                keys=(name, "runtime"),
            )
    if plan.env.get("MADLITE_PYTHON") == sys.executable and "PYTHONPATH" not in plan.env:
        yield from _packages(plan, variant)


def _packages(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield packages that what was chosen needs beside the usual ones; packages.py of the run searches all of them."""
    needs = {
        "bitsandbytes": ("QLoRA", plan.settings["method"] == "qlora", "--set method=lora"),
        "deepspeed": ("strategy deepspeed", plan.settings["strategy"] == "deepspeed", "--set strategy=fsdp"),
        "transformer_engine": ("FP8", variant.precision == "FP8", "--precision BF16"),
    }
    for name, (what, is_needed, without) in needs.items():
        if is_needed and find_spec(name) is None:
            package = name.replace("_", "-")
            message = f"{what} needs {package}, which is not installed for {sys.executable}"
            yield Finding(
                message=message,
                hint=f"pip install {package}; {without} needs none",
                fatal=True,
                keys=("runtime", "strategy", "method", "precision"),
            )


def _is_there(path: Path) -> bool:
    """Return whether a path is there; unknown where it may not be read."""
    try:
        return path.exists()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
