"""The shape of a model, as far as its floating-point work follows from it."""

from __future__ import annotations

from typing import Literal

from madlite.model.values import Value

Attention = Literal["full", "causal"]
"""Whether a model's FLOPs count each query with every key (`full`), or with those before it alone (`causal`)."""


class Architecture(Value, frozen=True):
    """What of a model's shape its FLOPs follow from; docs/measurement.md has the formula.

    Raises:
        ValueError: the sizes are no model's.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocab: int  # as the output layer has it, padding included
    ffn: int  # of a dense layer
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int = 0  # 0: hidden ÷ heads
    gated: bool = True  # three matrices in a feed-forward layer (SwiGLU), else two
    window: int = 0  # tokens a query sees at most; 0: all of the sequence
    full_every: int = 0  # every how many layers a query sees all in spite of it; 0: in none
    experts: int = 0
    active_experts: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # of the experts that every token passes, together
    dense_layers: int = 0  # of a model with experts, the first layers without
    q_lora_rank: int = 0  # multi-head latent attention, where kv_lora_rank is not 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no shape, wherever it comes from."""
        if problem := _problem(self):
            raise ValueError(f"architecture '{self.name}': {problem}")


class Shape(Value, frozen=True):
    """What of a draft may change its model's architecture.

    `fields` names, for a field of the architecture, the setting that has it where it is not 0.  Where one of `others`
    was changed nothing is known of the shape.  `unknown` says why there is none, whatever a table has under the name.
    """

    fields: dict[str, str] = {}
    others: tuple[str, ...] = ()
    unknown: str = ""


def _problem(one: Architecture) -> str:
    sizes = {name: getattr(one, name) for name in one.__struct_fields__}
    for name, value in sizes.items():
        if isinstance(value, int) and value < (name in ("layers", "hidden", "heads", "vocab")):
            return f"{name} is {value}"
    if one.experts and not (0 < one.active_experts <= one.experts and one.expert_ffn):
        return f"{one.active_experts} of {one.experts} experts see a token, each of {one.expert_ffn}"
    if one.dense_layers > one.layers:
        return f"{one.dense_layers} of {one.layers} layers are dense"
    if not one.ffn and (one.dense_layers or not one.experts):
        return "ffn is 0"
    if one.kv_lora_rank and not (one.qk_nope_head_dim + one.qk_rope_head_dim and one.v_head_dim):
        return "latent attention needs qk_nope_head_dim, qk_rope_head_dim and v_head_dim"
    if not one.kv_lora_rank and not one.head_dim and one.hidden % one.heads:
        return f"hidden {one.hidden} is no multiple of {one.heads} heads: head_dim is needed"
    return ""
