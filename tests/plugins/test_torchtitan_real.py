"""The real torchtitan of every era reads what is rendered for it, and trains on a CPU; its releases come from PyPI."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from madlite.plan.plan_file import render
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import TEMPLATES, gpu_machine, plan

pytestmark = [pytest.mark.training, pytest.mark.full, pytest.mark.install, pytest.mark.timeout(300)]
RELEASES = {"0.1.0": "0.1", "0.2.0": "0.2.0", "0.2.1": "0.2", "0.2.2": "0.2"}
PARSE = """
import json, sys
try:
    from torchtitan.config import ConfigManager
except ImportError:
    from torchtitan.config_manager import ConfigManager
for name in sys.argv[1:]:
    print(json.dumps(ConfigManager().parse_args(["--job.config_file", name]).to_dict()))
"""


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Return folders with one release each, and the tokenizer's packages that the first one needs."""
    folders = {}
    for release in RELEASES:
        folders[release] = tmp_path_factory.mktemp("torchtitan") / release
        more = ["tiktoken", "regex"] if release == "0.1.0" else []
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folders[release])]
        done = subprocess.run([*pip, f"torchtitan=={release}", *more], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"torchtitan {release} cannot be had from PyPI:\n{done.stderr}", pytrace=False)
    return folders


@pytest.mark.parametrize("release", RELEASES)
def test_every_key_reaches_the_trainer_of_its_era(releases, tmp_path, release):
    era, precisions = RELEASES[release], ("BF16", "FP8")
    for precision in precisions:
        made = plan(Torchtitan(), gpu_machine(8), "llama3.1_8B", era=era, precision=precision, global_batch=32, seed=7)
        for file in render(made, [TEMPLATES]):
            (tmp_path / file.path).write_bytes(file.data)
        (tmp_path / "train.toml").rename(tmp_path / f"{precision}.toml")
    shim = [] if importlib.util.find_spec("triton") else [str(TEMPLATES / "torchtitan/cpu_shim")]  # 0.2 imports it
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*shim, str(releases[release])])}
    files = [f"{precision}.toml" for precision in precisions]
    for command in (*(["check_config.py", file] for file in files), ["-c", PARSE, *files]):
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    for precision, line in zip(precisions, ran.stdout.splitlines()[-2:], strict=True):
        assert_everything_is_there(json.loads(line), era, precision)


def assert_everything_is_there(config, era, precision):
    training = config["training"]
    assert (training["local_batch_size"], training["global_batch_size"], training["steps"]) == (2, 32, 50)
    assert (config.get("compile") or {"enable": training.get("compile")})["enable"] is True
    assert config["debug"]["seed"] == 7 if "debug" in config else training["seed"] == 7
    float8 = config["float8"] if era == "0.1" else config["quantize"]["linear"]["float8"]
    assert float8["enable_fsdp_float8_all_gather"] is (precision == "FP8")
    assert float8["filter_fqns"] == (["output"] if precision == "FP8" else [])
    assert config["model"]["flavor"] == "8B" and len(config["model"]["converters"]) == (precision == "FP8")


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_trains(releases, tmp_path, release):
    env = {**os.environ, "TORCHTITAN_ROOT": str(releases[release]), "PYTHONPATH": str(releases["0.1.0"])}
    command = [sys.executable, "-m", "madlite", "run", "--runtime", "host", "--tags", "demo_torchtitan_llama_debug"]
    sets = ["--set", "steps=8", "--set", "warmup_steps=2", "--set", f"era={RELEASES[release]}"]
    ran = subprocess.run([*command, *sets], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = list(csv.DictReader((tmp_path / "perf.csv").open()))
    assert {row["status"] for row in rows} == {"SUCCESS"}
    (log,) = tmp_path.glob("madlite_runs/*/run.log")
    losses = [float(text) for text in re.findall(r"step:\s+\d+\s+\S*loss:\s+([\d.]+)", log.read_text())]
    assert len(losses) == 8 and losses[-1] < losses[0]


def test_the_wrong_era_ends_before_torchtitan_ignores_a_key(releases, tmp_path):
    env = {**os.environ, "TORCHTITAN_ROOT": str(releases["0.1.0"])}
    command = [sys.executable, "-m", "madlite", "run", "--runtime", "host", "--tags", "demo_torchtitan_llama_debug"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 3
    assert "does not know model.hf_assets_path" in ran.stdout and "(--set era=0.1)" in ran.stdout
