"""`madlite tune` trains demo cards for real on the CPU, and what it found runs again from its recipe file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli

from tests.csv_rows import perf_rows

pytestmark = [pytest.mark.training, pytest.mark.full, pytest.mark.timeout(600)]


def madlite(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    command = [sys.executable, "-m", "madlite", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("card", "sets"), [("demo_hf_lora_tiny", ("steps=24",)), ("demo_torchtitan_llama_debug", ("steps=24",))]
)
def test_a_demo_is_tuned_and_its_recipe_runs(card, sets, tmp_path):
    fixed = [word for one in sets for word in ("--set", one)]
    done = madlite(tmp_path, "tune", card, "--runtime", "host", "--runs", "4", *fixed)
    assert done.returncode == 0, done.stdout + done.stderr
    (study,) = tmp_path.glob("madlite_runs/study-*")
    report = json.loads((study / "study.json").read_text())
    tried = [point for point in report["points"] if point["outcome"] == "ok"]
    assert len(tried) > 1 and all(point["speed"] > 0 for point in tried), done.stdout
    full = sum(point["full"] for point in tried)
    assert len({row["test_duration"] for row in perf_rows(tmp_path)}) == full, "a short run has no row"
    recipe = tomli.loads((study / "recipe.toml").read_text())["recipe"]
    assert recipe["tag"] == card and report["best"]["varied"].items() <= recipe["set"].items()
    before = len(perf_rows(tmp_path))
    again = madlite(tmp_path, "run", "--recipe-file", str(study / "recipe.toml"), "--runtime", "host")
    assert again.returncode == 0, again.stdout + again.stderr
    new = perf_rows(tmp_path)[before:]
    assert new and {row["status"] for row in new} == {"SUCCESS"}
