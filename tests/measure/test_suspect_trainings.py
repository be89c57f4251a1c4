"""Losses and gradients that make a number suspect, and many trainings like them that went well."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Expected, judge_line, judge_steps
from madlite.model import Cause, ResultRule, Status
from madlite_plugins.hf.reader import HuggingFaceReader
from tests.measure.training_logs import parsed, titan, trainer
from tests.rows import each_row


def noise(seed: int, level: float, scatter: float, count: int) -> list[float]:
    chance = random.Random(seed)  # noqa: S311 - the same every time
    return [max(0.05, chance.gauss(level, scatter * level)) for _ in range(count)]


def falling(seed: int, begin: float, end: float, count: int, scatter: float = 0.01) -> list[float]:
    part = [(end + (begin - end) * math.exp(-4 * n / count)) / 1.0 for n in range(count)]
    return [one * factor for one, factor in zip(part, noise(seed, 1.0, scatter, count), strict=True)]


def spiked(seed: int, count: int) -> list[float]:
    """Return losses that jump in the warm-up and come back."""
    values = falling(seed, 11.0, 6.0, count)
    for at, height in ((1, 3.0), (2, 5.0), (3, 2.0), (count // 2, 1.5)):
        values[at] *= height
    return values


def converging(count: int, digits: int) -> list[float]:
    """Return losses that fall to what is printed as 0."""
    return [round(2.5 * math.exp(-14 * n / count), digits) for n in range(count)]


SHAPES: list[tuple[str, Callable[[int], Sequence[float]]]] = [
    *((f"flat {scatter} of {count}", lambda seed, s=scatter, c=count: noise(seed, 10.8, s, c))
      for scatter in (0.0, 0.0002, 0.005, 0.03) for count in (6, 10, 25, 60)),
    *((f"falling to {end} in {count}", lambda seed, e=end, c=count: falling(seed, 11.9, e, c))
      for end in (11.5, 7.0, 2.0) for count in (6, 12, 40)),
    *((f"tuned {scatter} of {count}", lambda seed, s=scatter, c=count: falling(seed, 1.6, 1.3, c, s))
      for scatter in (0.05, 0.2) for count in (8, 20, 50)),
    *((f"diffusion of {count}", lambda seed, c=count: noise(seed, 0.9, 0.5, c)) for count in (12, 30, 80)),
    *((f"spikes in {count}", lambda seed, c=count: spiked(seed, c)) for count in (20, 40)),
    *((f"to 0 in {count} with {digits} digits", lambda seed, c=count, d=digits: converging(c, d))
      for count in (30, 60) for digits in (1, 2, 4)),
    ("steps of bf16", lambda seed: [round(x * 16) / 16 for x in noise(seed, 11.75, 0.004, 30)]),
    ("all tokens masked once", lambda seed: [*falling(seed, 3.0, 2.0, 12)[:8], 0.0, *falling(seed, 2.1, 2.0, 12)]),
]  # fmt: skip


@pytest.mark.host
@each_row("seed", range(6))
@each_row(("name", "shape"), SHAPES, ids=[name for name, _ in SHAPES])
def test_a_training_that_went_well_is_not_doubted(name, shape, seed):
    reading = parsed(titan(shape(seed)))
    assert (reading.verdict.status, reading.verdict.suspect) == (Status.SUCCESS, ())


HARMLESS = (
    "nanoseconds per token: 12", "logging_nan_inf_filter: True", "Nantes data set, 3 shards",
    "check_for_nan_in_loss: True",
    "best loss: nan (no evaluation yet) at step 0", "val loss: nan, step 3: no validation set", "eval_loss=nan step 4",
    "attention mask fill value: -inf", "min of mask: nan, max of mask: 0", "loss scale: inf", "loss mask: nan-safe",
    "3: NVIDIA H200", "0: AMD Instinct MI300X", "17: lo: <LOOPBACK,UP> mtu 65536", "3: ", "12: import torch",
    "gpu-0 | 45 C | 300 W", "node-3 | ready", "step-10  | done", "[3] shards read", "worker-1 is ready",
    "2026-11-22T10:00:00.123456789Z stdout F warm", "2026-11-22T10:00:00+02:00 3: a message", "10:00:01 0: x",
    "grad_norm: nan is what a skipped step would have", "vocab_size: 128256", '  "vocab_size": 32000,',
    "padded vocab (size: 128256) with 0 dummy tokens", "vocab_size=2048",
    "loss = cross_entropy(x, y)  # nan where all is masked",
    "RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 262144 Hardware "
    "limit:232448 Reducing block sizes or `num_stages` may help.",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 270336, Hardware limit: 232448.",
    "Exception out of resource: triton_tem_fused Required: 98304 Hardware limit:65536 for benchmark choice Caller(x)",
    "OutOfMemoryError: out of resource: triton_red_fused Required: 9 Hardware limit:6",
    "SIGSEGV handler installed", "killed workers are started again: 0", "train_loss_nan_count 0",
    "NaN check: step 3 fine",
    "[pod/llama-worker-0/pytorch] ready", "[1,0]<stdout>: ready", "1: 2: 3: go", "0.5: a factor",
    "100%|###| 3/3 [00:01<00:00]",
    "iteration time: 0.5 s, loss: 2.5", "loss: 0", "epoch 0: loss 0.0000 at the start of the average",
)  # fmt: skip


@pytest.mark.host
@each_row("line", HARMLESS)
@each_row("where", ["once", "often", "before"])
def test_a_line_that_only_looks_bad_is_no_doubt(line, where):
    losses = falling(1, 11.0, 7.0, 20)
    lines = titan(losses, between=[line] * {"once": 1, "often": 20, "before": 0}[where])
    reading = parsed([*([line] * 3 if where == "before" else []), *lines])
    assert (reading.verdict.status, reading.verdict.suspect, reading.steps.count()) == (Status.SUCCESS, (), 20)


RISING = [8.0, *[900.0, 5800.0, 850.0, 1500.0, 1800.0], *[400.0 / n + 20 for n in range(1, 35)]]
DOUBTED: dict[str, tuple[list[str], str]] = {
    "ends above its start": (titan([7.6, 7.61, 7.59, 7.7, 7.8, 7.9, 8.1, 8.2, 8.3, 8.3, 8.4, 8.4]), "above the 7.6 "),
    "creeps up": (titan([7.6 + 0.02 * n for n in range(30)]), "that it began with"),
    "never comes back": (titan(RISING), "never near that again"),
    "above chance": (titan([400.0, *RISING[1:]], between=['  "vocab_size": 2048,']), "a choice by chance of 2048"),
    "norm is NaN": (titan([6.2] * 12, norms=[1.0] * 5 + ["nan"] * 7), "a gradient norm is NaN"),
    "norm is NaN once": (titan([6.2] * 12, norms=[1.0] * 5 + ["nan"] + [1.0] * 6), "a gradient norm is NaN"),
    "turns 0": (titan([6.2, 6.1, 6.0, *[0.0] * 9]), "the loss is 0 after 6"),
    "turns 0 for a while": (titan([6.2, 6.1, 6.0, 0.0, 0.0, 0.0, *[5.9] * 9]), "the loss is 0 after 6"),
    "turns 0 at the end": (titan([6.2, 6.1, 6.0, 5.9, 5.9, 5.8, 5.8, 0.0]), "the loss is 0 after 5.8"),
    "a line that is no step": ([*titan([6.2] * 12), "epoch 3: train loss: nan"], "a line reports a loss"),
    "trainer's loss turns 0": (trainer([6.2, 6.1, *[0] * 10], norms=[0.9] * 12), "the loss is 0 after 6.1"),
    "trainer's norm is NaN": (trainer([6.2, 6.1, *[6.0] * 10], norms=[1.2, *["nan"] * 11]), "a gradient norm is NaN"),
    "a script's words": (["step 3 loss=nan", "performance: 100 tokens/s"], "a line reports a loss"),
    "then better": (["iter 3 loss: NaN", "iter 4 loss: 2.5", "performance: 100 tokens/s"], "a line reports a loss"),
}  # fmt: skip


@each_row(("lines", "words"), DOUBTED.values(), ids=DOUBTED)
def test_what_a_training_should_not_do_is_doubted(lines, words):
    verdict = parsed(lines).verdict
    assert verdict.status is Status.SUCCESS and any(words in text for text in verdict.suspect), verdict


FAILED = {
    "loss is NaN": titan([6.2, 6.1, "nan", *[6.0] * 5]),
    "0 for NaN": titan([6.2, 6.1, *[0.0] * 8], norms=[1.0, *["nan"] * 9]),
    "trainer's 0 for NaN": trainer([6.2, 6.1, *[0] * 10], norms=[1.2, *["nan"] * 11]),
    "trainer's 0 beside infinity": trainer([6.2, 6.1, 0, 6.0], norms=[1.2, 1.2, "inf", 1.2]),
    "trainer's NaN, in capitals": trainer([6.2, "NaN", *[6.0] * 4]),
}


@each_row("lines", FAILED.values(), ids=FAILED)
def test_a_loss_that_is_none_is_a_failure_whatever_comes_after_it(lines):
    reading = parsed([*lines, "performance: 100 tokens/s"])
    assert (reading.verdict.status, reading.verdict.cause) == (Status.FAILURE, Cause.NAN_LOSS)


def test_losses_of_every_reader_are_looked_at_where_the_result_is_a_line():
    log = LogMonitor([], script_reader=HuggingFaceReader())
    first, second = trainer([6.2, "nan", 6.0, 6.0, 6.0, 6.0]), trainer([5.0, 4.9, 4.8, 4.7, 4.6, 4.5])
    log.feed("".join(f"{line}\n" for line in [*first, *second, "performance: 100 tokens/s"]).encode())
    log.finish()
    verdict = judge_line(log)
    assert verdict.status is Status.SUCCESS and "not finite" in verdict.suspect[0]
    by_steps = judge_steps(Expected(rule=ResultRule(kind="steps")), log)
    assert by_steps.cause is not Cause.NAN_LOSS, "the last training's loss is fine"
    # a loss of another language is no nan
    verdict = parsed(titan([*["11,90000"] * 12])).verdict
    assert verdict.cause is not Cause.NAN_LOSS
    assert "a loss is '11,90000', which is no number" in verdict.suspect


def decaying(
    height: float, slope: float, floor: float, count: int, start: float = 8.0, scatter: float = 0.0
) -> list[float]:
    values = [start] * 3 + [height * math.exp(-n / slope) + floor for n in range(count - 3)]
    return [one * factor for one, factor in zip(values, noise(1, 1.0, scatter, count), strict=True)]


STILL_FALLING = [
    (5800, 6, 12, 40), (5800, 6, 9, 40, 7.6), (5800, 3, 12, 20), (5800, 3, 11, 24), (3000, 8, 11, 60, 10.0),
    (900, 10, 11, 60), (5800, 12, 12, 100, 10.4), (400, 2, 11, 14), (5800, 1.5, 14, 10), (100, 6, 12, 30, 10.0),
    (500, 6, 10, 40), (400, 6, 10, 40),
]  # fmt: skip


@each_row("scatter", [0.0, 0.01])
@each_row("curve", [*STILL_FALLING, (3000, 8, 11, 60)])
def test_an_explosion_that_still_falls_is_no_scatter_that_hides_itself(curve, scatter):
    (doubt,) = parsed(titan(decaying(*curve, scatter=scatter))).verdict.suspect
    assert "that it began with" in doubt or "the loss rises from" in doubt or "never near that again" in doubt


@each_row("scatter", [0.0, 0.01, 0.05])
@each_row("curve", [(5800, 2, 6, 40), (50, 4, 7, 40), (900, 3, 7.9, 60), (20, 2, 7.5, 24)])
def test_an_explosion_that_came_back_to_the_start_is_not_doubted(curve, scatter):
    assert parsed(titan(decaying(*curve, scatter=scatter))).verdict.suspect == ()


@pytest.mark.host
@each_row("seed", range(4))
@each_row("count", [9, 10, 12, 15, 16, 20, 25, 32])
@each_row("scatter", [0.01, 0.1, 0.3])
def test_noise_alone_is_not_doubted(seed, count, scatter):
    assert parsed(titan(noise(seed + 40, 3.0, scatter, count))).verdict.suspect == ()


BAR = "\r  {percent}%|x         | {n}/12 [00:0{n}<00:09,  1.00it/s]"
RAISED = ["Traceback (most recent call last):", '  File "/w/t.py", line 3, in <module>', "KeyError: 'labels'"]


@each_row("after", [[], [BAR.format(percent=25, n=3)]])
@each_row("bars", ["before", "after", "without"])
def test_a_progress_bar_hides_no_traceback(bars, after):
    lines = []
    for n, row in enumerate(trainer([6.2, 6.1, 6.0])[:-1], 1):
        bar = [BAR.format(percent=n * 8, n=n)]
        lines += [*(bar if bars == "before" else []), row, *(bar if bars == "after" else [])]
    reading = parsed([*lines, *RAISED, *after], "hf")
    assert reading.verdict.status is Status.FAILURE and reading.diagnosis is not None
    assert (reading.diagnosis.cause, reading.diagnosis.line) == ("python_error", "KeyError: 'labels'")
