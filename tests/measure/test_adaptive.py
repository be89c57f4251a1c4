"""When the steady steps of a run are enough: on real logs, and its coverage on simulated series."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pytest
from msgspec.structs import replace

from madlite.measure.adaptive import ConvergenceMonitor, adaptive_text, autocorrelation, median_interval
from madlite.measure.monitor import LogMonitor
from madlite.measure.steps import Steps
from madlite.measure.window import steady_values
from madlite.model import AdaptiveLength, Quantity, Step
from madlite_plugins.hf.reader import HuggingFaceReader
from madlite_plugins.torchtitan.reader import TorchtitanReader
from tests.tiers import examples

LOGS = Path(__file__).parents[1] / "data/logs"
LLAMA = "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs2-130steps.log"
SPEED = Quantity.TOKENS_PER_S_PER_GPU
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
    log = LogMonitor([reader])
    log.feed((LOGS / name).read_bytes())
    log.finish()
    curve = log.steps.curve(SPEED)
    return [value for n, value in zip(curve.ns, curve.values, strict=True) if n > WARMUP]


@pytest.fixture(scope="module")
def llama() -> list[float]:
    values = steady_of(LLAMA, TorchtitanReader())
    assert len(values) == 120 and median(values) == 9243
    return values


def test_a_steady_training_needs_a_quarter_of_its_steps_wherever_it_begins(llama) -> None:
    full, good, reached = median(llama), 0, 0
    for start in range(100):
        values = llama[start:] + llama[:start]
        found, _ = length_of(values)
        if found is None:
            continue
        reached += 1
        shorter = median(values[: found.steady_steps])
        good += found.steady_steps <= len(llama) / 4 and abs(shorter / full - 1) <= 0.005
    assert reached == 100 and good >= 95


@pytest.mark.parametrize(
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


def series(rho: float, cv: float, count: int, seed: str) -> Iterator[float]:
    """Yield an AR(1) series around 1000 with this coefficient of variation."""
    draw = random.Random(seed)  # noqa: S311 - noise
    noise = draw.gauss(0, 1)
    for _ in range(count):
        yield 1000 * (1 + cv * noise)
        noise = rho * noise + (1 - rho * rho) ** 0.5 * draw.gauss(0, 1)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
def test_the_full_length_s_median_is_in_the_interval_however_often_it_is_looked_at(rho) -> None:
    ended = inside = near = 0
    for cv in (0.002, 0.005):
        for seed in range(examples(400)):
            values = list(series(rho, cv, 300, f"{rho} {cv} {seed}"))
            found, _ = length_of(values)
            if found is None or found.low is None or found.high is None:
                continue
            full = median(values)
            ended += 1
            inside += found.low <= full <= found.high
            near += abs(median(values[: found.steady_steps]) / full - 1) <= 0.005
    assert ended >= examples(400)
    assert inside >= 0.95 * ended and near >= 0.95 * ended


def test_noise_that_does_not_allow_it_is_named() -> None:
    found, at_end = length_of(list(series(0, 0.05, 60, "wide")))
    assert found is None and "the 95 % interval of the median is ±" in at_end.why


@pytest.mark.parametrize(("rho", "most"), [(0.8, 0.06), (0.9, 0.06), (0.95, 0.07)])
def test_of_slowly_wandering_steps_few_end_with_a_wrong_number(rho, most) -> None:
    """Nobody can tell a slow wandering from a narrow scatter by the first steps; most of them go to their end."""
    wrong = 0
    runs = examples(200)
    for seed in range(runs):
        values = list(series(rho, 0.01, 300, f"wandering {rho} {seed}"))
        found, _ = length_of(values, target=0.01)
        wrong += found is not None and not (found.low or 0) <= median(values) <= (found.high or 0)
    assert wrong <= most * runs


def test_steps_that_hang_together_count_as_fewer() -> None:
    values = [1000 + n // 6 for n in range(24)]
    assert median_interval(values) is None
    _, at_end = length_of(values, target=0.05)
    assert "24 steady steps are too few for an interval of their median, for they count as " in at_end.why


def test_a_run_that_came_to_its_last_step_was_ended_by_that() -> None:
    values = list(series(0, 0.0015, 24, "short"))
    found, at_end = length_of(values, target=0.002)
    assert found is None and not at_end.reached and not at_end.why
    assert "did not end the run: its last step came first, with ±0." in adaptive_text(at_end)


def test_a_run_that_was_interrupted_did_not_come_to_its_last_step() -> None:
    _, at_end = length_of(list(series(0, 0.0015, 24, "short")), target=0.002)
    ended = adaptive_text(replace(at_end, steps_planned=at_end.steps_run + 3))
    assert f"did not end the run: it ended after {at_end.steps_run} of {at_end.steps_run + 3} steps, with ±0." in ended


def test_a_training_that_drifts_goes_on() -> None:
    rising = [1000 * (1 + 0.0008 * n) + one - 1000 for n, one in enumerate(series(0, 0.001, 40, "drift"))]
    found, at_end = length_of(rising)
    assert found is None and "rises by" in at_end.why
    steady, _ = length_of(list(series(0, 0.001, 40, "drift")))
    assert steady is not None


def test_a_step_far_from_the_others_is_followed_by_more_of_them() -> None:
    values = list(series(0, 0.001, 40, "stall"))
    early, _ = length_of(values)
    assert early is not None and early.steady_steps == 20
    values[18] = 500.0
    later, _ = length_of(values)
    assert later is not None and later.steady_steps > 20


def test_ranks_of_a_step_count_once_and_the_step_that_is_being_reported_not_yet() -> None:
    values = list(series(0, 0.001, 60, "ranks"))
    one, _ = length_of(values)
    several, _ = length_of(values, ranks=(0, 1, 2, 3))
    assert one is not None and several is not None
    assert one.steps_run == one.steady_steps == several.steady_steps


def test_constant_steps_are_enough_at_the_first_look() -> None:
    found, _ = length_of([5.0] * 22)
    assert found is not None and (found.steady_steps, found.low, found.high) == (20, 5.0, 5.0)
    assert "±0 %" in adaptive_text(found)


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


def test_few_steps_have_no_interval() -> None:
    assert median_interval([1.0] * 19) is None
    _, at_end = length_of([1.0, 2.0])
    assert "2 steady steps are too few" in at_end.why


def test_autocorrelation_is_that_of_the_series() -> None:
    assert autocorrelation(list(series(0.6, 0.01, 4000, "long"))) == pytest.approx(0.6, abs=0.05)
    assert autocorrelation(list(series(0, 0.01, 4000, "long"))) < 0.05
