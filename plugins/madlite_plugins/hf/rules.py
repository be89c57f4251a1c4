"""Which numbers a run comes to: madlite's own headline, and the rows that MAD's parsers would have written."""

from __future__ import annotations

from msgspec.structs import replace

from madlite import MadMetric, Quantity, ResultRule
from madlite_plugins.hf.modes import PRETRAIN
from madlite_plugins.micro_steps import AVERAGE_SPEED, AVERAGE_TFLOPS

END_MARK = "train_runtime"  # of the Trainer's figures
_SAMPLES = MadMetric(metric="train_samples_per_s", rule="summary", key="train_samples_per_second")
# of MAD's train_llama.py, which averages the second half of its steps
_AVERAGES = (
    MadMetric(metric="tok_per_s_per_gpu", rule="summary", key=AVERAGE_SPEED),
    MadMetric(metric="TFLOPS_per_gpu", rule="summary", key=AVERAGE_TFLOPS),
)
_SECOND_HALF = MadMetric(
    metric="tok_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU, rule="mean", second_half=True
)


def own_rule(mode: str) -> ResultRule:
    """Return the rule of our own script: MAD's figure of a mode, by MAD's rule."""
    rule = _rule((_SECOND_HALF,) if mode == PRETRAIN else (_SAMPLES,), end_mark=END_MARK)
    return replace(rule, printed_on="first")


def train_llama_rule() -> ResultRule:
    """Return the rule of MAD's train_llama.py, which prints no loss."""
    return _rule(_AVERAGES, loss_expected=False)


def foreign_rule() -> ResultRule:
    """Return the rule of a log of which no plan says the script: every figure that MAD reads of any of them."""
    return _rule((_SAMPLES, *_AVERAGES), loss_expected=False)


def _rule(mad: tuple[MadMetric, ...], loss_expected: bool = True, end_mark: str = "") -> ResultRule:
    return ResultRule(
        kind="steps",
        headline=Quantity.TOKENS_PER_S_PER_GPU,
        headline_metric="tokens_per_s_per_gpu",
        mad=mad,
        loss_expected=loss_expected,
        end_mark=end_mark,
    )
