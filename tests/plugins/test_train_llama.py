"""MAD's train_llama.py: its progress bar's captions, where the script comes from, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Expected, judge_steps
from madlite.model import EffectiveConfig, Line, Quantity, Request, RunPlan, Status
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.hf.reader import HuggingFaceReader
from madlite_plugins.hf.rules import train_llama_rule
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from tests.monitors import monitored
from tests.plugins.logs import LOGS, gpu_machine, machine_of, plan, read, steps
from tests.plugins.rendered import files, run_sh
from tests.plugins.test_torchtitan_tags import EIGHT, card_of
from tests.rows import each_row

RECIPE = "llama-3.1-8b-accelerate"


def caption(n: int, seconds: float = 2.0, total: int = 32) -> str:
    """Return what the bar says of micro-step n, of 24,000 tokens."""
    phase = "Warmup" if n < total // 2 else "Test"
    numbers = f"TFLOP/s: {1300 / seconds:.2f}; iter time: {seconds:.2f}; tokens/s: {24000 / seconds:.2f}"
    return f"[{phase}] Step: {n}/{total}; {numbers}"


def bar(n: int, total: int = 32, **more) -> str:
    """Return a bar as tqdm draws it: with the caption of step n, and once more when the next one is counted."""
    text = caption(n, total=total, **more)
    return f"\r{text}:  {n}%|▏    | {n}/{total} [00:02<01:00]\r{text}:  {n + 1}%|▏   | {n + 1}/{total} [00:04<01:00]"


FINALS = """
Avg token per second: 11890.25
Avg iter time: 2.0185
TFLOP per iteration: 1300.00
Avg TFLOP/s: 644.05
Peak memory use = 177240.11MB
"""


def test_micro_steps_of_a_bar_are_windows_each_counted_once():
    log = monitored(
        [HuggingFaceReader()],
        "".join(bar(n, seconds=4.0 if n % 8 == 7 else 2.0) for n in range(32)).encode() + FINALS.encode(),
    )
    verdict = judge_steps(Expected(rule=train_llama_rule(), warmup_steps=16, steps=32), log)
    assert verdict.status is Status.SUCCESS
    assert (verdict.window.n, verdict.window.first_step, verdict.window.last_step) == (2, 24, 32)
    assert verdict.window.median == pytest.approx(8 * 24000 / 18.0)
    texts = {metric.metric: metric.text for metric in verdict.metrics}
    assert (texts["tok_per_s_per_gpu"], texts["TFLOPS_per_gpu"]) == ("11890.25", "644.05")
    # the bar says how many steps there are
    values = [
        event.values
        for event in read(HuggingFaceReader(), caption(0), caption(1))
        if isinstance(event, EffectiveConfig)
    ]
    assert values == [{"steps": "32", "warmup_steps": "16"}]
    # a caption that was cut off is no micro step
    whole = [caption(n) for n in range(8)]
    assert [step.n for step in steps(read(HuggingFaceReader(), *whole))] == [8]
    assert steps(read(HuggingFaceReader(), *whole[:7], whole[7].partition(" tokens/s")[0])) == []
    for text in ("[Test] Step: 3/32; iter time: ", "[Test] Step: x; iter time: 2; tokens/s: 3"):
        assert list(HuggingFaceReader().feed(Line(text=text))) == []
    # ranks have windows of their own and a second training begins again
    once = [f"[rank{rank}]: {caption(n)}" for n in range(32) for rank in (0, 1)] + FINALS.splitlines()
    log = LogMonitor([HuggingFaceReader()], [])
    log.feed("\n".join(once).encode())
    assert [(step.n, step.rank) for step in log.steps] == [(n, rank) for n in (8, 16, 24, 32) for rank in (0, 1)]
    log.feed("\n".join(["", *map(caption, range(8)), ""]).encode())
    assert log.trainings == 2 and [step.n for step in log.steps] == [8] and not log.ended


def test_a_log_has_the_windows_and_averages_that_its_lines_come_to():
    log = monitored([HuggingFaceReader()], (LOGS / "hf-train_llama-made-up-numbers.log").read_bytes())
    verdict = judge_steps(Expected(rule=train_llama_rule(), warmup_steps=16, steps=32), log)
    assert [step.n for step in log.steps] == [8, 16, 24, 32] and log.ended
    # micro-steps 24 to 31 take 2.02, 2.03 and 2.04 s in turn, the last of them 2.41 s, and have 24,576 tokens each
    last = log.steps.curve(Quantity.TOKENS_PER_S_PER_GPU).values[-1]
    assert last == pytest.approx(8 * 24576 / 16.61, rel=5e-3)
    texts = {metric.metric: metric.text for metric in verdict.metrics}
    assert (texts["tok_per_s_per_gpu"], texts["TFLOPS_per_gpu"]) == ("11833.16", "685.22")


def test_its_log_is_recognised_and_others_are_not():
    assert HuggingFace().detect(["", caption(3)]) == 0.9
    assert HuggingFace().detect(["step: 3  loss: 2.0"]) == 0.0
    micro = "Step: 17; TFLOP/s: 0.06; iteration time: 0.01; token per second: 20781.9"
    assert HuggingFace().detect([micro]) == 0.0 and PytorchFsdp().detect([caption(3)]) == 0.0


@each_row("device", ["MI300X", "MI325X"])
def test_mad_s_tag_runs_it_in_v25_3(device):
    request = Request(card=card_of(EIGHT), tag=EIGHT, settings={"release": "v25.3"})
    (draft,) = HuggingFace().expand(request, machine_of(device))
    variant = draft.variant
    assert (variant.precision, variant.seq_len, variant.micro_batch, variant.steps) == ("FP8", 8192, 3, 128)
    assert draft.image == "rocm/pytorch-training:v25.3" and variant.warmup_steps == 64


@each_row(("asked", "warmup"), [({}, 60), ({"steps": "240"}, 120), ({"steps": "240", "warmup_steps": "8"}, 60)])
def test_half_of_its_steps_is_warm_up(asked, warmup):
    """`resolve` puts a warm-up that was asked for over the draft's own."""
    request = Request(card=card_of(EIGHT), tag=EIGHT, settings={"release": "v26.1", **asked})
    (draft,) = HuggingFace().expand(request, machine_of("MI300X"))
    assert draft.variant.warmup_steps == warmup


def made(**changes) -> RunPlan:
    return plan(HuggingFace(), gpu_machine(8), RECIPE, **changes)


@each_row(
    ("changes", "word"),
    [
        ({"precision": "BF16"}, "train_llama.py trains in FP8, not BF16"),
        ({"steps": 100}, "100 micro-steps are no whole number of steps of 8"),
        ({"accumulation": 0}, "accumulation is 0"),
        ({"global_batch": 24}, "global batch 24 is not micro batch × accumulation × GPUs = 192"),
        ({"seq_len": 4096}, ""),
        ({}, ""),
    ],
)
def test_what_the_script_does_not_do_is_refused(changes, word):
    findings = [finding for finding in HuggingFace().check(made(**changes)) if finding.fatal]
    assert [word in finding.message for finding in findings] == [True] * bool(word)


def test_sizes_are_the_plan_s_and_several_nodes_are_accelerate_s():
    # sizes that the script reads from a file are the plan's
    told = json.loads(files(made(seq_len=4096, micro_batch=5, steps=240))["train_llama.json"])
    assert told["model"]["max_seq_len"] == 4096
    assert told["training"] == {"seed": 1024, "batch_size": 5, "total_steps": 240, "grad_acc_steps": 8}
    several = replace(made(node_rank="1", master_addr="n0"), place=replace(made().place, nodes=2))
    script = run_sh(several)
    assert "--num_processes 16 " in script
    assert '--num_machines 2 --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"' in script
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0


def git(folder, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


OLD, NEW = "add_argument('--max_seq_len')", "add_argument('--config')"  # how the script is told its sizes


@pytest.fixture(params=[OLD, NEW])
def mad(request, tmp_path):
    """Return a repository whose first commit has the script, with its id, and a folder with an Accelerate."""
    scripts = tmp_path / "MAD/scripts/pytorch_train/llama3_1_8B"
    scripts.mkdir(parents=True)
    (scripts / "train_llama.py").write_text(request.param)
    git(tmp_path / "MAD", "init", "--quiet")
    git(tmp_path / "MAD", "add", ".")
    git(tmp_path / "MAD", "commit", "--quiet", "-m", "then")
    commit = git(tmp_path / "MAD", "rev-parse", "HEAD")
    (scripts / "train_llama.py").unlink()
    git(tmp_path / "MAD", "commit", "--quiet", "-a", "-m", "since")
    package = tmp_path / "packages/accelerate/commands"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "launch.py").write_text("import sys\nprint(*sys.argv[1:], sep='\\n')\nprint(open(sys.argv[5]).read())\n")
    return tmp_path / "MAD", commit, tmp_path / "packages", request.param


@pytest.mark.host
def test_the_script_is_fetched_as_it_was_and_gets_the_plan_s_sizes(mad, tmp_path):
    repository, commit, packages, text = mad
    work = tmp_path / "a run"
    work.mkdir()
    (work / "run.sh").write_text(run_sh(made(mad_commit=commit, seq_len=4096)))
    env = {
        **os.environ,
        "PYTHONPATH": str(packages),
        "MADLITE_PYTHON": sys.executable,
        "MAD_REPOSITORY": str(repository),
    }
    for _ in range(2):  # also by hand, once more
        ran = subprocess.run(["bash", "run.sh"], cwd=work, env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        script = work / "mad/scripts/pytorch_train/llama3_1_8B"
        words = ["--config_file", f"{script}/fsdp_fp8.yaml", "--num_processes", "8", f"{script}/train_llama.py"]
        sizes = ["--max_seq_len=4096", "--batch_size=3", "--total_steps=120", "--grad_acc_steps=8", "--seed=1024"]
        if text == NEW:
            sizes = ["--config", f"{work}/train_llama.json", "--log_file", f"{work}/train_llama.log"]
        assert ran.stdout.splitlines() == [*words, *sizes, text]


@pytest.mark.host
def test_a_repository_that_asks_for_a_name_is_not_waited_for(tmp_path):
    """A git that would ask is stood in for by one that says what it was told."""
    told = '[ "$3" != fetch ] || { echo "$GIT_TERMINAL_PROMPT $GIT_ASKPASS"; exit 1; }'
    (tmp_path / "git").write_text(f"#!/bin/sh\n{told}\n")
    (tmp_path / "git").chmod(0o755)
    (tmp_path / "run.sh").write_text(run_sh(made()))
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env = {name: value for name, value in env.items() if not name.startswith(("GIT_", "TRAIN_LLAMA"))}
    ran = subprocess.run(["bash", "run.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "0 true\n")


@pytest.mark.host
def test_a_folder_without_the_script_is_told(tmp_path):
    env = {**os.environ, "TRAIN_LLAMA_ROOT": str(tmp_path)}
    (tmp_path / "run.sh").write_text(run_sh(made()))
    ran = subprocess.run(["bash", "run.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 1 and f"madlite: {tmp_path}/train_llama.py is not here" in ran.stderr
