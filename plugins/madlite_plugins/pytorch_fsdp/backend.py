"""The backend: the benchmark's own script with the plan's sizes, on one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from madlite import (
    Finding,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    RecipeBackend,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    Variant,
)
from madlite_plugins.micro_step_plans import windows_left, with_half_warmup
from madlite_plugins.micro_steps import ACCUMULATION, AVERAGE_SPEED, AVERAGE_TFLOPS, END_MARK
from madlite_plugins.pytorch_fsdp.checks import findings
from madlite_plugins.pytorch_fsdp.reader import TrainFsdpReader, detect


class PytorchFsdp(RecipeBackend):
    """Runs train_fsdp.py of the image; reads its logs, also of runs it did not start."""

    name = "pytorch_fsdp"
    book = Path(__file__).with_name("recipes.toml")
    template = "pytorch_fsdp/run.sh.j2"
    launcher = "torchrun"
    planned_options = {
        **{"batch_size": "micro_batch", "num_iteration": "steps", "grad_accumlate_pre_steps": "accumulation"},
        **dict.fromkeys(("enable_fp8", "noenable_fp8"), "precision"),
    }

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run, the first half of whose steps is warm-up, as the script has it.

        Raises:
            UsageProblem: no recipe fits.
        """
        return [with_half_warmup(spec, request) for spec in super().expand(request, machine)]

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
            end_mark=END_MARK,
        )

    def check_variant(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find what the script would refuse, or measure under a wrong name."""
        return findings(plan, variant)

    def check_steps(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find too few windows of micro-steps after the warm-up, or a part of one."""
        return windows_left(plan, variant)

    def detect(self, head: Sequence[str]) -> float:
        """Recognise the script's lines."""
        return detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader, which knows how many micro-steps make a step."""
        return TrainFsdpReader(int(plan.settings["accumulation"]) if plan else ACCUMULATION)
