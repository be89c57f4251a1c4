"""A madlite on each node, started by srun of a real Slurm; and what a MAD script is told in an allocation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.csv_rows import csv_rows
from tests.slurm_fixture import SlurmCluster

pytestmark = pytest.mark.engine
SCRIPT = """
echo "part $NODE_RANK of $NNODES meets at $MASTER_ADDR: $MAD_MULTI_NODE_RUNNER"
echo "performance: 12.5 tok"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/run.sh").write_text(SCRIPT)
    card = {"name": "a", "scripts": "scripts/run.sh", "tags": [], "runtimes": ["host"], "n_gpus": "0"}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    return tmp_path


def madlite(words: str) -> list[str]:
    return ["bash", "-c", f"exec {sys.executable} -m madlite run --tags a {words}"]


def logs(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.glob("madlite_runs/*/run.log"))


def test_each_task_of_a_step_is_a_part_of_the_run(slurm: SlurmCluster, folder: Path):
    step = ["srun", "-N2", "--ntasks-per-node=1", f"--chdir={folder}"]
    done = slurm.run(*step, *madlite("-o perf$SLURM_NODEID.csv"), MASTER_ADDR="127.0.0.1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each of its nodes has a madlite of its own" in done.stdout
    for node in (0, 1):
        (row,) = csv_rows(folder / f"perf{node}.csv")
        assert (row["performance"], row["nnodes"]) == ("12.5", "2")
        runner = f"--nnodes=2 --node_rank={node} --master_addr=127.0.0.1 --master_port=29500"
        assert f"part {node} of 2 meets at 127.0.0.1: torchrun {runner}" in logs(folder)


def test_a_task_for_each_rank_is_refused(slurm: SlurmCluster, folder: Path):
    done = slurm.run("srun", "-N2", "--ntasks-per-node=2", f"--chdir={folder}", *madlite(""))
    assert done.returncode == 4 and "several processes of madlite on a node" in done.stderr, done.stderr
    done = slurm.run("srun", "-N2", "--ntasks-per-node=1", f"--chdir={folder}", *madlite("--runtime slurm"))
    assert done.returncode == 4 and "--runtime slurm in every task of srun" in done.stderr, done.stderr
    assert not [*folder.glob("madlite_runs/*/record.json")]


def test_a_script_in_an_allocation_has_the_launcher_of_its_own_node(slurm: SlurmCluster, folder: Path):
    done = slurm.run("salloc", "--quiet", "-N2", f"--chdir={folder}", *madlite(""))
    assert done.returncode == 0, done.stdout + done.stderr
    for node in (0, 1):
        assert f"[node{node}]: part {node} of 2 meets at 127.0.0.1: torchrun --nnodes=2 --node_rank={node} " in logs(
            folder
        )
    assert "--standalone" not in logs(folder) and "$" not in logs(folder)


@pytest.mark.usefixtures("gpus_of_nodes")
@pytest.mark.parametrize("asked", [["--gpus=16"], ["--ntasks=16", "--gpus-per-task=1"]])
def test_a_node_has_all_of_its_gpus_however_the_job_asked_for_them(slurm: SlurmCluster, folder: Path, asked):
    (folder / "scripts/run.sh").write_text('echo "GPUs $ROCR_VISIBLE_DEVICES of $NNODES"\necho performance: 1 tok\n')
    environ = {"SLURM_LABELIO": "1", "NNODES": "9"}  # of the user's shell, or of a job's script
    done = slurm.run("salloc", "--quiet", "-N2", *asked, f"--chdir={folder}", *madlite(""), **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    for node in (0, 1):
        assert f"[node{node}]: GPUs 0,1,2,3,4,5,6,7 of 2\n" in logs(folder)
