"""When the steady steps of a run are enough: on real logs, and its coverage on simulated series."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest
from msgspec.structs import replace

from madlite.measure.adaptive import ConvergenceMonitor, adaptive_text, autocorrelation, median_interval
from madlite.measure.steps import Steps, steady_values
from madlite.model import AdaptiveLength, Quantity, Step
from madlite_plugins.hf.reader import HuggingFaceReader
from madlite_plugins.torchtitan.reader import TorchtitanReader
from tests.measure.simulated_steps import KINDS, SPEED, noise, simulate
from tests.monitors import monitored
from tests.rows import each_row
from tests.tiers import examples

LOGS = Path(__file__).parents[1] / "data/logs"
LLAMA = "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs2-130steps.log"
WARMUP = 10


def length_of(
    values: Sequence[float], target: float = 0.005, ranks: Sequence[int | None] = (None,)
) -> tuple[AdaptiveLength | None, AdaptiveLength]:
    """Return how a training of these values ended its length, and how it would say so at its own end."""
    monitor, steps = ConvergenceMonitor(target, SPEED, 0, len(values)), Steps()
    for n, value in enumerate(values, 1):
        for rank in ranks:
            step = Step(n=n, rank=rank, values={SPEED: value})
            steps.add(step)
            if found := monitor.check(step, steps):
                return found, monitor.outcome(steps)
    return None, monitor.outcome(steps)


def steady_of(name: str, reader: TorchtitanReader | HuggingFaceReader) -> list[float]:
    log = monitored([reader], (LOGS / name).read_bytes())
    curve = log.steps.curve(SPEED)
    return [value for n, value in zip(curve.ns, curve.values, strict=True) if n > WARMUP]


@pytest.fixture(scope="module")
def llama() -> list[float]:
    values = steady_of(LLAMA, TorchtitanReader())
    assert len(values) == 120 and median(values) == 9243
    return values


def test_a_steady_training_ends_early_with_the_full_run_s_median_wherever_it_begins(llama) -> None:
    full, took = median(llama), 0
    for start in range(0, 100, 4):
        values = llama[start:] + llama[:start]
        found, _ = length_of(values)
        assert found is not None and found.low <= full <= found.high
        assert abs(median(values[: found.steady_steps]) / full - 1) <= 0.005
        took += found.steady_steps
    assert took <= 25 * 0.6 * len(llama)


@each_row(
    ("name", "reader"),
    [
        ("torchtitan-0.2.2-debugmodel-2xH200-600steps.log", TorchtitanReader),
        ("hf-madlite-lora-tiny-2xH200-400steps.log", HuggingFaceReader),
    ],
)
def test_an_unsteady_training_runs_to_its_end_and_says_why(name, reader) -> None:
    values = steady_of(name, reader())
    assert len(values) >= 390
    found, at_end = length_of(values)
    assert found is None and not at_end.reached
    assert "did not end the run: tokens/s/GPU rises by 3" in adaptive_text(at_end)


def series(rho: float, cv: float, count: int, seed: str) -> list[float]:
    """Return an AR(1) series around 1000 with this coefficient of variation."""
    return noise(random.Random(seed), count, cv, rho)


@each_row("kind", KINDS)
def test_an_early_end_s_interval_has_the_full_run_s_median(kind) -> None:
    """What benchmarks/until.py measures, with fewer trainings; of a level that changes later nobody can know."""
    assert simulate(kind, examples(80)).coverage >= 0.93


@each_row("kind", ["independent", "late slow steps"])
def test_trainings_that_stay_as_they_are_end_early(kind) -> None:
    found = simulate(kind, examples(40))
    assert found.ended == found.runs and found.steps <= 0.6 * 500 * found.runs


@each_row("kind", ["drift of 2 %", "drift of 5 %", "slow warm-up"])
def test_a_training_that_drifts_by_several_times_the_target_does_not_end_early(kind) -> None:
    found = simulate(kind, examples(40))
    assert found.ended <= 0.05 * found.runs


@each_row(("planned", "step_s", "least"), [(10_000, 0.5, 120), (None, 0.5, 120), (200, 0.5, 40)])
def test_the_steady_window_lasts_a_minute_or_a_fifth_of_the_planned_steps(planned, step_s, least) -> None:
    monitor, steps = ConvergenceMonitor(0.005, SPEED, 0, planned), Steps()
    for n in range(1, 400):
        step = Step(n=n, values={SPEED: 1000.0}, t_s=n * step_s)
        steps.add(step)
        if found := monitor.check(step, steps):
            break
    assert found is not None and least <= found.steady_steps <= 1.25 * least


def test_why_a_run_did_not_end_early_is_named() -> None:
    # a run that ended before its window was long enough says so
    monitor = ConvergenceMonitor(0.005, SPEED, 0, 500)
    at_end = monitor.outcome(Steps(Step(n=n, values={SPEED: 1000.0}, t_s=n * 0.5) for n in range(1, 31)))
    assert not at_end.reached
    assert "the steady window has 30 of 500 steps in 14 s: 60 s or 20 % of the steps are the least" in at_end.why
    # noise that does not allow it is named
    found, at_end = length_of(series(0, 0.05, 60, "wide"))
    assert found is None and "the 95 % interval of the median is ±" in at_end.why
    # steps that hang together count as fewer
    values = [1000 + n // 6 for n in range(24)]
    assert median_interval(values) is None
    _, at_end = length_of(values, target=0.05)
    assert "24 steady steps are too few for an interval of their median, for they count as " in at_end.why
    # few steps have no interval
    assert median_interval([1.0] * 18) is None
    _, at_end = length_of([1.0, 2.0])
    assert "2 steady steps are too few" in at_end.why
    # a training that drifts goes on
    rising = [1000 * (1 + 0.0008 * n) + one - 1000 for n, one in enumerate(series(0, 0.001, 40, "drift"))]
    found, at_end = length_of(rising)
    assert found is None and "rises by" in at_end.why
    steady, _ = length_of(series(0, 0.001, 40, "drift"))
    assert steady is not None


def test_a_level_that_changed_or_a_step_far_from_the_others_is_followed_by_more_of_them() -> None:
    values = series(0, 0.002, 90, "level")
    early, _ = length_of(values)
    assert early is not None
    for late in (1, 2, 8):
        last = early.steady_steps - late
        found, _ = length_of([value * (0.97 if n >= last else 1) for n, value in enumerate(values)])
        assert found is None or found.steady_steps > early.steady_steps
    values = series(0, 0.001, 40, "stall")
    early, _ = length_of(values)
    assert early is not None and early.steady_steps == 19
    values[17] = 500.0
    later, _ = length_of(values)
    assert later is not None and later.steady_steps > 19


def test_a_run_that_came_to_its_last_step_was_ended_by_that() -> None:
    values = series(0, 0.0015, 24, "short")
    found, at_end = length_of(values, target=0.002)
    assert found is None and not at_end.reached and not at_end.why
    assert "did not end the run: its last step came first, with ±0." in adaptive_text(at_end)
    # a run that was interrupted did not come to its last step
    _, at_end = length_of(series(0, 0.0015, 24, "short"), target=0.002)
    ended = adaptive_text(replace(at_end, steps_planned=at_end.steps_run + 3))
    assert f"did not end the run: it ended after {at_end.steps_run} of {at_end.steps_run + 3} steps, with ±0." in ended


def test_steps_that_are_counted_from_0_are_as_many_as_were_made() -> None:
    steps = Steps(Step(n=n, values={SPEED: 1000.0}, t_s=n * 0.5) for n in range(30))
    at_end = ConvergenceMonitor(0.005, SPEED, 0, 30).outcome(steps)
    assert at_end.steps_run == at_end.steps_planned == 30


def test_constant_steps_are_enough_at_the_first_look() -> None:
    found, _ = length_of([5.0] * 22)
    assert found is not None and (found.steady_steps, found.low, found.high) == (19, 5.0, 5.0)
    assert "±0 %" in adaptive_text(found)
    # ranks of a step count once and the step that is being reported not yet
    values = series(0, 0.001, 60, "ranks")
    one, _ = length_of(values)
    several, _ = length_of(values, ranks=(0, 1, 2, 3))
    assert one is not None and several is not None
    assert one.steps_run == one.steady_steps == several.steady_steps
    # autocorrelation is that of the series
    assert autocorrelation(series(0.6, 0.01, 4000, "long")) == pytest.approx(0.6, abs=0.05)
    assert autocorrelation(series(0, 0.01, 4000, "long")) < 0.05


def test_of_lines_most_of_which_have_no_number_few_are_looked_at(monkeypatch) -> None:
    looked = []
    monkeypatch.setattr(ConvergenceMonitor, "_values", lambda self, steps, last: looked.append(last) or of(steps, last))

    def of(steps: Steps, last: int) -> tuple[Sequence[int], Sequence[float]]:
        return steady_values(steps, SPEED, 0, last)

    chance = random.Random(1)
    monitor, steps = ConvergenceMonitor(0.0001, SPEED, 0, None), Steps()
    for n in range(1, 3001):
        step = Step(n=n, values={SPEED: chance.gauss(1000, 100)} if n % 10 == 0 else {Quantity.LOSS: 1.0})
        steps.add(step)
        assert monitor.check(step, steps) is None
    assert len(looked) < 1000, "the curve is made anew each time"
