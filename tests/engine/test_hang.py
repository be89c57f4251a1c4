"""Runs that hang, stall, start slowly or are stopped: real processes, on the host and in containers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from tests.engine.checkout import Checkout, end
from tests.factories import BASE_IMAGE
from tests.waiting import wait_until

SILENCE = ("--silence-limit", "4", "--start-silence-limit", "60")  # no shorter: a busy machine is late by seconds
# a Python whose torchrun starts two ranks of the script, whatever is asked for
LAUNCHER = """#!/bin/bash
case "$*" in *torch.distributed.run*) ;; *) exec {python} "$@" ;; esac
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=$rank {python} -u {folder}/train.py --hf_token hf_SECRETSECRET &
done
wait -n
code=$?
wait
exit $code
"""
TRAIN = """import os, sys, time
rank = int(os.environ["RANK"])
def step(n):
    time.sleep(0.05)
    print(f"[rank{rank}] step: {n:2d}  loss: {9 - n / 10:.5f}  tps: {1000 + n}", flush=True)
def all_reduce():
    while True:
        time.sleep(0.5)
def next_batch():
    while True:
        time.sleep(0.5)
"""
STEP = r"\[rank\d+\] step:\s+(?P<n>\d+)\s+loss:\s+(?P<loss>\S+)\s+tps:\s+(?P<tokens_per_s_per_gpu>\S+)"


def training(checkout: Checkout, body: str, *more: str) -> list[str]:
    """Write the training; return a command's arguments that run it."""
    inside = str(checkout.folder) if checkout.runtime == "host" else "/myworkspace"
    python = "python3" if checkout.runtime == "docker" else os.sys.executable
    launcher = checkout.folder / "launcher"
    launcher.write_text(LAUNCHER.format(python=python, folder=inside))
    launcher.chmod(0o755)
    (checkout.folder / "train.py").write_text(TRAIN + body)
    recipe = {"script": "train.py", "step": STEP, "steps": 20, "nproc_per_node": 2}
    card = {"name": "trains", "backend": "torchrun", "image": BASE_IMAGE, "n_gpus": "-1", "tags": []}
    cards = [{**card, "runtimes": ["docker", "host"], "recipe": recipe}]
    (checkout.folder / "models.json").write_text(json.dumps(cards))
    given = ["--tags", "trains", "--gpu-vendor", "CPU", "--set", f"env.MADLITE_PYTHON={inside}/launcher"]
    return [*given, *SILENCE, *more]


def evidence(checkout: Checkout, name: str) -> str:
    (folder,) = checkout.folder.glob("madlite_runs/*/hang")
    return (folder / name).read_text()


HANGS = "for n in range(1, 11): step(n)\nall_reduce() if rank else next_batch()\n"


def test_a_run_that_hangs_is_looked_at_stopped_and_says_where_its_ranks_are(checkout: Checkout):
    done = checkout.run(*training(checkout, HANGS))
    (record,) = checkout.records()
    assert done.returncode == 3 and record["cause"] == "hang", done.stdout + done.stderr
    run_id = next(checkout.folder.glob("madlite_runs/*/hang")).parent.name
    assert "after step 10 (steps took 0." in record["reason"]
    assert f"hung; stacks in madlite_runs/{run_id}/hang/" in record["reason"]
    assert re.fullmatch(r"rank 0 in next_batch \(\S+:1[01]\); rank 1 in all_reduce \(\S+:[78]\)", record["evidence"])
    assert record["diagnosis"]["hint"] == "look where rank 0 stands; --silence-limit SECONDS waits longer"
    assert done.stdout.count("after step 10 (steps took 0.") == 2, "when it is looked at, and at the end"
    assert "stopping: it hangs; press Ctrl-C to kill it at once" in done.stdout
    stacks, processes = evidence(checkout, "stacks.txt"), evidence(checkout, "processes.txt")
    assert "all_reduce (" in stacks and "next_batch (" in stacks and "rank 1" in stacks
    assert processes.count("train.py --hf_token ***") == 2
    assert "step: 10" in evidence(checkout, "last_lines.txt")
    everything = "".join(path.read_text() for path in checkout.folder.glob("madlite_runs/*/hang/*"))
    assert "hf_SECRETSECRET" not in everything
    assert (checkout.rows[0]["status"], checkout.rows[0]["performance"]) == ("FAILURE", "")
    checkout.assert_nothing_left()


def test_a_slow_step_is_none_that_hangs(on_host: Checkout):
    body = "for n in range(1, 21):\n    step(n)\n    n == 12 and time.sleep(14)\n"
    done = on_host.run(*training(on_host, body, "--silence-limit", "40"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"no step for \d+ s after step 12 \(median \S+ s\)", done.stdout)
    assert not list(on_host.folder.glob("madlite_runs/*/hang"))
    (stall,) = [text for text in on_host.records()[0]["findings"] if text.startswith("stalled")]
    assert 14 <= int(re.fullmatch(r"stalled for (\d+) s before step 13 \(steps took \S+ s\)", stall)[1]) < 40


def test_a_long_start_that_prints_is_none_that_hangs_and_one_that_does_not_is(on_host: Checkout):
    begins = "for n in range(14):\n    time.sleep(0.5)\n    print('loading', n)\n"
    done = on_host.run(*training(on_host, begins + "for n in range(1, 21): step(n)\n", "--start-silence-limit", "6"))
    assert done.returncode == 0, done.stdout + done.stderr
    on_host.run(*training(on_host, "print('loading')\nall_reduce()\n", "--start-silence-limit", "6"))
    last = on_host.records()[-1]
    assert last["cause"] == "hang" and "before the first step: hung; stacks in" in last["reason"]
    assert "all_reduce (" in evidence(on_host, "stacks.txt")


def test_processes_that_were_stopped_are_said_to_be(on_host: Checkout):
    on_host.run(
        *training(on_host, "for n in range(1, 11): step(n)\nos.kill(os.getpid(), 19)\n", "--set", "stop_grace_s=1")
    )
    (record,) = on_host.records()
    assert record["cause"] == "hang" and "processes stopped by a signal or a debugger (pid " in record["reason"]
    on_host.assert_nothing_left()


def test_ctrl_c_while_the_evidence_is_collected_wins(on_host: Checkout):
    slow = on_host.folder / "slow"
    slow.mkdir()
    (slow / "py-spy").write_text(f"#!/bin/sh\ntouch '{slow}/asked'\nsleep 600\n")
    (slow / "py-spy").chmod(0o755)
    on_host.env["PATH"] = f"{slow}:{on_host.env['PATH']}"
    started = on_host.start(*training(on_host, HANGS))
    wait_until((slow / "asked").exists, "the question for stacks")
    returned, out = end(started, signal.SIGINT)  # which is not as long as the tool would take
    assert returned == 130, out
    assert on_host.records()[0]["cause"] == "interrupted"
    on_host.assert_nothing_left()
    assert subprocess.run(["pgrep", "-f", str(slow)], check=False).returncode != 0, "no tool is left either"


def test_a_script_of_a_card_may_be_silent_unless_it_is_asked_about(on_host: Checkout):
    on_host.card("quiet", "echo begun\nsleep 4\necho 'performance: 7 x'\n")
    on_host.card("silent", "echo begun\nsleep 300\n")
    assert on_host.run("--tags", "quiet", "--start-silence-limit", "0").returncode == 0
    done = on_host.run("--tags", "silent", "--silence-limit", "1", "--start-silence-limit", "60")
    assert done.returncode == 3 and on_host.records()[-1]["cause"] == "hang"
    assert "no output for " in on_host.records()[-1]["reason"]
    assert on_host.records()[-1]["diagnosis"]["hint"] == "--silence-limit SECONDS waits longer"


def test_the_hang_folder_is_none_that_a_workload_can_lead_elsewhere(on_host: Checkout, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    lead = f"""import glob
if rank == 0:
    (plan,) = glob.glob("madlite_runs/*/plan.json")
    os.symlink("{elsewhere}", os.path.join(os.path.dirname(plan), "hang"))
"""
    on_host.run(*training(on_host, lead + HANGS))
    assert on_host.records()[0]["cause"] == "hang" and not list(elsewhere.iterdir())


@pytest.mark.engine
def test_a_paused_container_is_said_to_be(engine, base_image, tmp_path):
    import docker

    checkout = Checkout(tmp_path / "mad", "docker", engine)
    checkout.card("talks", "while :; do echo begun; sleep 0.2; done\n")  # until it is paused
    started = checkout.start(
        "--tags", "talks", "--silence-limit", "3", "--image", BASE_IMAGE, "--set", "stop_grace_s=1"
    )
    checkout.wait_for("begun")
    (name,) = checkout.left_containers()
    docker.DockerClient(engine).containers.get(name).pause()
    out, _ = started.communicate(timeout=240)
    assert "its container is paused" in checkout.records()[0]["reason"], out
    checkout.assert_nothing_left()


@pytest.mark.engine
def test_the_stacks_of_a_container_are_taken_by_the_py_spy_that_madlite_has(engine, base_image, tmp_path):
    checkout = Checkout(tmp_path / "mad", "docker", engine)
    code = 'import time\ndef waits_here():\n    print("begun", flush=True)\n    time.sleep(300)\nwaits_here()'
    checkout.card("hangs", f"exec python3 -c '{code}'\n", additional_docker_run_options="--cap-add SYS_PTRACE")
    done = checkout.run("--tags", "hangs", "--silence-limit", "3", "--image", BASE_IMAGE, "--set", "stop_grace_s=1")
    (record,) = checkout.records()
    assert record["cause"] == "hang" and "waits_here" in record["evidence"], done.stdout + done.stderr
    assert "waits_here" in evidence(checkout, "stacks.txt") and "python3" in evidence(checkout, "processes.txt")
    checkout.assert_nothing_left()
