"""The steady window, against values computed by hand."""

from __future__ import annotations

import math

import pytest

from madlite.measure.number import mad_metrics
from madlite.measure.steps import Steps, median_in, steady_window
from madlite.model import MadMetric, Quantity, Step
from tests.rows import each_row

TPS = Quantity.TOKENS_PER_S_PER_GPU


def steps(values: dict[int, float], rank: int | None = None, phase: str = "train") -> Steps:
    return Steps(Step(n=n, values={TPS: value}, rank=rank, phase=phase) for n, value in values.items())  # type: ignore


def curve(found: Steps) -> list[tuple[int, float]]:
    told = found.curve(TPS)
    return list(zip(told.ns, told.values, strict=True))


def test_warm_up_is_dropped_and_the_median_is_of_the_rest():
    values = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0, 6: 100.0, 7: 102.0, 8: 110.0, 9: 101.0}
    window = steady_window(steps(values), TPS, 5)
    assert (window.n, window.first_step, window.last_step, window.dropped) == (4, 6, 9, 5)
    assert window.median == 101.5 and window.mean == 103.25
    assert window.std == pytest.approx(math.sqrt((3.25**2 + 1.25**2 + 6.75**2 + 2.25**2) / 3))
    assert (window.min, window.max) == (100, 110)
    # ranks are averaged and a line seen twice counts once
    both = [*steps({1: 10.0, 2: 20.0}, rank=0), *steps({1: 30.0, 2: 40.0}, rank=1), *steps({2: 40.0}, rank=1)]
    assert curve(Steps(both)) == [(1, 20.0), (2, 30.0)]
    # validation steps are no training
    assert curve(steps({1: 5.0}, phase="validate")) == []
    # nothing left is no window
    assert steady_window(steps({1: 1.0, 2: 2.0}), TPS, 5) is None
    assert steady_window(Steps(), TPS, 5) is None
    assert steady_window(steps({n: math.nan for n in range(1, 20)}), TPS, 5) is None
    # warm up counts the runs steps also for a quantity that later lines alone have
    first = [Step(n=n, values={Quantity.LOSS: 1.0}) for n in (1, 2)]
    rest = [Step(n=n, values={Quantity.LOSS: 1.0, TPS: float(n)}) for n in range(3, 12)]
    assert steady_window(Steps([*first, *rest]), TPS, 5).first_step == 6


def test_lines_of_several_steps_count_by_what_they_cover():
    # a line that covers warm up steps is dropped
    window = steady_window(steps({1: 1.0, 10: 50.0, 20: 100.0, 30: 110.0}), TPS, 5)
    assert (window.n, window.first_step) == (2, 20)
    # the first line of a log interval covers the steps before it
    lines = [Step(n=n, span=5, values={TPS: float(n)}) for n in (5, 10, 15, 20)]
    window = steady_window(Steps(lines), TPS, 5)
    assert (window.n, window.first_step, window.dropped) == (3, 10, 1)
    assert steady_window(Steps(lines), TPS, 6).first_step == 15
    # a first line whose span nobody knows covers as many steps as the others
    window = steady_window(steps({10: 50.0, 20: 100.0, 30: 102.0}), TPS, 5)
    assert (window.n, window.first_step, window.dropped) == (2, 20, 1)
    resumed = steady_window(steps({510: 50.0, 520: 100.0, 530: 102.0}), TPS, 5)
    assert (resumed.n, resumed.first_step) == (2, 520)
    odd = steady_window(steps({13: 50.0, 20: 100.0, 30: 102.0, 40: 103.0}), TPS, 5)
    assert odd.first_step == 30  # the first line is of its own kind: the training may have begun there


def test_a_resumed_run_warms_up_again():
    window = steady_window(steps({n: float(n) for n in range(101, 111)}), TPS, 5)
    assert (window.first_step, window.n) == (106, 5)
    # From step 30 the training went back to its checkpoint of step 20; the first five steps are slow both times
    before = {n: 10.0 if n <= 5 else 100.0 for n in range(1, 31)}
    after = {n: 20.0 if n <= 25 else 102.0 for n in range(21, 41)}
    window = steady_window(Steps([*steps(before), *steps(after)]), TPS, 5)
    assert (window.first_step, window.last_step, window.n, window.dropped) == (26, 40, 15, 25)
    assert (window.min, window.max) == (102.0, 102.0)  # the last part alone
    assert median_in(Steps([*steps(before), *steps(after)]), TPS, window) == 102.0
    # without a warm-up too, and it is the last of several that counts, wherever it went back to
    again = Steps([*steps(before), *steps(after), *steps({n: 103.0 for n in range(31, 51)})])
    assert (steady_window(again, TPS, 0).first_step, steady_window(again, TPS, 5).first_step) == (31, 36)
    further = Steps([*steps(before), *steps(after), *steps({n: 103.0 for n in range(11, 31)})])
    window = steady_window(further, TPS, 5, 30)
    assert (window.first_step, window.last_step, window.min) == (16, 30, 103.0)
    # a training that says that it was started again has not gone back
    told = steps({n: 100.0 for n in range(1, 31)})
    for n in range(31, 51):
        told.add(Step(n=n, values={TPS: 90.0}), resumed=n == 31)
    assert (told.begin, told.part_begin, steady_window(told, TPS, 5).first_step) == (1, 31, 36)
    # a line of several steps after a restart is left out where it covers warm up
    before = [Step(n=n, span=10, values={TPS: 100.0}) for n in range(10, 101, 10)]
    after = [Step(n=n, span=10, values={TPS: 1.0 if n == 60 else 101.0}) for n in range(60, 121, 10)]
    window = steady_window(Steps([*before, *after]), TPS, 5)
    assert (window.first_step, window.last_step, window.min, window.n) == (70, 120, 101.0, 6)
    # a restart on every rank is one
    both = [step for rank in (0, 1) for step in (*steps({n: 1.0 for n in range(1, 31)}, rank), *steps({9: 1.0}, rank))]
    found = Steps(both)
    assert found.restarts == (9,)
    # steps above the last of the training are never in the window
    found = steps({n: 100.0 if n <= 50 else 900.0 for n in range(1, 61)})
    window = steady_window(found, TPS, 5, 50)
    assert (window.first_step, window.last_step, window.n, window.max) == (6, 50, 45, 100.0)
    assert steady_window(found, TPS, 5, 0) is None


def test_other_quantities_are_taken_over_the_same_steps():
    window = steady_window(steps({n: float(n) for n in range(1, 11)}), TPS, 5)
    loss = Steps(
        Step(n=n, values={Quantity.LOSS: value}) for n, value in {5: 9.0, 6: 3.0, 8: 1.0, 9: math.nan, 11: 9.0}.items()
    )
    assert (window.first_step, window.last_step) == (6, 10)
    assert median_in(loss, Quantity.LOSS, window) == 2.0
    assert median_in(loss, Quantity.GRAD_NORM, window) is None
    # the last value and the quality stand in the window
    values = {n: 100.0 for n in range(1, 20)} | {20: 50.0, 21: 101.0}
    window = steady_window(steps(values), TPS, 5)
    assert (window.last, window.outliers, window.drift, window.n) == (101.0, 1, 0.0, 16)
    # a running mean is never taken for the speed
    run = [
        Step(n=n, values={TPS: 100.0, Quantity.TOKENS_PER_S_PER_GPU_MEAN: 60.0 + n, Quantity.STEP_TIME_S_MEAN: 9.0})
        for n in range(1, 21)
    ]
    assert steady_window(Steps(run), TPS, 5).median == 100.0


def test_numbers_that_cannot_be_calculated_with_are_dropped_not_raised():
    run = {n: 1e308 for n in range(1, 9)} | {9: 5.0, 10: math.inf, 11: -1e308, 12: 7.0}
    window = steady_window(steps(run), TPS, 5)
    assert (window.n, window.mean, window.dropped) == (2, 6.0, 10)
    rule = MadMetric(metric="x_per_s", quantity=TPS, rule="mean")
    assert mad_metrics([rule], steps(run), {}, {})[0] == ()
    # huge and negative step numbers and values give a window or none
    far = 2**62
    window = steady_window(steps({far + n: 1e99 for n in range(20)}), TPS, 5)
    assert (window.n, window.cv, window.drift) == (15, 0.0, 0.0)
    negative = steady_window(steps({n: -5.0 - n for n in range(20)}), TPS, 5)
    assert negative.median == -17.0 and negative.drift is None and negative.outliers == 0
    assert steady_window(steps({1: 7.0}), TPS, 0).std == 0.0


def test_mads_own_rules():
    run = steps({n: float(n) for n in range(1, 51)})
    rules = (
        MadMetric(metric="last_per_s", quantity=TPS),
        MadMetric(metric="slice_per_s", quantity=TPS, rule="mean", start=30, stop=40),
        MadMetric(metric="train_samples_per_s", rule="summary", key="train_samples_per_second"),
    )
    metrics, findings = mad_metrics(rules, run, {"train_samples_per_second": "1,183.9"}, {"mode": "pretrain"})
    assert [(metric.metric, metric.text) for metric in metrics] == [
        ("last_per_s", "50"),
        ("slice_per_s", "35.5"),  # the mean of steps 31 to 40
        ("train_samples_per_s", "1183.9"),
    ]
    assert not findings and metrics[0].columns == {"mode": "pretrain"}
    metrics, findings = mad_metrics(rules, steps({n: float(n) for n in range(1, 21)}), {}, {})
    assert [metric.metric for metric in metrics] == ["last_per_s"] and len(findings) == 2


def timed(numbers, seconds=10.0, **more) -> list[Step]:
    """Steps that are reported every so many seconds, from that many on."""
    return [Step(n=n, t_s=seconds * at, values={TPS: 100.0}, **more) for at, n in enumerate(numbers, 1)]


def test_a_window_begins_when_the_step_before_it_was_reported():
    window = steady_window(Steps(timed(range(1, 21))), TPS, 5)
    assert (window.first_step, window.began_s, window.ended_s) == (6, 50.0, 200.0)
    # a window of lines of several steps begins with the first of them
    lines = [Step(n=n, span=5, t_s=float(n), values={TPS: 1.0}) for n in (5, 10, 15, 20)]
    window = steady_window(Steps(lines), TPS, 5)
    assert (window.first_step, window.began_s, window.ended_s) == (10, 5.0, 20.0)
    # without a step before it a window begins with its first report
    window = steady_window(Steps(timed(range(1, 4))), TPS, 0)
    assert (window.n, window.began_s, window.ended_s) == (3, 10.0, 30.0)
    # steps that are reported all at once have no times
    lines = [Step(n=n, t_s=60.0, values={TPS: 1.0}) for n in range(1, 12)]
    assert steady_window(Steps(lines), TPS, 5).began_s is None


@each_row("t_s", [math.nan, 0.0, -1.0])
def test_a_log_without_times_has_a_window_without_times(t_s):
    lines = [Step(n=n, t_s=t_s, values={TPS: 1.0}) for n in range(1, 12)]
    window = steady_window(Steps(lines), TPS, 5)
    assert (window.n, window.began_s, window.ended_s) == (6, None, None)
