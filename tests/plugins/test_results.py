"""The logs of docs/results: their readers' medians are those of the rows, and come out of the text by hand."""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path

import pytest

from madlite.measure.follow import Follower
from madlite.measure.window import steady_window
from madlite.types import Quantity
from madlite_plugins.torchtitan.reader import TorchtitanReader

H200 = Path(__file__).parents[2] / "docs" / "results" / "2xH200"
# log → steps that do not count, the row's performance; the rows are in the order of the runs
RUNS = {
    "debugmodel.log": (5, "436562"),
    "llama3.1_8B-fp8.log": (10, "12701"),
    "llama3.1_8B-bf16-madlite-1.log": (10, "9484"),
    "llama3.1_8B-bf16-madlite-2.log": (10, "9493"),
    "llama3.1_8B-bf16-madlite-3.log": (10, "9346"),
    "llama3.1_8B-bf16-madlite-4.log": (10, "9353"),
    "llama3.1_8B-bf16-madlite-5.log": (10, "9345"),
}
BARE = {1: 9483.0, 2: 9488.0, 3: 9357.0, 4: 9352.0, 5: 9353.0}


def read(name):
    follower = Follower([TorchtitanReader()])
    follower.feed((H200 / name).read_bytes())
    follower.finish()
    return follower


def by_hand(name, warmup):
    """The figures between `tps:` and `tflops:` of the lines after warm-up; none of this uses the reader."""
    lines = re.findall(r"step: *(\d+) .*? tps: ([\d,]+) ", (H200 / name).read_text())
    return statistics.median(float(tps.replace(",", "")) for n, tps in lines if int(n) > warmup)


@pytest.mark.parametrize("name", RUNS)
def test_the_median_of_a_run_is_the_one_of_its_log(name):
    warmup, performance = RUNS[name]
    window = steady_window(read(name).steps, Quantity.TOKENS_PER_S_PER_GPU, warmup)
    assert window.median == by_hand(name, warmup) == float(performance)


def test_the_rows_are_those_of_the_logs():
    with (H200 / "perf.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "tokens_per_s_per_gpu"]
    assert [row["performance"] for row in rows] == [performance for _, performance in RUNS.values()]
    assert {(row["device"], row["num_gpus"], row["status"]) for row in rows} == {("H200", "2", "SUCCESS")}


@pytest.mark.parametrize("pair", BARE)
def test_a_run_is_as_fast_as_its_bare_command(pair):
    """Recorded figures: what the page says of madlite's cost is what the logs say."""
    bare = by_hand(f"llama3.1_8B-bf16-bare-{pair}.log", 10)
    assert bare == BARE[pair]
    assert by_hand(f"llama3.1_8B-bf16-madlite-{pair}.log", 10) / bare >= 0.995
