"""cluster.toml: strict, with a suggestion for what is misspelt, and what it adds to the context of every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.jobs.file import check_shared, context_values, read_cluster
from tests.rows import each_row

GOOD = """
[clusters.lab]
gpu = "MI300X"
gpus_per_node = 8
shared = ["/shared"]
interface = "eth0"
rdma = ["mlx5_0", "mlx5_1"]
mounts = ["/shared/data:/data"]
env = {NCCL_DEBUG = "INFO", N = 3}
[clusters.lab.slurm]
partition = "gpu"
time = "1-04:00:00"
[clusters.cpu]
"""


def read(folder: Path, text: str, name: str = "lab"):
    (folder / "cluster.toml").write_text(text)
    return read_cluster(name, [folder], ["slurm"])


def test_a_cluster_has_its_machine_and_adds_variables_and_mounts(tmp_path):
    cluster = read(tmp_path, GOOD)
    assert cluster.machine == "8xMI300X"
    assert cluster.slurm.partition == "gpu"
    assert context_values(cluster) == {
        "docker_env_vars": {
            "NCCL_SOCKET_IFNAME": "eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
            "NCCL_DEBUG": "INFO",
            "N": 3,
        },
        "docker_mounts": {"/data": "/shared/data"},
    }


@each_row(
    ("interface", "gloo"),
    [("=eth0", {"GLOO_SOCKET_IFNAME": "eth0"}), ("^docker0", {}), ("eth0,eth1", {"GLOO_SOCKET_IFNAME": "eth0,eth1"})],
)
def test_an_interface_is_named_to_gloo_as_gloo_has_it(tmp_path, interface, gloo):
    cluster = read(tmp_path, f'[clusters.lab]\ninterface = "{interface}"\n')
    assert context_values(cluster) == {"docker_env_vars": {"NCCL_SOCKET_IFNAME": interface, **gloo}}


def test_devices_that_are_left_out_stay_so(tmp_path):
    cluster = read(tmp_path, '[clusters.lab]\nrdma = ["^mlx5_8", "mlx5_9"]\n')
    assert context_values(cluster) == {"docker_env_vars": {"NCCL_IB_HCA": "^mlx5_8,mlx5_9"}}


def test_nodes_without_gpus_have_no_machine_to_plan_for(tmp_path):
    assert read(tmp_path, GOOD, "cpu").machine == ""


def test_a_prologue_may_be_a_text_of_several_lines(tmp_path):
    cluster = read(tmp_path, '[clusters.lab]\nprologue = """\nmodule load rocm\nif true; then\n  A=1\nfi"""\n')
    assert cluster.prologue == ("module load rocm", "if true; then", "  A=1", "fi")


@each_row(
    ("text", "message", "hint"),
    [
        ("[clusters.lab.slurm]\npartiton='x'", "key 'slurm.partiton' is unknown", "did you mean partition?"),
        ("[clusters.lab]\ngpus_per_nod=8", "key 'gpus_per_nod' is unknown", "did you mean gpus_per_node?"),
        ("[clusters.lab]\ncontainer='dockr'", "key 'container' is wrong", "docs/cluster.md"),
        ("[clusters.lab]\nscheduler='slrum'", "scheduler 'slrum' is unknown", "did you mean slurm?"),
        ("[clusters.lab]\ngpu='MI300X'", "'gpu' without 'gpus_per_node'", "both of them"),
        ("[clusters.lab]\ngpu='MI300Y'\ngpus_per_node=8", "gpu 'MI300Y' is unknown", "did you mean MI300X?"),
        ("[clusters.lab]\nmounts=['data:/data']", "mount 'data:/data' is none", "/data:/data"),
        (
            "[clusters.lab.slurm]\nqos='q'\ntime='four hours'",
            ": [clusters.lab]: key 'slurm.time' is wrong: it is not a time as Slurm has it",
            "docs/cluster.md",
        ),
        (
            '[clusters.lab]\nprologue=["ok", "a\\nb"]',
            "[clusters.lab]: key 'prologue[1]' is wrong: it is not text on one line",
            "docs/cluster.md",
        ),
        ("[clusters.lab]\nshared='/s'", "key 'shared' is wrong: expected `array`, got `str`", "docs/cluster.md"),
        ("[clusters.lab]\ngpus_per_node=-1", "key 'gpus_per_node' is wrong: expected `int` >= 0", "docs/cluster.md"),
        ("[clusters.lab]\ngid_index='x'", "key 'gid_index' is wrong: expected `int | null`", "docs/cluster.md"),
        (
            "[clusters.lab.slurm]\nexclusive='yes'",
            "key 'slurm.exclusive' is wrong: expected `bool`, got `str`",
            "docs/cluster.md",
        ),
        ("[clusters.lab]\nslurm='x'", "key 'slurm' is wrong: expected `object`", ""),
        (
            "[clusters.lab.env]\nHF_TOKEN=['s']",
            "key 'env[...]' is wrong: expected `bool | int | float | str`, got `array`",
            "docs/cluster.md",
        ),
        ("[clusters.lab]\nkubernetes.namespace='A B'", "key 'kubernetes.namespace' is wrong: expected", "docs"),
        ("[cluster.lab]\n", "key 'cluster' is unknown", "[clusters.NAME]"),
        ("[clusters.lab", "is no TOML", ""),
        ("[clusters.lap]", "has no cluster 'lab'", "did you mean --cluster lap?"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(tmp_path, text, message, hint):
    with pytest.raises(UsageProblem) as caught:
        read(tmp_path, text)
    assert message in caught.value.message
    assert str(tmp_path / "cluster.toml") in caught.value.message
    assert hint in caught.value.hint


def test_the_first_folder_that_has_the_file_decides(tmp_path):
    for name, text in (("one", "[clusters.a]"), ("two", "[clusters.b]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster.toml").write_text(text)
    assert read_cluster("a", [tmp_path / "none", tmp_path / "one", tmp_path / "two"], ["slurm"]).name == "a"
    with pytest.raises(UsageProblem):
        read_cluster("b", [tmp_path / "one", tmp_path / "two"], ["slurm"])


def test_a_working_folder_that_nodes_do_not_see_is_refused(tmp_path):
    cluster = read(tmp_path, GOOD)
    check_shared(cluster, Path("/shared/me"))
    with pytest.raises(UsageProblem, match="no shared folder"):
        check_shared(cluster, Path("/sharedness"))
