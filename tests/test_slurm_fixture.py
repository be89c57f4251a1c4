"""The Slurm of the tests is a real one: nodes, GPUs, several at once, ended with all that it started."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.slurm_fixture import NODES, SlurmCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.engine


def test_a_job_has_its_nodes_and_gpus(slurm: SlurmCluster) -> None:
    lines = slurm.checked(
        # on nodes whose GPUs no other test counts
        *("srun", "-wn3,n4", "-N2", "--ntasks-per-node=1", "--gres=gpu:2", "bash", "-c"),
        'echo "$SLURM_NODEID $SLURMD_NODENAME $SLURM_NNODES $ROCR_VISIBLE_DEVICES"',
    )
    of_nodes = sorted(line.split() for line in lines.splitlines())
    assert [(node, count) for node, _, count, _ in of_nodes] == [("0", "2"), ("1", "2")]
    assert {name for _, name, _, _ in of_nodes} < {*NODES}
    assert all(len(gpus.split(",")) == 2 for *_, gpus in of_nodes)


def test_what_became_of_a_job_is_known_afterwards(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nexit 3\n")
    job = slurm.batch(script, "--output", str(tmp_path / "out"))
    assert slurm.wait_for(job, "FAILED")["ExitCode"] == "3:0"
    wait_until(lambda: job in slurm.checked("sacct", "-n", "-P", "-o", "JobID"), "sacct knows the job")


@pytest.mark.full
def test_a_killed_node_fails_its_job_and_is_back_afterwards(
    own_slurm: SlurmCluster, slurm: SlurmCluster, tmp_path: Path
) -> None:
    assert own_slurm.environ["SLURM_CONF"] != slurm.environ["SLURM_CONF"]
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\necho $$ >pid\nexec sleep 600\n")
    job = own_slurm.batch(script, "--no-requeue", "--nodelist=n2", "--chdir", str(tmp_path))
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the job runs")
    own_slurm.kill("slurmd-n2")
    own_slurm.wait_for(job, "NODE_FAIL")
    assert psutil.pid_exists(int((tmp_path / "pid").read_text()))  # processes of a dead slurmd live on
    own_slurm.restart("slurmd-n2")
    assert slurm.up()
