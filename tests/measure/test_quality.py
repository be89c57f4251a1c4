"""What is said of a window, and of which real logs."""

from __future__ import annotations

from madlite.measure.number import window_findings
from madlite.measure.steps import Steps, steady_window
from madlite.model import Quantity, Step, Window
from madlite_plugins.torchtitan.reader import TorchtitanReader
from madlite_plugins.torchtune.reader import TorchtuneReader
from tests.monitors import monitored
from tests.plugins.logs import LOGS
from tests.rows import each_row

TPS = Quantity.TOKENS_PER_S_PER_GPU
RESULTS = LOGS.parents[2] / "docs" / "results"


def findings_of(window: Window) -> tuple[str, ...]:
    return tuple(window_findings(window))


def window_of(values: list[float]) -> Window:
    found = steady_window(Steps(Step(n=n, values={TPS: value}) for n, value in enumerate(values, 1)), TPS, 0)
    assert found is not None
    return found


def findings(*values: float) -> tuple[str, ...]:
    return findings_of(window_of(list(values)))


def test_an_even_window_has_no_finding_and_a_short_one_is_low_samples():
    assert findings(*[1000.0, 1004.0, 997.0, 1001.0, 999.0] * 10) == ()
    # fewer than five steps are low samples
    assert findings(1000.0, 1001.0, 999.0, 1000.0) == ("low samples: only 4 steady steps",)
    assert findings(1000.0, 1001.0, 999.0, 1000.0, 1000.0) == ()
    # one step is low samples and nothing else
    assert findings(1000.0) == ("low samples: only 1 steady step",)


def test_a_falling_speed_is_a_drift_and_says_how_far():
    (text,) = findings(*[1000.0 - 2 * n for n in range(51)])
    assert text == "drift: tokens/s/GPU falls by 10.5 % over the steady window (steps 1 to 51)"
    # a short window that falls from step to step drifts
    (text,) = findings(*[1000.0 - 25 * n for n in range(9)])
    assert text == "drift: tokens/s/GPU falls by 22.2 % over the steady window (steps 1 to 9)"
    # a drift that may be chance is none
    values = [1000.0, 1080.0, 960.0, 1090.0, 1010.0, 950.0, 1090.0, 1060.0, 1010.0, 1090.0, 1040.0, 1080.0]
    window = window_of(values)
    assert window.drift > 0.03 and window.drift_z < 2
    assert findings_of(window) == ()
    # a small drift is none however sure
    window = window_of([1000.0 - n for n in range(41)])
    assert window.drift_z < -3 and findings_of(window) == ()


def test_outliers_say_how_many_and_how_far():
    even = [1000.0, 1002.0, 998.0] * 10
    assert findings(*even, 700.0) == ("outliers: 1 of 31 steady steps is far from the median, 30.0 % below it",)
    assert findings(*even, *even, 1500.0, 800.0)[0] == (
        "outliers: 2 of 62 steady steps are far from the median, the furthest 50.0 % above it"
    )
    # a wide scatter is told
    values = [1000.0, 1300.0, 800.0, 1200.0, 900.0, 700.0]
    assert findings(*values) == ("scatter: the steady steps' tokens/s/GPU has a CV of 23.6 %, above 10.0 %",)
    # drift and outliers explain a scatter
    values = [1000.0 + 20 * n for n in range(40)]
    values[10] = values[20] = 3000.0
    window = window_of(values)
    assert window.cv > 0.10
    assert [text.partition(":")[0] for text in findings_of(window)] == ["drift", "outliers"]


def follow(reader, path):
    monitor = monitored([reader], path.read_bytes())
    return monitor.steps


@each_row(
    "path",
    [LOGS / "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log", *sorted(RESULTS.glob("2xH200/llama3.1_8B-*.log"))],
    ids=lambda path: path.stem,
)
def test_a_healthy_training_on_gpus_has_no_finding(path):
    window = steady_window(follow(TorchtitanReader(), path), TPS, 5)
    assert window.n >= 15 and findings_of(window) == ()


@each_row("name", ["torchtune-llama3.1_8B_full.log", "torchtune-llama3.1_8B_lora.log"])
def test_a_healthy_fine_tuning_on_a_gpu_has_no_finding(name):
    window = steady_window(follow(TorchtuneReader(), RESULTS / "1xH200" / name), TPS, 5)
    assert window.n == 15 and findings_of(window) == ()


def test_a_training_that_shares_its_cpu_says_that_it_scatters():
    """Speeds between 598 and 2,361 tokens/s: nothing that a number should be taken from without a word."""
    window = steady_window(follow(TorchtitanReader(), LOGS / "torchtitan-0.3.0-debugmodel-cpu-1rank.log"), TPS, 5)
    (text,) = findings_of(window)
    assert text.startswith("scatter: ") and "CV of 46.3 %" in text
