"""Runs of several nodes that torchrun starts: what a node is told of the others, from where, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.model import RunPlan
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.nodes import node_findings
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import gpu_machine, plan
from tests.plugins.rendered import run_sh
from tests.rows import each_row

BACKENDS = [(Torchtitan(), "debug"), (HuggingFace(), "tiny_lora")]


def of_nodes(backend, recipe, nodes: int, **changes) -> RunPlan:
    made = plan(backend, gpu_machine(8), recipe, **changes)
    return replace(made, place=replace(made.place, nodes=nodes))


def torchrun_of(script: str, folder, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the launch of a script with an interpreter that says what it is called with."""
    stand_in = folder / "python"
    stand_in.write_text('#!/bin/sh\necho "$@"\necho "gloo $GLOO_SOCKET_IFNAME"\n')
    stand_in.chmod(0o755)
    script = re.sub(r"^cd .*$", "", script, count=1, flags=re.M)
    usual = {"PATH": "/usr/bin:/bin", "MADLITE_PYTHON": str(stand_in)}
    return subprocess.run(["bash"], input=script, cwd=folder, env={**usual, **env}, capture_output=True, text=True)


@pytest.mark.host
@each_row(("backend", "recipe"), BACKENDS)
def test_each_node_is_told_where_the_others_are(tmp_path, backend, recipe):
    made = of_nodes(backend, recipe, 2, node_rank="1", master_addr="n 0", gloo_socket_ifname="eth1")
    ran = torchrun_of(run_sh(made), tmp_path)
    assert ran.returncode == 0, ran.stderr
    words = ran.stdout.splitlines()[-2:]
    assert "--nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr n 0 --master_port 29500 " in words[0]
    assert "--standalone" not in words[0] and words[1] == "gloo eth1"


@pytest.mark.host
@each_row(("backend", "recipe"), BACKENDS)
def test_what_the_plan_leaves_open_is_the_environments(tmp_path, backend, recipe):
    script = run_sh(of_nodes(backend, recipe, 2))
    ran = torchrun_of(script, tmp_path, NODE_RANK="1", MASTER_ADDR="n0", MASTER_PORT="1234")
    assert "--nnodes 2 --node_rank 1 --master_addr n0 --master_port 1234 " in ran.stdout
    without = torchrun_of(script, tmp_path, MASTER_ADDR="n0")
    assert without.returncode != 0 and "--set node_rank=N" in without.stderr and "--nnodes" not in without.stdout


@pytest.mark.host
@each_row(("backend", "recipe"), BACKENDS)
def test_one_node_needs_nobody(tmp_path, backend, recipe):
    made = of_nodes(backend, recipe, 1)
    ran = torchrun_of(run_sh(made), tmp_path)
    assert "--standalone" in ran.stdout and "--nnodes" not in ran.stdout and "gloo lo" in ran.stdout
    assert list(backend.check(made)) == []


@each_row(
    ("changes", "word"),
    [
        ({"node_rank": ""}, "of 2 nodes none is number ''"),
        ({"node_rank": "2"}, "of 2 nodes none is number '2'"),
        ({"node_rank": "-1"}, "none is number '-1'"),
        ({"node_rank": "first"}, "none is number 'first'"),
        ({"master_addr": ""}, "2 nodes cannot meet at 'localhost'"),
        ({"master_addr": "127.0.0.1"}, "2 nodes cannot meet at '127.0.0.1'"),
        ({"master_port": "0"}, "'0' is no port"),
        ({"master_port": "65536"}, "'65536' is no port"),
        ({"master_port": "a"}, "'a' is no port"),
        ({"nnodes": -2}, "nnodes is -2"),
        ({"gloo_socket_ifname": "lo"}, "interface lo reaches no other node"),
    ],
)
def test_nodes_that_cannot_meet_are_refused(changes, word):
    good = {"node_rank": "0", "master_addr": "n0", "master_port": "29500"}
    made = of_nodes(Torchtitan(), "debug", 2, **{**good, **changes})
    (finding,) = [finding for finding in Torchtitan().check(made) if finding.fatal]
    assert word in finding.message and finding.hint.startswith("--set ")
    assert list(node_findings(of_nodes(Torchtitan(), "debug", 2, **good))) == []


def test_variables_of_the_run_or_of_the_context_say_where_nodes_meet(capsys, tmp_path, monkeypatch):
    made = of_nodes(Torchtitan(), "debug", 2)
    told = replace(made, env={**made.env, "NODE_RANK": "1", "MASTER_ADDR": "n0"})
    assert [finding.fatal for finding in Torchtitan().check(told)] == [False]
    # the context's nodes reach the plan and set goes before
    monkeypatch.chdir(tmp_path)
    context = {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "n0", "MASTER_PORT": 1234, "NCCL_SOCKET_IFNAME": "eth0"}
    made = explained(capsys, context)
    keys = ("nnodes", "node_rank", "master_addr", "master_port", "nccl_socket_ifname")
    assert [made["settings"][key] for key in keys] == [2, "1", "n0", "1234", "eth0"]
    assert made["place"]["nodes"] == 2
    other = explained(capsys, context, "--set", "nnodes=4", "--set", "master_addr=n1")
    assert other["place"]["nodes"] == 4 and other["settings"]["master_addr"] == "n1"


def test_every_node_but_the_first_is_told_of_its_row():
    made = of_nodes(Torchtitan(), "debug", 2, node_rank="1", master_addr="n0")
    (finding,) = Torchtitan().check(made)
    assert "node 1 writes a row of its own" in finding.message and "skip_perf_collection" in finding.hint
    # where the first node alone prints the others are told
    made = of_nodes(HuggingFace(), "tiny_lora", 2, node_rank="1", master_addr="n0")
    (finding,) = HuggingFace().check(made)
    assert "printed on node 0: on node 1 there will be no result" in finding.message
    assert "skip_perf_collection" in finding.hint
    # a benchmark of one node says so
    made = of_nodes(PytorchFsdp(), "mistral-7b", 2)
    assert [finding.message for finding in PytorchFsdp().check(made)] == ["the benchmark runs on one node alone"]


def explained(capsys, context: dict[str, object], *args: str):
    told = ["-c", json.dumps({"multi_node_args": context})]
    code = call(["explain", "--json", "demo_torchtitan_llama_debug", "--machine", "8xMI300X", *told, *args])
    assert code == 0
    (plan,) = json.loads(capsys.readouterr().out)
    return plan


def test_one_node_of_the_context_is_no_reason_to_refuse_an_image_s_own_script(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = json.dumps({"multi_node_args": {"NNODES": 1, "NODE_RANK": 0, "MASTER_ADDR": "localhost"}})
    args = ["pyt_train_llama-3.1-70b", "--image-release", "v25.2", "--machine", "8xMI300X", "-c", told]
    assert call(["explain", *args]) == 0
    assert "would be refused" not in capsys.readouterr().out
    two = told.replace('"NNODES": 1', '"NNODES": 2')
    assert call(["explain", *args[:-1], two]) == 0
    assert "nnodes, node_rank would not reach run_llama_train.sh" in capsys.readouterr().out.replace(
        "master_addr, ", ""
    )


@each_row(("rank", "told"), [("0", True), ("1", False)])
def test_a_pipeline_over_nodes_has_its_result_where_the_loss_is(rank, told):
    made = of_nodes(Torchtitan(), "debug", 2, node_rank=rank, master_addr="n0", pp=2)
    texts = [finding.message for finding in Torchtitan().check(made)]
    assert any("the result is printed on node 1: on node 0 there will be no result" in text for text in texts) == told
    assert not any("writes a row of its own" in text for text in texts)
