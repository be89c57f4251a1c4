"""Losses that rise and that only seem to: near 0, of few steps, of another scale than a token's cross-entropy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from madlite.measure.checks.base import CheckInput
from madlite.measure.checks.figures import loss_trend
from madlite.measure.monitor import LogMonitor
from madlite.measure.number import Expected, Number
from madlite.model import Quantity, ResultRule, Step
from tests.measure.training_logs import parsed, titan, trainer
from tests.rows import each_row
from tests.tiers import first_of


def doubt(losses: Sequence[float], vocabulary: int = 0) -> str:
    """Return why the losses of a Trainer are doubted, "" where they are not; its configuration has a vocabulary."""
    config = ["Model config Config {", f'  "vocab_size": {vocabulary}', "}"] if vocabulary else []
    return " ".join(parsed([*config, *trainer([round(one, 5) for one in losses])], "hf").verdict.suspect)


def falling(begin: float, end: float, count: int = 30, scatter: float = 0.05) -> list[float]:
    chance = random.Random(count)  # noqa: S311 - the same every time
    return [(end + (begin - end) * 0.8**n) * chance.gauss(1, scatter) for n in range(count)]


NOT_OF_TOKENS = {
    "CTC of letters": (falling(900, 12.65), 32),
    "CTC of letters, near the end": (falling(16, 12.65), 32),
    "CTC of phonemes": (falling(400, 9.0), 154),
    "CTC of a script's characters": (falling(400, 60), 4200),
    "CTC that is flat": ([300 + n % 5 * 20 for n in range(20)], 4200),
    "CTC with a spike": ([300, 250, 2000, *falling(200, 40)], 4200),
    "summed over 8 passes": (falling(83, 60), 32000),
    "summed over 2 passes": (falling(21.6, 17), 50257),
    "summed over 8 passes, of mock data": ([83.1 + n % 3 / 10 for n in range(20)], 32000),
    "a bad start": (falling(14, 12.9, scatter=0.001), 32000),
    "tokens, as it should be": (falling(10.9, 6.0), 32000),
    "letters, as it should be": (falling(4.2, 1.5), 65),
}


@each_row(("losses", "vocabulary"), NOT_OF_TOKENS.values(), ids=NOT_OF_TOKENS)
def test_what_is_no_mean_of_tokens_is_not_compared_with_chance(losses, vocabulary):
    assert doubt(losses, vocabulary) == ""


EXPLODED = {
    "from near chance": ([10.4, 10.3, 10.2, *[40.0, 90.0, 60.0], *[15.0 + n % 4 for n in range(12)]], 32000),
    "slowly": ([10.4 + n % 2 / 10 for n in range(6)] + [12.9 + n % 3 / 10 for n in range(8)], 32000),
    "from chance to a little more": ([11.8, 11.0, 12.0, *[14.5 + n % 4 / 4 for n in range(12)]], 128256),
    "flat, too high": ([13.0 + n % 3 / 10 for n in range(12)], 32000),
    "bytes": ([5.6, 5.5, 5.6, *[8.0 + n % 3 for n in range(12)]], 259),
    "logged late, then higher": ([400.0, 900.0, 5800.0, 3000.0, 900.0, *[400 / n + 20 for n in range(1, 30)]], 2048),
}


@each_row(("losses", "vocabulary"), EXPLODED.values(), ids=EXPLODED)
def test_a_mean_of_tokens_that_ends_above_chance_is_doubted(losses, vocabulary):
    assert "the loss" in doubt(losses, vocabulary)


NEAR_0 = {
    "GRPO": [0.0001 * n for n in range(1, 31)],
    "GRPO with noise": [0.0001 * n + n % 3 / 10_000 for n in range(1, 31)],
    "a divergence": [0.00002 * 1.25**n for n in range(30)],
    "one step in a log of few": [0.0001, 0.0002, 0.0001, 0.04],
    "a leap at the end": [*[0.0003] * 20, 0.03],
    "a jump": [*[0.0003] * 10, *[0.04] * 10],
}


@each_row("losses", NEAR_0.values(), ids=NEAR_0)
def test_a_loss_that_begins_with_0_by_design_may_rise_a_little(losses):
    assert doubt(losses) == ""


@each_row(
    "losses",
    [[0.001 * 1.3**n for n in range(30)], [*[0.0003] * 20, 3.0], [*[0.003] * 10, *[0.4] * 10], [0.04, 0.04, 0.05, 2.0]],
)
def test_a_rise_from_near_0_to_a_loss_is_doubted(losses):
    assert "the l" in doubt(losses)


def doubts_of_flat(count: int, scatter: float, curves: int) -> int:
    """Return how many of flat losses with Gaussian scatter are doubted."""
    chance = random.Random(count)  # noqa: S311 - the same every time
    found = 0
    for _ in range(curves):
        log = LogMonitor([])
        for n in range(count):
            log.steps.add(Step(n=n, values={Quantity.LOSS: max(0.01, chance.gauss(10.8, 10.8 * scatter))}))
        known = CheckInput(expected=Expected(rule=ResultRule(kind="steps")), log=log, number=Number())
        found += loss_trend(known).status == "warn"
    return found


@pytest.mark.host
@each_row("scatter", first_of([0.2, 0.05], 1))
@each_row("count", first_of([6, 20, 8, 10], 2))
def test_of_1000_flat_trainings_three_are_doubted_however_few_their_steps(count, scatter):
    assert doubts_of_flat(count, scatter, 3000) <= 9


RISES = {
    "6 steps, a jump": [7.6, 7.6, 7.6, 9.0, 9.2, 9.1],
    "6 steps, a jump with noise": [7.6, 7.65, 7.58, 9.0, 9.2, 9.1],
    "8 steps, higher each time": [7.6 + 0.2 * n for n in range(8)],
    "8 steps, twice as high": [2.5, 2.4, 2.5, 2.4, 5.0, 5.1, 5.2, 5.0],
    "8 steps, a first one and then another world": [8.0, 955.4, 5799.8, 856.5, 1566.7, 1814.8, 1410.6, 787.3],
    "10 steps, first down": [11.0, 9.0, 7.5, 7.0, 8.0, 10.0, 13.0, 13.0, 13.0, 13.0],
    "10 steps, a jump that stays": [8.0, 30.0, 28.0, 27.0, *[26.0] * 6],
    "12 steps, an explosion": [8.0, 8.1, 8.0, 400.0, 60.0, 20.0, *[18.0] * 6],
    "20 steps, a slow one": [7.6 + 0.1 * n for n in range(20)],
}


@each_row("losses", RISES.values(), ids=RISES)
def test_a_rise_by_more_than_the_scatter_is_doubted_however_few_the_steps(losses):
    (text,) = parsed(titan(losses)).verdict.suspect
    assert text.startswith("the loss ")
