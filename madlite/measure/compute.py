"""A steady throughput → floating-point work by our own formula, and its part of the GPU's peak.

The framework's own figure stands beside it; docs/measurement.md has the rules.
"""

from __future__ import annotations

from msgspec.structs import replace

from madlite.machine.products import find_peak
from madlite.measure.steps import Steps, median_in
from madlite.model import Architecture, Attention, Compute, Quantity, RunPlan, Variant, Window

# The floating-point operations that training a model takes for a token (docs/measurement.md).
#
# A weight that a token meets costs 2 of them on the way forward and 4 on the way back: for its own gradient, and for
# that of what came before it.  The embedding is looked up and costs nothing; the output layer counts, also where it
# shares the embedding's weights.  Norms, activations and rotary positions are left out: together they are below 0.1 %,
# as in the formulas of torchtitan and Megatron-LM.  What is computed once more, to save memory, is no work of the
# model.

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
    visible = min(seq_len, window) if window else seq_len
    return float(visible) if attention == "full" else visible * (1 - visible / (2 * seq_len))


MOST_APART = 0.02  # of the framework's figure from ours
ROUNDING = 0.05  # TFLOP/s: half of the last digit of a framework that prints one decimal
_SPEEDS = (Quantity.TOKENS_PER_S_PER_GPU, Quantity.SAMPLES_PER_S_PER_GPU, Quantity.STEP_TIME_S)


def count_compute(plan: RunPlan, steps: Steps, window: Window) -> Compute | None:
    """Return the work of a run's steady window; None where the model's shape or its tokens are not known."""
    model, variant = plan.architecture, plan.variant
    if model is None or variant is None or not variant.seq_len or variant.seq_len < 1:
        return None
    tokens = _tokens(plan, variant, steps, window)
    if not tokens:
        return None
    attention = plan.result_rule.attention
    frozen = trains_adapters(variant)
    each = flops_per_token(model, variant.seq_len, attention, frozen=frozen)
    counted = Compute(
        architecture=model.name,
        attention=attention,
        flops_per_token=each,
        tflops_per_gpu=each * tokens / 1e12,
        tokens_per_s_per_gpu=tokens,
        seq_len=variant.seq_len,
        otherwise=flops_per_token(model, variant.seq_len, "causal" if attention == "full" else "full", frozen=frozen),
        frozen=frozen,
    )
    reported = median_in(steps, Quantity.TFLOPS_PER_GPU, window)
    return _against_peak(_with_framework_figure(counted, reported), plan, variant)


def trains_adapters(variant: Variant) -> bool:
    """Return whether a run trains adapters beside frozen weights: LoRA and QLoRA, by the name of its mode."""
    return "lora" in variant.mode.casefold()


def _tokens(plan: RunPlan, variant: Variant, steps: Steps, window: Window) -> float | None:
    """Return the window's tokens per second and GPU: as they are reported, else of its samples or of its step time.

    A step's time gives its tokens in a pretraining alone, all of whose sequences are full.
    """
    for quantity in _SPEEDS:
        of_window = window.quantity == quantity
        value = window.median if of_window else median_in(steps, quantity, window)
        if value is None or value <= 0 or variant.seq_len is None:
            continue
        if quantity == Quantity.TOKENS_PER_S_PER_GPU:
            return value
        if quantity == Quantity.SAMPLES_PER_S_PER_GPU:
            return value * variant.seq_len
        gpus = plan.place.nodes * plan.place.gpus_per_node
        if variant.global_batch and gpus and "pretrain" in variant.mode.casefold():
            return variant.global_batch * variant.seq_len / value / gpus
    return None


def _with_framework_figure(counted: Compute, reported: float | None) -> Compute:
    """Return our figure with the framework's, and how far that is from ours, where both have digits enough to say."""
    if reported is None:
        return counted
    ours = counted.tflops_per_gpu
    sure = max(abs(reported), ours) * MOST_APART > ROUNDING and ours > 0
    return replace(counted, framework_tflops_per_gpu=reported, apart=reported / ours - 1 if sure else None)


def _against_peak(counted: Compute, plan: RunPlan, variant: Variant) -> Compute:
    """Return our figure as a part of its GPU's peak, or why it is none."""
    peak = find_peak(plan.machine, plan.place.gpu_ids, variant.precision)
    if isinstance(peak, str):
        return replace(counted, no_mfu=peak)
    counted = replace(counted, peak_tflops=peak.tflops, peak_of=peak.of, peak_source=peak.source)
    mfu = counted.tflops_per_gpu / peak.tflops
    if mfu > 1:
        why = f"{counted.tflops_per_gpu:.4g} TFLOP/s/GPU would be {100 * mfu:.0f} % of the peak of {peak.of}"
        return replace(counted, no_mfu=f"{why}: the throughput, the model's size or the GPU is not what it seems")
    return replace(counted, mfu=mfu)


def apart_text(compute: Compute) -> str:
    """Return that the framework's figure is another one than ours, and why that may be; "" where it is not."""
    apart, reported = compute.apart, compute.framework_tflops_per_gpu
    if apart is None or reported is None or abs(apart) <= MOST_APART:
        return ""
    return (
        f"the framework reports {reported:.4g} TFLOP/s/GPU, {100 * abs(apart):.1f} % {'more' if apart > 0 else 'less'} "
        f"than the {compute.tflops_per_gpu:.4g} that its tokens come to: {_reasons(compute, reported)}"
    )


def _reasons(compute: Compute, reported: float) -> str:
    """Return why two counts may differ, the likeliest first."""
    other = compute.otherwise * compute.tokens_per_s_per_gpu / 1e12
    convention = "causal" if compute.attention == "full" else "full"
    if other > 0 and abs(reported / other - 1) <= MOST_APART:
        return f"it counts {convention} attention, where {compute.attention} was expected"
    model = f"{compute.architecture} with sequences of {compute.seq_len}"
    return f"it trains something else than {model}, or counts by another formula"
