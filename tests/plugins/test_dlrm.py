"""DLRMBenchmark: MAD's two runs, its refusals, and its launcher's result, executed against a stand-in for its tree."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from madlite.errors import UsageProblem
from madlite.measure.monitor import LogMonitor
from madlite.measure.performance import read_results
from madlite.measure.verdict import Observation, judge
from madlite.model import Exit, Request, Result, RunPlan, Status
from madlite.perfcsv.rows import build_rows
from madlite.plan.plan_file import render
from madlite.store.folder import RunStart
from madlite_plugins.dlrm.backend import RESULTS, Dlrm
from tests.plugins.logs import TEMPLATES, machine_of, planned
from tests.plugins.rendered import run_sh
from tests.plugins.test_torchtitan_tags import card_of
from tests.rows import each_row

TAG = "pyt_train_dlrm"
# appends to its results whatever came of the training, as the benchmark's does
LAUNCHER = r"""
while getopts "p:" opt; do DATATYPE=$OPTARG; done
source ./training_config.sh
mkdir -p training_logs
FLAG=1 torchrun --nproc_per_node 8 ./torchrec_dlrm/dlrm_main.py --batch_size $BATCH_SIZE \
  --limit_train_batches $NUM_TRAIN_BATCHES --seed $RANDOM_SEED --precision $DATATYPE >training_logs/log_1.txt 2>&1
HEADER='Time Stamp,Num. Nodes,Batch Size,Recommendations/s (mean),Recommendations/s (std/mean)'
[ -f results.csv ] || echo "$HEADER" >results.csv
echo "2026:01:01_00:00:00,1,$BATCH_SIZE,$MEAN,0.00" >>results.csv
"""
CONFIG = """# Training Config,
export TF32_MODE=1 # 1: TF32, 0: FP32
export BATCH_SIZE=32768
export NUM_TRAIN_BATCHES=1000
export RANDOM_SEED=1024
"""
TORCHRUN = """#!/bin/sh
echo "$FLAG $*" >"$STUB/called"
printf 'Epoch 0:  50%%|5| 5/10 [00:01<00:01,  4.00it/s]\\rEpoch 0: 100%%|9| 10/10 [00:02<00:00,  4.00it/s]\\n'
exit "${STUB_CODE:-0}"
"""


def drafts_of(device="MI300X", **asked):
    return list(Dlrm().expand(Request(card=card_of(TAG), tag=TAG, settings=asked), machine_of(device)))


def plan_of(precision="TF32", device="MI300X", count=8, nodes=1, workspace=Path("/space"), **changes) -> RunPlan:
    (draft,) = drafts_of(precision=precision)
    machine = machine_of(device, count)
    return planned(draft, card_of(TAG), machine, changes, backend="dlrm", nodes=nodes, workspace=workspace)


@each_row("device", ["MI300X", "MI325X"])
@each_row("release", ["v25.11", "v26.1"])
def test_mad_s_two_runs(device, release):
    drafts = drafts_of(device, release=release)
    assert [draft.variant.precision for draft in drafts] == ["TF32", "FP32"]
    assert {draft.variant.micro_batch for draft in drafts} == {32768} and drafts[0].image == f"rocm/primus:{release}"


@each_row(
    ("device", "asked"),
    [
        ("MI350X", {}),
        ("MI355X", {}),
        ("H100", {}),
        ("MI300X", {"precision": "BF16"}),
        ("MI300X", {"mode": "posttrain"}),
    ],
)
def test_what_mad_s_script_refuses_is_refused(device, asked):
    with pytest.raises(UsageProblem, match="no recipe is known"):
        drafts_of(device, **asked)


def test_published_runs_have_nothing_against_them():
    assert list(Dlrm().check(plan_of())) == [] and list(Dlrm().check(plan_of("FP32", device="MI325X"))) == []


@each_row(
    ("changes", "word"),
    [
        ({"count": 4}, "starts 8 ranks"),
        ({"nodes": 2}, "one node alone"),
        ({"seq_len": 8192}, "no sequences"),
        ({"micro_batch": 0}, "micro_batch is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"global_batch": 32768}, "global batch 32768 is not micro batch × GPUs = 262144"),
    ],
)
def test_what_the_launcher_would_not_do_is_found_before(changes, word):
    assert any(word in one.message for one in Dlrm().check(plan_of(**changes)) if one.fatal)


def test_another_precision_than_the_launcher_s_two_is_refused():
    plan = plan_of()
    other = msgspec.structs.replace(plan, variant=msgspec.structs.replace(plan.variant, precision="BF16"))
    assert any("precision 'BF16'" in one.message for one in Dlrm().check(other) if one.fatal)


def test_how_far_a_rate_varies_may_be_nothing(tmp_path):
    """A row of each figure, both a success: nothing is no throughput, but it is a spread."""
    plan = plan_of(workspace=tmp_path)
    (tmp_path / "results.csv").write_text("Recommendations/s (mean),Recommendations/s (std/mean)\n81920.25,0.00\n")
    argv = [sys.executable, TEMPLATES / "dlrm/results.py", tmp_path / "results.csv", tmp_path / RESULTS]
    assert subprocess.run(argv, check=False).returncode == 0
    seen = Observation(exit=Exit(code=0, duration_s=1e6), results=read_results(tmp_path / RESULTS))
    verdict = judge(plan, seen, LogMonitor([Dlrm().reader(plan)]))
    assert verdict.status is Status.SUCCESS and verdict.findings == ()
    result = Result(plan_id=plan.id, status=verdict.status, cause=verdict.cause, metrics=verdict.metrics)
    rows = list(build_rows(plan, result, RunStart()))
    assert [(row["metric"], row["performance"], row["status"]) for row in rows] == [
        ("recs_per_s_mean", "81920.25", "SUCCESS"),
        ("recs_per_s_cv", "0.00", "SUCCESS"),
    ]


def test_the_variables_are_mad_s_and_in_the_plan():
    assert plan_of().env == {
        "DISABLE_ADDMM_CUDA_LT": "0", "GPU_MAX_HW_QUEUES": "8", "HIP_FORCE_DEV_KERNARG": "1",
        "HSA_NO_SCRATCH_RECLAIM": "1", "ROCBLAS_USE_HIPBLASLT": "1", "TORCH_NCCL_HIGH_PRIORITY": "0",
        "WANDB_DISABLED": "true",
    }  # fmt: skip
    script = run_sh(plan_of())
    assert "export HF_HOME=${HF_HOME:-/workspace/huggingface}" in script


class Tree:
    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.stub, self.space = (folder / name for name in ("dlrm", "bin", "stub", "space"))
        for place in (self.root / "torchrec_dlrm", self.root / "training_logs", self.bin, self.stub, self.space):
            place.mkdir(parents=True)
        (self.root / "launch_training_single_node.sh").write_text(LAUNCHER)
        (self.root / "training_config.sh").write_text(CONFIG)
        (self.root / "results.csv").write_text("Recommendations/s (mean)\n1\n")
        (self.root / "training_logs/log_0.txt").write_text("of another run\n")
        (self.bin / "torchrun").write_text(TORCHRUN)
        (self.bin / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for program in ("torchrun", "python"):
            (self.bin / program).chmod(0o755)

    def run(self, plan: RunPlan, mean: str = "81920.25", **env: str) -> subprocess.CompletedProcess[str]:
        plan.folder.mkdir(parents=True, exist_ok=True)
        for file in render(plan, [TEMPLATES]):
            (plan.folder / file.path).write_bytes(file.data)
        given = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "STUB": str(self.stub),
            "MEAN": mean,
            # its folder, which the script puts first, must not have the torchrun of a torch that is here
            "MADLITE_PYTHON": str(self.bin / "python"),
            "DLRM_BENCHMARK_ROOT": str(self.root),
            **{name: str(value) for name, value in plan.env.items()},
            **env,
        }
        script = ["bash", "run.sh"]
        return subprocess.run(
            script, cwd=plan.folder, env=given, capture_output=True, text=True, timeout=240, check=False
        )

    def for_row(self, number: int) -> Tree:
        return Tree(self.root.parent / f"row{number}")


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.mark.host
def test_the_result_is_the_benchmark_s_own_in_mad_s_rows(tree):
    done = tree.run(plan_of("FP32", workspace=tree.space, steps=10, micro_batch=64))
    assert done.returncode == 0, done.stderr
    read = read_results(tree.space / "perf_DLRM.csv")
    assert [(one.metric, one.text, one.status) for one in read.metrics] == [
        ("recs_per_s_mean", "81920.25", Status.SUCCESS),
        ("recs_per_s_cv", "0.00", Status.SUCCESS),
    ]
    assert read.metrics[0].label == "DLRM" and read.metrics[0].columns == {
        "mode": "pretrain", "precision": "FP32", "batch_size": "64", "seq_len": "", "device": "MI300X", "num_gpus": "8",
    }  # fmt: skip
    called = (tree.stub / "called").read_text()
    assert "--batch_size 64 --limit_train_batches 10 --seed 1024 --precision FP32" in called and called.startswith("1 ")


@pytest.mark.host
def test_the_training_s_progress_is_shown_and_the_image_s_own_files_stay_as_they_are(tree):
    before = {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}
    done = tree.run(plan_of(workspace=tree.space, steps=7))
    assert done.returncode == 0 and "Epoch 0: 100%" in done.stdout and "of another run" not in done.stdout
    assert {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()} == before
    config = (tree.space / "madlite_runs/r1/work/training_config.sh").read_text()
    assert "export NUM_TRAIN_BATCHES=7\n" in config and "export TF32_MODE=1 # 1: TF32" in config


@pytest.mark.host
@each_row("options", ["", "set -e", "set -eo pipefail", "set +o pipefail"])
def test_a_training_that_failed_has_no_result_whatever_the_launcher_s_options_are(tree, options):
    launcher = tree.root / "launch_training_single_node.sh"
    launcher.write_text(f"{options}\n{LAUNCHER}")
    done = tree.run(plan_of(workspace=tree.space), STUB_CODE="3")
    assert done.returncode == 3 and not (tree.space / "perf_DLRM.csv").exists()
    if "-e" not in options:  # else the launcher itself ends there
        assert "torchrun ended with exit code 3" in done.stderr
    assert (tree.space / "madlite_runs/r1/torchrun.code").read_text() == "3\n"


@pytest.mark.host
def test_a_launcher_that_calls_torchrun_otherwise_is_told_of(tree):
    launcher = tree.root / "launch_training_single_node.sh"
    launcher.write_text(LAUNCHER.replace("FLAG=1 torchrun", "FLAG=1 env torchrun"))
    done = tree.run(plan_of(workspace=tree.space))
    assert done.returncode == 0 and "madlite: warning: the launcher did not call torchrun by its name" in done.stderr
    assert (tree.space / "perf_DLRM.csv").exists()
    launcher.write_text(LAUNCHER)
    assert "warning" not in tree.run(plan_of(workspace=tree.space)).stderr


@pytest.mark.host
def test_no_progress_is_no_result(tree):
    assert tree.run(plan_of(workspace=tree.space), mean="0.00").returncode == 0
    mean, _ = read_results(tree.space / "perf_DLRM.csv").metrics
    assert mean.status is Status.FAILURE and mean.text == ""


@pytest.mark.host
def test_what_is_missing_is_one_line(tree):
    done = tree.run(plan_of(workspace=tree.space), DLRM_BENCHMARK_ROOT="/nowhere")
    assert done.returncode == 2 and done.stderr == "madlite: /nowhere has no launch_training_single_node.sh\n"
    (tree.root / "training_config.sh").write_text("export TF32_MODE=1\n")
    done = tree.run(plan_of(workspace=tree.space))
    assert done.returncode == 2 and "has no line for BATCH_SIZE" in done.stderr


def test_the_columns_are_csv_whatever_is_in_them(tmp_path):
    (tmp_path / "results.csv").write_text("Recommendations/s (mean)\n5\n")
    script = TEMPLATES / "dlrm/results.py"
    argv = [sys.executable, script, tmp_path / "results.csv", tmp_path / "out.csv", 'device=a,"b"=c']
    assert subprocess.run(argv, check=False).returncode == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert rows[0]["device"] == 'a,"b"=c' and rows[0]["performance"] == "5"
    (tmp_path / "results.csv").write_text("")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "has no row with" in done.stderr
