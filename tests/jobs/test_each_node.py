"""`run --each-node` on a real Slurm: a job of one node each, the table at the end, and the list of slow nodes."""

from __future__ import annotations

import sys

import pytest

from tests.jobs.test_real_slurm import Site
from tests.slurm_fixture import NODES
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
# n3 is slow, and all say where they were
SCRIPT = 'n=100\n[ "$SLURMD_NODENAME" = n3 ] && n=60\necho "on $SLURMD_NODENAME"\necho "performance: $n tok"\n'


# a stand-in of the checks: madlite on the nodes, of which those that are named, or else the first to be checked, are
# slow at GEMM: which node Slurm gives first depends on what else runs there
STAND_IN = """#!{python}
import os
from pathlib import Path
from madlite.__main__ import entry
from madlite.cli import submit
from madlite.platforms.node_check import Examination
node, first = os.environ["SLURMD_NODENAME"], Path({folder!r}, "first")
if not first.exists():
    first.write_text(node)
slow = node in ({nodes!r} or [first.read_text()])
submit._examine_node = lambda health: Examination(problems=("gemm 12 TFLOP/s; right: 500",) if slow and health else ())
entry()
"""


@pytest.fixture
def site(tmp_path, slurm):
    site = Site(tmp_path, slurm)
    (site.folder / "scripts/a/run.sh").write_text(SCRIPT)
    return site


def test_every_node_runs_by_itself_and_the_slow_one_is_named_and_listed(site):
    words = ("run", "--cluster", "lab", "--tags", "a", "--each-node", "--exclude-list", "slow")
    code, out = site.call(*words)
    assert code == 0, out
    logs = [file.read_text() for file in site.folder.glob("madlite_runs/*/run.log")]
    assert sorted(line for log in logs for line in log.splitlines() if line.startswith("on ")) == [
        f"on {node}" for node in NODES
    ]
    assert "n3 60 60.0 % 1 of 1 run <- 60 tok, 40 % below the median of the other nodes', 100" in " ".join(out.split())
    assert "to leave out: --exclude n3" in out
    assert sorted(row["performance"] for row in site.rows()) == ["100", "100", "100", "60"]
    assert (site.folder / "slow").read_text() == "n3  # 60 tok, 40 % below the median of the other nodes', 100\n"
    # the file is one that sbatch takes, and the table is there again
    job = site.slurm.checked(
        "sbatch", "--parsable", "--output=/dev/null", f"--exclude={site.folder}/slow", "--wrap", "true"
    ).strip()
    assert site.slurm.job(job)["ExcNodeList"] == "n3"
    assert "to leave out: --exclude n3" in site.call("runs", "--of", site.submission())[1]


def test_nodes_of_a_list_run_as_often_as_asked_and_excluded_ones_do_not(site):
    (site.folder / "slow").write_text("n3  # as --exclude-list writes it\n")
    words = ("--tags", "a", "--each-node=n[1-3]", "--exclude", "./slow", "--repeat", "2")
    code, out = site.call("run", "--cluster", "lab", *words)
    assert code == 0, out
    assert "n3 has no run: it is excluded" in out
    where = [line for file in site.folder.glob("madlite_runs/*/run.log") for line in file.read_text().splitlines()]
    assert sorted(line for line in where if line.startswith("on ")) == ["on n1", "on n1", "on n2", "on n2"]
    assert "n1 100 100.0 % 2 of 2 runs" in " ".join(out.split())
    assert "2 nodes: none is named as slow of fewer than 4" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--each-node=n1,n9",), "--each-node n1,n9: n9 is none of the cluster's 4 nodes"),
        (("--each-node", "--nodes", "2"), "--each-node beside --nodes"),
        (("--exclude-list", "slow"), "--exclude-list without --each-node"),
    ],
)
def test_what_says_nothing_of_each_node_is_refused(site, words, said):
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", *words)
    assert code == 4 and said in out
    assert not list(site.folder.glob("madlite_runs/jobs-*"))


def with_health(site: Site, *nodes: str) -> None:
    """Let the cluster check the nodes of jobs, of which these fail; where none is named the first one does."""
    stand_in = site.folder / "checked"
    stand_in.write_text(STAND_IN.format(python=sys.executable, folder=str(site.folder), nodes=nodes))
    stand_in.chmod(0o755)
    lab = f'[clusters.lab]\nhealth = true\nmadlite = "{stand_in}"\n[clusters.lab.slurm]\nexclusive = false\n'
    (site.folder / "cluster.toml").write_text(lab)


def outputs(site: Site) -> str:
    """Return where runs were."""
    logs = [file.read_text().splitlines() for file in site.folder.glob("madlite_runs/*/run.log")]
    return " ".join(sorted(line for log in logs for line in log if line.startswith("on ")))


def test_a_job_on_a_sick_node_is_refused_and_its_run_begins_elsewhere(site):
    with_health(site)
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--exclude", "n2")
    assert code == 0, out
    sick = (site.folder / "first").read_text()
    assert f"node {sick} fails its check: gemm 12 TFLOP/s; right: 500" in out and "it begins elsewhere as job" in out
    assert outputs(site) in {"on n1", "on n3", "on n4"} - {f"on {sick}"}, "what the command excludes stays so"
    assert [row["status"] for row in site.rows()] == ["SUCCESS"]


def test_a_run_that_is_refused_by_every_node_says_so_in_its_row(site):
    with_health(site, "n1", "n2", "n3", "n4")
    code, out = site.call("run", "--cluster", "lab", "--tags", "a")
    assert code == 3, out
    (record,) = site.records()
    assert (record["status"], record["cause"]) == ("FAILURE", "node_failed")
    assert "fails its check: gemm 12 TFLOP/s" in record["reason"] and not outputs(site)


def test_of_each_node_the_sick_one_has_a_row_that_says_why_and_is_left_out(site):
    with_health(site, "n2")
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--each-node", "--exclude-list", "bad")
    assert code == 3, out
    assert outputs(site) == "on n1 on n3 on n4"
    assert (site.folder / "bad").read_text() == "n2  # failed: node_failed\n", (
        "three numbers are too few for a slow one"
    )
    assert sorted(row["status"] for row in site.rows()) == ["FAILURE", "SUCCESS", "SUCCESS", "SUCCESS"]


def test_what_was_refused_while_nobody_followed_begins_elsewhere_once_somebody_looks(site):
    with_health(site)
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--detach")[0] == 0
    wait_until(lambda: not site.jobs(), "the job is over")
    site.call("runs", "collect")
    site.collected(1)
    sick = (site.folder / "first").read_text()
    assert outputs(site) in {f"on {node}" for node in NODES if node != sick}
