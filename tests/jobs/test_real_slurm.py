"""Runs as jobs of a real Slurm: whatever becomes of the jobs and of what submitted them, each run has one row."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests import commands
from tests.csv_rows import perf_rows
from tests.engine.test_retry import PATTERN, STAND_IN, TRAINING
from tests.killing import KILL_AT
from tests.slurm_fixture import SlurmCluster
from tests.tiers import first_of
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
# files of jobs are at once in a folder of this machine
PAUSES = {"madlite.jobs.job.POLL_S": 1.0, "madlite.jobs.job.GRACE_S": 1.0, "madlite.jobs.follow.TICK_S": 0.2}
SECRET = "hf_thisIsNoRealTokenButLooksLikeOne1234"
CLUSTERS = """
[clusters.lab.slurm]
exclusive = false
[clusters.single.slurm]
exclusive = false
max_array_size = 2
[clusters.warns.slurm]
exclusive = false
time = "60"
signal = "USR1@110"
[clusters.short.slurm]
exclusive = false
time = "1"
[clusters.large.slurm]
directives = ["--nodes=9"]
[clusters.nowhere.slurm]
partition = "nowhere"
"""


class Site:
    """A working folder on the login node of a cluster, with the cards a and b, whose script sleeps for $SLEEP."""

    def __init__(self, folder: Path, slurm: SlurmCluster) -> None:
        self.folder, self.slurm, self.pauses = folder, slurm, PAUSES
        (folder / "scripts/a").mkdir(parents=True)
        (folder / "scripts/a/run.sh").write_text("sleep ${SLEEP:-0}\necho performance: 12.5 tok\n")
        (folder / "cluster.toml").write_text(CLUSTERS)
        common = {"scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"]}
        (folder / "models.json").write_text(json.dumps([{"name": name, **common} for name in "ab"]))
        self.environ = {**slurm.environ, "USER": "root", "HF_TOKEN": SECRET, "XDG_CONFIG_HOME": str(folder)}

    def start(self, *words: str, first: Sequence[str] = ()) -> commands.Started:
        return commands.start(words, self.folder, self.environ, first=first, constants=self.pauses)

    def start_killed(self, target: str, when: str, *words: str) -> commands.Started:
        return self.start(*words, first=(KILL_AT, target, when))

    def call(self, *words: str) -> tuple[int, str]:
        started = self.start(*words)
        out, _ = started.communicate(timeout=280)
        return started.returncode, out

    def rows(self) -> list[dict[str, str]]:
        return perf_rows(self.folder) if (self.folder / "perf.csv").exists() else []

    def submission(self) -> str:
        return next(self.folder.glob("madlite_runs/jobs-*")).name.removeprefix("jobs-")

    def records(self) -> list[dict[str, object]]:
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("madlite_runs/*/record.json"))]

    def jobs(self) -> list[str]:
        names = f"madlite-{self.submission()}-1"
        return self.slurm.checked("squeue", "-h", "--name", names, "-o", "%i").split()

    def collected(self, count: int) -> list[dict[str, str]]:
        """Collect until so many rows are there; one more collect adds none."""
        wait_until(lambda: self.call("runs", "collect") and len(self.rows()) >= count, f"{count} rows")
        self.call("runs", "collect")
        assert len(self.rows()) == count
        return self.rows()


@pytest.fixture
def site(tmp_path, slurm):
    return Site(tmp_path, slurm)


def test_two_cards_are_an_array_and_each_has_its_row(site):
    code, out = site.call("run", "--cluster", "lab", "--tags", "t")
    assert code == 0, out
    assert sorted(row["model"] for row in site.rows()) == ["a", "b"]
    assert {(row["status"], row["deployment_type"]) for row in site.rows()} == {("SUCCESS", "slurm")}
    assert site.call("cluster", "jobs")[1].strip() == "no job is open here"
    assert not (site.folder / f"madlite_runs/jobs-{site.submission()}/environment").exists()


@pytest.mark.full
def test_jobs_that_begin_on_a_full_disk_have_their_rows(small_disk, slurm):
    site = Site(small_disk.path, slurm)
    (site.folder / "cluster.toml").write_text('[clusters.lab.slurm]\nexclusive = false\ndirectives = ["--hold"]\n')
    assert site.call("run", "--cluster", "lab", "--tags", "t", "--detach")[0] == 0
    small_disk.fill()
    slurm.checked("scontrol", "release", *site.jobs())
    wait_until(lambda: not site.jobs(), "the jobs are over")
    small_disk.free()
    assert "looks like a run that madlite did not make" not in site.call("runs")[1]
    site.collected(2)
    assert [(one["status"], one["cause"]) for one in site.records()] == [("FAILURE", "disk_full")] * 2
    assert site.call("cluster", "jobs")[1].strip() == "no job is open here"


def test_a_disk_that_fills_up_while_jobs_run_costs_no_result(small_disk, slurm, tmp_path):
    site, go = Site(small_disk.path, slurm), tmp_path / "go"
    script = f"echo performance: 12.5 tok\nfor i in $(seq 3000); do [ -e {go} ] && break; sleep 0.1; done\nseq 2000\n"
    (site.folder / "scripts/a/run.sh").write_text(script)
    assert site.call("run", "--cluster", "lab", "--tags", "t", "--detach")[0] == 0
    logs = lambda: [log for log in site.folder.glob("madlite_runs/*/run.log") if log.stat().st_size]  # noqa: E731
    wait_until(lambda: len(logs()) == 2, "both run")
    small_disk.fill()
    go.touch()
    wait_until(lambda: not site.jobs(), "the jobs are over")
    small_disk.free()
    assert {(row["status"], row["performance"]) for row in site.collected(2)} == {("SUCCESS", "12.5")}
    # what the first one had reserved for its result has room for the log of the other
    assert any("the log is incomplete: No space left on device" in one["findings"] for one in site.records())


def test_a_context_of_madengine_is_given_to_slurm(site):
    asked = {"slurm": {"partition": "gpu", "gpus_per_node": 0, "exclusive": False}, "env_vars": {"SLEEP": "0.1"}}
    code, out = site.call("run", "--tags", "t", "--additional-context", json.dumps(asked))
    assert code == 0, out
    assert sorted((row["model"], row["status"]) for row in site.rows()) == [("a", "SUCCESS"), ("b", "SUCCESS")]


def test_no_secret_is_in_script_job_or_output(site):
    (site.folder / "scripts/a/run.sh").write_text(
        'echo "token $HF_TOKEN"\necho performance: 1 tok\nsleep ${SLEEP:-0}\n'
    )
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--set", "env.SLEEP=600", "--detach")[0] == 0
    (job,) = site.jobs()
    folder = site.folder / f"madlite_runs/jobs-{site.submission()}"
    assert (folder / "environment").stat().st_mode & 0o777 == 0o600
    wait_until(
        lambda: any(b"token" in log.read_bytes() for log in site.folder.glob("madlite_runs/*/run.log")), "output"
    )
    shown = site.slurm.checked("scontrol", "show", "job", "-dd", job)
    script = site.slurm.checked("scontrol", "write", "batch_script", job, "-")
    assert SECRET not in shown + script
    assert site.call("cluster", "cancel", site.submission())[0] == 0
    texts = [file for file in site.folder.rglob("*") if file.is_file() and file.name != "environment"]
    assert [file for file in texts if SECRET.encode() in file.read_bytes()] == []


def test_cancelled_jobs_have_rows_that_say_so(site):
    assert site.call("run", "--cluster", "lab", "--tags", "t", "--set", "env.SLEEP=600", "--detach")[0] == 0
    code, out = site.call("cluster", "cancel", site.submission())
    assert code == 0, out
    assert [row["status"] for row in site.rows()] == ["FAILURE", "FAILURE"]
    assert {record["cause"] for record in site.records()} == {"interrupted"}


@pytest.mark.full
def test_cancel_asks_slurm_seldom_and_ends_with_the_results(site):
    """The run takes four seconds to end; the queue is asked once behind scancel, and once for what is left."""
    (site.folder / "scripts/a/run.sh").write_text("trap 'sleep 4; exit 1' TERM\nsleep 100 &\nwait\n")
    (site.folder / "bin").mkdir()
    squeue = site.folder / "bin/squeue"
    squeue.write_text(f'#!/bin/sh\necho "$@" >>{site.folder}/asked\nexec {shutil.which("squeue")} "$@"\n')
    squeue.chmod(0o755)
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--detach")[0] == 0
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*-a-*/progress.json")], "the run")
    site.environ["PATH"] = f"{squeue.parent}:{site.environ['PATH']}"
    site.pauses = {}
    code, out = site.call("cluster", "cancel", site.submission())
    assert code == 0, out
    assert "the jobs of 1 run are cancelled; waiting for their results" in out
    assert len((site.folder / "asked").read_text().splitlines()) == 2
    assert [row["status"] for row in site.rows()] == ["FAILURE"] and "interrupted" in out
    assert "the job was cancelled" in str(site.records()[0]["reason"])


@pytest.mark.full
def test_what_a_run_ends_with_is_shown_as_of_runs_here(site):
    (site.folder / "scripts/a/run.sh").write_text("echo 'RuntimeError: it broke' >&2; exit 3\n")
    here = site.call("run", "--tags", "t")
    there = site.call("run", "--cluster", "lab", "--tags", "t")
    assert (here[0], there[0]) == (3, 3)
    kept = re.compile(r"^ +(?:FAILURE|log:|try:|> ).*|^\d FAILURE.*|^failed: |^results: .*", re.MULTILINE)
    ends = [sorted(re.sub(r"2\d{7}T\S+?/", "RUN/", text) for text in kept.findall(out)) for _, out in (here, there)]
    assert len(ends[0]) >= 7 and ends[0] == ends[1]


def test_out_of_memory_is_followed_by_the_next_smaller_micro_batch_in_the_same_job(site):
    script = TRAINING % "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 896.00 MiB."
    (site.folder / "scripts/a/run.sh").write_text(script)
    (site.folder / "python.sh").write_text(STAND_IN)
    (site.folder / "python.sh").chmod(0o755)
    recipe = {"script": "scripts/a/run.sh", "steps": 24, "step": PATTERN, "nproc_per_node": 1}
    recipe |= {"micro_batch": 8, "global_batch": 16}
    card = {"name": "a", "args": "", "tags": [], "runtimes": ["host"], "backend": "torchrun", "recipe": recipe}
    (site.folder / "models.json").write_text(json.dumps([card]))
    words = ("--set", f"env.MADLITE_PYTHON={site.folder}/python.sh", "--oom-fallback")
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", *words)
    assert code == 0, out
    (row,) = site.rows()
    assert (row["status"], row["batch_size"]) == ("SUCCESS", "2")
    records = {one["variant"]["micro_batch"]: one for one in site.records()}
    assert sorted(records) == [2, 4, 8] and records[2]["attempt"]["micro_batch"] == 2
    assert "micro batch 8, 4 did not fit, ran with 2" in out


def test_a_refused_job_has_a_row_with_sbatch_s_words(site):
    code, out = site.call("run", "--cluster", "nowhere", "--tags", "a")
    assert code == 3
    assert "invalid partition specified: nowhere" in out
    assert [row["status"] for row in site.rows()] == ["FAILURE"]
    assert site.records()[0]["cause"] == "job_refused"


def test_what_can_never_start_is_told_within_a_minute_and_cancelled(site):
    code, out = site.call("run", "--cluster", "large", "--tags", "a")
    assert code == 3, out
    assert "PartitionNodeLimit" in out
    assert site.records()[0]["cause"] == "job_cannot_start"
    assert site.jobs() == []


@pytest.mark.parametrize(
    ("target", "when"),
    first_of(
        [
            ("madlite.platforms.slurm.scheduler.Slurm.submit", "after"),
            ("madlite.jobs.job.collect_all", "before"),
            pytest.param("madlite.platforms.slurm.scheduler.Slurm.submit", "before"),
            pytest.param("madlite.jobs.job.JobTracker.poll", "after"),
        ],
        2,
    ),
)
def test_a_submitter_that_is_killed_loses_no_run(site, target, when):
    killed = site.start_killed(target, when, "run", "--cluster", "lab", "--tags", "t")
    killed.communicate(timeout=280)
    assert killed.returncode == -signal.SIGKILL
    if target.endswith("submit") and when == "before":
        assert "not submitted" in site.call("cluster", "jobs")[1]
        assert site.call("cluster", "attach")[0] == 0
    rows = site.collected(2)
    assert [row["status"] for row in rows] == ["SUCCESS", "SUCCESS"]


def test_term_cancels_the_jobs_and_hup_leaves_them(site):
    words = ("run", "--cluster", "lab", "--tags", "t", "--set", "env.SLEEP=600")
    left = site.start(*words)
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*-a-*/progress.json")], "the first run")
    os.kill(left.pid, signal.SIGHUP)
    out, _ = left.communicate(timeout=280)
    assert left.returncode == 129, out
    assert site.rows() == []
    attached = site.start("cluster", "attach")
    wait_until(lambda: attached.stdout is not None and re.search("running", attached.stdout.readline()), "attached")
    os.kill(attached.pid, signal.SIGTERM)
    out, _ = attached.communicate(timeout=280)
    assert attached.returncode == 143, out
    assert [row["status"] for row in site.rows()] == ["FAILURE", "FAILURE"]


def test_a_cluster_file_is_made_by_asking_and_its_nodes_are_checked(site):
    (site.folder / "cluster.toml").unlink()
    code, out = site.call("cluster", "init")
    assert code == 0, out
    text = (site.folder / "cluster.toml").read_text()
    assert "[clusters.example]" in text and 'partition = "gpu"' in text and "gpus_per_node = 8" in text
    assert site.call("cluster", "init")[0] == 4
    text += "exclusive = false\n"  # a job that waits for whole nodes holds up those of all other tests
    (site.folder / "cluster.toml").write_text(text)
    code, out = site.call("cluster", "check", "example", "--nodes", "4", "--doctor", "--good-nodes", "good")
    assert code == 0, out
    assert (site.folder / "good").read_text().split() == ["n1", "n2", "n3", "n4"]
    assert [*site.folder.glob("madlite_runs/check-*")] == []
    (site.folder / "cluster.toml").write_text(text.replace('# interface = "eth0"', 'interface = "nosuch0"'))
    code, out = site.call("cluster", "check", "example", "--nodes", "2")
    assert code == 6, out
    assert len(re.findall(r"^n[1-4]: failed$", out, re.MULTILINE)) == 2
    assert "interface nosuch0 is not there" in out
    (left,) = site.folder.glob("madlite_runs/check-*")
    assert f"{left} has the job's script" in out and len([*left.glob("node-*.json")]) == 2
    assert str(left) in site.call("clean")[1]
    assert site.call("clean", "--yes")[0] == 0 and not left.exists()


@pytest.mark.full
def test_good_nodes_and_excluded_ones_decide_where_jobs_go(site):
    with (site.folder / "cluster.toml").open("a") as file:
        file.write('[clusters.good.slurm]\nexclusive = false\ngood_nodes = "good"\n')
    (site.folder / "good").write_text("n2\nn4\n")
    code, out = site.call("run", "--cluster", "good", "--exclude", "n2", "--tags", "a", "--dry-run")
    assert code == 0, out
    assert "#SBATCH --exclude=n2,n1,n3\n" in out


@pytest.mark.full
def test_the_time_limit_of_the_job_is_the_cause(site):
    code, out = site.call("run", "--cluster", "short", "--tags", "a", "--set", "env.SLEEP=200")
    assert code == 3, out
    assert site.records()[0]["cause"] == "timeout"


def test_the_workload_gets_the_signal_before_the_time_limit_on_each_node(site):
    script = f"""
told=0
trap 'told=1' USR1
touch {site.folder}/waits-$SLURM_NODEID
for _ in {{1..3000}}; do [ "$told" = 0 ] || break; sleep 0.1; done
echo "told $told on $SLURM_NODEID"
echo "performance: 12.5 tok"
"""
    (site.folder / "scripts/a/run.sh").write_text(script)
    started = site.start("run", "--cluster", "warns", "--nodes", "2", "--tags", "a")
    wait_until(lambda: len([*site.folder.glob("waits-*")]) == 2, "both nodes wait for the signal")
    (job,) = site.jobs()
    site.slurm.leave(job, minutes=2)  # of which the signal comes 110 s before the end
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 0, out
    (record,) = site.records()
    log = (site.folder / f"madlite_runs/{record['id']}/run.log").read_text()
    assert "told 1 on 0" in log and "told 1 on 1" in log, log


@pytest.mark.full
def test_an_array_of_twenty_has_twenty_rows(site):
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--repeat", "20")
    assert code == 0, out
    assert len(site.rows()) == 20
    assert len({row["test_duration"] for row in site.rows()}) > 1


@pytest.mark.full
def test_a_sweep_that_is_repeated_is_a_study_of_jobs(site):
    script = 'echo "performance: $(($ROUND * 10)) tok"\n'
    (site.folder / "scripts/a/run.sh").write_text(script)
    words = ("--sweep", "env.ROUND=1,2", "--repeat", "2", "--summary-output", "summary.json")
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", *words)
    assert code == 0, out
    assert sorted(row["performance"] for row in site.rows()) == ["10", "10", "20", "20"]
    study = site.submission()
    assert {(one["study"]["id"], one["study"]["kind"]) for one in site.records()} == {(study, "sweep")}
    (line,) = re.findall(r"^ +env\.ROUND=2 +20 .*$", out, re.MULTILINE)
    assert "n 2" in line and "<- best" in line
    shown = site.call("runs", "--of", study)[1]
    assert line in shown
    stored = json.loads((site.folder / f"madlite_runs/study-{study}/study.json").read_text())
    assert [one["succeeded"] for one in stored["series"]] == [2, 2]
    summary = json.loads((site.folder / "summary.json").read_text())
    assert summary["run_phase"]["total_runs"] == 4 and summary["study"]["id"] == study


def test_a_job_tries_its_run_again_after_a_failure_that_passes(site):
    (site.folder / "scripts/a/run.sh").write_text(
        f"if [ ! -e {site.folder}/tried ]; then\n"
        f"  touch {site.folder}/tried\n"
        '  echo "requests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded" >&2\n'
        "  exit 1\n"
        "fi\n"
        "echo performance: 7 tok\n"
    )
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--retry", "2", "--retry-wait", "0")
    assert code == 0, out
    (row,) = site.rows()
    assert (row["status"], row["performance"]) == ("SUCCESS", "7")
    first, second = site.records()
    assert first["attempt"]["next"] == second["id"]
    assert [one["run"] for one in second["attempt"]["earlier"]] == [first["id"]]


@pytest.mark.full
def test_an_array_is_cut_where_the_cluster_takes_no_longer_one(site):
    with (site.folder / "cluster.toml").open("a") as file:
        file.write("[clusters.cut.slurm]\nexclusive = false\nmax_array_size = 3\n")
    code, out = site.call("run", "--cluster", "cut", "--tags", "a", "--repeat", "5")
    assert code == 0, out
    assert len(re.findall(r"jobs \d+ \d+ \d+$", out, re.MULTILINE)) == 1, out
    assert [row["status"] for row in site.rows()] == ["SUCCESS"] * 5


@pytest.mark.full
def test_an_element_that_somebody_cancels_costs_the_others_nothing(site):
    words = ("run", "--cluster", "lab", "--tags", "a", "--sweep", "env.SLEEP=300,1")
    started = site.start(*words)
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*-a-*/progress.json")], "a run")
    array = site.jobs()[0].partition("_")[0]
    site.slurm.checked("scancel", f"{array}_1")
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 3, out
    assert sorted(row["status"] for row in site.rows()) == ["FAILURE", "SUCCESS"]
    (failed,) = [record for record in site.records() if record["status"] == "FAILURE"]
    assert failed["cause"] == "interrupted" and "cancelled" in failed["reason"], failed["reason"]
    assert re.search(r"env\.SLEEP=300 +- +FAILURE interrupted", out), out


@pytest.mark.full
def test_a_job_that_is_held_is_told_and_waited_for(site):
    with (site.folder / "cluster.toml").open("a") as file:
        file.write('[clusters.held.slurm]\nexclusive = false\ndirectives = ["--hold"]\n')
    started = site.start("run", "--cluster", "held", "--tags", "a")
    assert started.stdout is not None
    wait_until(lambda: "scontrol release starts it" in started.stdout.readline(), "the hold is told")
    site.slurm.checked("scontrol", "release", *site.jobs())
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 0, out
    assert [row["status"] for row in site.rows()] == ["SUCCESS"]


@pytest.mark.full
def test_a_full_queue_is_waited_for_and_jobs_says_why(tmp_path, own_slurm):
    site = Site(tmp_path, own_slurm)
    with (site.folder / "cluster.toml").open("a") as file:
        file.write("[clusters.whole.slurm]\nexclusive = true\n")
    blocker = own_slurm.checked("sbatch", "--parsable", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 900")
    own_slurm.wait_for(blocker.strip(), "RUNNING")
    started = site.start("run", "--cluster", "whole", "--tags", "t")
    wait_until(
        lambda: re.search(r"PENDING \((Resources|Priority)\)", site.call("cluster", "jobs")[1]), "a reason to wait"
    )
    assert site.rows() == [] and started.poll() is None
    own_slurm.checked("scancel", blocker.strip())
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 0, out
    assert re.search(r"2 pending \(\w+\)", out), out
    assert [row["status"] for row in site.rows()] == ["SUCCESS", "SUCCESS"]


@pytest.mark.full
def test_a_node_of_several_that_dies_is_the_cause(tmp_path, own_slurm):
    site = Site(tmp_path, own_slurm)
    started = site.start("run", "--cluster", "lab", "--nodes", "2", "--tags", "a", "--set", "env.SLEEP=600")
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*/nodes/state/1.group")], "the second node's part")
    (job,) = site.jobs()
    _, second = own_slurm.checked("scontrol", "show", "hostnames", own_slurm.job(job)["NodeList"]).split()
    own_slurm.kill(f"slurmd-{second}")
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 3, out
    (record,) = site.records()
    assert record["cause"] == "node_failed", (record["cause"], record["reason"])
    assert f"a node of the job failed on {second}, and the job was queued again" in record["reason"], record["reason"]
    assert site.jobs() == []
    assert [row["status"] for row in site.rows()] == ["FAILURE"]


def test_a_rank_that_is_killed_is_named_with_its_node(site):
    (site.folder / "scripts/a/run.sh").write_text('[ "$NODE_RANK" = 1 ] && kill -9 $$\nsleep 600\n')
    code, out = site.call("run", "--cluster", "lab", "--nodes", "2", "--tags", "a")
    assert code == 3, out
    (record,) = site.records()
    assert record["node_codes"][1] in (-9, 137), record["node_codes"]
    assert "node 1" in record["reason"] or "n2" in record["reason"], record["reason"]


@pytest.mark.full
def test_a_dead_slurmd_loses_no_run(tmp_path, own_slurm):
    site = Site(tmp_path, own_slurm)
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--set", "env.SLEEP=40", "--detach")[0] == 0
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*/progress.json")], "the run")
    (job,) = site.jobs()
    own_slurm.kill(f"slurmd-{own_slurm.job(job)['NodeList']}")
    assert len(site.collected(1)) == 1


@pytest.mark.full
def test_a_controller_that_is_down_is_waited_for(tmp_path, own_slurm):
    site = Site(tmp_path, own_slurm)
    started = site.start("run", "--cluster", "lab", "--tags", "t", "--set", "env.SLEEP=5")
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*/progress.json")], "the run")
    own_slurm.kill("slurmctld")
    wait_until(lambda: len(site.rows()) == 2, "rows without a controller")
    own_slurm.restart("slurmctld")
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 0, out


def test_options_that_decide_no_plan_count_in_the_job_too(site):
    words = ("--no-lint", "--strict-header", "--no-plugins", "--bind", "numa", "--add-column", "cause")
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", *words)
    assert code == 0, out
    (script,) = site.folder.glob("madlite_runs/jobs-*/scripts/1.sh")
    given = "--no-lint --no-plugins --strict-header --bind=numa --add-column cause"
    assert f"--no-rows {given} --once" in script.read_text()


@pytest.mark.full
def test_at_most_so_many_elements_of_an_array_run_at_once_and_jobs_start_when_asked(site):
    before = site.slurm.checked("sbatch", "--parsable", "--wrap", "sleep 3", "--output", "/dev/null").strip()
    words = ("--parallel", "1", "--repeat", "3", "--dependency", f"afterany:{before}", "--begin", "now+2seconds")
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--set", "env.SLEEP=2", *words)
    assert code == 0, out
    (script,) = site.folder.glob("madlite_runs/jobs-*/scripts/1.sh")
    for line in ("--array=1-3%1", f"--dependency=afterany:{before}", "--begin=now+2seconds"):
        assert f"#SBATCH {line}\n" in script.read_text()
    spans = sorted(
        (began := datetime.fromisoformat(record["started"]).timestamp(), began + record["durations_s"]["total"])
        for record in site.records()
    )
    assert len(spans) == 3 and all(earlier[1] <= later[0] + 1 for earlier, later in pairwise(spans)), spans


@pytest.mark.full
def test_where_runs_are_no_array_the_next_is_submitted_when_one_has_its_row(site):
    words = ("run", "--cluster", "single", "--tags", "t", "--parallel", "1")
    code, out = site.call(*words, "--detach")
    assert code == 4 and "--parallel 1 beside --detach: nobody submits the later ones of 2 jobs" in out, out
    code, out = site.call(*words)
    assert code == 0, out
    said = out.splitlines()
    assert [row["status"] for row in site.rows()] == ["SUCCESS", "SUCCESS"]
    assert any(line.endswith("1 not submitted") for line in said), said


def test_a_run_of_two_nodes_is_one_job_with_one_row(site):
    script = (
        'echo "rank $MAD_NODE_RANK=$NODE_RANK of $MAD_TOTAL_NODES=$NNODES, '
        'job $MAD_SLURM_JOB_ID $MAD_COLLECT_METRICS"\n'
        '[ "$MAD_COLLECT_METRICS" != true ] || echo performance: 12.5 tok\n'
    )
    (site.folder / "scripts/a/run.sh").write_text(script)
    code, out = site.call("run", "--cluster", "lab", "--nodes", "2", "--tags", "a")
    assert code == 0, out
    (row,) = site.rows()
    assert (row["performance"], row["nnodes"], row["deployment_type"]) == ("12.5", "2", "slurm")
    (record,) = site.records()
    assert record["node_codes"] == [0, 0]
    log = (site.folder / f"madlite_runs/{record['id']}/run.log").read_text()
    assert re.search(r"rank 0=0 of 2=2, job \d+ true", log) and re.search(r"rank 1=1 of 2=2, job \d+ false", log), log


def test_a_card_that_starts_its_steps_itself_runs_once_on_the_first_node(site):
    (site.folder / "scripts/a/run.sh").write_text(
        'echo "script on $SLURMD_NODENAME with $DOCKER_IMAGE_NAME"\n'
        "srun --ntasks-per-node=1 bash -c 'echo step on $SLURMD_NODENAME'\n"
        "echo performance: 3 tok\n"
    )
    card = {"name": "a", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"]}
    own = {"distributed": {"launcher": "slurm_multi"}, "slurm": {"nodes": 2}, "env_vars": {"DOCKER_IMAGE_NAME": "i:1"}}
    (site.folder / "models.json").write_text(json.dumps([{**card, **own}]))
    code, out = site.call("run", "--cluster", "lab", "--nodes", "1", "--tags", "a")
    assert code == 0 and "the card is for 2 nodes, and the run has 1" in out and "--nodes 2" in out
    assert site.rows()[-1]["nnodes"] == "1", "what is asked for wins over the card"
    assert site.call("build", "--tags", "a", "--use-image", "i:2", "--gpu-vendor", "AMD")[0] == 0
    code, out = site.call("run", "--cluster", "lab", "--manifest-file", "build_manifest.json")
    assert code == 0, out
    row = site.rows()[-1]
    assert (row["performance"], row["nnodes"], row["launcher"]) == ("3", "2", "slurm_multi")
    (record,) = (one for one in site.records() if one["rows"]["cells"][0]["nnodes"] == "2")
    log = (site.folder / f"madlite_runs/{record['id']}/run.log").read_text()
    assert len(re.findall(r"script on n\d with i:2", log)) == 1
    assert len(set(re.findall(r"step on (n\d)", log))) == 2, log


@pytest.mark.full
def test_a_script_that_leaves_a_perf_csv_in_place_of_a_line_has_its_rows(site, tmp_path):
    """In the folder that the context names, as madengine 2 looks for it; a run that leaves neither is a failure."""
    (site.folder / "scripts/a/run.sh").write_text(
        'mkdir -p "$OUT"; [ -z "$RESULTS" ] || printf "$RESULTS" >"$OUT/perf_serve.csv"\n'
    )
    card = {"name": "serve", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"]}
    own = {"distributed": {"launcher": "slurm_multi"}, "slurm": {"nodes": 2}}
    (site.folder / "models.json").write_text(json.dumps([{**card, **own}]))
    header, *rows = "model,performance,metric,status,gpu_architecture", "serve_64,12.5,tok/s,SUCCESS,gfx950"
    text = "".join(f"{line}\\n" for line in (header, *rows, "serve_128,7,tok/s,FAILURE,"))
    slurm = {"gpus_per_node": 0, "exclusive": False, "results_dir": str(tmp_path / "out")}
    context = {"slurm": slurm, "env_vars": {"OUT": str(tmp_path / "out"), "RESULTS": text}}
    code, out = site.call("run", "--tags", "t", "-c", json.dumps(context))
    assert code == 0, out
    told = [(row["model"], row["performance"], row["status"], row["gpu_architecture"]) for row in site.rows()]
    assert told == [("serve_64", "12.5", "SUCCESS", "gfx950"), ("serve_128", "", "FAILURE", "")]
    code, out = site.call("verify", "last")
    assert code == 0, out
    context["env_vars"]["RESULTS"] = ""
    code, out = site.call("run", "--tags", "t", "-c", json.dumps(context))
    assert (code, site.rows()[-1]["model"], site.rows()[-1]["status"]) == (3, "serve", "FAILURE"), out


@pytest.mark.full
def test_a_job_that_is_queued_again_does_not_measure_a_second_time(site):
    started = site.start("run", "--cluster", "lab", "--tags", "a", "--set", "env.SLEEP=600")
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*-a-*/progress.json")], "the run has begun")
    (job,) = site.jobs()
    site.slurm.checked("scontrol", "requeue", job)
    out, _ = started.communicate(timeout=280)
    assert site.jobs() == []
    assert started.returncode == 3, out
    (row,) = site.rows()
    (record,) = site.records()
    assert row["status"] == "FAILURE" and record["cause"] == "preempted", out
    assert "queued again" in record["reason"], record["reason"]


@pytest.mark.full
def test_with_retry_a_job_that_is_queued_again_measures_again_and_has_one_row(site):
    (site.folder / "scripts/a/run.sh").write_text(
        f"[ -e {site.folder}/tried ] || {{ touch {site.folder}/tried; sleep 100; }}\necho performance: 7 tok\n"
    )
    started = site.start("run", "--cluster", "lab", "--tags", "a", "--retry", "1")
    wait_until(lambda: (site.folder / "tried").exists(), "the run has begun")
    (job,) = site.jobs()
    site.slurm.checked("scontrol", "requeue", job)
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 0, out
    (row,) = site.rows()
    assert (row["status"], row["performance"]) == ("SUCCESS", "7")
    first, second = site.records()
    assert (first["attempt"]["next"], first["rows"]) == (second["id"], None)
    assert "was cut off" not in site.call("clean")[1]


FAILS_FIRST = "case $MAD_MODEL_NAME in a) ;; *) [ -e {folder}/mended ] || exit 7 ;; esac\necho performance: 12.5 tok\n"


@pytest.mark.full
def test_what_failed_is_submitted_again_as_the_next_attempt_until_it_has_succeeded(site):
    (site.folder / "scripts/a/run.sh").write_text(FAILS_FIRST.format(folder=site.folder))
    assert site.call("run", "--cluster", "lab", "--tags", "t", "--repeat", "2")[0] == 3
    again = ("run", "--resume", "--failed", "--cluster", "lab")
    code, out = site.call(*again)
    assert code == 3 and "2 failed runs to run again, 0 not over" in out, out
    (site.folder / "mended").touch()
    code, out = site.call(*again)
    assert code == 0 and "note: attempt 3, after " in out and "a  (2 of 2 runs" in out and "b  (2 of 2 runs" in out, out
    ends = sorted((row["model"], row["status"]) for row in site.rows())
    assert ends == [("a", "SUCCESS")] * 2 + [("b", "FAILURE")] * 4 + [("b", "SUCCESS")] * 2
    code, out = site.call(*again)
    assert code == 0 and "0 failed runs to run again" in out and len(site.rows()) == 8, out


@pytest.mark.full
@pytest.mark.parametrize(
    ("target", "when"),
    [
        ("madlite.jobs.submit.write", "after"),
        ("madlite.platforms.slurm.scheduler.Slurm.submit", "after"),
        ("madlite.jobs.job.JobTracker.poll", "after"),
    ],
)
def test_a_kill_while_what_failed_is_submitted_again_loses_and_doubles_nothing(site, target, when):
    (site.folder / "scripts/a/run.sh").write_text(FAILS_FIRST.format(folder=site.folder))
    assert site.call("run", "--cluster", "lab", "--tags", "t")[0] == 3
    (site.folder / "mended").touch()
    again = ("run", "--resume", "--failed", "--cluster", "lab")
    killed = site.start_killed(target, when, *again)
    killed.communicate(timeout=280)
    assert killed.returncode == -signal.SIGKILL
    code, out = site.call(*again)
    assert code == 0, out
    assert sorted((row["model"], row["status"]) for row in site.rows()) == [
        ("a", "SUCCESS"), ("b", "FAILURE"), ("b", "SUCCESS")
    ]  # fmt: skip
    assert sorted((one["attempt"] or {"number": 1})["number"] for one in site.records()) == [1, 1, 2]


@pytest.mark.full
def test_a_signal_cancels_the_jobs_of_all_clusters_and_each_run_has_its_row(site):
    words = ("run", "--cluster", "lab,single", "--tags", "t", "--set", "env.SLEEP=600")
    started = site.start(*words)
    wait_until(lambda: len([*site.folder.glob("madlite_runs/2*-*/progress.json")]) == 2, "both runs")
    os.kill(started.pid, signal.SIGINT)
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 130 and " to lab: 1 run" in out and " to single: 1 run" in out, out
    assert sorted((row["model"], row["status"]) for row in site.rows()) == [("a", "FAILURE"), ("b", "FAILURE")]
    code, out = site.call("run", "--resume", "--failed", "--cluster", "single", "--detach")
    assert code == 0 and "1 failed run to run again" in out and site.call("cluster", "jobs")[1].count("cluster ") == 1
    again = site.start("run", "--resume", "--failed", "--cluster", "lab,single")  # of the one it goes on
    wait_until(lambda: len([*site.folder.glob("madlite_runs/2*-*/progress.json")]) == 4, "both runs once more")
    os.kill(again.pid, signal.SIGHUP)
    assert again.wait(280) == 129
    assert site.call("cluster", "cancel", *(path.name[5:] for path in site.folder.glob("madlite_runs/jobs-*")))[0] == 0
    assert len(site.rows()) == 4
