"""What the script would refuse, or measure under a wrong name; and its windows of micro-steps."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from madlite import FEW, Draft, Finding, Request, RunPlan, Variant, few_steps
from madlite_plugins.words import unknown_word

PRECISIONS = ("BF16", "FP8")
SEQ_LENS = {"llama-3.1-8b-8k.json": 8192, "llama-3.1-8b-4k.json": 4096, "mistral-7b-v0.1.json": 8192}
_WHOLE = re.compile(r"\s*\+?[0-9]{1,18}\s*")


def findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend, but for its number of steps."""
    if not plan.place.gpus_per_node:
        yield Finding(message="the benchmark needs a GPU", fatal=True)
    if plan.place.nodes > 1:
        yield Finding(message="the benchmark runs on one node alone", hint="NNODES=1", fatal=True)
    yield from _fsdp(plan, variant)
    batch = (variant.micro_batch or 1) * int(plan.settings["accumulation"]) * max(1, plan.place.gpus_per_node)
    if variant.global_batch not in (None, batch):
        yield Finding(
            message=f"global batch {variant.global_batch} is not micro batch × accumulation × GPUs = {batch}",
            hint="leave global_batch out",
            fatal=True,
        )


def with_half_warmup(draft: Draft, request: Request) -> Draft:
    """Return the draft with half of its steps as warm-up, as the script has it, unless another number was asked for."""
    asked = request.settings.get("steps", "")
    steps = int(asked) if _WHOLE.fullmatch(asked) else draft.variant.steps if draft.variant else None
    if draft.variant is None or steps is None or "warmup_steps" in request.settings:
        return draft
    return replace(draft, variant=replace(draft.variant, warmup_steps=steps // 2))


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
