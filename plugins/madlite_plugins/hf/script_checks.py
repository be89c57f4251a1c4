"""What MAD's train_llama.py would refuse, or measure under a wrong name."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant


def script_findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan of MAD's script, but for its number of steps."""
    if not plan.place.gpus_per_node:
        yield Finding(message="train_llama.py needs a GPU", fatal=True, keys=("n_gpus",))
    if variant.precision != "FP8":
        hint = "--precision FP8, or --image-release upstream, whose script supports BF16"
        yield Finding(
            message=f"train_llama.py trains in FP8, not {variant.precision}", hint=hint, fatal=True, keys=("precision",)
        )
    ranks = max(1, plan.place.gpus_per_node) * plan.place.nodes
    batch = (variant.micro_batch or 1) * int(plan.settings["accumulation"]) * ranks
    if variant.global_batch not in (None, batch):
        yield Finding(
            message=f"global batch {variant.global_batch} is not micro batch × accumulation × GPUs = {batch}",
            hint="leave global_batch out",
            fatal=True,
            keys=("global_batch", "micro_batch", "accumulation", "n_gpus", "nnodes"),
        )
