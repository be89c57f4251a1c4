"""What torchtitan would refuse, or train on with a number that means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from madlite import Finding, RunPlan, Variant

PRECISIONS = ("BF16", "FP8", "FP32")
_CHECKPOINTING = ("none", "selective", "full", "memory_budget")
_OF_THE_ROW = ("--training.steps", "--training.seq_len", "--training.local_batch_size", "--training.global_batch_size")


def findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend."""
    if plan.variant is None:
        return
    yield from _args(plan)
    yield from _degrees(plan, plan.variant)
    yield from _machine(plan, plan.variant)
    yield from _settings(plan, plan.variant)


def _args(plan: RunPlan) -> Iterator[Finding]:
    given = sorted({word.partition("=")[0] for word in plan.args.split()} & set(_OF_THE_ROW))
    if given:
        yield Finding(
            message=f"args set {', '.join(given)}, which the result's row does not show",
            hint="--set steps=, seq_len=, micro_batch= or global_batch= instead",
        )


def _degrees(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Check the sizes of the device mesh: their product is the number of ranks, -1 standing for what is left."""
    world = _ranks(plan)
    degrees = {name: int(plan.settings[name]) for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp")}
    wrong = [f"{name}={n}" for name, n in degrees.items() if n < 1 and (name, n) != ("dp_shard", -1)]
    if wrong:
        yield Finding(message=f"parallel degrees are 1 or more: {', '.join(wrong)}", fatal=True)
        return
    product = 1
    for n in degrees.values():
        product *= abs(n)
    if world % product or (degrees["dp_shard"] != -1 and world != product):
        shape = " × ".join(f"{name} {n}" for name, n in degrees.items())
        yield Finding(message=f"{shape} does not fit {world} rank(s)", hint="--set dp_shard=-1", fatal=True)
        return
    data_ranks = world // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    local = (variant.micro_batch or 1) * data_ranks
    if variant.global_batch and variant.global_batch % local:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch × data ranks = {local}",
            hint=f"--set global_batch={max(1, variant.global_batch // local) * local}",
            fatal=True,
        )


def _machine(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if plan.place.gpus_per_node:
        return
    if plan.machine.vendor != "CPU":
        yield Finding(
            message="no GPU is granted, and torchtitan runs on a CPU only where there is no GPU",
            hint="--set n_gpus=1",
            fatal=True,
        )
    if variant.precision == "FP8":
        yield Finding(message="FP8 needs a GPU", hint="--set precision=BF16", fatal=True)
    if plan.settings["compile"]:
        yield Finding(
            message="torch.compile on a CPU takes minutes and needs a C++ compiler", hint="--set compile=false"
        )
    if plan.settings["flavor"] != "debugmodel":
        yield Finding(message=f"{variant.model} on a CPU takes very long and much memory", hint="--set recipe=debug")


def _settings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if variant.precision not in PRECISIONS:
        yield Finding(
            message=f"precision '{variant.precision}' is unknown", hint=f"one of {', '.join(PRECISIONS)}", fatal=True
        )
    mode = plan.settings["activation_checkpoint"]
    if mode not in _CHECKPOINTING:
        yield Finding(
            message=f"activation_checkpoint '{mode}' is unknown", hint=f"one of {', '.join(_CHECKPOINTING)}", fatal=True
        )
    if "float8" in str(plan.settings["converters"]).split(","):
        yield Finding(
            message="converter 'float8' is called quantize.linear.float8 since torchtitan 0.2",
            hint="--set converters=quantize.linear.float8, or --set precision=FP8 alone",
            fatal=True,
        )
    for name in ("hf_assets_path", "dataset_path"):
        path = str(plan.settings[name])
        if path and not PurePosixPath(path).is_absolute():
            yield Finding(
                message=f"{name} '{path}' is relative, and the run starts in its own folder",
                hint=f"give the full path as the run sees it: {plan.inside}/{path}",
                fatal=True,
            )


def _ranks(plan: RunPlan) -> int:
    return max(1, plan.place.gpus_per_node) * plan.place.nodes
