"""Whole runs by a plugin's runtime: containers on two machines behind sockets, of which madlite knows traits alone."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from madlite import RuntimeProblem
from tests import commands
from tests.engine.checkout import Checkout
from tests.lan.nodes import nodes
from tests.lan.plugin import ask

pytestmark = [pytest.mark.host, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")]
ROOT = Path(__file__).parents[2]
# a Python whose torchrun starts two ranks of the script on each node
LAUNCHER = """#!/bin/bash
case "$*" in *torch.distributed.run*) ;; *) exec {python} "$@" ;; esac
for local in 0 1; do
  RANK=$((2 * NODE_RANK + local)) LOCAL_RANK=$local WORLD_SIZE=4 {python} -u /myworkspace/train.py &
done
wait -n
code=$?
[ $code = 0 ] || exit $code
wait
"""
TRAIN = """import os, sys, time
rank = int(os.environ["RANK"])
def step(n):
    time.sleep(0.02)
    line = f"[rank{rank}] step: {n:2d}  loss: {9 - n / 10:.5f}  tps: {1000 + 100 * rank + n}\\n"
    sys.stdout.write(line)  # at once, as ranks share a pipe
def all_reduce():
    while True:
        time.sleep(0.2)
def next_batch():
    while True:
        time.sleep(0.2)
"""
STEP = r"\\[rank\\d+\\] step:\\s+(?P<n>\\d+)\\s+loss:\\s+(?P<loss>\\S+)\\s+tps:\\s+(?P<tokens_per_s_per_gpu>\\S+)"
WHOLE = "for n in range(1, 21): step(n)\n"


@pytest.fixture
def lan(tmp_path):
    with nodes(tmp_path / "machines", 2) as addresses:
        yield addresses


@pytest.fixture
def checkout(lan, tmp_path):
    """A checkout whose environment has the plugin installed."""
    site = tmp_path / "site" / "lan-1.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: lan\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[madlite]\nlan = tests.lan.plugin\n")
    made = Checkout(tmp_path / "mad", "lan", "unix:///nonexistent")
    made.first = (commands.LOOK_IN, str(ROOT), str(site.parent))
    made.env["LAN_NODES"] = ",".join(lan)
    return made


@pytest.fixture
def train(checkout: Checkout):
    """Write a training; return a command's arguments that run it."""

    def write(body: str, *more: str) -> list[str]:
        launcher = checkout.folder / "launcher"
        launcher.write_text(LAUNCHER.format(python=sys.executable))
        launcher.chmod(0o755)
        (checkout.folder / "train.py").write_text(TRAIN + body)
        recipe = {"script": "train.py", "step": STEP.replace("\\\\", "\\"), "steps": 20, "nproc_per_node": 2}
        card = {"name": "trains", "backend": "torchrun", "image": "/", "n_gpus": "-1", "tags": [], "recipe": recipe}
        (checkout.folder / "models.json").write_text(json.dumps([card]))
        return ["--tags", "trains", "--gpu-vendor", "CPU", "--set", "env.MADLITE_PYTHON=/myworkspace/launcher", *more]

    return write


def told(done) -> str:
    return done.stdout + done.stderr


def still_open(lan, checkout: Checkout) -> list[str]:
    """The states of the checkout's sessions that their nodes still hold."""
    ids = [folder.name for folder in checkout.folder.glob("madlite_runs/2*")]
    states = [ask(node, do="state", session=one)[0]["state"] for node in lan for one in ids]
    return [state for state in states if state == "running"]


def test_steps_of_both_nodes_make_one_run_with_one_row(checkout: Checkout, train, lan):
    done = checkout.run(*train(WHOLE))
    assert done.returncode == 0, told(done)
    (row,) = [row for row in checkout.rows if row["metric"] == "tokens_per_s_per_gpu"]
    assert (row["status"], row["nnodes"], row["deployment_type"]) == ("SUCCESS", "2", "lan")
    assert row["performance"] == "1163"  # the mean of four ranks' 1000, 1100, 1200, 1300, at the median step 13
    (record,) = checkout.records()
    assert "Running model trains · torchrun · / · train · lan · 2 nodes · cpu" in done.stdout
    assert record["node_codes"] == [0, 0] and record["window"]["n"] == 15
    (folder,) = checkout.folder.glob("madlite_runs/2*")
    lines = (folder / "run.log").read_text().splitlines()
    for node, rank in ((0, 0), (0, 1), (1, 2), (1, 3)):
        assert sum(line.startswith(f"[node{node}]: [rank{rank}] step:") for line in lines) == 20
    handle = json.loads((folder / "handle").read_text())
    assert handle["nodes"] == lan and still_open(lan, checkout) == []


FAILS = (
    WHOLE + "rank == 3 and sys.exit(print('ValueError: no batch is left here', file=sys.stderr) or 5)\nall_reduce()\n"
)


def test_a_failing_node_is_the_run_s_failure_with_its_own_cause(checkout: Checkout, train, lan):
    done = checkout.run(*train(FAILS))
    (record,) = checkout.records()
    assert done.returncode == 3 and [row["status"] for row in checkout.rows] == ["FAILURE"], told(done)
    assert record["node_codes"][1] == 5 and record["exit_code"] == 5
    assert f"exit code 5 on node 1 ({lan[1]})" in record["reason"], record["reason"]
    assert "no batch is left here" in record["evidence"]
    assert "no batch is left here" in told(done)
    assert still_open(lan, checkout) == []


HANGS = "for n in range(1, 11): step(n)\nnext_batch() if rank == 3 else all_reduce()\n"


def test_a_hang_is_looked_into_where_it_is(checkout: Checkout, train, lan):
    done = checkout.run(*train(HANGS, "--silence-limit", "4", "--start-silence-limit", "60"))
    (record,) = checkout.records()
    assert done.returncode == 3 and record["cause"] == "hang", told(done)
    assert re.search(r"ranks? 0\b.* in all_reduce \(\S+:\d+\)", record["evidence"]), record["evidence"]
    assert re.search(r"rank 3 in next_batch \(\S+:\d+\)", record["evidence"]), record["evidence"]
    (stacks,) = checkout.folder.glob("madlite_runs/2*/hang/stacks.txt")
    assert "=== node 1\npid " in stacks.read_text()
    assert still_open(lan, checkout) == []


def test_a_stop_ends_both_nodes_and_leaves_a_row(checkout: Checkout, train, lan):
    started = checkout.start(*train("step(1)\nall_reduce()\n"))
    checkout.wait_for("[node1]: [rank3] step:")
    started.send_signal(signal.SIGINT)
    said, _ = started.communicate(timeout=240)
    (record,) = checkout.records()
    assert started.returncode == 130 and record["cause"] == "interrupted", said
    assert [row["status"] for row in checkout.rows] == ["FAILURE"] and still_open(lan, checkout) == []


def test_a_stop_cuts_into_the_opening_of_a_session(checkout: Checkout, train, lan, tmp_path):
    with nodes(tmp_path / "silent", 1, "--silent") as silent:
        checkout.env |= {"LAN_NODES": f"{lan[0]},{silent[0]}", "LAN_ANSWER_S": "600"}
        started = checkout.start(*train(WHOLE))
        checkout.wait_for("image / on 2 nodes")
        started.send_signal(signal.SIGINT)
        said, _ = started.communicate(timeout=240)  # sooner than the runtime gives up
        (record,) = checkout.records()
        assert started.returncode == 130 and record["cause"] == "interrupted", said
        assert still_open(lan, checkout) == [], "the first node had opened one"


def test_results_are_brought_from_where_they_were_written(checkout: Checkout):
    body = "[ $NODE_RANK = 0 ] && printf 'model,performance,metric\\nx,12.5,images/s\\n' > r.csv; echo $NODE_RANK"
    checkout.card("multi", body, multiple_results="r.csv", image="/", dockerfile="")
    done = checkout.run("--tags", "multi")
    assert done.returncode == 0, told(done)
    assert [(row["performance"], row["metric"], row["nnodes"]) for row in checkout.rows] == [("12.5", "images/s", "2")]


def test_what_a_killed_madlite_left_on_the_nodes_is_listed_and_ended(checkout: Checkout, train, lan):
    started = checkout.start(*train("step(1)\nall_reduce()\n"))
    checkout.wait_for("[node1]: [rank3] step:")
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate(timeout=240)
    assert still_open(lan, checkout) == ["running", "running"]
    assert "a session of runtime lan, running" in checkout.madlite("clean").stdout
    (handle,) = checkout.folder.glob("madlite_runs/2*/handle")
    text = handle.read_text()
    handle.unlink()
    handle.symlink_to("/etc/hostname")  # as whatever reaches it may do
    done = checkout.madlite("clean")
    assert done.returncode == 0 and "was not inspected: " in done.stderr, told(done)
    handle.unlink()
    handle.write_text(text)
    done = checkout.madlite("clean", "--yes")
    assert "removed session" in done.stdout and done.returncode == 0, told(done)
    assert still_open(lan, checkout) == []
    assert "nothing is left behind" in checkout.madlite("clean").stdout


def test_a_node_that_goes_away_is_told_and_the_other_is_ended(checkout: Checkout, train, tmp_path):
    with nodes(tmp_path / "gone", 1) as others, nodes(tmp_path / "stays", 1) as own:
        checkout.env["LAN_NODES"] = f"{own[0]},{others[0]}"
        started = checkout.start(*train("step(1)\nall_reduce()\n"))
        checkout.wait_for("[node1]: [rank3] step:")
        with suppress(RuntimeProblem):  # it says nothing more
            ask(others[0], do="leave")
        said, _ = started.communicate(timeout=240)
        (record,) = checkout.records()
        assert started.returncode == 3 and f"node {others[0]} does not answer" in record["reason"], said
        assert [row["status"] for row in checkout.rows] == ["FAILURE"]
        assert still_open(own, checkout) == []


def test_what_its_nodes_cannot_do_is_told_before_anything_starts(checkout: Checkout, train):
    for asked, code, why in (
        (("nnodes=3",), 3, "runtime 'lan' cannot run a plan for 3 nodes of 'lan'"),
        (("nnodes=2", "node_rank=0"), 4, "node_rank is '0' for all nodes: runtime 'lan' sets it on each node"),
    ):
        done = checkout.run(*train(WHOLE, *(word for one in asked for word in ("--set", one))))
        assert done.returncode == code and why in told(done), told(done)
    assert [folder for folder in checkout.folder.glob("madlite_runs/*/handle")] == []
