"""The backend: the benchmark's own script with the plan's sizes, on one node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import Finding, MadMetric, Quantity, Reader, RecipeBackend, ResultRule, RunPlan, Variant
from madlite_plugins.train_fsdp.reader import ACCUMULATION, AVERAGE_SPEED, AVERAGE_TFLOPS, TrainFsdpReader, recognise

PRECISIONS = ("BF16", "FP8")
SEQ_LENS = {"llama-3.1-8b-8k.json": 8192, "llama-3.1-8b-4k.json": 4096, "mistral-7b-v0.1.json": 8192}


class TrainFsdp(RecipeBackend):
    """Runs train_fsdp.py of the image; reads its log, also of runs that madlite did not start."""

    name = "train_fsdp"
    book = Path(__file__).with_name("recipes.toml")
    template = "train_fsdp/run.sh.j2"
    launcher = "torchrun"

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
        own = _findings(plan, plan.variant) if plan.variant else ()
        return (*super().check(plan), *own)

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise the script's lines."""
        return recognise(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader, which knows how many micro-steps make a step."""
        return TrainFsdpReader(int(plan.settings["accumulation"]) if plan else ACCUMULATION)


def _findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if variant.precision not in PRECISIONS:
        yield Finding(
            message=f"precision '{variant.precision}' is unknown", hint=f"one of {', '.join(PRECISIONS)}", fatal=True
        )
    if not plan.place.gpus_per_node:
        yield Finding(message="train_fsdp.py needs a GPU", fatal=True)
    if plan.place.nodes > 1:
        yield Finding(message="train_fsdp.py runs on one node alone", fatal=True)
    config = str(plan.settings["config"])
    if variant.seq_len != SEQ_LENS.get(config, variant.seq_len):
        yield Finding(
            message=f"{config} has sequences of {SEQ_LENS[config]} tokens, not {variant.seq_len}",
            hint=f"--seq-len {SEQ_LENS[config]}, or another --set config= below configs/ of the benchmark",
            fatal=True,
        )
    accumulation = int(plan.settings["accumulation"])
    if accumulation < 1 or (variant.steps or 0) % accumulation:
        yield Finding(
            message=f"{variant.steps} micro-steps are no whole number of steps of {accumulation}",
            hint=f"--set steps={(variant.steps or 0) // max(1, accumulation) * max(1, accumulation) or 128}",
            fatal=True,
        )
    batch = (variant.micro_batch or 1) * accumulation * max(1, plan.place.gpus_per_node)
    if variant.global_batch not in (None, batch):
        yield Finding(
            message=f"global batch {variant.global_batch} is not micro batch × accumulation × GPUs = {batch}",
            fatal=True,
        )
