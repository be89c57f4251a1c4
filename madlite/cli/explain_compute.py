"""How `explain` shows what a run's floating-point work follows from: its model's shape, the formula, the peak."""

from __future__ import annotations

from collections.abc import Iterator

from madlite.machine.peaks import find_peak
from madlite.measure.compute import trains_adapters
from madlite.measure.flops import flops_per_token
from madlite.model import Architecture, RunPlan, Variant


def compute_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and origin; nothing of a card's own script, of which no model is known."""
    if plan.variant is None:
        return
    model, origin = plan.architecture, plan.origins.get("architecture", "")
    yield "architecture", _in_words(model) if model else "-", origin
    if model is None or not plan.variant.seq_len or plan.variant.seq_len < 1:
        return
    yield "gflop_per_token", _work(model, plan.variant, plan.variant.seq_len, plan), "docs/measurement.md"
    peak = find_peak(plan.machine, plan.place.gpu_ids, plan.variant.precision)
    yield ("peak", "-", peak) if isinstance(peak, str) else ("peak", f"{peak.tflops:g} TFLOP/s, {peak.of}", peak.source)


def _work(model: Architecture, variant: Variant, seq_len: int, plan: RunPlan) -> str:
    frozen, attention = trains_adapters(variant), plan.result_rule.attention
    each = flops_per_token(model, seq_len, attention, frozen=frozen) / 1e9
    weights = ", weights frozen" if frozen else ""
    return f"{each:.4g} ({attention} attention, sequences of {seq_len}{weights})"


def _in_words(model: Architecture) -> str:
    heads = f"{model.heads} heads" + (f" on {model.kv_heads}" if model.kv_heads else "")
    parts = [f"{model.layers} layers of {model.hidden}", heads]
    if model.kv_lora_rank:
        parts.append(f"latent of {model.kv_lora_rank}")
    if model.window:
        parts.append(f"window {model.window}" + (f", full every {model.full_every}" if model.full_every else ""))
    if model.experts:
        shared = f" + {model.shared_ffn} shared" if model.shared_ffn else ""
        parts.append(f"{model.active_experts} of {model.experts} experts of {model.expert_ffn}{shared}")
    if model.dense_layers or not model.experts:
        parts.append(f"ffn {model.ffn}" + ("" if model.gated else ", not gated"))
    return ", ".join([*parts, f"vocabulary {model.vocab}"])
