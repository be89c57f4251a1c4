"""The run's own look at the torchtitan it finds, before the start: stand-ins with configurations of several eras."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.plugins.logs import TEMPLATES
from tests.rows import each_row

SCRIPT = TEMPLATES / "torchtitan/check_config.py"
NEW = """
from dataclasses import dataclass, field
@dataclass
class Training:
    steps: int = 10
    local_batch_size: int = 8
@dataclass
class Compile:
    enable: bool = False
@dataclass
class Float8:
    fqns: list[str] = field(default_factory=list)
@dataclass
class Linear:
    float8: Float8 = field(default_factory=Float8)
@dataclass
class Quantize:
    linear: Linear = field(default_factory=Linear)
{debug}
@dataclass
class JobConfig:
    training: Training = field(default_factory=Training)
    compile: Compile = field(default_factory=Compile)
    quantize: Quantize = field(default_factory=Quantize)
    {field}
"""
DEBUG = "@dataclass\nclass Debug:\n    seed: int | None = None\n"
OPTIONS = """
class JobConfig:
    def __init__(self):
        self.parser.add_argument("--training.steps", type=int)
        self.parser.add_argument("--training.batch_size", type=int)
"""


@pytest.fixture
def check(tmp_path):
    def run(name: str, source: str, config: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "tree/torchtitan" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree/torchtitan/__init__.py").write_text("raise SystemExit('imported')")
        file.write_text(source)
        (tmp_path / "train.toml").write_text(config)
        env = {**os.environ, "PYTHONPATH": str(tmp_path / "tree")}
        command = [sys.executable, str(SCRIPT), "train.toml"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return run


def test_keys_that_it_knows_pass_in_silence(check):
    source = NEW.format(debug=DEBUG, field="debug: Debug = field(default_factory=Debug)")
    ran = check("config/job_config.py", source, "[training]\nsteps = 5\n[debug]\nseed = 1\n[quantize.linear.float8]\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_key_that_it_would_ignore_ends_the_run_with_its_era(check):
    ran = check("config_manager.py", OPTIONS, "[training]\nsteps = 5\nlocal_batch_size = 4\n[compile]\nenable = true\n")
    assert ran.returncode == 1
    assert "does not know training.local_batch_size, compile.enable: it is of era 0.0 (--set era=0.0)" in ran.stderr


@each_row(("debug", "field", "era"), [("", "", "0.2.0"), (DEBUG, "debug: Debug = field(default_factory=Debug)", "0.2")])
def test_nested_keys_are_looked_up_in_their_own_section(check, debug, field, era):
    source = NEW.format(debug=debug, field=field)
    ran = check("config/job_config.py", source, "[quantize.linear.float8]\nfqns = []\n[quantize]\nfqns = []\n")
    assert f"does not know quantize.fqns: it is of era {era}" in ran.stderr


def test_a_torchtitan_whose_configuration_lies_elsewhere_speaks_for_itself(check):
    assert check("config/other.py", "", "[training]\nsteps = 5\n").returncode == 0
