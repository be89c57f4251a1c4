"""What each node of a run has of its own: Slurm's variables, a log, and the cause where it fails."""

from __future__ import annotations

import re

import pytest

from tests.engine.test_slurm_runtime import SECRET, Site

pytestmark = pytest.mark.engine
SCRIPT = """
echo "$SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURMD_NODENAME=$NODE_RANK \
of $SLURM_NTASKS on $SLURM_NNODES: $SLURM_STEP_NODELIST"
echo "token $HF_TOKEN of $NODE_RANK" >&2
if [ "$NODE_RANK" = "${FAILS:-none}" ]; then
  python3 -c 'import os, signal, sys
print("step 1", flush=True)
if sys.argv[1:] == ["signal"]: os.kill(os.getpid(), signal.SIGSEGV)
raise RuntimeError("lost on purpose")' $HOW
  exit $?
fi
[ "${FAILS:-none}" = none ] || sleep 600
[ "$NODE_RANK" != 0 ] || echo "performance: 12.5 tok"
"""


@pytest.fixture
def site(tmp_path, slurm):
    made = Site(tmp_path, slurm)
    (tmp_path / "scripts/a/run.sh").write_text(SCRIPT)
    return made


def test_each_node_has_slurm_s_variables_and_a_masked_log_of_its_own(site):
    code, out = site.call(3, "--nodes", "2")
    assert code == 0, out
    given = re.search(r" on 2: (n\d),(n\d)\n", (site.run / "run.node0.log").read_text())  # the free ones of three
    assert given is not None and given[1] < given[2]
    for rank, name in enumerate(given.groups()):
        log = (site.run / f"run.node{rank}.log").read_text()
        assert f"{rank} {rank} 0 {name}={rank} of 2 on 2: {given[1]},{given[2]}\n" in log, log
        assert f"token *** of {rank}\n" in log and SECRET not in log
        assert f"[node{rank}]: {log.splitlines()[0]}\n" in site.log()
        assert "[node" not in log and f"of {1 - rank}\n" not in log
    assert len([*site.run.glob("run.node*.log")]) == 2


def test_the_cause_is_the_traceback_of_the_node_that_failed_and_srun_names_its_task(site):
    code, out = site.call(2, "--set", "env.FAILS=1", "--set", "stop_grace_s=2", named="n1,n2")
    assert code == 3, out
    record = site.record()
    assert record["evidence"] == record["diagnosis"]["line"] == "RuntimeError: lost on purpose"
    assert "exit code 1 on node 1 (n2)" in record["reason"]
    assert "[node1]: srun: error: n2: task 1: Exited with exit code 1" in site.log()


def test_a_signal_that_ends_a_node_s_rank_is_told_of_that_node(site):
    words = ("--set", "env.FAILS=1", "--set", "env.HOW=signal", "--set", "stop_grace_s=2")
    code, out = site.call(2, *words, named="n1,n2")
    assert code == 3, out
    record = site.record()
    assert "on node 1 (n2)" in record["reason"] and record["cause"] == "crash"
    assert "Segmentation fault" in record["evidence"]
