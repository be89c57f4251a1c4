"""How a run's number is taken: madlite's window, and the figures that MAD's rows have."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from madlite import MadMetric, Quantity, ResultRule, RunSpec
from madlite_plugins.flux.summary import FPS, TFLOPS

WARMUP = 5  # steps that the launcher leaves out of its averages
_BY_LAUNCHER = (
    MadMetric(metric="FPS_per_GPU", rule="summary", key=FPS),
    MadMetric(metric="TFLOPS_per_GPU", rule="summary", key=TFLOPS),
)
# what the launcher calculates, of a run or a log without it
_BY_STEPS = (
    MadMetric(metric="FPS_per_GPU", quantity=Quantity.IMAGES_PER_S_PER_GPU, rule="mean", start=WARMUP),
    MadMetric(metric="TFLOPS_per_GPU", quantity=Quantity.TFLOPS_PER_GPU, rule="mean", start=WARMUP),
)
FOREIGN = ResultRule(
    kind="steps", headline=Quantity.IMAGES_PER_S_PER_GPU, headline_metric="images_per_s_per_gpu", mad=_BY_STEPS
)
"""The rule of a log that somebody else made."""


def rule_of(spec: RunSpec, requested: Mapping[str, str]) -> ResultRule:
    """Return the rule with MAD's figures from where the start leaves them, and with compile beside a batch size."""
    figures = _BY_LAUNCHER if requested.get("start", spec.settings["start"]) == "launcher" else _BY_STEPS
    wanted = figures[:1] if of_fluxbenchmark(spec) else figures  # MAD's rows had the first alone then
    compiled = "compile" in requested or spec.settings["dynamo_backends"] or requested.get("dynamo_backends")
    return replace(spec.result_rule, mad=wanted, columns=("compile",) if compiled else ())


def of_fluxbenchmark(spec: RunSpec) -> bool:
    """Return whether a run is of the time when MAD called it pretraining."""
    return spec.variant is not None and spec.variant.mode == "pretrain"
