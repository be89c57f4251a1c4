"""MAD's figures over the second half of a run's printed steps, as its torchtune script takes them."""

from __future__ import annotations

import subprocess

from madlite.measure.number import mad_metrics
from madlite.measure.steps import Steps
from madlite.model import MadMetric, Quantity, Step
from tests.rows import each_row

TPS, MEMORY = Quantity.TOKENS_PER_S_PER_GPU, Quantity.MEMORY_ALLOCATED_GIB
MEAN = MadMetric(metric="avg_tokens_per_s_per_gpu", quantity=TPS, rule="mean", second_half=True)
HIGHEST = MadMetric(metric="max_memory_alloc", quantity=MEMORY, rule="max", second_half=True)
AWK = """
{ v[NR] = $1 }
END { a = int(NR / 2) + 1; m = v[a]; for (i = a; i <= NR; i++) { s += v[i]; if (v[i] > m) m = v[i]; n++ }
print s / n; print m }
"""


def run(values: list[float]) -> Steps:
    return Steps(Step(n=n, values={TPS: value, MEMORY: value}) for n, value in enumerate(values, 1))


def figures(values: list[float]) -> list[str]:
    return [metric.text for metric in mad_metrics([MEAN, HIGHEST], run(values), {}, {})[0]]


@each_row("count", [1, 2, 3, 4, 19, 20])
def test_the_second_half_is_what_awk_in_mad_s_script_takes(count):
    values = [float((n * 37) % 101) + 0.5 for n in range(1, count + 1)]
    ran = subprocess.run(
        ["awk", AWK], input="\n".join(map(str, values)), capture_output=True, text=True, check=True
    ).stdout.split()
    assert figures(values) == ran


def test_of_an_odd_number_the_middle_one_counts_too():
    assert figures([900.0, 1.0, 3.0]) == ["2", "3"]


def test_a_maximum_over_a_slice_leaves_out_the_steps_before():
    rule = MadMetric(metric="max_memory_alloc", quantity=MEMORY, rule="max", start=1, stop=3)
    ((metric,), _) = mad_metrics([rule], run([9.0, 1.25, 2.5, 8.0]), {}, {})
    assert metric.text == "2.5"


@each_row("values", [[], [1.0, float("nan")], [1.0, float("inf")]])
def test_a_half_without_a_number_in_every_step_is_no_figure(values):
    metrics, findings = mad_metrics([MEAN, HIGHEST], run(values), {}, {})
    assert metrics == ()
    assert [finding.partition(":")[0] for finding in findings] == ["no avg_tokens_per_s_per_gpu", "no max_memory_alloc"]
    assert all("the second half of the printed steps" in finding for finding in findings)
