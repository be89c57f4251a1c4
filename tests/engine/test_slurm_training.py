"""Real trainings by torchrun and Gloo on the nodes of an allocation of a real Slurm: one number, each node's lines."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.csv_rows import perf_rows
from tests.slurm_fixture import SlurmCluster

pytestmark = [pytest.mark.training, pytest.mark.full, pytest.mark.timeout(900)]
# a training of its own: weights that all ranks share, and a line of each node with the speed of its own work
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world, torch_sum = dist.get_rank(), dist.get_world_size(), torch.zeros(1)
assert (rank, world) == (int(os.environ["NODE_RANK"]), int(os.environ["NNODES"]))
weights = torch.zeros(64, requires_grad=True)
for n in range(1, 31):
    began = time.perf_counter()
    loss = ((weights - 1) ** 2).mean()
    loss.backward()
    own = 1.0 if str(rank) != os.environ.get("SLOW", "") else 0.5
    dist.all_reduce(weights.grad)
    with torch.no_grad():
        weights -= 10 * weights.grad / world
        weights.grad.zero_()
    print(f"step {n} loss {loss.item():.6f} tps {own * (1000 + rank + n % 2)}", flush=True)
total = torch.tensor([float(rank)])
dist.all_reduce(total)
assert total.item() == sum(range(world))
dist.destroy_process_group()
"""
STEP = r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)"


def run(slurm: SlurmCluster, folder: Path, nodes: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "madlite", "run", *words]
    shell = ["bash", "-c", 'cd "$1" && shift && exec "$@"', "bash", str(folder)]
    return slurm.run(*shell, "salloc", "--quiet", f"-N{nodes}", *command, limit_s=800, OMP_NUM_THREADS="1")


def record_of(folder: Path) -> dict:
    (file,) = folder.glob("madlite_runs/*/record.json")
    return json.loads(file.read_text())


def lines_of(folder: Path, node: int) -> list[str]:
    (file,) = folder.glob("madlite_runs/*/run.log")
    text = re.sub(r"\x1b\[[0-9;]*m", "", file.read_text())
    return [line for line in text.splitlines() if line.startswith(f"[node{node}]: ")]


@pytest.fixture
def four(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    recipe = {"script": "train.py", "steps": 30, "step": STEP}
    card = {"name": "four", "backend": "torchrun", "n_gpus": "-1", "recipe": recipe, "runtimes": ["host"]}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    return tmp_path


def test_four_nodes_train_together_and_have_one_number(slurm: SlurmCluster, four: Path):
    done = run(slurm, four, 4, "--tags", "four", "--set", "nproc_per_node=1", "--set", "env.SLOW=2")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = perf_rows(four)
    speeds = [
        [float(text) for line in lines_of(four, node) for text in re.findall(r"tps (\S+)", line)] for node in range(4)
    ]
    assert [len(one) for one in speeds] == [30] * 4
    means = [statistics.fmean(of_ranks) for of_ranks in zip(*speeds, strict=True)]
    assert float(row["performance"]) == pytest.approx(statistics.median(means[5:]), rel=1e-6)
    assert (row["nnodes"], row["status"], row["deployment_type"]) == ("4", "SUCCESS", "slurm")
    record = record_of(four)
    assert record["node_codes"] == [0, 0, 0, 0] and record["steps"] == 30
    assert [(one["name"], one["steps"]) for one in record["nodes"]] == [(f"n{at}", 25) for at in (1, 2, 3, 4)]
    assert [bool(one["slow"]) for one in record["nodes"]] == [False, False, True, False]
    assert "node 2 (n3) is slow: 501 tokens/s/GPU, 50 % below the median of the other nodes'" in done.stdout


def test_the_trainer_of_hugging_face_trains_on_two_nodes(slurm: SlurmCluster, tmp_path: Path):
    done = run(slurm, tmp_path, 2, "--tags", "demo_hf_lora_tiny", "--steps", "14")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["metric"]: row for row in perf_rows(tmp_path)}
    steps = [json.loads(text) for text in re.findall(r"madlite-step (\{.*\})", "\n".join(lines_of(tmp_path, 0)))]
    assert [step["n"] for step in steps] == list(range(1, 15))
    median = statistics.median(step["tokens_per_s_per_gpu"] for step in steps[5:])
    assert float(rows["tokens_per_s_per_gpu"]["performance"]) == pytest.approx(median, rel=1e-5)
    assert "madlite-step" not in "\n".join(lines_of(tmp_path, 1)) and lines_of(tmp_path, 1)
    # what the other node's Trainer prints is no step of the training: none is said to stop early
    checks = {one["name"]: one["status"] for one in record_of(tmp_path)["checks"]}
    assert checks["ranks"] != "warn", record_of(tmp_path)["checks"]
    losses = [step["loss"] for step in steps]
    told = re.findall(r"'loss': '?([\d.]+)", "\n".join(lines_of(tmp_path, 1)))
    assert [float(text) for text in told] == pytest.approx(losses, rel=1e-3)  # the same weights on both


def test_torchtitan_replicates_on_two_nodes(slurm: SlurmCluster, tmp_path: Path):
    tag = "demo_torchtitan_llama_debug"
    done = run(slurm, tmp_path, 2, "--tags", tag, "--set", "dp_replicate=2", "--steps", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    pattern = r"step:\s+(\d+)\s+loss:\s+([\d.]+).*?tps: ([\d,]+)"
    of_nodes = [re.findall(pattern, "\n".join(lines_of(tmp_path, node))) for node in (0, 1)]
    assert [n for n, _, _ in of_nodes[0]] == [n for n, _, _ in of_nodes[1]] == [str(n) for n in range(1, 13)]
    assert [loss for _, loss, _ in of_nodes[0]] == [loss for _, loss, _ in of_nodes[1]]
    speeds = [[float(tps.replace(",", "")) for _, _, tps in one] for one in of_nodes]
    means = [statistics.fmean(both) for both in zip(*speeds, strict=True)]
    (row,) = [row for row in perf_rows(tmp_path) if row["metric"] == "tokens_per_s_per_gpu"]
    assert float(row["performance"]) == pytest.approx(statistics.median(means[5:]), rel=1e-4)
    record = record_of(tmp_path)
    assert [one["steps"] for one in record["nodes"]] == [7, 7] and record["node_codes"] == [0, 0]
    assert not any(one["slow"] for one in record["nodes"]), "each step waits for both"
