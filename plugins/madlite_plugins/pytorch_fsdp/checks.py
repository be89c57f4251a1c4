"""What the script would refuse, or measure under a wrong name."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant
from madlite_plugins.choices import unknown_choice

PRECISIONS = ("BF16", "FP8")
SEQ_LENS = {"llama-3.1-8b-8k.json": 8192, "llama-3.1-8b-4k.json": 4096, "mistral-7b-v0.1.json": 8192}


def findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend, but for its number of steps."""
    if not plan.place.gpus_per_node:
        yield Finding(message="the benchmark needs a GPU", fatal=True, keys=("n_gpus",))
    if plan.place.nodes > 1:
        yield Finding(message="the benchmark runs on one node alone", hint="NNODES=1", fatal=True, keys=("nnodes",))
    yield from _fsdp(plan, variant)
    batch = (variant.micro_batch or 1) * int(plan.settings["accumulation"]) * max(1, plan.place.gpus_per_node)
    if variant.global_batch not in (None, batch):
        yield Finding(
            message=f"global batch {variant.global_batch} is not micro batch × accumulation × GPUs = {batch}",
            hint="leave global_batch out",
            fatal=True,
            keys=("global_batch", "micro_batch", "accumulation", "n_gpus"),
        )


def _fsdp(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    yield from unknown_choice("precision", variant.precision, PRECISIONS)
    config = str(plan.settings["config"])
    if variant.seq_len != SEQ_LENS.get(config, variant.seq_len):
        yield Finding(
            message=f"{config} has sequences of {SEQ_LENS[config]} tokens, not {variant.seq_len}",
            hint=f"--seq-len {SEQ_LENS[config]}, or another --set config= below configs/ of the benchmark",
            fatal=True,
            keys=("config", "seq_len"),
        )
