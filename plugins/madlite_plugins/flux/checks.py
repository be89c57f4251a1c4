"""What the benchmark would refuse, or measure under a wrong name."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant
from madlite_plugins.choices import unknown_choice

PRECISIONS = ("BF16", "FP16", "FP32")
MAD_SEQ_LEN = 256


def findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend, but for its sizes."""
    if not plan.place.gpus_per_node:
        yield Finding(message="the benchmark needs a GPU", fatal=True, keys=())
    if plan.place.nodes > 1:
        yield Finding(
            message="the benchmark is documented for one node alone", hint="NNODES=1", fatal=True, keys=("nnodes",)
        )
    yield from unknown_choice("precision", variant.precision, PRECISIONS)
    yield from _seq_len(variant)
    for key, least in (("num_frames", 0), ("max_train_samples", 0), ("seed", 0), ("lora_rank", 1)):
        value = int(plan.settings[key])
        if value < least:
            yield Finding(message=f"{key} is {value}", hint=f"--set {key}=N, at least {least}", fatal=True, keys=(key,))
    batch = (variant.micro_batch or 1) * max(1, plan.place.gpus_per_node)
    if variant.global_batch not in (None, batch):
        yield Finding(
            message=f"global batch {variant.global_batch} is not micro batch × GPUs = {batch}",
            hint="leave global_batch out",
            fatal=True,
            keys=("global_batch", "micro_batch", "n_gpus"),
        )


def _seq_len(variant: Variant) -> Iterator[Finding]:
    known = MAD_SEQ_LEN if variant.mode == "posttrain" else None
    if variant.seq_len not in (None, known):
        yield Finding(
            message=f"seq_len {variant.seq_len} is nothing to a diffusion model",
            hint="leave --seq-len out; --set resolution= is the size of its pictures",
            fatal=True,
            keys=("seq_len",),
        )
