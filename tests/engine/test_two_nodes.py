"""Two nodes of one training, each with a madlite of its own: the one that prints nothing is no failure."""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.training, pytest.mark.full, pytest.mark.timeout(300)]

# node 0 prints its steps; where it is told so, node 1 fails
SCRIPT = """
import os, sys, time
rank, fails = int(os.environ["RANK"]), sys.argv[1:] == ["fail"]
for n in range(1, 13):
    time.sleep(0.02)
    if rank == 0:
        print(f"step {n} loss {3 - n / 10:.2f} tps {500 + n}", flush=True)
if rank == 1 and fails:
    sys.exit("no batch is left on this node")
"""
STEP = r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)"


def of_two(folder, *words: str):
    """Return both nodes' exit codes, output and rows."""
    (folder / "t.py").write_text(SCRIPT)
    recipe = {"script": "t.py", "steps": 12, "step": STEP}
    card = {"name": "two", "backend": "torchrun", "n_gpus": "-1", "args": " ".join(words), "recipe": recipe}
    (folder / "models.json").write_text(json.dumps([{**card, "runtimes": ["host"]}]))
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    common = ["run", "--tags", "two", "--runtime", "host", "--set", "nnodes=2", "--set", "nproc_per_node=1"]
    meet = ["--set", "master_addr=127.0.0.2", "--set", f"master_port={port}"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "madlite", *common, *meet, "--set", f"node_rank={n}", "-o", f"perf{n}.csv"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n in (0, 1)
    ]
    last = started[1].communicate(timeout=200)[0]
    if words:  # the first node would wait 300 s for the one that failed
        started[0].terminate()
    said = [started[0].communicate(timeout=200)[0], last]
    rows = [list(csv.DictReader((folder / f"perf{n}.csv").open(newline=""))) for n in (0, 1)]
    return [one.returncode for one in started], said, rows


def test_the_node_that_prints_nothing_ends_well_and_says_where_the_result_is(tmp_path):
    codes, said, rows = of_two(tmp_path)
    assert codes == [0, 0], said
    assert [row["status"] for row in rows[0]] == ["SUCCESS"] and [row["status"] for row in rows[1]] == ["SKIPPED"]
    assert "that is on node 0" in said[1] and "FAILURE" not in said[1] and "matched step=" not in said[1]


def test_a_node_that_failed_is_a_failure_though_it_prints_no_result(tmp_path):
    codes, said, rows = of_two(tmp_path, "fail")
    assert codes[1] == 3 and [row["status"] for row in rows[1]] == ["FAILURE"]
    assert "no batch is left on this node" in said[1] and "[exit_code]" in said[1]
