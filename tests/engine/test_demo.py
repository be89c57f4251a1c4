"""The demo cards train for real, and the rows say what the logs say."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys

import pytest

from tests.csv_rows import perf_rows

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
STEPS = 20  # of 50 and 40 that the cards have


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder in which both cards have trained, the first one with a profile after its steps."""
    folder = tmp_path_factory.mktemp("demo")
    env = {**os.environ, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    tags = ("demo_torchtitan_llama_debug:profile", "demo_hf_lora_tiny")
    command = [sys.executable, "-m", "madlite", "run", "--tags", *tags, "--steps", str(STEPS)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done


def rows_of(folder, card):
    return {row["metric"]: row for row in perf_rows(folder) if row["model"] == card}


def log_of(folder, card):
    (log,) = folder.glob(f"madlite_runs/*{card.replace('_', '-')}*/run.log")
    return re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())


def test_torchtitans_rows_are_those_of_its_log(demo):
    folder, done = demo
    rows = rows_of(folder, "demo_torchtitan_llama_debug")
    log = log_of(folder, "demo_torchtitan_llama_debug")
    speeds = {int(n): float(tps.replace(",", "")) for n, tps in re.findall(r"step:\s+(\d+).*?tps: ([\d,]+)", log)}
    assert sorted(speeds) == list(range(1, STEPS + 6)), "five steps more than asked for, which are profiled"
    median = statistics.median(speeds[n] for n in range(6, STEPS + 1))
    assert float(rows["tokens_per_s_per_gpu"]["performance"]) == pytest.approx(median, rel=1e-5)
    assert float(rows["tok_per_s_per_gpu"]["performance"]) == speeds[STEPS]
    assert {row["status"] for row in rows.values()} == {"SUCCESS"}
    losses = [float(loss) for loss in re.findall(r"step:\s+\d+\s+loss:\s+([\d.]+)", log)]
    assert losses[STEPS - 1] < 0.6 * losses[0], "the model learns"
    row = rows["tokens_per_s_per_gpu"]
    assert (row["mode"], row["precision"], row["training_precision"]) == ("pretrain", "FP32", "FP32")
    assert (row["n_gpus"], row["num_gpus"], row["device"], row["gpu_architecture"]) == ("0", "0", "cpu", "cpu")
    assert row["launcher"] == "torchrun" and 0 < float(row["test_duration"]) < 600


def test_loras_rows_are_those_of_its_log(demo):
    folder, done = demo
    rows = rows_of(folder, "demo_hf_lora_tiny")
    log = log_of(folder, "demo_hf_lora_tiny")
    steps = [json.loads(text) for text in re.findall(r"madlite-step (\{.*\})", log)]
    assert [step["n"] for step in steps] == list(range(1, STEPS + 1))
    median = statistics.median(step["tokens_per_s_per_gpu"] for step in steps[5:])
    assert float(rows["tokens_per_s_per_gpu"]["performance"]) == pytest.approx(median, rel=1e-5)
    assert steps[-1]["loss"] < steps[0]["loss"]
    final = re.findall(r"'train_samples_per_second': '?([\d.]+)", log)
    assert float(rows["train_samples_per_s"]["performance"]) == pytest.approx(float(final[-1]), rel=1e-3)


def test_a_profile_is_of_the_steps_after_the_measured_ones(demo):
    folder, done = demo
    (run,) = folder.glob("madlite_runs/*-demo-torchtitan-*")
    record = json.loads((run / "record.json").read_text())
    assert (record["status"], record["steps"], record["variant"]["steps"]) == ("SUCCESS", STEPS, STEPS)
    profile = record["profile"]
    assert profile["steps"] == 3 and not profile["on_gpu"]
    parts = {part["name"]: part["time_s"] for part in profile["parts"]}
    assert sum(parts.values()) == pytest.approx(profile["step_s"], rel=1e-6)
    assert {"GEMM", "attention", "optimizer", "other kernels"} <= set(parts)
    assert any(text.startswith("the largest loss: ") for text in record["findings"])
    assert "the largest loss: " in done.stdout


def test_the_screen_says_how_it_went(demo):
    folder, done = demo
    assert done.stdout.count("SUCCESS demo_") == 2 and "2 SUCCESS" in done.stdout
    assert "runs on the host: the card names no image" in done.stdout


@pytest.mark.full
def test_two_trainings_at_the_same_time_are_marked_and_each_has_its_own_numbers(tmp_path):
    env = {**os.environ, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    command = [sys.executable, "-m", "madlite", "run", "--tags", "demo", "--parallel", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[1/2]" in done.stdout and "[2/2]" in done.stdout and done.stdout.count("beside 1 other run") == 2
    records = [json.loads(path.read_text()) for path in tmp_path.glob("madlite_runs/*/record.json")]
    assert len(records) == 2 and all(record["steps"] >= 40 and record["window"] for record in records)
    assert {tuple(record["beside"]) for record in records} == {(record["id"],) for record in records}
    for card in ("demo_torchtitan_llama_debug", "demo_hf_lora_tiny"):
        assert float(rows_of(tmp_path, card)["tokens_per_s_per_gpu"]["performance"]) > 0


@pytest.mark.full
def test_a_crash_in_the_middle_is_a_failure_with_its_line(tmp_path):
    command = [sys.executable, "-m", "madlite", "run", "--runtime", "host", "--tags", "demo_torchtitan_llama_debug"]
    done = subprocess.run([*command, "--set", "flavor=nope"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3
    (row,) = perf_rows(tmp_path)
    assert (row["status"], row["performance"], row["precision"]) == ("FAILURE", "", "FP32")
    assert "nope" in done.stdout, "the deciding line names the flavor"
    assert "Traceback" not in done.stderr
