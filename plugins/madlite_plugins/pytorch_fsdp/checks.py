"""What the scripts would refuse, or measure under a wrong name."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import FEW, Finding, RunPlan, Variant, few_steps
from madlite_plugins.words import unknown_word

PRECISIONS = ("BF16", "FP8")
SEQ_LENS = {"llama-3.1-8b-8k.json": 8192, "llama-3.1-8b-4k.json": 4096, "mistral-7b-v0.1.json": 8192}
ACCELERATE = "llama-3.1-8b-accelerate"  # the recipe of MAD's train_llama.py
_OF_FSDP = ("config", "family", "compile")


def findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend, but for its number of steps."""
    if not plan.place.gpus_per_node:
        yield Finding(message="the benchmark needs a GPU", fatal=True)
    if plan.place.nodes > 1:
        yield Finding(message="the benchmark runs on one node alone", hint="NNODES=1", fatal=True)
    if plan.settings["recipe"] == ACCELERATE:
        yield from _accelerate(plan, variant)
    else:
        yield from _fsdp(plan, variant)
    batch = (variant.micro_batch or 1) * int(plan.settings["accumulation"]) * max(1, plan.place.gpus_per_node)
    if variant.global_batch not in (None, batch):
        yield Finding(
            message=f"global batch {variant.global_batch} is not micro batch × accumulation × GPUs = {batch}",
            hint="leave global_batch out",
            fatal=True,
        )


def windows_left(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield that the micro-steps are no whole windows of accumulation, or leave too few of them after the warm-up."""
    size, steps, warmup = int(plan.settings["accumulation"]), variant.steps or 0, variant.warmup_steps
    if size < 1:
        yield Finding(message=f"accumulation is {size}", hint="--set accumulation=8", fatal=True)
        return
    before = -(-warmup // size)
    enough = max(before + FEW, 2 * FEW) * size  # also where half of them will be warm-up
    if steps % size:
        yield Finding(
            message=f"{steps} micro-steps are no whole number of steps of {size}",
            hint=f"--set steps={max(steps // size * size, enough)}",
            fatal=True,
        )
        return
    yield from few_steps(f"{steps} micro-steps", steps // size - before, warmup, f"--set steps={enough}")


def _fsdp(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    yield from unknown_word("precision", variant.precision, PRECISIONS)
    config = str(plan.settings["config"])
    if variant.seq_len != SEQ_LENS.get(config, variant.seq_len):
        yield Finding(
            message=f"{config} has sequences of {SEQ_LENS[config]} tokens, not {variant.seq_len}",
            hint=f"--seq-len {SEQ_LENS[config]}, or another --set config= below configs/ of the benchmark",
            fatal=True,
        )


def _accelerate(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if variant.precision != "FP8":
        hint = "--precision FP8, or --image-release v25.2, whose train_fsdp.py knows BF16"
        yield Finding(message=f"train_llama.py trains in FP8, not {variant.precision}", hint=hint, fatal=True)
    ours = [name for name in _OF_FSDP if not plan.origins.get(f"settings.{name}", "recipe").startswith("recipe")]
    if ours:
        yield Finding(message=f"{', '.join(ours)} would not reach train_llama.py", hint="leave it out", fatal=True)
