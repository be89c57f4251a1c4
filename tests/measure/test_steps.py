"""Steps as they are kept: each once, the last word counts, in a few bytes."""

from __future__ import annotations

import math
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.measure.steps import Steps
from madlite.model import Quantity, Step
from tests.rows import each_row
from tests.tiers import examples

TPS, LOSS = Quantity.TOKENS_PER_S_PER_GPU, Quantity.LOSS
STEPS = st.builds(
    Step,
    n=st.integers(-3, 12),
    rank=st.sampled_from([None, 0, 1]),
    phase=st.sampled_from(["train", "validate"]),
    values=st.dictionaries(st.sampled_from([TPS, LOSS, Quantity.GRAD_NORM]), st.integers(0, 99).map(float)),
)


def by_hand(steps):
    """Return every step once, in order, the values of later ones over those of earlier ones."""
    merged = {}
    for step in steps:
        merged.setdefault((step.n, step.rank, step.phase), {}).update(step.values)
    return merged


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_what_is_kept_is_the_last_word_on_every_step(steps):
    kept, wanted = Steps(steps), by_hand(steps)
    assert {(step.n, step.rank, step.phase): step.values for step in kept} == wanted
    assert len(kept) == len(wanted)
    numbers = [step.n for step in kept]
    assert numbers == sorted(numbers)
    train = {n for n, _, phase in wanted if phase == "train"}
    assert kept.count() == len(train) and list(kept.numbers()) == sorted(train)
    assert kept.reach() == ((min(train), max(train)) if train else None)
    assert kept.ranks() == tuple(sorted({rank for _, rank, phase in wanted if phase == "train" and rank is not None}))
    assert kept.count("validate") == len({n for n, _, phase in wanted if phase == "validate"})


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_a_curve_is_the_mean_of_the_ranks_that_report_it(steps):
    values = {}
    for (n, _, phase), told in by_hand(steps).items():
        if phase == "train" and TPS in told:
            values.setdefault(n, []).append(told[TPS])
    curve = Steps(steps).curve(TPS)
    assert list(curve.ns) == sorted(values)
    assert list(curve.values) == pytest.approx([sum(values[n]) / len(values[n]) for n in sorted(values)])


def test_not_a_number_is_kept_and_is_not_the_same_as_nothing():
    steps = Steps([Step(n=1, values={LOSS: math.nan}), Step(n=2, values={TPS: 5.0})])
    first, second = steps
    assert math.isnan(first.values[LOSS]) and TPS not in first.values
    assert second.values == {TPS: 5.0}
    # the latest value is the one that was reported last
    steps = Steps([Step(n=2, values={TPS: 5.0, LOSS: 1.0}, rank=1), Step(n=2, values={TPS: 4.0}, rank=0)])
    steps.add(Step(n=1, values={TPS: 3.0}, rank=1))  # started again
    steps.add(Step(n=1, values={TPS: 9.0, LOSS: 9.0}, phase="validate"))
    assert (steps.latest(TPS), steps.latest(LOSS), steps.latest(Quantity.GRAD_NORM)) == (3.0, 1.0, None)
    # a garbled number of a step is no step
    assert len(Steps([Step(n=10**300, values={LOSS: 1.0}), Step(n=-(10**30), values={})])) == 0


@each_row(
    "step",
    [Step(n="1", values={}), Step(n=1, values={LOSS: "x"}), Step(n=1, values={"loss": 1.0}), Step(n=1.5, values={})],
)
def test_nonsense_is_refused_whole(step):
    steps = Steps([Step(n=1, values={TPS: 2.0})])
    with pytest.raises((TypeError, ValueError)):
        steps.add(step)
    with pytest.raises((TypeError, ValueError)):
        steps.add(msgspec.structs.replace(step, rank=7))
    assert [(kept.n, kept.values) for kept in steps] == [(1, {TPS: 2.0})]
    assert (steps.reach(), steps.ranks(), list(steps.numbers())) == ((1, 1), (), [1])


def test_a_step_needs_eight_bytes_a_number():
    steps, count = Steps(), 100_000
    for n in range(count):
        steps.add(Step(n=n, values={TPS: 1.0, LOSS: 2.0}, rank=0))
        steps.add(Step(n=n // 1000, values={LOSS: 3.0}, rank=1))
    assert len(steps) == count + count // 1000
    parts = [part for series in steps._series.values() for part in (series.ns, series._present)]
    parts += [column for series in steps._series.values() for column, _ in series.columns.values()]
    assert sum(map(sys.getsizeof, parts)) < 40 * len(steps)


def test_a_step_was_reported_when_its_first_line_came():
    found = Steps([Step(n=1, t_s=2.0, values={LOSS: 1.0}, rank=1), Step(n=1, t_s=1.5, values={LOSS: 1.0}, rank=0)])
    found.add(Step(n=1, t_s=9.0, values={LOSS: 1.0}, rank=0))
    assert found.reported_s(1) == 1.5
    assert found.reported_s(2) is None
    # a step that came late has its own time
    found = Steps(Step(n=n, t_s=t_s, values={LOSS: 1.0}) for n, t_s in ((10, 1.0), (12, 3.0), (11, 4.0)))
    assert (found.reported_s(11), found.restarts) == (4.0, ())
    # of a training that went back the times are those of its last try
    first = [Step(n=n, t_s=float(n), values={LOSS: 1.0}) for n in range(1, 31)]
    again = [Step(n=n, t_s=100.0 + n, values={LOSS: 2.0}) for n in range(11, 36)]
    twice = [Step(n=35, t_s=500.0, values={LOSS: 2.0})]
    found = Steps([*first, *again, *twice])
    assert [found.reported_s(n) for n in (10, 11, 30, 31, 35)] == [10.0, 111.0, 130.0, 131.0, 135.0]
    assert found.restarts == (11,)
    assert {step.n: step.t_s for step in found}[11] == 111.0
    # a time that is none takes nothing in
    found = Steps()
    with pytest.raises(ValueError, match="could not convert"):
        found.add(Step(n=1, t_s="soon", values={LOSS: 1.0}))
    assert len(found) == 0


def test_a_rank_s_first_step_again_starts_another_training():
    found = Steps(Step(n=n, values={LOSS: 1.0}, rank=rank) for n in range(3, 21) for rank in (0, 1))
    assert found.starts_over(Step(n=3, values={}, rank=1)) and found.starts_over(Step(n=1, values={}, rank=0))
    assert not found.starts_over(Step(n=4, values={}, rank=1))  # from a checkpoint
    assert not found.starts_over(Step(n=3, values={}, rank=2)) and not found.starts_over(Step(n=21, values={}, rank=1))
    assert not found.starts_over(Step(n=3, values={}, rank=1, phase="validate"))
    assert not found.starts_over(Step(n="3", values={}, rank=1))
    # lines of ranks that come apart are no restart
    mixed = [Step(n=n - behind, values={LOSS: 1.0}) for n in range(10, 40) for behind in (0, 3)]
    assert Steps(mixed).restarts == ()
    # a short training starts over after an end mark alone
    found = Steps(Step(n=n, values={LOSS: 1.0}) for n in range(1, 5))
    assert not found.starts_over(Step(n=1, values={})) and found.starts_over(Step(n=1, values={}), ended=True)
    assert not Steps([Step(n=9, values={})]).starts_over(Step(n=1, values={}))  # perhaps a garbled line
    # each rank has come to its last step
    lines = [(1, 0), (2, 0), (9, 1), (8, 1), (30, 2), (2, 2), (3, 2)]
    assert Steps(Step(n=n, values={LOSS: 1.0}, rank=rank) for n, rank in lines).arrived() == {0: 2, 1: 9, 2: 3}
    # steps above the last tell nothing of the interval
    found = Steps(Step(n=n, values={LOSS: 1.0}) for n in (2, 4, 12125))
    assert (found.interval(20), found.interval(3)) == (2, 0)


@each_row(
    ("numbers", "interval"),
    [
        ((), 0),
        ((7,), 0),
        ((1, 10), 10),
        ((1, 2), 1),
        ((5, 10), 5),
        ((10, 20), 10),
        ((1, 10, 20, 30), 10),
        ((1, 11, 21), 10),
    ]
    + [
        ((501, 510, 520), 10),
        (range(1, 26), 1),
        ((1, 2, 4, 5), 1),
        ((10, 20, 40), 20),
        ((10, 20, 40, 50), 10),
        ((0, 10, 20), 10),
    ],
)
def test_the_interval_of_lines_is_what_all_distances_have_in_common(numbers, interval):
    found = Steps(Step(n=n, values={LOSS: 1.0}, rank=rank) for rank in (0, 1) for n in numbers)
    assert found.interval() == interval
