"""The record of docs/results/1xH100: its figures come out of the log and the samples by hand."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

H100 = Path(__file__).parents[2] / "docs" / "results" / "1xH100"
RECORD = json.loads((H100 / "record.json").read_text())
LOG = (H100 / "llama3.1_8B-bf16.log").read_text()
# 6 x the weights without the embedding, and 12 x layers x hidden x sequence (Llama 3.1 8B)
WEIGHTS = 8_030_261_248 - 128_256 * 4096
PER_TOKEN = 6 * WEIGHTS + 12 * 32 * 4096 * 8192


def speeds() -> list[float]:
    lines = re.findall(r"step: *(\d+) .*? tps: ([\d,]+) ", LOG)
    return [float(tps.replace(",", "")) for n, tps in lines if int(n) > 10]


def test_the_window_is_the_logs():
    window = RECORD["window"]
    assert (window["n"], window["first_step"], window["last_step"]) == (30, 11, 40)
    assert window["median"] == statistics.median(speeds()) == 9407.5
    assert window["std"] == pytest.approx(statistics.stdev(speeds()))
    assert window["last"] == speeds()[-1]


def test_work_and_mfu_follow_from_the_models_shape():
    compute = RECORD["compute"]
    assert compute["flops_per_token"] == pytest.approx(PER_TOKEN, rel=2e-4)
    assert compute["tflops_per_gpu"] == pytest.approx(9407.5 * PER_TOKEN / 1e12, rel=2e-4)
    printed = [float(text) for text in re.findall(r"tflops: ([\d.]+)", LOG)[10:]]
    assert compute["framework_tflops_per_gpu"] == pytest.approx(statistics.median(printed))
    assert compute["mfu"] == pytest.approx(compute["tflops_per_gpu"] / 989.4, rel=1e-3)


def test_power_is_the_windows_energy_over_its_time():
    samples = [json.loads(line) for line in (H100 / "telemetry.jsonl").read_text().splitlines()]
    window, told = RECORD["window"], RECORD["telemetry"]
    inside = [one for one in samples if window["began_s"] <= one["t_s"] <= window["ended_s"]]
    first, last = inside[0], inside[-1]
    watts = (last["gpus"][0]["energy_j"] - first["gpus"][0]["energy_j"]) / (last["t_s"] - first["t_s"])
    assert told["power_w"] == pytest.approx(watts, rel=1e-3)
    assert told["tokens_per_joule"] == pytest.approx(9407.5 / watts, rel=1e-3)
