"""`madlite scaling --nodes` on a real Slurm: in an allocation, and as jobs from the login node."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.csv_rows import csv_rows
from tests.machine.elsewhere import ELSEWHERE
from tests.machine.stand_in import Bench, amd_list, amd_static
from tests.slurm_fixture import SlurmCluster

pytestmark = pytest.mark.engine
# 100 a node, of which each node beyond the first takes 5 away
SCRIPT = """nodes=${NNODES:-1}
[ "$nodes" = 2 ] && [ -e FOLDER/fail_on_two ] && exit 7
[ "${NODE_RANK:-0}" = 0 ] && echo "performance: $((100 * nodes - 5 * (nodes - 1))) samples_per_second"
echo "node ${NODE_RANK:-0} is $SLURMD_NODENAME"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/run.sh").write_text(SCRIPT.replace("FOLDER", str(tmp_path)))
    card = {"name": "a", "scripts": "scripts/run.sh", "tags": [], "runtimes": ["host"], "n_gpus": "0"}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    (tmp_path / "cluster.toml").write_text("[clusters.lab.slurm]\nexclusive = false\n")
    return tmp_path


def scaling(slurm: SlurmCluster, folder: Path, *words: str, inside: bool = True) -> tuple[int, str]:
    allocate = ["salloc", "--quiet", "-N4"] if inside else []
    command = [*allocate, sys.executable, "-m", "madlite", "scaling", "a", *words]
    shell = ["bash", "-c", 'cd "$1" && shift && exec "$@"', "bash", str(folder), *command]
    done = slurm.run(*shell, USER="root", XDG_CONFIG_HOME=str(folder))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def points(folder: Path) -> list[tuple[int, float | None]]:
    (file,) = folder.glob("madlite_runs/study-*/study.json")
    return [(one["nodes"], one["efficiency"]) for one in json.loads(file.read_text())["scalings"][0]["points"]]


def test_in_an_allocation_each_number_has_its_first_nodes(slurm: SlurmCluster, folder: Path):
    code, out = scaling(slurm, folder, "--nodes", "1,2,4")
    assert code == 0, out
    assert [(row["nnodes"], row["performance"]) for row in csv_rows(folder / "perf.csv")] == [
        ("1", "100"), ("2", "195"), ("4", "385")
    ]  # fmt: skip
    assert points(folder) == [(1, 1.0), (2, pytest.approx(0.975)), (4, pytest.approx(0.9625))]
    assert "3.85x" in out
    text = "".join(file.read_text() for file in folder.glob("madlite_runs/*-a-*/run.log"))
    assert text.count("is n1") == 3 and text.count("is n2") == 2 and text.count("is n4") == 1


def test_from_the_login_node_each_number_is_a_job(slurm: SlurmCluster, folder: Path):
    (folder / "fail_on_two").touch()
    code, out = scaling(slurm, folder, "--nodes", "1,2,4", "--cluster", "lab", inside=False)
    assert code == 3, out
    rows = {row["nnodes"]: row["status"] for row in csv_rows(folder / "perf.csv")}
    assert rows == {"1": "SUCCESS", "2": "FAILURE", "4": "SUCCESS"}
    assert points(folder) == [(1, 1.0), (2, None), (4, pytest.approx(0.9625))]
    (submission,) = folder.glob("madlite_runs/jobs-*")
    assert len([*submission.glob("scripts/*.sh")]) == 3
    assert "0 of 1 (1 " in out and [*folder.glob("madlite_runs/study-*/scaling.html")]


def test_nodes_that_make_no_sense_are_refused_in_one_sentence(slurm: SlurmCluster, allocation, folder: Path):
    outside = {**slurm.environ, "XDG_CONFIG_HOME": str(folder)}
    for words, environ, message in (
        (["--nodes", "0"], allocation, "'0' is no list of different numbers"),
        (["--nodes", "2,8"], allocation, "has 2 nodes"),
        (["--nodes", "2", "--gpus", "1"], allocation, "--gpus beside --nodes: a study varies one of them"),
        (["--nodes", "2", "--runtime", "host"], allocation, "a runs on this machine alone"),
        (["--nodes", "2,8", "--cluster", "lab"], outside, "--nodes 8: cluster 'lab' has 4 nodes"),
    ):
        done = commands.run(("scaling", "a", *words), folder, environ)
        assert done.returncode == 4 and message in done.stdout + done.stderr, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    assert not (folder / "perf.csv").exists() and not [*folder.glob("madlite_runs/jobs-*")]


# of two GPUs on each node; those of n3 are slow
METRIC = """touch "FOLDER/asked.$SLURMD_NODENAME"
case "$SLURMD_NODENAME" in n3) mhz=1300 ;; *) mhz=2100 ;; esac
printf '[{"gpu": 0, "clock": {"gfx_0": {"clk": %s}}}, {"gpu": 1, "clock": {"gfx_0": {"clk": %s}}}]' $mhz $mhz
"""
# the run goes on until each node was asked
WAIT = """for _ in $(seq 2400); do [ -e FOLDER/asked.n3 ] && break; sleep 0.1; done
"""


def test_the_node_whose_gpus_are_slow_is_named_by_their_clocks(slurm: SlurmCluster, folder: Path, tmp_path: Path):
    bench = Bench(tmp_path)
    bench.node(0)
    bench.mi300x(2)
    bench.file("dev/kfd")
    bench.file("opt/rocm/.info/version", "6.4.1-83\n")
    bench.tool("amd-smi", ("*static*", amd_static([0, 1])), ("*list*", amd_list([1, 2])))
    tool, script = bench.bin / "amd-smi", folder / "scripts/run.sh"
    tool.write_text(tool.read_text().replace("\n", f'\nif [ "$1" = metric ]; then\n{METRIC}exit\nfi\n', 1))
    tool.write_text(tool.read_text().replace("FOLDER", str(folder)))
    script.write_text(WAIT.replace("FOLDER", str(folder)) + script.read_text())
    (folder / "models.json").write_text((folder / "models.json").read_text().replace('"n_gpus": "0"', '"n_gpus": "2"'))
    command = [sys.executable, "-c", ELSEWHERE, str(bench.root), "scaling", "a", "--nodes", "4"]
    shell = ["bash", "-c", 'cd "$1" && shift && exec "$@"', "bash", str(folder), "salloc", "--quiet", "-N4", *command]
    path = f"{bench.bin}:{slurm.environ['PATH']}"
    done = slurm.run(*shell, USER="root", PATH=path, PYTHONPATH=os.getcwd())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 nodes, each one's GPU clock: n1 2,100, n2 2,100, n3 1,300, n4 2,100 MHz" in done.stdout
    assert "n3 is slow: 1,300 MHz, 38 % below the median of the other nodes', 2,100" in done.stdout
    assert csv_rows(folder / "perf.csv")[0]["n_gpus"] == "8"
