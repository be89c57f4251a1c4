"""How many weights a model of a shape has, and what training them takes."""

from __future__ import annotations

from collections.abc import Mapping

from madlite import RunPlan, Scalar

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ADAM = 8  # bytes for each weight that is trained: two float32 numbers
GIB = 1024**3


def count_weights(settings: Mapping[str, Scalar]) -> int:
    """Return the weights of a decoder whose layers have attention and a gated MLP, or several as its experts."""
    hidden, ffn, heads = (int(settings[key]) for key in ("hidden_size", "intermediate_size", "heads"))
    head = int(settings["head_dim"]) or hidden // max(1, heads)
    attention = 2 * hidden * head * (heads + int(settings["kv_heads"]))
    mlp = 3 * hidden * ffn * max(1, int(settings["experts"]))
    return 2 * int(settings["vocab_size"]) * hidden + int(settings["layers"]) * (attention + mlp)


def ranks_of(plan: RunPlan) -> int:
    """Return the processes that train, on all nodes: one for each GPU, without any as many as were requested."""
    return (plan.place.gpus_per_node or int(plan.settings["cpu_ranks"])) * plan.place.nodes


def bytes_per_gpu(plan: RunPlan) -> float:
    """Return what weights, gradients and Adam's states take on each GPU; activations come on top."""
    settings, ranks = plan.settings, max(1, plan.place.gpus_per_node * plan.place.nodes)
    size = float(_BYTES.get(str(settings["dtype"]), 4))
    if settings["method"] == "full":
        size = 2 * size + _ADAM
    elif settings["method"] == "qlora":
        size = 0.56  # half a byte, and the scale of each block
    if settings["strategy"] != "ddp":
        size /= ranks
    return count_weights(settings) * size


def memory_of(plan: RunPlan) -> int:
    """Return the least memory of the plan's GPUs in bytes; 0 where it is not known."""
    return min((gpu.memory_bytes or 0 for gpu in plan.machine.gpus), default=0)
