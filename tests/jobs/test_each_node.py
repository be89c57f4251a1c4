"""`run --each-node` on a real Slurm: a job of one node each, the table at the end, and the list of slow nodes."""

from __future__ import annotations

import pytest

from tests.jobs.test_real_slurm import Site
from tests.slurm_fixture import NODES

pytestmark = pytest.mark.engine
# n3 is slow, and all say where they were
SCRIPT = 'n=100\n[ "$SLURMD_NODENAME" = n3 ] && n=60\necho "on $SLURMD_NODENAME"\necho "performance: $n tok"\n'


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
    job = site.slurm.checked("sbatch", "--parsable", f"--exclude={site.folder}/slow", "--wrap", "true").strip()
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
