"""Runs whose jobs a real Slurm preempts: the workload is told, the job is queued again, and the run has one row."""

from __future__ import annotations

import json

import pytest

from tests.jobs.test_real_slurm import Site
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
CLUSTERS = """
[clusters.brief.slurm]
partition = "brief"
[clusters.warns.slurm]
partition = "grace"
signal = "USR1@60"
time = "20"
"""
# it keeps its steps where the next attempt finds them, and ends by itself once it is told
SCRIPT = """
steps={folder}/steps
trap 'echo "saved at $(wc -l <$steps)"; exit 3' USR1
echo "began with $(cat $steps | wc -l)"
[ -s $steps ] && echo performance: 7 tok && exit
for _ in {{1..900}}; do echo >>$steps; sleep 0.1; done
"""


class PreemptedSite(Site):
    """A working folder whose card `a` trains until another job takes its node."""

    def preempt(self, *words: str) -> tuple[int, str]:
        """Run the card, let another job take all nodes meanwhile, and return how the command ended."""
        (self.folder / "scripts/a/run.sh").write_text(SCRIPT.format(folder=self.folder))
        started = self.start("run", "--tags", "a", *words)
        wait_until(lambda: (self.folder / "steps").exists(), "the run has begun")
        (job,) = self.jobs()
        self.slurm.checked("srun", "-p", "urgent", "-N4", "--exclusive", "true")
        wait_until(lambda: self.slurm.job(job)["JobState"] != "COMPLETING", "the job has left its node")
        if self.slurm.job(job)["JobState"] == "PENDING":  # Slurm would let it wait for two minutes
            self.slurm.checked("scontrol", "update", f"JobId={job}", "StartTime=now")
        out, _ = started.communicate(timeout=280)
        return started.returncode, out


@pytest.fixture
def site(tmp_path, preempting_slurm):
    site = PreemptedSite(tmp_path, preempting_slurm)
    (site.folder / "cluster.toml").write_text(CLUSTERS)
    return site


def test_a_workload_that_ends_at_the_signal_before_a_preemption_goes_on_in_the_job_s_next_try(site):
    code, out = site.preempt("--cluster", "warns", "--retry", "1")
    assert code == 0, out
    (row,) = site.rows()
    assert (row["status"], row["performance"]) == ("SUCCESS", "7")
    first, second = site.records()
    assert (first["cause"], first["rows"], first["attempt"]["next"]) == ("preempted", None, second["id"])
    assert "was preempted at" in first["reason"] and "exit code 3" in first["reason"], first["reason"]
    assert second["attempt"]["number"] == 2
    assert second["attempt"]["earlier"] == [{"run": first["id"], "cause": "preempted", "micro_batch": None}]
    saved = (site.folder / f"madlite_runs/{first['id']}/run.log").read_text()
    assert "began with 0" in saved and "saved at" in saved, saved
    assert site.call("clean")[0] == 0 and len(site.collected(1)) == 1


def test_without_retry_what_ends_at_the_signal_is_a_failure_that_names_the_preemption(site):
    code, out = site.preempt("--cluster", "warns")
    assert code == 3, out
    (row,), (record,) = site.rows(), site.records()
    assert (row["status"], record["cause"], record["attempt"]) == ("FAILURE", "preempted", None), record["reason"]
    assert "--retry N" in json.dumps(record["diagnosis"])


def test_a_run_that_a_preemption_ends_is_tried_again_and_both_records_say_so(site):
    code, out = site.preempt("--cluster", "brief", "--retry", "1")
    assert code == 0, out
    (row,) = site.rows()
    assert (row["status"], row["performance"]) == ("SUCCESS", "7")
    first, second = site.records()
    assert first["cause"] == "preempted" and first["reason"].startswith("the job was queued again"), first["reason"]
    assert [one["cause"] for one in second["attempt"]["earlier"]] == ["preempted"]
    assert f"attempt 2, after {first['id']} [preempted]" in second["findings"]
