"""What a node is checked for by the task of `madlite cluster check` on it, with stand-ins for its engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.plan.cluster import Cluster
from madlite.platforms.slurm.node_check import check_node, failures, read_reports, write_request

pytestmark = pytest.mark.host


@pytest.fixture
def check(tmp_path: Path):
    """Return what checks nodes, each with the docker of a script, and returns which of them failed and why."""
    folder = tmp_path / "check"
    request = write_request(folder, Cluster(name="lab", container="docker"), "train:v1")

    def run(**scripts: str) -> dict[str, tuple[str, ...]]:
        for node, script in scripts.items():
            (tmp_path / node).mkdir()
            (tmp_path / node / "docker").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / node / "docker").chmod(0o755)
            check_node(folder, {"PATH": f"{tmp_path}/{node}:/usr/bin:/bin", "SLURMD_NODENAME": node})
        return failures(read_reports(folder, request), [*scripts])

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
