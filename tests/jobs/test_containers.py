"""Runs in containers, planned on the login node and started by jobs of a real Slurm on a real Docker Engine."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from tests.jobs.test_real_slurm import Site

pytestmark = pytest.mark.engine
SCRIPT = 'test -e /.dockerenv && echo "in a container of $NODE_RANK"\necho performance: 12.5 tok\n'


@pytest.fixture
def site(tmp_path, slurm, engine):
    made = Site(tmp_path, slurm)
    (tmp_path / "scripts/a/run.sh").write_text(SCRIPT)
    card = {"name": "a", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"]}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    prologue = f'prologue = ["export DOCKER_HOST={engine}"]'
    (tmp_path / "cluster.toml").write_text(
        f'[clusters.lab]\ncontainer = "docker"\n{prologue}\n[clusters.lab.slurm]\nexclusive = false\n'
        f'[clusters.nosuch]\ncontainer = "apptainer"\n{prologue}\n[clusters.nosuch.slurm]\nexclusive = false\n'
    )
    return made


def containers(engine: str, run_id: str) -> str:
    return subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"label=madlite.run={run_id}"],
        env={**os.environ, "DOCKER_HOST": engine},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_job_s_run_is_in_a_container_of_the_flavour_of_the_cluster_file(site, engine, base_image, nodes):
    code, out = site.call("run", "--cluster", "lab", "--nodes", str(nodes), "--tags", "a", "--image", base_image)
    (record,) = site.records()
    log = (site.folder / f"madlite_runs/{record['id']}/run.log").read_text()
    assert code == 0, out + log
    assert log.count("in a container of") == nodes
    assert record["image"]["id"].startswith("sha256:")
    (row,) = site.rows()
    assert (row["status"], row["nnodes"], row["deployment_type"]) == ("SUCCESS", str(nodes), "slurm")
    assert containers(engine, record["id"]) == "", "a container is left"


def test_an_image_that_no_node_has_is_a_row_with_one_sentence(site):
    code, out = site.call("run", "--cluster", "lab", "--nodes", "2", "--tags", "a", "--image", "localhost:1/absent:v1")
    assert code == 3 and "localhost:1/absent:v1" in out and "Traceback" not in out, out
    assert [row["status"] for row in site.rows()] == ["FAILURE"]


def test_the_check_compares_images_and_names_a_flavour_that_is_not_there(site, base_image):
    code, out = site.call("cluster", "check", "lab", "--nodes", "2", "--image", base_image)
    assert code == 0, out
    digests = re.findall(r"^n\d: passed, image (sha256:\w+)$", out, re.MULTILINE)
    assert len(digests) == 2 and len(set(digests)) == 1, out
    code, out = site.call("cluster", "check", "lab", "--nodes", "1", "--image", "localhost:1/absent:v1")
    assert code == 6 and "image localhost:1/absent:v1 is not here" in out, out
    code, out = site.call("cluster", "check", "nosuch", "--nodes", "1")
    assert code == 6 and "apptainer is not installed" in out, out
