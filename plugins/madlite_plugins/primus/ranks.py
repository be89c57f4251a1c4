"""Ranks: whether they fit the model's degrees of parallelism and its batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant

_DEGREES = ("tp", "pp", "cp", "ep")


def parallel_findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Check the ranks against the degrees of parallelism and the nodes that the model is documented for."""
    degrees = {name: int(plan.settings[name]) for name in _DEGREES}
    if wrong := [f"{name}={n}" for name, n in degrees.items() if n < 1]:
        yield Finding(message=f"parallel degrees are 1 or more: {', '.join(wrong)}", fatal=True, keys=_DEGREES)
        return
    gpus, nodes = max(1, plan.place.gpus_per_node), plan.place.nodes
    needed = ranks_needed(str(plan.settings["framework"]), **degrees)
    if gpus * nodes % needed:
        yield _ranks_missing(degrees, needed, gpus, nodes)
    elif (least := int(plan.settings["least_nodes"])) > nodes:
        yield Finding(
            message=f"{variant.model} is documented for {least} nodes, this run has {nodes}",
            hint=f"--set nnodes={least}, or a smaller model; --no-lint tries it all the same",
            fatal=True,
            keys=("nnodes", "model"),
        )
    else:
        yield from _global_batch(variant, gpus * nodes // (degrees["tp"] * degrees["pp"] * degrees["cp"]))


def ranks_needed(framework: str, *, tp: int, pp: int, cp: int, ep: int) -> int:
    """Return of what the number of ranks must be a multiple.

    Experts lie across data, context and, in torchtitan, tensor parallel ranks of a pipeline stage; Megatron splits
    each of them by the tensor degree too (megatron/core/parallel_state.py, torchtitan/distributed/parallel_dims.py).
    """
    experts = ep * pp if framework == "torchtitan" else ep * pp * tp
    return math.lcm(tp * pp * cp, experts)


def _ranks_missing(degrees: dict[str, int], needed: int, gpus: int, nodes: int) -> Finding:
    shape = ", ".join(f"{name} {n}" for name, n in degrees.items() if n > 1)
    where = f"{gpus} GPUs" if nodes == 1 else f"{nodes} nodes of {gpus} GPUs"
    too_few, enough = gpus * nodes < needed, -(-needed // gpus)
    more = f" ({enough} nodes of {gpus} GPUs would do)" if too_few and gpus >= 8 else ""
    hint = "--set pp=, ep= or tp= to lower one, or another config" if too_few else f"--set n_gpus={needed}"
    hint = f"--set nnodes={enough}, or {hint}" if more else hint
    message = f"with {shape} the number of ranks must be a multiple of {needed}; {where} are here{more}"
    return Finding(message=message, hint=hint, fatal=True, keys=(*_DEGREES, "framework", "n_gpus", "nnodes"))


def _global_batch(variant: Variant, data_ranks: int) -> Iterator[Finding]:
    local = (variant.micro_batch or 1) * data_ranks
    if variant.global_batch and variant.micro_batch and variant.global_batch % local:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch {variant.micro_batch} × "
            f"{data_ranks} data ranks = {local}",
            hint=f"--set global_batch={max(1, variant.global_batch // local) * local}",
            fatal=True,
            keys=("global_batch", "micro_batch", *_DEGREES, "n_gpus", "nnodes"),
        )
