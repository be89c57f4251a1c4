"""Which numbers a run comes to: madlite's own headline, and the rows that MAD's parsers would have written."""

from __future__ import annotations

from madlite import MadMetric, Quantity, ResultRule

FRAMEWORKS = ("torchtitan", "megatron", "megatron_bridge")  # whose options and lines madlite knows
_TOKENS = MadMetric(metric="tok_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU)
_TFLOPS = MadMetric(metric="TFLOPS_per_gpu", quantity=Quantity.TFLOPS_PER_GPU)
_MEMORY = MadMetric(metric="GPU_memory_usage (%)", quantity=Quantity.MEMORY_PERCENT)
# MAD since v26.5: Primus's own running means, in rows told apart by the column `run`
_MEANS = (
    MadMetric(metric="tok_per_s_per_gpu_avg", quantity=Quantity.TOKENS_PER_S_PER_GPU_MEAN),
    MadMetric(metric="TFLOPS_per_gpu_avg", quantity=Quantity.TFLOPS_PER_GPU_MEAN),
)
# scripts/primus_train of MAD, for cards made of config files
_OF_TREE = (
    MadMetric(metric="tokens_per_second", quantity=Quantity.TOKENS_PER_S_PER_GPU),
    MadMetric(metric="tflops", quantity=Quantity.TFLOPS_PER_GPU),
)


def result_rule(framework: str, averages: bool = True, of_tree: bool = False) -> ResultRule:
    """Return the rule of a framework; `averages` where MAD also reads the running means."""
    if framework == "diffusion":
        headline = Quantity.IMAGES_PER_S_PER_GPU
        return ResultRule(kind="steps", headline=headline, headline_metric="images_per_s_per_gpu", loss_expected=False)
    if framework == "megatron_bridge":  # which prints no tokens/s
        return ResultRule(
            kind="steps",
            headline=Quantity.TFLOPS_PER_GPU,
            headline_metric="tflops_per_gpu",
            mad=_OF_TREE if of_tree else (_TFLOPS,),
            loss_expected=False,
        )
    if of_tree:
        return ResultRule(kind="steps", mad=_OF_TREE)
    if framework == "torchtitan":
        return ResultRule(kind="steps", mad=(_TOKENS, _TFLOPS, _MEMORY))
    return ResultRule(kind="steps", mad=(_TOKENS, _TFLOPS, *(_MEANS if averages else ())))


def foreign_rule() -> ResultRule:
    """Return the rule of a log of which no plan says the framework: every figure that MAD reads of any of them."""
    return ResultRule(kind="steps", mad=(_TOKENS, _TFLOPS, _MEMORY, *_MEANS))
