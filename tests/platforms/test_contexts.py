"""Contexts and manifests of madengine 2 that ask for Slurm: a cluster of their own, or over one of the cluster file."""

from __future__ import annotations

import json

import pytest

from madlite.errors import UsageProblem
from madlite.plan.cluster import Cluster, SlurmSettings
from madlite.plan.context import read_context
from madlite.platforms.contexts import Deployment, target_of
from madlite.platforms.registry import direct_values, translate
from tests.rows import each_row

SLURM = {
    "partition": "p",
    "nodes": 2,
    "gpus_per_node": 4,
    "time": "12:00:00",
    "exclusive": False,
    "modules": ["rocm", "ucx"],
    "nodelist": "n1,n2",
    "exclude": ["n3"],
    "constraint": "c",
    "qos": "q",
    "account": "a",
    "reservation": "r",
    "network_interface": "ib0",
}

NOBODY = {"PATH": "/nonexistent"}  # where no command of Slurm answers


def context(**values):
    return read_context(None, json.dumps(values))


def test_every_key_that_asks_for_something_is_taken_over():
    to = translate(context(slurm=SLURM, device="MI300X"), {}, None, NOBODY)
    assert to.cluster == Cluster(
        name="context",
        source="context",
        gpu="MI300X",
        gpus_per_node=4,
        container="docker",  # on each of several nodes, as madengine's jobs run it
        interface="ib0",
        prologue=("module load rocm", "module load ucx"),
        slurm=SlurmSettings(
            partition="p",
            account="a",
            qos="q",
            reservation="r",
            constraint="c",
            time="12:00:00",
            exclusive=False,
            nodelist=("n1", "n2"),
            exclude=("n3",),
        ),
    )
    assert to.nodes == 2
    assert to.notes == ()


def test_a_context_goes_over_the_cluster_of_the_file():
    base = Cluster(name="lab", gpu="MI325X", gpus_per_node=8, slurm=SlurmSettings(partition="x", exclude=("n9",)))
    to = translate(context(slurm={"partition": "p", "exclude": "n3"}), {}, base, NOBODY)
    assert (to.cluster.gpu, to.cluster.slurm.partition) == ("MI325X", "p")
    assert to.cluster.slurm.exclude == ("n9", "n3")


def test_variables_of_the_runs_come_from_env_vars_and_distributed():
    given = context(slurm={"gpus_per_node": 0}, env_vars={"A": 1}, distributed={"backend": "nccl", "port": 29501})
    assert translate(given, {}, None, NOBODY).values == {
        "docker_env_vars": {"DISTRIBUTED_BACKEND": "nccl", "MASTER_PORT": "29501", "A": "1"}
    }


def test_what_distributed_says_of_primus_becomes_its_variables():
    primus = {"config_path": "examples/x.yaml", "cli_extra": "--a 1", "backend": "megatron"}
    to = translate(context(slurm={"gpus_per_node": 0}, distributed={"primus": primus}), {}, None, NOBODY)
    assert to.values["docker_env_vars"] == {
        "PRIMUS_CONFIG_PATH": "examples/x.yaml",
        "PRIMUS_CLI_EXTRA": "--a 1",
        "BACKEND": "megatron",
    }
    assert to.notes == ()


def test_a_manifest_s_deployment_is_below_the_context():
    deployment = {"target": "slurm", "slurm": {"partition": "m", "nodes": 4}, "env_vars": {"A": "m"}}
    assert target_of(context(), deployment) == "slurm"
    to = translate(context(device="MI300X", slurm={"partition": "c"}), deployment, None, NOBODY)
    assert (to.cluster.slurm.partition, to.nodes) == ("c", 4)
    assert target_of(context(), {"target": "local"}) == "local"


def test_keys_without_a_meaning_are_named():
    given = context(slurm={"partitoin": "p", "output_dir": "o"}, distributed={"port_": 1}, device="MI300X")
    notes = " | ".join(translate(given, {}, None, NOBODY).notes)
    assert "'slurm.partitoin' has no effect; did you mean slurm.partition?" in notes
    assert "'slurm.output_dir' has no effect: " in notes
    assert "'distributed.port_' has no effect; did you mean distributed.port?" in notes


@each_row(
    ("values", "words"),
    [
        ({"slurm": {"nodes": "two"}, "device": "MI300X"}, "'slurm.nodes' is 'two'"),
        ({"slurm": {"modules": ["a\nb"]}, "device": "MI300X"}, "several lines"),
        ({"slurm": {"exclusive": "false"}, "device": "MI300X"}, "'slurm.exclusive' is 'false', no true or false"),
        ({"slurm": {"time": 3.5}, "device": "MI300X"}, "'slurm.time' is '3.5'"),
    ],
)
def test_what_cannot_be_used_is_refused(values, words):
    with pytest.raises(UsageProblem, match=words):
        translate(context(**values), {}, None, NOBODY)


@each_row(
    ("size", "quantity"),
    [("64G", "64Gi"), ("64gb", "64Gi"), ("8m", "8Mi"), ("1024", "1024"), ("64Gi", "64Gi"), ("x", "x")],
)
def test_sizes_of_shared_memory_are_dockers(size, quantity):
    pods = direct_values(context(k8s={"memory": "1Gi"}, SHM_SIZE=size), {})
    assert pods.values["k8s"]["shm_size"] == quantity


def test_a_switched_off_table_is_named():
    for key in ("slurm", "k8s"):
        asked = context(**{key: {"gpu_count": 1}, "distributed": {"launcher": "torchrun", "enabled": False}})
        deployment = Deployment.read(asked, {}, key)
        assert deployment.variables(with_port=False)["distributed"] == {"launcher": "torchrun"}
        (note,) = deployment.notes()
        assert "'distributed.enabled' has no effect" in note
    plain = Deployment.read(context(slurm={}, distributed={"launcher": "torchrun", "enabled": True}), {}, "slurm")
    assert plain.variables(with_port=False) and list(plain.notes()) == []
