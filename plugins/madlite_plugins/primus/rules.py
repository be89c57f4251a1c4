"""Which numbers a run comes to: madlite's own headline, and the rows that MAD's parsers would have written."""

from __future__ import annotations

from typing import Literal

from madlite import MadMetric, Quantity, ResultRule
from madlite_plugins.megatron_lm import reader as of_megatron
from madlite_plugins.torchtitan import reader as of_torchtitan

FRAMEWORKS = ("torchtitan", "megatron", "megatron_bridge")  # whose options and lines madlite knows
_END_MARKS = {"torchtitan": of_torchtitan.END_MARK, "megatron": of_megatron.END_MARK}
_OWN_FORMULA = ("DeepSeek", "Mixtral", "GPT-OSS", "Qwen-3-30B", "Qwen-3-235B")  # mixtures and latent attention
_BEFORE_V26 = ("v25.8", "v25.9", "v25.10", "v25.11")
_TOKENS = MadMetric(metric="tok_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU)
_TFLOPS = MadMetric(metric="TFLOPS_per_gpu", quantity=Quantity.TFLOPS_PER_GPU)
_MEMORY = MadMetric(metric="GPU_memory_usage (%)", quantity=Quantity.MEMORY_PERCENT)
# MAD since v26.5: Primus's own running means, in rows distinguished by the column `run`
_MEANS = (
    MadMetric(metric="tok_per_s_per_gpu_avg", quantity=Quantity.TOKENS_PER_S_PER_GPU_MEAN),
    MadMetric(metric="TFLOPS_per_gpu_avg", quantity=Quantity.TFLOPS_PER_GPU_MEAN),
)
# scripts/primus_train of MAD, for cards made of config files
_OF_TREE = (
    MadMetric(metric="tokens_per_second", quantity=Quantity.TOKENS_PER_S_PER_GPU),
    MadMetric(metric="tflops", quantity=Quantity.TFLOPS_PER_GPU),
)


def attention_of(framework: str, model: str, release: str) -> Literal["full", "causal"]:
    """Return how a framework counts attention in the TFLOP/s that it prints.

    Megatron has counted the half of it since core 0.12.  Up to v25.11 Primus counted mixtures and latent attention by a
    formula of its own, with all of it.
    """
    own = release in _BEFORE_V26 and model.startswith(_OWN_FORMULA)
    return "full" if framework == "torchtitan" or own else "causal"


def result_rule(framework: str, averages: bool = True, of_tree: bool = False) -> ResultRule:
    """Return the rule of a framework; `averages` where MAD also reads the running means."""
    if framework == "diffusion":
        headline = Quantity.IMAGES_PER_S_PER_GPU
        metric = "images_per_s_per_gpu"
        return ResultRule(
            kind="steps", headline=headline, headline_metric=metric, loss_expected=False, printed_on="last"
        )
    if framework == "megatron_bridge":  # which prints no tokens/s
        return ResultRule(
            kind="steps",
            headline=Quantity.TFLOPS_PER_GPU,
            headline_metric="tflops_per_gpu",
            mad=_OF_TREE if of_tree else (_TFLOPS,),
            loss_expected=False,
            printed_on="last",
        )
    mark = _END_MARKS.get(framework, "")
    if framework == "torchtitan":
        return ResultRule(kind="steps", mad=_OF_TREE if of_tree else (_TOKENS, _TFLOPS, _MEMORY), end_mark=mark)
    mad = _OF_TREE if of_tree else (_TOKENS, _TFLOPS, *(_MEANS if averages else ()))
    return ResultRule(kind="steps", mad=mad, end_mark=mark, printed_on="last")


def foreign_rule() -> ResultRule:
    """Return the rule of a log of which no plan says the framework: every figure that MAD reads of any of them."""
    return ResultRule(kind="steps", mad=(_TOKENS, _TFLOPS, _MEMORY, *_MEANS))
