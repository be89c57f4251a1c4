"""Megatron-DeepSpeed by the backend torchrun: what it is given, how its log is read, what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.measure.verdict import Observation, judge
from madlite.model import Card, Exit, Line, Machine, Quantity, RunPlan, Status
from madlite.testing import Subject
from madlite.testing.subject import Case
from madlite_plugins.megatron_lm.reader import MegatronReader, detect
from madlite_plugins.torchrun import madlite_failure_rules
from madlite_plugins.torchrun.backend import Torchrun
from tests.csv_rows import perf_rows
from tests.monitors import monitored
from tests.plugins.logs import TEMPLATES, gpu_machine, steps
from tests.rows import each_row

SCRIPT = TEMPLATES / "torchrun/megatron_deepspeed.py"
MODERN = (
    " iteration {:8d}/      20 | consumed samples: {:12d} | consumed tokens: {:12d} | elapsed time per iteration (ms): "
    "4000.0 | learning rate: 6.000E-04 | global batch size:   256 | lm loss: {:.6E} | loss scale: 2048.0 | grad norm: "
    "0.812 | actual seqlen:  2048 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per "
    "second: 64.000 | tokens per gpu per second (tgs): 16384.000 | TFLOPs: 17.31 |"
)
OF_2022 = (
    " iteration       30/  953674 | consumed samples:        30720 | consumed tokens:     62914560 | elapsed time per "
    "iteration (s): 11.20 | learning rate: 1.000E-04 | global batch size:  1024 | lm loss: 2.152785E+00 | grad norm: "
    "0.114 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: "
    "91.429 | TFLOPs: 40.83 |"
)
ARGUMENTS = "  micro_batch_size ................................ {}"
TIMER = (
    "[2026-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step=19/global_step=19, "
    "RunningAvgSamplesPerSec=64.1, CurrSamplesPerSec=64.0, MemAllocated=6.01GB, MaxMemAllocated=19.52GB"
)
END = "[after training is done] datetime: 2026-03-07 15:28:00 "


def line(n: int) -> str:
    return MODERN.format(n, 256 * n, 256 * 2048 * n, 11 - n / 10)


def made(tmp_path: Path, machine: Machine | None = None, **recipe: object) -> RunPlan:
    """Return the plan of a card whose log is a known framework's."""
    (tmp_path / "train.py").touch()
    card = Card(name="mine", root=tmp_path, source="a test", backend="torchrun", n_gpus="-1", recipe=recipe)
    case = Case(card=card, machine=machine or gpu_machine(8), workspace=tmp_path)
    subject = Subject(Torchrun())
    (spec,) = subject.expand(case)
    return subject.plan(case, spec)


def test_an_iteration_has_the_time_tokens_and_flops_that_it_prints():
    (found,) = steps(MegatronReader().feed(Line(text=line(3))))
    # 256 × 2048 tokens in 4 s on 8 GPUs: 16384 a second and GPU
    assert found.n == 3 and found.values[Quantity.TOKENS_PER_S_PER_GPU] == 256 * 2048 / 4 / 8
    assert found.values[Quantity.TFLOPS_PER_GPU] == 17.31 and found.values[Quantity.STEP_TIME_S] == 4.0
    assert found.values[Quantity.LOSS] == 10.7
    assert detect([TIMER, line(3)]) == 0.8 and detect([TIMER]) == 0.0
    reader = MegatronReader()
    reader.learn({"seq_len": "2048", "world_size": "64"})
    (found,) = steps(reader.feed(Line(text=OF_2022)))
    assert found.values[Quantity.STEP_TIME_S] == 11.2 and found.values[Quantity.TFLOPS_PER_GPU] == 40.83
    assert found.values[Quantity.TOKENS_PER_S_PER_GPU] == pytest.approx(1024 * 2048 / 11.2 / 64)


@each_row(
    ("texts", "status", "word"),
    [
        ([*map(line, range(1, 21)), TIMER, END], Status.SUCCESS, ""),
        ([*map(line, range(1, 15)), END], Status.FAILURE, "step 14 was the last of 20 asked for"),
        ([ARGUMENTS.format(4), *map(line, range(1, 21)), END], Status.FAILURE, "micro_batch"),
        ([TIMER, END], Status.FAILURE, "the log has no training step"),
    ],
)
def test_a_run_is_judged_by_what_megatron_prints(tmp_path, texts, status, word):
    plan = made(tmp_path, name="megatron_deepspeed", steps=20)
    log = monitored([Torchrun().reader(plan)], texts)
    verdict = judge(plan, Observation(exit=Exit(code=0, duration_s=1e6)), log)
    assert verdict.status is status and word in verdict.reason
    if status is Status.SUCCESS:
        assert {one.metric: float(one.text) for one in verdict.metrics} == {"tokens_per_s_per_gpu": 16384.0}


@each_row(("ways", "place", "node"), [({"reader": "megatron_lm"}, "last", 2), ({"json": True}, "first", 0)])
def test_iterations_are_on_the_last_of_several_nodes(tmp_path, ways, place, node):
    plan = made(tmp_path, script="train.py", **ways)
    assert plan.result_rule.printed_on == place
    assert Torchrun().result_node(replace(plan, place=replace(plan.place, nodes=3))) == node


@each_row(
    ("recipe", "word", "hint"),
    [
        ({"reader": "megatron"}, "reader 'megatron' is no log that is known", "megatron_lm"),
        ({"reader": "megatron_lm", "json": True}, "json and reader are two ways to read a line", "leave one"),
        ({"reader": "megatron_lm", "per_gpu": False}, "gives speeds per GPU", "leave it out"),
        ({"reader": "megatron_lm", "headline": "images_per_s_per_gpu"}, "reads no images_per_s_per_gpu", "headline is"),
    ],
)
def test_a_reader_that_does_not_fit_is_refused(tmp_path, recipe, word, hint):
    with pytest.raises(UsageProblem) as raised:
        made(tmp_path, script="train.py", **recipe)
    assert word in raised.value.message and hint in raised.value.hint


def test_the_result_may_be_another_speed_of_the_log(tmp_path):
    rule = made(tmp_path, script="train.py", reader="megatron_lm", headline="tflops_per_gpu").result_rule
    assert (rule.headline, rule.headline_metric) == (Quantity.TFLOPS_PER_GPU, "tflops_per_gpu")


class Tree:
    """A stand-in for Megatron-DeepSpeed, whose program shows what it is given."""

    def __init__(self, folder: Path) -> None:
        self.root, self.run_folder = folder / "Megatron-DeepSpeed", folder / "run"
        (self.root / "dataset").mkdir(parents=True)
        self.run_folder.mkdir()
        for name in ("gpt2-vocab.json", "gpt2-merges.txt", "my-gpt2_text_document.bin"):
            (self.root / "dataset" / name).touch()
        (self.root / "megatron.py").write_text("NAME = 'megatron of the tree'\n")
        program = "import json, sys, megatron\nprint(json.dumps([sys.argv, __name__, megatron.NAME]))\n"
        (self.root / "pretrain_gpt.py").write_text(program)
        (self.run_folder / SCRIPT.name).write_bytes(SCRIPT.read_bytes())

    def run(self, *args: str, world: int = 8, **env: str) -> subprocess.CompletedProcess[str]:
        sizes = {"PRECISION": "FP16", "SEQ_LEN": "2048", "MICRO_BATCH": "2", "GLOBAL_BATCH": "256", "STEPS": "50"}
        given = {
            "PATH": os.environ["PATH"],
            "RANK": "0",
            "WORLD_SIZE": str(world),
            "MEGATRON_DEEPSPEED_ROOT": str(self.root),
            **{f"MADLITE_{name}": value for name, value in sizes.items()},
            **env,
        }
        command = [sys.executable, str(self.run_folder / SCRIPT.name), *args]
        return subprocess.run(command, cwd=self.root.parent, env=given, capture_output=True, text=True, check=False)

    def told(self, *args: str, **env: str) -> tuple[dict[str, str], list[str], dict[str, object]]:
        """Return the options with a value, those without, and DeepSpeed's configuration."""
        done = self.run(*args, **env)
        assert done.returncode == 0, done.stderr
        argv, name, module = json.loads(done.stdout.splitlines()[-1])
        assert (argv[0], name, module) == (str(self.root / "pretrain_gpt.py"), "__main__", "megatron of the tree")
        pairs = list(zip(argv[1:], [*argv[2:], "--"], strict=True))
        values = {one: two for one, two in pairs if one.startswith("--") and not two.startswith("--")}
        flags = [one for one, two in pairs if one.startswith("--") and two.startswith("--")]
        return values, flags, json.loads(Path(values["--deepspeed_config"]).read_text())


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.mark.host
def test_pretrain_gpt_is_given_the_script_s_options_and_the_plan_s_sizes(tree):
    values, flags, config = tree.told()
    assert {
        "--num-layers": "12", "--hidden-size": "768", "--num-attention-heads": "12", "--seq-length": "2048",
        "--micro-batch-size": "2", "--global-batch-size": "256", "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "2", "--zero-stage": "1", "--train-iters": "50", "--log-interval": "1",
        "--data-path": str(tree.root / "dataset/my-gpt2_text_document"), "--lr": "6.0e-4",
    }.items() <= values.items()  # fmt: skip
    assert {"--fp16", "--deepspeed", "--no-gradient-accumulation-fusion", "--checkpoint-activations"} <= set(flags)
    assert "--no-pipeline-parallel" not in flags and "--bf16" not in flags
    assert (config["train_batch_size"], config["train_micro_batch_size_per_gpu"]) == (256, 2)
    assert config["zero_optimization"] == {"stage": 1} and config["fp16"]["enabled"] is True
    assert {path.name for path in tree.run_folder.iterdir()} == {SCRIPT.name, "ds_config_0.json"}


@pytest.mark.host
def test_arguments_go_before_them_and_reach_deepspeed_too(tree):
    own = ("--pipeline-model-parallel-size", "1", "--zero-stage=0", "--data-path", "0.5", "/a", "0.5", "/b")
    values, flags, config = tree.told(*own, MADLITE_PRECISION="BF16")
    assert values["--pipeline-model-parallel-size"] == "1" and "--no-pipeline-parallel" in flags
    assert "--zero-stage=0" in flags and "--zero-stage" not in values
    assert config["zero_optimization"] == {"stage": 0} and config["prescale_gradients"] is True
    assert config["bf16"] == {"enabled": True} and "fp16" not in config and "--bf16" in flags


@pytest.mark.host
def test_what_is_missing_is_one_line(tree, tmp_path):
    rules = list(madlite_failure_rules())

    def causes(done: subprocess.CompletedProcess[str]) -> list[str]:
        return [rule.cause for rule in rules if re.search(rule.pattern, done.stderr)]

    done = tree.run(world=6)
    assert done.returncode == 1 and "6 rank(s) are no multiple of tensor × pipeline parallel = 2 × 2" in done.stderr
    assert causes(done) == ["bad_option"]
    (tree.root / "dataset/gpt2-merges.txt").unlink()
    done = tree.run()
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stderr.endswith("gpt2-merges.txt\n")
    assert causes(done) == ["missing_file"]
    done = tree.run(MEGATRON_DEEPSPEED_ROOT=str(tmp_path / "nothing"))
    assert done.returncode == 1 and "has no pretrain_gpt.py" in done.stderr and done.stderr.count("\n") == 1
    assert causes(done) == ["missing_file"]


def test_the_card_is_planned_with_the_script_s_sizes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(["explain", "torchrun_megatron_deepspeed", "--machine", "8xMI300X", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    sizes = {"seq_len": 2048, "micro_batch": 2, "global_batch": 256, "steps": 50, "precision": "FP16"}
    assert sizes.items() <= plan["variant"].items() and plan["settings"]["reader"] == "megatron_lm"
    assert call(["explain", "torchrun_megatron_deepspeed", "--machine", "8xMI300X", "--precision", "FP32"]) == 0
    assert "would be refused: --precision FP32: megatron_deepspeed.py does not support this" in capsys.readouterr().out


PROGRAM = r"""
import os, sys
given = dict(zip(sys.argv, sys.argv[1:]))
if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
    print("  micro_batch_size ................................ " + given["--micro-batch-size"], flush=True)
    for n in range(1, int(given["--train-iters"]) + 1):
        print(LINE.format(n, 256 * n, 256 * 2048 * n, 11 - n / 10), flush=True)
    print("[after training is done] datetime: now ", flush=True)
"""


@pytest.mark.training
@pytest.mark.full
def test_the_card_runs_under_torchrun_and_gives_its_row(tree, tmp_path):
    # 256 sequences of 2,048 tokens in 40 ms on four ranks: the steps are to fit into the time that the program runs
    line = MODERN.replace("4000.0", "40.0").replace("64.000", "6400.000").replace(": 16384.000", ": 3276800.000")
    (tree.root / "pretrain_gpt.py").write_text(f"LINE = {line!r}\n{PROGRAM}")
    command = [sys.executable, "-m", "madlite", "run", "--tags", "torchrun_megatron_deepspeed", "--runtime", "host"]
    command += ["--set", "nproc_per_node=4", "--steps", "20", "--set", f"env.MEGATRON_DEEPSPEED_ROOT={tree.root}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = perf_rows(tmp_path)
    assert (row["metric"], float(row["performance"]), row["status"]) == ("tokens_per_s_per_gpu", 3276800.0, "SUCCESS")
    assert (row["precision"], row["seq_len"], row["batch_size"]) == ("FP16", "2048", "2")
