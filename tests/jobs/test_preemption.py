"""Runs whose jobs a real Slurm preempts: the workload is told, the job is queued again, and the run has one row."""

from __future__ import annotations

import json
import re
from pathlib import Path

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
RETRIES = "3"  # one is for the preemption; Slurm may queue a job again that a busy machine launched too late
# it keeps its steps where the next attempt finds them, and ends by itself once it is told
SCRIPT = """
steps={folder}/steps
trap 'echo "saved at $(wc -l <$steps)"; exit 3' USR1
echo "began with $(cat $steps | wc -l)"
[ -s $steps ] && echo performance: 7 tok && exit
for _ in {{1..3000}}; do echo >>$steps; sleep 0.1; done
"""


class PreemptedSite(Site):
    """A working folder whose card `a` trains until another job takes its node."""

    def preempt(self, *words: str, tag: str = "a", begun: str = "steps") -> tuple[int, str]:
        """Run a card, let another job take all nodes once it has written a file, and return how the command ended."""
        (self.folder / "scripts/a/run.sh").write_text(SCRIPT.format(folder=self.folder))
        started = self.start("run", "--tags", tag, *words)
        wait_until(lambda: [*self.folder.glob(begun)], "the run has begun")
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
    code, out = site.preempt("--cluster", "warns", "--retry", RETRIES)
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


@pytest.mark.full
def test_a_run_that_a_preemption_ends_is_tried_again_and_both_records_say_so(site):
    code, out = site.preempt("--cluster", "brief", "--retry", RETRIES)
    assert code == 0, out
    (row,) = site.rows()
    assert (row["status"], row["performance"]) == ("SUCCESS", "7")
    first, second = site.records()
    assert first["cause"] == "preempted" and first["reason"].startswith("the job was queued again"), first["reason"]
    assert [one["cause"] for one in second["attempt"]["earlier"]] == ["preempted"]
    assert f"attempt 2, after {first['id']} [preempted]" in second["findings"]


@pytest.mark.training
@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_real_training_goes_on_from_its_checkpoint_after_a_preemption(site):
    card = {"name": "ddp", "backend": "torchrun", "recipe": "ddp_tiny", "n_gpus": "-1", "runtimes": ["host"]}
    (site.folder / "models.json").write_text(json.dumps([card]))
    sets = ("nproc_per_node=1", "checkpoint=true", "checkpoint_interval=5")
    words = (
        "--cluster",
        "warns",
        "--retry",
        RETRIES,
        "--steps",
        "40",
        *(word for text in sets for word in ("--set", text)),
    )
    code, out = site.preempt(*words, tag="ddp", begun="madlite_runs/2*/checkpoint/10/.metadata")
    assert code == 0, out
    (row,) = site.rows()
    first, second = site.records()
    assert (row["status"], first["cause"], second["attempt"]["number"]) == ("SUCCESS", "preempted", 2)
    before, after = (steps_of(site.folder / f"madlite_runs/{record['id']}/run.log") for record in (first, second))
    saved = min(after) - 1
    assert saved >= 10 and saved % 5 == 0 and max(after) == 40 and saved in before
    assert (
        f"measured in parts: the log begins with step {saved + 1}, and has none of steps 1 to {saved}"
        in second["findings"]
    )
    assert f"steps 1 to {saved} were trained by {first['id']} [preempted]" in second["findings"]
    assert second["window"]["first_step"] == saved + 6
    assert after[saved + 1] < before[1] - 0.3, "its weights are those of the checkpoint"
    folders = [
        record["id"] for record in (first, second) if [*site.folder.glob(f"madlite_runs/{record['id']}/checkpoint")]
    ]
    assert folders == [second["id"]]


def steps_of(log: Path) -> dict[int, float]:
    """Return the loss of each step of a log."""
    return {int(n): float(loss) for n, loss in re.findall(r'"step": (\d+), "loss": ([\d.]+)', log.read_text())}
