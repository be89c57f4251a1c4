"""What a node is checked for by the task of `madlite cluster check` on it, with stand-ins for its engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.plan.cluster import Cluster
from madlite.platforms.node_check import Examination, check_node, failures, read_reports, unhealthy, write_request

pytestmark = pytest.mark.host


@pytest.fixture
def check(tmp_path: Path):
    """Return what checks nodes, each with the docker of a script, and returns which of them failed and why."""
    folder = tmp_path / "check"
    write_request(folder, Cluster(name="lab", container="docker"), "train:v1")

    def run(**scripts: str) -> dict[str, tuple[str, ...]]:
        for node, script in scripts.items():
            (tmp_path / node).mkdir()
            (tmp_path / node / "docker").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / node / "docker").chmod(0o755)
            check_node(
                folder,
                {"PATH": f"{tmp_path}/{node}:/usr/bin:/bin", "SLURMD_NODENAME": node},
                lambda health: Examination(),
            )
        return failures(read_reports(folder), [*scripts])

    return run


def test_nodes_with_one_image_in_which_a_command_runs_pass(check):
    docker = "case $1 in image) echo sha256:1;; esac"
    assert check(n1=docker, n2=docker) == {}


def test_a_node_on_which_no_container_starts_fails_and_says_why(check):
    docker = "case $1 in image) echo sha256:1;; esac"
    broken = f"{docker}; [ $1 != run ] || {{ echo 'OCI runtime: no cgroup' >&2; exit 125; }}"
    found = check(n1=docker, n2=broken)
    assert found == {"n2": ("container 'docker': bash does not run in image train:v1: OCI runtime: no cgroup",)}


def test_a_node_with_another_image_fails(check):
    images = [f"case $1 in image) echo sha256:{number};; esac" for number in (1, 1, 2)]
    assert [*check(n1=images[0], n2=images[1], n3=images[2])] == ["n3"]


def test_a_node_that_is_not_as_most_others_or_has_slow_gpus_fails(tmp_path):
    folder = tmp_path / "check"
    write_request(folder, Cluster(name="lab", container="none"), "", doctor=True, health=True)
    nodes = {f"n{n}": Examination(values={"numa_balancing": "0"}, figures={"gemm": 790.0 + n}) for n in range(4)}
    nodes["n1"] = Examination(values={"numa_balancing": "1"}, figures={"gemm": 791.0})
    nodes["n2"] = Examination(values={"numa_balancing": "0"}, figures={"gemm": 640.0})
    nodes["n3"] = Examination(problems=("gpu_count 7; right: 8 (a source)",), values={"numa_balancing": "0"})
    for node, found in nodes.items():
        check_node(folder, {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": node}, lambda health, found=found: found)
    assert failures(read_reports(folder), [*nodes]) == {
        "n1": ("numa_balancing is 1, the other nodes' 0",),
        "n2": ("gemm is slow: 640, 19 % below the median of the other nodes', 790.5",),
        "n3": ("gpu_count 7; right: 8 (a source)",),
    }


def test_of_two_nodes_that_differ_none_is_the_odd_one(tmp_path):
    folder = tmp_path / "check"
    write_request(folder, Cluster(name="lab", container="none"), "", doctor=True)
    for node, value in (("n1", "0"), ("n2", "1")):
        found = Examination(values={"numa_balancing": value})
        check_node(folder, {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": node}, lambda health, found=found: found)
    assert failures(read_reports(folder), ["n1", "n2"]) == {}


def test_a_node_that_refused_a_run_stays_so_whatever_another_run_found_there(tmp_path):
    folder, environ = tmp_path / "check", {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n1"}
    write_request(folder, Cluster(name="lab", container="none"), "", health=True)
    check_node(folder, environ, lambda health: Examination(problems=("gemm 12",)), run=1)
    check_node(folder, environ, lambda health: Examination(), run=2)
    assert unhealthy(folder) == {("n1", 1): ("gemm 12",)}
