"""The backend: which runs a card stands for, what they need, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from madlite import (
    Draft,
    FileTemplate,
    Finding,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    RecipeBackend,
    Request,
    RunPlan,
    Variant,
)
from madlite_plugins.torchtitan.checks import findings
from madlite_plugins.torchtitan.reader import END_MARK, TRAIN, TorchtitanReader

_SHIM = "cpu_shim/sitecustomize.py"


class Torchtitan(RecipeBackend):
    """Runs torchtitan 0.2.2 from a TOML file that madlite renders; reads the logs of every version."""

    name = "torchtitan"
    book = Path(__file__).with_name("recipes.toml")
    template = "torchtitan/run.sh.j2"
    files = {"train.toml": "torchtitan/train.toml.j2", "make_assets.py": "torchtitan/make_assets.py"}
    step = TRAIN
    end_mark = END_MARK
    launcher = "torchrun"
    mad_metrics = (
        MadMetric(metric="tok_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU),
        MadMetric(metric="TFLOPS_per_gpu", quantity=Quantity.TFLOPS_PER_GPU),
    )

    def draft(self, request: Request, variant: Variant, machine: Machine) -> Draft:
        """Return the draft; a machine without a GPU also needs the shim."""
        draft = super().draft(request, variant, machine)
        if machine.vendor != "CPU":
            return draft
        shim = FileTemplate(path=_SHIM, template=f"torchtitan/{_SHIM}", raw=True)
        return msgspec.structs.replace(draft, templates=(*draft.templates, shim))

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what torchtitan would refuse, or what would make the number worthless."""
        return (*super().check(plan), *findings(plan))

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise the prefix of every line, else a step line."""
        if any("[titan] 20" in text or "torchtitan version:" in text for text in head):
            return 0.9
        return 0.7 if any(TRAIN.regex.search(text) for text in head) else 0.0

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return TorchtitanReader()
