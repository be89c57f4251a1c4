"""The backend: the benchmark's own script with the plan's sizes, on one node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import (
    Card,
    Draft,
    FileTemplate,
    Finding,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    RecipeBackend,
    Request,
    ResultRule,
    RunPlan,
    Variant,
)
from madlite_plugins.pytorch_fsdp.accelerate import BenchmarkReader, recognise
from madlite_plugins.pytorch_fsdp.checks import ACCELERATE, findings, windows_left
from madlite_plugins.pytorch_fsdp.reader import ACCUMULATION, AVERAGE_SPEED, AVERAGE_TFLOPS

_WHOLE = re.compile(r"\s*\+?[0-9]{1,18}\s*")
CLAIM = 10  # of a card of MAD whose tag other backends run in most releases


class PytorchFsdp(RecipeBackend):
    """Runs train_fsdp.py of the image, or MAD's train_llama.py; reads their logs, also of runs it did not start."""

    name = "pytorch_fsdp"
    book = Path(__file__).with_name("recipes.toml")
    template = "pytorch_fsdp/run.sh.j2"
    launcher = "torchrun"

    def claim(self, card: Card, checkout: Path) -> int:
        """Own the cards that name this backend; one of MAD's that its book has runs for is another's first."""
        return min(super().claim(card, checkout), 100 if card.backend else CLAIM)

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return a draft per run, the first half of whose steps is warm-up, as the scripts have it.

        Raises:
            UsageProblem: no recipe fits.
        """
        return [_fitted(draft, request) for draft in super().expand(request, machine)]

    def result_rule(self) -> ResultRule:
        """Return the steady windows' rule, and the averages that the script prints; it prints no loss."""
        return ResultRule(
            kind="steps",
            headline=Quantity.TOKENS_PER_S_PER_GPU,
            headline_metric="tokens_per_s_per_gpu",
            mad=(
                MadMetric(metric="tok_per_s_per_gpu", rule="summary", key=AVERAGE_SPEED),
                MadMetric(metric="TFLOPS_per_gpu", rule="summary", key=AVERAGE_TFLOPS),
            ),
            loss_expected=False,
        )

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what the script would refuse, or measure under a wrong name."""
        own = findings(plan, plan.variant) if plan.variant else ()
        return (*super().check(plan), *own)

    def check_steps(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find too few windows of micro-steps after the warm-up, or a part of one."""
        return windows_left(plan, variant)

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise the scripts' lines."""
        return recognise(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader, which knows how many micro-steps make a step."""
        return BenchmarkReader(int(plan.settings["accumulation"]) if plan else ACCUMULATION)


def _fitted(draft: Draft, request: Request) -> Draft:
    """Return the draft with half of its steps as warm-up, unless that was asked for, and with its script's start."""
    if draft.settings["recipe"] == ACCELERATE:
        start = FileTemplate(path="run.sh", template="pytorch_fsdp/accelerate.sh.j2")
        draft = replace(draft, templates=(start,), launcher="accelerate")
    asked = request.settings.get("steps", "")
    steps = int(asked) if _WHOLE.fullmatch(asked) else draft.variant.steps if draft.variant else None
    if draft.variant is None or steps is None or "warmup_steps" in request.settings:
        return draft
    return replace(draft, variant=replace(draft.variant, warmup_steps=steps // 2))
