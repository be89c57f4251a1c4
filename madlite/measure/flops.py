"""The floating-point operations that training a model takes for a token (docs/measurement.md).

A weight that a token meets costs 2 of them on the way forward and 4 on the way back: for its own gradient, and for that
of what came before it.  The embedding is looked up and costs nothing; the output layer counts, also where it shares the
embedding's weights.  Norms, activations and rotary positions are left out: together they are below 0.1 %, as in the
formulas of torchtitan and Megatron-LM.  What is computed once more, to save memory, is no work of the model.
"""

from __future__ import annotations

from madlite.model import Architecture, Attention

_FORWARD, _BACKWARD = 2, 4
_PAST_FROZEN = 2  # on the way back, where the weight's own gradient is not needed


def flops_per_token(model: Architecture, seq_len: int, attention: Attention, *, frozen: bool = False) -> float:
    """Return the operations of a token's forward and backward pass, in sequences of `seq_len` tokens.

    `frozen`: the weights are not trained, adapters beside them are (LoRA, QLoRA); their own work is not counted.
    """
    of_weight = _FORWARD + (_PAST_FROZEN if frozen else _BACKWARD)
    return of_weight * active_weights(model) + (_FORWARD + _BACKWARD) * _scores(model, seq_len, attention)


def active_weights(model: Architecture) -> int:
    """Return the weights that a token meets: without the embedding, of a mixture its router and active experts."""
    dense = model.dense_layers if model.experts else model.layers
    matrices = (3 if model.gated else 2) * model.hidden
    mixture = model.hidden * model.experts + matrices * (model.active_experts * model.expert_ffn + model.shared_ffn)
    return (
        model.layers * _attention_weights(model)
        + dense * matrices * model.ffn
        + (model.layers - dense) * mixture
        + model.vocab * model.hidden
    )


def _attention_weights(model: Architecture) -> int:
    """Return the weights of a layer's query, key, value and output projections."""
    head_dim = model.head_dim or model.hidden // model.heads
    if not model.kv_lora_rank:
        return 2 * model.hidden * head_dim * (model.heads + (model.kv_heads or model.heads))
    of_query = model.qk_nope_head_dim + model.qk_rope_head_dim
    query = model.hidden * model.heads * of_query
    if model.q_lora_rank:
        query = model.q_lora_rank * (model.hidden + model.heads * of_query)
    latent = model.hidden * (model.kv_lora_rank + model.qk_rope_head_dim)
    key_value = model.kv_lora_rank * model.heads * (model.qk_nope_head_dim + model.v_head_dim)
    return query + latent + key_value + model.heads * model.v_head_dim * model.hidden


def _scores(model: Architecture, seq_len: int, attention: Attention) -> float:
    """Return what stands for weights in attention: a query with each key it sees, and that key's value, of all layers.

    In Megatron's and torchtitan's formulas a pair costs as much as a weight: 2 forward, 4 backward.
    """
    head_dim = model.head_dim or model.hidden // model.heads
    of_pair = 2 * head_dim
    if model.kv_lora_rank:
        of_pair = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    windowed = 0
    if model.window:
        windowed = model.layers - (model.layers // model.full_every if model.full_every else 0)
    keys = windowed * visible_keys(seq_len, model.window, attention)
    keys += (model.layers - windowed) * visible_keys(seq_len, 0, attention)
    return model.heads * of_pair * keys


def visible_keys(seq_len: int, window: int, attention: Attention) -> float:
    """Return with how many keys a query is counted, on average over a sequence; `window` 0 sees all of them."""
    seen = min(seq_len, window) if window else seq_len
    return float(seen) if attention == "full" else seen * (1 - seen / (2 * seq_len))
