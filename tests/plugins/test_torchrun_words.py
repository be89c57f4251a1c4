"""What is said of a script is what runs: which of madlite's variables it reads, what is declared, its arguments."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace

from madlite.catalog.sources import template_root
from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.measure.verdict import Observation, judge
from madlite.model import Card, Exit, Machine, RunPlan, Status
from madlite.testing import Subject
from madlite.testing.subject import Case
from madlite_plugins.torchrun.backend import Torchrun
from madlite_plugins.torchrun.reads import SAMPLES
from tests.monitors import monitored
from tests.rows import each_row

STEP = r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)"
SAID = {"precision": "FP8", "seq_len": 128, "micro_batch": 4, "global_batch": 8, "mode": "tune", "strategy": "zero"}


def made(tmp_path, text: str = "", **recipe: object) -> RunPlan:
    """Return the plan of a card with this recipe table, in a folder whose train.py has this text."""
    (tmp_path / "train.py").write_text(text)
    recipe = {"script": "train.py", "step": STEP, **recipe}
    card = Card(name="my_ddp", root=tmp_path, source="models.json", backend="torchrun", n_gpus="-1", recipe=recipe)
    case = Case(card=card, machine=Machine(), workspace=tmp_path)
    subject = Subject(Torchrun())
    (spec,) = subject.expand(case)
    return subject.plan(case, spec)


def refused(plan: RunPlan) -> str:
    """Return in one text why a plan would be refused."""
    return "  ".join(f"{one.message} ({one.hint})" for one in Torchrun().check(plan) if one.fatal)


@each_row("key", SAID)
def test_what_the_script_does_not_read_is_no_word_of_its_row(tmp_path, key):
    told = refused(made(tmp_path, **{key: SAID[key]}))
    assert f"card {key}={SAID[key]}: train.py does not read $MADLITE_{key.upper()}" in told
    assert f"--set declared={key}" in told
    assert refused(made(tmp_path, declared=key, **{key: SAID[key]})) == ""


def test_all_that_it_does_not_read_is_told_at_once(tmp_path):
    told = refused(made(tmp_path, "os.environ['MADLITE_MODE']", **SAID))
    assert "--set declared=precision,seq_len,micro_batch,global_batch,strategy" in told and "it reads mode" in told


@each_row(
    ("text", "reads"),
    [
        ("import os\nos.environ['MADLITE_SEQ_LEN']", True),
        ("os.environ['MADLITE_PRECISION']", False),
        ("seq_len = 128", False),
        ("def told(name):\n    return os.environ[f'MADLITE_{name}']\ntold('SEQ_LEN')", True),
        ("def told(name):\n    return os.environ[f'MADLITE_{name}']\ntold('STEPS')", False),
        ("os.environ['MADLITE_' + 'seq_len'.upper()]", True),
        ("for name in os.environ:\n    if name.startswith('MADLITE_'):\n        take(name)", True),
        ("from lib.sizes import tokens", True),
        ("import lib.sizes", True),
        ("from lib import sizes", True),
        ("from lib import other", False),
        ("import sizes  # of no folder here", False),
        ("def broken(:\n  os.environ['MADLITE_SEQ_LEN']", True),
        ("\0", False),
    ],
)
def test_a_script_s_text_and_its_modules_tell_what_it_reads(tmp_path, text, reads):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__init__.py").write_text("")
    (tmp_path / "lib/other.py").write_text("import lib.other, lib  # a circle\n")
    (tmp_path / "lib/sizes.py").write_text("from os import environ\ntokens = environ['MADLITE_SEQ_LEN']\n")
    assert (refused(made(tmp_path, text, seq_len=128)) == "") == reads


def test_a_module_s_text_is_found_and_a_script_of_an_image_is_not(tmp_path):
    (tmp_path / "package").mkdir()
    for name, text in (("__init__", ""), ("train", "os.getenv('MADLITE_SEQ_LEN')"), ("__main__", "")):
        (tmp_path / f"package/{name}.py").write_text(text)
    assert refused(made(tmp_path, script="-m package.train", seq_len=128)) == ""
    assert "does not read $MADLITE_SEQ_LEN" in refused(made(tmp_path, script="-m package", seq_len=128))
    told = refused(made(tmp_path, script="/opt/train.py", seq_len=128))
    assert "is not here to be seen whether it reads $MADLITE_SEQ_LEN" in told
    assert refused(made(tmp_path, script="/opt/train.py", seq_len=128, declared="seq_len")) == ""


def test_steps_are_what_a_log_is_held_to_and_one_that_has_more_is_noted(tmp_path):
    def judged(steps: int):
        plan = made(tmp_path, steps=steps)
        assert refused(plan) == ""
        log = monitored(
            [Torchrun().reader(plan)],
            [f"step {n} loss {3 - n / 10} tps {1000 + n}" for n in range(1, 16)],
            outputs=plan.workspace,
        )
        return judge(plan, Observation(exit=Exit(code=0, duration_s=1e6)), log)

    verdict = judged(10)
    assert verdict.status is Status.SUCCESS and verdict.window.median == 1008.0
    assert verdict.findings == ("the log continues to step 15, but 10 were asked for: those after it do not count",)
    assert judged(15).findings == ()


def test_a_card_s_label_is_no_precision(tmp_path):
    def labelled(plan: RunPlan, label: str) -> RunPlan:
        return replace(plan, card=replace(plan.card, training_precision=label))

    told = refused(labelled(made(tmp_path), "fp8"))
    assert "training_precision=fp8 is no more than a label: train.py gets no precision" in told
    plan = made(tmp_path, "os.getenv('MADLITE_PRECISION')", precision="BF16")
    assert refused(labelled(plan, "fp8")) == ""
    assert [labelled(plan, text).row_precision for text in ("fp8", "bf16", "")] == ["BF16", "bf16", "BF16"]


@each_row("declared", ["presision", "precision seq_len", "steps"])
def test_what_can_be_declared_is_told(tmp_path, declared):
    with pytest.raises(UsageProblem) as caught:
        made(tmp_path, declared=declared)
    assert declared in caught.value.message and "keys: model, mode, precision, seq_len" in caught.value.hint


def test_the_sample_is_refused_what_it_does_not_know(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, told in (
        (["--precision", "FP8"], "--precision FP8: train_ddp.py does not support this precision"),
        (["--precision", "FP23"], "did you mean FP32?"),
        (["--mode", "posttrain"], "--mode posttrain: train_ddp.py does not read $MADLITE_MODE"),
        (["--mode", "tune", "--set", "declared=mode"], "--mode tune: train_ddp.py does not read"),
        (["--set", "model=Llama-3.1-405B"], "train_ddp.py does not get the name of its model"),
        (["--set", "global_batch=64"], "does not read $MADLITE_GLOBAL_BATCH"),
        (["--image-release", "v1"], "image release 'v1' is not known"),
    ):
        assert call(["run", "--tags", "torchrun_ddp_tiny", *words]) == 4
        assert told in capsys.readouterr().err
    assert not (tmp_path / "perf.csv").exists()


def test_the_samples_read_what_is_said_of_them():
    asks = {"train_ddp.py": (r'setting\("(\w+)"', '"{}": torch.'), "megatron_deepspeed.py": (r'"MADLITE_(\w+)"', "")}
    for path, sample in SAMPLES.items():
        name = path.removeprefix("{folder}/")
        text, (pattern, precision) = (template_root(None) / "torchrun" / name).read_text(), asks[name]
        assert {word.lower() for word in re.findall(pattern, text)} == sample.reads
        assert all(precision.format(word) in text for word in sample.precisions)


def planned(tmp_path, monkeypatch, capsys, *words: str, **card: object) -> list[dict]:
    """Return the plans of a card with a script of its own, as `explain --json` has them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    fields = {"name": "my_ddp", "backend": "torchrun", "recipe": {"script": "train.py", "step": STEP}, **card}
    (tmp_path / "models.json").write_text(json.dumps([fields]))
    assert call(["explain", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_arguments_are_set_by_tag_and_by_set(tmp_path, monkeypatch, capsys):
    def args(*words: str):
        return [plan["args"] for plan in planned(tmp_path, monkeypatch, capsys, *words, args="--lr 1")]

    assert args("--tags", "my_ddp", "my_ddp:lr=0.01", "my_ddp:lr=0.02:steps=20") == [
        "--lr 1", "--lr 1 --lr 0.01", "--lr 1 --lr 0.02",
    ]  # fmt: skip
    assert args("--tags", "my_ddp:bf16", "--set", "args=--wd 0") == ["--wd 0 --bf16"]
    # an argument that was set as a key is told how it is one
    planned(tmp_path, monkeypatch, capsys, "--tags", "my_ddp")
    assert call(["run", "--tags", "my_ddp", "--set", "lr=0.1"]) == 4
    told = capsys.readouterr().err
    assert "--set has no key 'lr' to set" in told and "--set 'args=--name value'" in told
    # a card without an image runs on the host and says so
    (plan,) = planned(tmp_path, monkeypatch, capsys, "--tags", "my_ddp")
    assert plan["runtime"] == "host" and "runs on the host: the card names no image" in plan["notes"]
    (plan,) = planned(tmp_path, monkeypatch, capsys, "--tags", "my_ddp", image="some/image:1")
    assert plan["runtime"] == "docker"
    (plan,) = planned(tmp_path, monkeypatch, capsys, "--tags", "my_ddp", runtimes=["docker"])
    assert plan["runtime"] == "docker"


SCRIPT = r"""
import json, os, sys
if os.environ["RANK"] == "0":
    print("TOLD", json.dumps([sys.argv[1:], sys.executable]), flush=True)
    for n in range(20):
        print(f"it {n} loss {3 - n / 10} speed {1000 + n}", flush=True)
"""


@pytest.mark.training
@pytest.mark.full
def test_the_rows_of_a_sweep_can_be_told_apart_and_the_shell_s_python_runs_them(tmp_path):
    pattern = r"it (?P<n>\d+) loss (?P<loss>\S+) speed (?P<tokens_per_s_per_gpu>\S+)"
    card = {
        "name": "my_ddp",
        "backend": "torchrun",
        "args": "--lr 1",
        "recipe": {"script": "train.py", "step": pattern},
    }
    (tmp_path / "models.json").write_text(json.dumps([card]))
    command = [sys.executable, "-m", "madlite", "run", "my_ddp:lr=0.01", "my_ddp:lr=0.02"]
    wrapper = tmp_path / "python.sh"
    wrapper.write_text(f'#!/bin/sh\nexport WRAPPED=1\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "train.py").write_text(SCRIPT.replace("sys.executable", "os.environ['WRAPPED']"))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MADLITE_PYTHON": "./python.sh"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "perf.csv").open(newline="") as file:
        assert [row["args"] for row in csv.DictReader(file)] == ["--lr 1 --lr 0.01", "--lr 1 --lr 0.02"]
    logs = sorted(tmp_path.glob("madlite_runs/*/run.log"), key=lambda path: path.stat().st_mtime_ns)
    told = [json.loads(re.search(r"TOLD (.*)", log.read_text())[1]) for log in logs]
    assert told == [[["--lr", "1", "--lr", "0.01"], "1"], [["--lr", "1", "--lr", "0.02"], "1"]]
