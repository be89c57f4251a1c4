"""Which node of several a plan is for, by whatever started it, and what it then has of the network."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.machine.host_facts import Fabric, RdmaPort
from madlite.model import Card, Machine, RunSpec, Traits
from madlite.plan.context import Options
from madlite.plan.inputs import expand_hosts, find_node_values, is_task_of_several, split_hosts
from madlite.plan.make import make_plan
from madlite.plan.place import RuntimeChoice
from madlite_plugins.nodes import NODE_SETTINGS
from tests.plan.conftest import rendered_draft
from tests.rows import each_row

STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "gpu[03,07]",
    "SLURM_NODEID": "1",
}
OWN = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
FABRIC = Fabric(
    ports=(RdmaPort(device="mlx5_0", port=1, gbit_per_s=400.0, is_roce=True, gid_index=3),), interface="ens1"
)


@each_row(
    ("environ", "values"),
    [
        ({}, {}),
        ({"NNODES": "1", "NODE_RANK": "0"}, {}),
        ({"NODE_RANK": "1", "MASTER_ADDR": "node0"}, {}),
        ({"NNODES": "two"}, {}),
        (OWN, OWN),
        ({**OWN, "MASTER_PORT": "6006"}, {**OWN, "MASTER_PORT": "6006"}),
        (STEP, {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "gpu03"}),
        ({**STEP, "MASTER_ADDR": "10.0.0.1"}, {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}),
        # a batch script that exports its own number: the step's tasks all have it
        ({**STEP, "NODE_RANK": "0"}, {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "gpu03"}),
        ({**STEP, "SPUR_PEER_NODES": "a:6818,b:6818"}, {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a"}),
        # an allocation, or a shell in it, is no step of several
        ({**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, {}),
        ({"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "0"}, {}),
        (
            {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            {"NNODES": "4", "NODE_RANK": "3"},
        ),
        ({"PMI_SIZE": "2", "PMI_RANK": "0", "MASTER_ADDR": "a"}, {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "a"}),
        (
            {"PET_NNODES": "2:4", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-0", "PET_MASTER_PORT": "29400"},
            {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "job-0", "MASTER_PORT": "29400"},
        ),
        (
            {"NNODES": "2", "MASTER_ADDR": "job-0.job", "JOB_COMPLETION_INDEX": "1"},
            {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "job-0.job"},
        ),
    ],
)
def test_the_node_values_are_those_of_what_started_it(environ: dict[str, str], values: dict[str, str]):
    found = find_node_values(environ)
    assert found.variables == values and found.nnodes == int(values.get("NNODES", 0))


@each_row(
    "environ",
    [
        {**STEP, "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
        {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        {"PMI_SIZE": "16", "PMI_RANK": "3", "MPI_LOCALNRANKS": "8"},
    ],
)
def test_a_madlite_for_each_rank_is_refused(environ: dict[str, str]):
    with pytest.raises(UsageProblem, match="several processes of madlite on a node"):
        find_node_values(environ)


@each_row(
    ("host_list", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("b,a", ["b", "a"]),
        ("n[001-003,007]", ["n001", "n002", "n003", "n007"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("gpu[03,07-08],x", ["gpu03", "gpu07", "gpu08", "x"]),
        ("rack1-n[01-02]-ib", ["rack1-n01-ib", "rack1-n02-ib"]),
        ("r[1-2]n[04-5]", ["r1n04", "r1n05", "r2n04", "r2n05"]),
        ("n[2-1],m[a]", ["n[2-1]", "ma"]),  # no name of a node: who uses it says so
        ("n[1,2", ["n[1", "2"]),
    ],
)
def test_a_host_list_has_its_names_in_slurm_s_order(host_list: str, names: list[str]):
    assert [*expand_hosts(host_list)] == names


MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


def test_what_started_it_counts_its_nodes():
    # Its daemons are a step on all nodes but the first, which has no step
    for environ, rank in (({**STEP, **MPI}, "1"), ({"SLURM_JOB_NUM_NODES": "3", **MPI, MPI_RANK: "0"}, "0")):
        assert find_node_values(environ).variables == {"NNODES": "3", "NODE_RANK": rank}
        assert is_task_of_several(environ)
    # ranks that srun starts by pmi on one node are no nodes
    environ = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "8", "PMI_SIZE": "8", "PMI_RANK": "3"}
    assert find_node_values(environ).nnodes == 0
    # the commas within brackets separate no hosts
    assert split_hosts("n[1,3], m[1,3],x") == ["n[1,3]", "m[1,3]", "x"]


MPI_RANK = "OMPI_COMM_WORLD_RANK"


@pytest.fixture
def planned(given, tmp_path: Path):
    def plan(environ: dict[str, str], runtime: RuntimeChoice | None = None, settings: dict | None = None, **more):
        nodes = more.pop("nodes", 0)
        options = Options(workspace=tmp_path, output=tmp_path / "perf.csv", environ=environ, nodes=nodes)
        settings = {**NODE_SETTINGS, **(settings or {})}
        choice = runtime or RuntimeChoice(runtime="docker", origin="default")
        return make_plan(
            given(
                options=options, runtime=choice, **{"spec": rendered_draft(settings=settings), "fabric": FABRIC, **more}
            )
        )

    return plan


def test_a_plan_of_a_step_has_its_nodes_and_the_network_between_them(planned):
    # a plan of a step has its nodes rank and address with their origin
    plan = planned(STEP)
    assert plan.place.nodes == 2 and not plan.place.whole
    assert (plan.settings["node_rank"], plan.settings["master_addr"]) == ("1", "gpu03")
    assert plan.origins["settings.node_rank"] == plan.origins["env.NODE_RANK"] == "Slurm step 77.2"
    plan = planned(OWN)
    own = {name: plan.env[name] for name in FABRIC.variables}
    assert own == FABRIC.variables and plan.origins["env.NCCL_IB_HCA"] == "found on this machine"
    assert plan.env["NCCL_DEBUG"] == "INFO"  # so that the log tells which network is used
    assert any("between the 2 nodes: RoCE by mlx5_0:1" in note for note in plan.notes)
    assert not {*FABRIC.variables} & {*planned({}).env}
    # a plan without gpus has the interface alone
    env = planned(OWN, machine=Machine()).env
    assert env["GLOO_SOCKET_IFNAME"] == "ens1" and "NCCL_IB_HCA" not in env and "NCCL_DEBUG" not in env
    # of a runtime with nodes of its own the environment says nothing
    plan = planned(OWN, ELSEWHERE)
    assert plan.place.nodes == 1 and plan.settings["node_rank"] == ""
    plan = planned({}, ELSEWHERE, {"nnodes": 2})
    assert plan.place.whole and "NCCL_IB_HCA" not in plan.env  # this machine may have no part in it
    plan = planned({"SLURMD_NODENAME": "n1"}, ELSEWHERE, {"nnodes": 2})
    assert plan.env["NCCL_IB_HCA"] == "=mlx5_0:1"
    # a network that cannot be one's own is left out
    assert "NCCL_IB_HCA" not in planned(OWN, fabric=None).env
    assert replace(FABRIC, ports=()).variables == {"NCCL_SOCKET_IFNAME": "=ens1", "GLOO_SOCKET_IFNAME": "ens1"}


@each_row(
    ("environ", "name", "value"),
    [
        ({"NCCL_IB_HCA": "mlx5_7"}, "NCCL_IB_HCA", "mlx5_7"),
        ({"NCCL_IB_HCA": "mlx5_7"}, "NCCL_IB_GID_INDEX", None),  # the index is that of other devices
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "NCCL_SOCKET_IFNAME", "ib0"),
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_HCA", None),
        ({"NCCL_DEBUG": "WARN"}, "NCCL_DEBUG", "WARN"),
    ],
)
def test_what_the_user_has_set_of_it_stays(planned, environ: dict[str, str], name: str, value: str | None):
    assert planned({**OWN, **environ}).env.get(name) == value


ELSEWHERE = RuntimeChoice(runtime="lan", origin="--runtime", traits=Traits(local=False))


def test_a_script_of_mad_gets_the_launcher_of_all_nodes(planned, tmp_path: Path):
    script = Card(name="own", root=tmp_path, source="models.json", n_gpus="8", scripts="scripts/run.sh")
    more = {"card": script, "spec": RunSpec()}
    mine = planned({**OWN, "MASTER_PORT": "6006"}, **more)
    assert mine.place.nodes == 2
    assert mine.env["MAD_MULTI_NODE_RUNNER"] == (
        "torchrun --nnodes=2 --node_rank=1 --master_addr=node0 --master_port=6006 --nproc_per_node=8"
    )
    unmet = planned({"NNODES": "2"}, **more)
    assert "--standalone" in unmet.env["MAD_MULTI_NODE_RUNNER"]
    assert any("without NODE_RANK and MASTER_ADDR" in note for note in unmet.notes)
    theirs = planned({}, ELSEWHERE, nodes=2, **more)  # each node fills in its own
    assert theirs.env["MAD_MULTI_NODE_RUNNER"] == (
        "torchrun --nnodes=2 --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT "
        "--nproc_per_node=8"
    )
