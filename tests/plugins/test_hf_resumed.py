"""A Trainer's figures after a checkpoint, and its bars in a log with several trainings: real ones, and made-up ones."""

from __future__ import annotations

import math
from itertools import product

import pytest

from madlite.measure.verdict import Verdict
from madlite.model import Status
from tests.measure.training_logs import parsed
from tests.plugins.test_hf_trainings import V4, foreign, number, text_of
from tests.rows import each_row

ON_FROM = "the training went on from a checkpoint"


@each_row("name", ["resume-epochs", "resume-after-one-line", "resume-between-lines", "resume-before-a-line"])
def test_a_real_training_from_a_checkpoint_without_a_bar_is_doubted(name):
    """Steps 21 to 40 with a line every 10, 11 to 30, 16 to 40, and 6 to 20."""
    _, verdict = foreign(text_of(V4 + name))
    assert verdict.status is Status.SUCCESS and len(verdict.suspect) == 1 and ON_FROM in verdict.suspect[0]


@each_row("name", ["plain10", "two-lines", "first-step"])
def test_a_real_training_of_few_lines_from_its_beginning_is_not(name):
    assert foreign(text_of(V4 + name))[1].suspect == ()


@each_row(("name", "printed"), [("resume-bar", 133.781), ("resume-told", 75.157)])
def test_a_checkpoint_between_two_lines_is_told_by_the_losses_or_the_log(name, printed):
    _, verdict = foreign(text_of(V4 + name))
    assert float(number(verdict)) == pytest.approx(printed * 15 / 40, rel=1e-4) and verdict.suspect == ()


def test_a_checkpoint_between_two_lines_that_nothing_tells_is_doubted():
    text = text_of(V4 + "resume-bar").replace("'train_loss': 2.17", "'mean_loss': 2.17")
    (doubt,) = foreign(text)[1].suspect
    assert doubt == "the framework's own summary is of 40 steps, and the log shows 11 to 20"


@each_row(
    ("name", "samples_per_s"), [(f"{V4}raised-again", "25.444"), (V4.replace("4.57", "5.23") + "raised-again", "42.37")]
)
def test_a_training_after_one_that_raised_counts_by_its_own_bar(name, samples_per_s):
    """8 of 20 steps, an exception, and then 12 steps."""
    log, verdict = foreign(text_of(name))
    assert (number(verdict), verdict.suspect, log.trainings) == (samples_per_s, (), 2)
    assert list(log.steps.numbers()) == list(range(1, 13))


def doubts(text: str) -> list[str]:
    """Return the doubts of the figures; a loss that rises has its own."""
    return [doubt for doubt in foreign(text)[1].suspect if "own summary" in doubt]


def falling(n: int) -> float:
    return 2.0 + 3.0 * math.exp(-n / 30)


def rising(n: int) -> float:
    return 2.0 + n / 400


def flat(n: int) -> float:
    return 5.8


def without_bar(
    steps: int, every: int, start: int, digits: int, curve, per_epoch: int = 2000, first: bool = False
) -> str:
    """Return what transformers 4 prints of the steps after `start`: figures by all steps, losses by those it did."""
    lines, before = [], start
    for n in range(start + 1, steps + 1):
        if n % every == 0 or (first and n == 1):
            mean = sum(map(curve, range(before + 1, n + 1))) / (n - before)
            epoch = round(n / per_epoch, digits)
            lines.append(f"{{'loss': {mean:.4f}, 'grad_norm': 0.5, 'learning_rate': 0.001, 'epoch': {epoch}}}\n")
            before = n
    mean = sum(map(curve, range(start + 1, steps + 1))) / steps
    runtime = 0.1 * (steps - start)
    figures = (
        f"{{'train_runtime': {runtime:.4f}, 'train_samples_per_second': {2 * steps / runtime:.3f}, "
        f"'train_steps_per_second': {steps / runtime:.3f}, 'train_loss': {mean}, "
        f"'epoch': {round(steps / per_epoch, digits)}}}\n"
    )
    return "".join([*lines, figures])


@each_row(
    ("digits", "curve"), [(16, flat), (16, falling), (16, rising), (4, flat), (4, falling), (4, rising), (2, flat)]
)
@each_row(
    ("steps", "every", "start"),
    [(40, 10, 20), (30, 10, 10), (20, 10, 10), (60, 20, 20), (100, 25, 50), (500, 100, 300), (400, 200, 200),
     (50, 20, 20), (1000, 100, 500), (90, 30, 60)],
)  # fmt: skip
def test_steps_after_a_checkpoint_are_doubted_whatever_digits_epochs_have(steps, every, start, curve, digits):
    """The sum of the losses of a part, divided by all steps, is too small, however the loss moves."""
    (doubt,) = doubts(without_bar(steps, every, start, digits, curve))
    assert ON_FROM in doubt or "learning rate" in doubt or "show no regular part" in doubt


@each_row(
    ("steps", "every"),
    [(40, 20), (20, 10), (29, 10), (21, 10), (40, 10), (19, 10), (10, 10), (2, 1), (100, 50), (500, 200), (999, 500),
     (35, 1), (1000, 100), (99, 10)],
)  # fmt: skip
def test_all_steps_from_the_first_are_not_doubted(steps, every):
    for what in product((16, 4, 2), (flat, falling, rising), (2000, 100_000, 50, 7), (False, True)):
        digits, curve, per_epoch, first = what
        assert doubts(without_bar(steps, every, 0, digits, curve, per_epoch, first)) == [], what


def loss(n: int, value: float, per_epoch: float) -> str:
    epoch = f"{n / per_epoch:.4g}"
    return f"{{'loss': '{value - n / 100:.3f}', 'grad_norm': '0.5', 'learning_rate': '0.001', 'epoch': '{epoch}'}}"


def bar(done: int, length: int) -> str:
    return f" {100 * done // length:3}%|#         | {done}/{length} [00:01<00:02,  4.82it/s]"


def with_bars(
    steps: int, bars: str, stop: int = 0, value: float = 3.0, per_epoch: float = 2000, every: int = 1
) -> list[str]:
    """Return a training of so many steps, with bars before its lines, after them, or both, that may `stop` early."""
    lines = [bar(0, steps)]
    for n in range(1, (stop or steps) + 1):
        told = [loss(n, value, per_epoch)] if n % every == 0 else []
        drawn = [bar(n, steps)]
        lines += {"before": drawn + told, "after": told + drawn, "both": drawn + told + drawn}[bars]
    figures = f"'train_samples_per_second': '{steps}', 'train_steps_per_second': '{steps / 2}'"
    end = [f"{{'train_runtime': '2', {figures}, 'epoch': '{steps / per_epoch:.4g}'}}", bar(steps, steps)]
    return lines if stop else [*lines, *end]


RAISED = ["Traceback (most recent call last):", '  File "/w/t.py", line 3, in <module>', "RuntimeError: boom"]


def read(lines: list[str]) -> tuple[list[int], Verdict, list[str]]:
    reading = parsed(lines, "hf")
    return (
        list(reading.steps.numbers()),
        reading.verdict,
        [text for text in reading.verdict.findings if "last one" in text],
    )


@each_row("bars", ["before", "after", "both"])
@each_row("per_epoch", [2000, 1e9], ids=["epochs", "no epochs"])
@each_row(("length", "stop"), [(20, 0), (20, 8), (20, 2), (500, 60), (12, 0), (12, 9), (8, 0)])
def test_a_second_training_has_its_own_steps_and_figures(bars, per_epoch, length, stop):
    first = [*with_bars(length, bars, stop, 4.0, per_epoch), *(RAISED if stop else [])]
    steps, verdict, several = read([*first, *with_bars(12, bars, value=3.0, per_epoch=per_epoch)])
    assert steps == list(range(1, 13)) and number(verdict) == "12" and verdict.suspect == ()
    assert several == ["the log has 2 trainings one after another: this is the last one's result"]


@each_row("bars", ["before", "after", "both"])
@each_row("every", [1, 2, 5])
def test_a_line_s_step_is_told_by_the_bars_before_or_after_it(bars, every):
    steps, verdict, _ = read(with_bars(20, bars, every=every))
    assert steps == list(range(every, 21, every)) and verdict.suspect == ()


@each_row("per_epoch", [2000, 1e9], ids=["epochs", "no epochs"])
@each_row("drawn", [(0, 3, 8), (0, 6), (0,), (0, 8)])
def test_the_bar_of_an_evaluation_begins_no_training(per_epoch, drawn):
    lines = with_bars(20, "both", per_epoch=per_epoch)
    ends = [place for place, line in enumerate(lines) if "'loss'" in line]
    for place in reversed(ends[4::5]):
        lines[place + 2 : place + 2] = [
            *(bar(done, 8) for done in drawn),
            "{'eval_loss': '6.5', 'eval_runtime': '1.5'}",
        ]
    steps, verdict, several = read(lines)
    assert steps == list(range(1, 21)) and number(verdict) == "20" and not several


def test_an_evaluation_between_lines_far_apart_moves_none():
    """The training's bar lags behind when a line comes, and the last one drawn is the evaluation's."""
    lines = [bar(0, 100)]
    for n in range(10, 101, 10):
        evaluation = [bar(0, 8), bar(5, 8)] if n > 10 else []
        lines += [bar(n - 9, 100), *evaluation, *([] if n > 30 else [bar(n - 1, 100)]), loss(n, 3.0, 1e9), bar(n, 100)]
    figures = "'train_runtime': '20', 'train_samples_per_second': '5', 'train_steps_per_second': '5'"
    steps, verdict, several = read([*lines, f"{{{figures}, 'epoch': '0'}}"])
    assert steps == list(range(10, 101, 10)) and number(verdict) == "5" and not several


def own(n: int, value: float) -> str:
    return f'madlite-step {{"n": {n}, "loss": {value}, "tokens_per_s_per_gpu": {7000 + 10 * value + n % 3}}}'


@each_row("first", [2, 5, 8, 11])
def test_our_own_lines_of_a_training_started_again_are_the_last_one_s(first):
    begin = 'madlite-config {"steps": 12}'
    lines = [begin, *(own(n, 9.0) for n in range(1, first + 1)), begin, *(own(n, 8.0) for n in range(1, 13))]
    steps, verdict, _ = read([*lines, 'madlite-summary {"train_runtime": 4.2}'])
    assert steps == list(range(1, 13)) and (verdict.status, verdict.suspect) == (Status.SUCCESS, ())
    assert verdict.window is not None and verdict.window.max < 7083
