"""Kubernetes in cluster.toml: jobs that go on whatever becomes of who submitted or follows them, each with one row."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
import pytest
import yaml

from madlite.plan.submission import PLANS
from tests import commands
from tests.csv_rows import perf_rows
from tests.jobs.test_attach import command
from tests.jobs.test_real_slurm import PAUSES
from tests.killing import KILL_AT
from tests.pods.schemas import validate
from tests.pods.stand_in import Cluster, replace_text
from tests.waiting import wait_until

pytestmark = pytest.mark.host
SECRET = "hf_thisIsNoRealTokenButLooksLikeOne1234"
SCRIPT = """
i=0
while [ $((i += 1)) -le 40 ]; do echo "line $i"; sleep 0.05; done
while [ -e {folder}/hold ]; do sleep 0.1; done
[ "$NODE_RANK" != 0 ] || echo performance: 12.5 tok
"""
CLUSTERS = """
[clusters.lab]
scheduler = "kubernetes"
gpu = "MI300X"
gpus_per_node = 8
interface = "eth0"

[clusters.lab.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "bench"
node_selector = {{pool = "mi300"}}
tolerations = [{{key = "amd.com/gpu", operator = "Exists", effect = "NoSchedule"}}]
priority_class = "high"
rdma = {{"rdma/hca" = 8}}
image_pull_secrets = ["registry"]
volumes = [{{mount = "/data", claim = "data", read_only = true}}]
"""


class Site:
    """A working folder, with a card whose script goes on while the file `hold` is there."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster, self.pauses = folder, cluster, PAUSES
        (folder / "scripts/a").mkdir(parents=True)
        (folder / "scripts/a/run.sh").write_text(SCRIPT.format(folder=folder))
        (folder / "cluster.toml").write_text(CLUSTERS.format(kubeconfig=cluster.kubeconfig()))
        card = {"name": "a", "scripts": "scripts/a/run.sh", "image": "rocm/a:1", "n_gpus": "-1", "args": "", "tags": []}
        (folder / "models.json").write_text(json.dumps([card]))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAD", "KUBE"))}
        self.environ = {**kept, "HF_TOKEN": SECRET, "XDG_CONFIG_HOME": str(folder)}

    def start(self, *words: str, first: Sequence[str] = ()) -> commands.Started:
        return commands.start(words, self.folder, self.environ, first=first, constants=self.pauses)

    def start_killed(self, target: str, when: str, *words: str) -> commands.Started:
        return self.start(*words, first=(KILL_AT, target, when))

    def submit_killed(self, target: str, when: str) -> None:
        started = self.start_killed(target, when, "run", "--cluster", "lab", "--tags", "a")
        started.communicate(timeout=120)
        assert started.returncode == -signal.SIGKILL

    def call(self, *words: str) -> tuple[int, str]:
        started = self.start(*words)
        out, _ = started.communicate(timeout=280)
        return started.returncode, out

    def rows(self) -> list[dict[str, str]]:
        return perf_rows(self.folder) if (self.folder / "perf.csv").exists() else []

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    def kill_submitter(self) -> None:
        """Submit the card, and kill the command once the run that is held prints."""
        started = self.start("run", "--cluster", "lab", "--tags", "a")
        wait_until(lambda: list(self.folder.glob("madlite_runs/*/run.log")) and "line 40" in self.log(), "output")
        started.kill()
        started.communicate()

    def submission(self) -> Path:
        return next(self.folder.glob("madlite_runs/jobs-*"))

    def logs(self) -> list[int]:
        """Return the inodes of the logs of runs."""
        with suppress(FileNotFoundError):
            return [log.stat().st_ino for log in self.folder.glob("madlite_runs/*/run.log")]
        return []

    def open_log(self) -> IO[bytes]:
        (log,) = self.folder.glob("madlite_runs/*/run.log")
        return log.open("rb")

    def log(self) -> str:
        """Return the log of the one run, "" while it is read anew."""
        with suppress(FileNotFoundError, ValueError):
            (log,) = self.folder.glob("madlite_runs/*/run.log")
            return log.read_text()
        return ""

    def records(self) -> list[dict]:
        """Return the records of the attempts, the earliest first."""
        found = [json.loads(path.read_text()) for path in self.folder.glob("madlite_runs/*/record.json")]
        return sorted(found, key=lambda one: (one["attempt"] or {}).get("number", 1))

    def jobs_made(self) -> list[dict]:
        return [one for plural, one in self.cluster.made if plural == "jobs"]

    def has_one_row(self, status: str = "SUCCESS") -> None:
        """Collect once more, and look that there is one row, its whole log, and nothing left in the cluster."""
        self.call("runs", "collect")
        (row,) = self.rows()
        assert row["status"] == status
        if status == "SUCCESS":
            assert row["performance"] == "12.5"
            log = (self.folder / f"madlite_runs/{self.records()[-1]['id']}/run.log").read_text()
            assert re.findall(r"^(?:\[node0\]: )?line (\d+)$", log, re.MULTILINE) == [str(n) for n in range(1, 41)]
        wait_until(lambda: not self.cluster.objects and not self.cluster.pods, "the removal of all objects")
        assert self.cluster.invalid == [] and not (self.submission() / "environment").exists()
        assert len(self.jobs_made()) <= 2


@pytest.fixture
def site(tmp_path, cluster, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mad").mkdir()
    return Site(tmp_path / "mad", cluster)


def test_a_run_on_two_nodes_has_its_row_and_pods_as_the_cluster_file_has_them(site):
    pods: list[dict] = []
    site.cluster.pod_status = pods.append
    code, out = site.call("run", "--cluster", "lab", "--nodes", "2", "--exclude", "n3", "--tags", "a")
    assert code == 0, out
    (row,) = site.rows()
    assert (row["performance"], row["nnodes"], row["n_gpus"]) == ("12.5", "2", "16")
    spec = pods[0]["spec"]
    assert len(pods) == 2 and spec["nodeSelector"] == {"pool": "mi300"} and spec["priorityClassName"] == "high"
    assert spec["tolerations"] == [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    limits = spec["containers"][0]["resources"]["limits"]
    assert (limits["amd.com/gpu"], limits["rdma/hca"]) == ("8", "8")
    assert {"name": "volume-0", "persistentVolumeClaim": {"claimName": "data"}} in spec["volumes"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n3"]}]}]
    wait_until(lambda: not site.cluster.objects and not site.cluster.pods, "the removal of all objects")
    assert site.cluster.invalid == []


def test_each_node_that_takes_pods_has_a_job_bound_to_it(site):
    for node in site.cluster.nodes[:3]:
        node["metadata"]["labels"] = {"pool": "mi300"}
    site.cluster.nodes[1]["spec"] = {"unschedulable": True}
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--each-node", "--detach")
    assert code == 0, out
    assert "n1 has no run: it is cordoned" in out and "n3 has no run: it is excluded" in out
    jobs = [one["spec"]["template"]["spec"] for (kind, _), one in site.cluster.objects.items() if kind == "jobs"]
    assert [spec["nodeSelector"] for spec in jobs] == [
        {"pool": "mi300", "kubernetes.io/hostname": "n0"}, {"pool": "mi300", "kubernetes.io/hostname": "n2"},
    ]  # fmt: skip


def test_a_jobset_of_as_many_nodes_as_the_context_names_has_its_row(site):
    file = site.folder / "cluster.toml"
    file.write_text(file.read_text() + "jobset = true\n")
    nodes = json.dumps({"distributed": {"nnodes": 2}})
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "-c", nodes)
    assert code == 0, out
    assert [(row["performance"], row["nnodes"]) for row in site.rows()] == [("12.5", "2")]
    assert any(path.endswith("/jobsets") for method, path in site.cluster.requests if method == "POST")
    wait_until(lambda: not site.cluster.objects and not site.cluster.pods, "the removal of all objects")


def test_what_a_queue_holds_waits_until_the_queue_lets_it_start(site):
    file = site.folder / "cluster.toml"
    file.write_text(file.read_text() + 'queue = "gpus"\n')
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--detach")[0] == 0
    assert "1 pending (Suspended)" in site.call("cluster", "jobs")[1]
    (job,) = [one for (kind, _), one in site.cluster.objects.items() if kind == "jobs"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus" and not site.cluster.pods
    started = site.start("cluster", "attach")
    site.cluster.patch("jobs", job["metadata"]["name"], {"spec": {"suspend": False}})
    out, _ = started.communicate(timeout=120)
    assert started.returncode == 0, out
    site.has_one_row()


def test_a_dry_run_prints_what_kubectl_applies_and_touches_nothing(site):
    code, out = site.call("run", "--cluster", "lab", "--nodes", "2", "--tags", "a", "--dry-run")
    assert code == 0 and SECRET not in out, out
    documents = [one for one in yaml.safe_load_all(out) if one]
    assert [one["kind"] for one in documents] == ["Secret", "ConfigMap", "Service", "Job"]
    for one in documents:
        validate(one)
    assert site.cluster.requests == [] and not (site.folder / "madlite_runs").exists()


def test_detached_jobs_are_listed_and_their_rows_collected_once(site):
    site.hold()
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--detach", "--set", "launcher=vllm-disagg")
    assert code == 0 and "launcher 'vllm-disagg' starts no servers" in out and "have changed" not in out, out
    assert "1 running" in site.call("cluster", "jobs")[1]
    assert not site.rows() and site.call("runs", "collect")[0] == 0 and not site.rows()
    for file in site.submission().rglob("*"):
        assert not file.is_file() or file.name == "environment" or SECRET not in file.read_text(), file
    site.let_go()
    wait_until(lambda: all(pod.over.is_set() for pod in site.cluster.pods.values()), "the pod's end")
    code, out = site.call("runs", "collect")
    assert code == 0 and len(site.rows()) == 1, out
    site.has_one_row()


@pytest.mark.parametrize(
    ("target", "when"),
    [
        ("madlite.platforms.kubernetes.scheduler.create", "after"),
        pytest.param("madlite.platforms.kubernetes.scheduler.create", "before", marks=pytest.mark.full),
        pytest.param("madlite.platforms.kubernetes.api.Api.resume", "before", marks=pytest.mark.full),
    ],
)
def test_a_submission_that_is_killed_at_any_moment_is_finished_by_attach(site, target, when):
    site.submit_killed(target, when)
    assert site.call("cluster", "attach")[0] == 0
    site.has_one_row()


def test_a_killed_submitter_and_a_killed_follower_lose_nothing(site):
    site.hold()
    site.kill_submitter()
    for is_killed in (True, False):  # the log is read once more, from its beginning
        with site.open_log() as old:  # held open, so that no other file gets its inode
            again = site.start("cluster", "attach")
            inode = os.fstat(old.fileno()).st_ino
            wait_until(lambda inode=inode: site.logs() not in ([], [inode]) and "line 40" in site.log(), "another log")
        if is_killed:
            again.kill()
            again.communicate()
    site.let_go()
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0, out
    site.has_one_row()


def test_the_command_that_waits_follows_all_runs_by_itself(site):
    site.hold()
    started = site.start("run", "--cluster", "lab", "--tags", "a", "--repeat", "3")
    logs = site.folder.glob
    wait_until(
        lambda: [log.read_text().count("line 40") for log in logs("madlite_runs/*/run.log")] == [1] * 3, "output"
    )
    assert not psutil.Process(started.pid).children(recursive=True), "other processes follow the runs"
    site.let_go()
    out, _ = started.communicate(timeout=120)
    assert started.returncode == 0, out
    assert [row["performance"] for row in site.rows()] == ["12.5"] * 3
    wait_until(lambda: not site.cluster.objects and not site.cluster.pods, "the removal of all objects")


@pytest.mark.full
def test_at_most_so_many_jobs_are_there_at_once_and_attach_goes_on_submitting(site):
    (site.folder / "hold").touch()
    words = ("run", "--cluster", "lab", "--tags", "a", "--repeat", "2", "--parallel", "1")
    started = site.start(*words, "--on-interrupt", "leave")
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*/progress.json")], "the first run")
    _, out = site.call("cluster", "jobs")
    assert "1 running" in out and "1 not submitted" in out, out
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=120)
    (site.folder / "hold").unlink()
    code, out = site.call("cluster", "attach")
    assert code == 0, out
    assert [row["status"] for row in perf_rows(site.folder)] == ["SUCCESS", "SUCCESS"]


@pytest.mark.full
def test_who_leaves_jobs_that_are_followed_does_not_wait_for_them(site):
    site.hold()
    started = site.start("run", "--cluster", "lab", "--tags", "a", "--on-interrupt", "leave")
    wait_until(lambda: site.logs() and "line 40" in site.log(), "output")
    started.terminate()
    out, _ = started.communicate(timeout=120)
    assert started.returncode == 143 and "cluster attach" in out, out
    assert "1 running" in site.call("cluster", "jobs")[1]
    assert site.call("runs", "collect")[0] == 0 and not site.rows()
    for words in (("runs",), ("show", "last"), ("clean",), ("runs", "--status", "in-cluster")):
        code, out = site.call(*words)
        assert code == 0 and "cut off" not in out.lower(), out
        assert words == ("clean",) or ("IN CLUSTER" in out and "madlite runs collect writes its row" in out), out
    site.let_go()
    code, out = site.call("cluster", "attach")
    assert code == 0, out
    site.has_one_row()
    assert "IN CLUSTER" not in site.call("runs")[1]


def test_jobs_that_are_cancelled_while_they_are_followed_have_their_rows(site):
    site.hold()
    started = site.start("run", "--cluster", "lab", "--tags", "a", "--on-interrupt", "cancel")
    wait_until(lambda: site.logs() and "line 40" in site.log(), "output")
    started.terminate()
    out, _ = started.communicate(timeout=120)
    assert started.returncode == 143 and "the run was cancelled" in out, out
    site.has_one_row("FAILURE")


@pytest.mark.full
def test_what_is_cancelled_after_its_submitter_was_killed_has_its_row_with_the_reason(site):
    site.hold()
    site.kill_submitter()
    code, out = site.call("cluster", "cancel", site.submission().name.removeprefix("jobs-"))
    assert code == 0 and "the job was cancelled" in out, out
    site.has_one_row("FAILURE")
    (record,) = site.folder.glob("madlite_runs/*/record.json")
    assert json.loads(record.read_text())["cause"] == "interrupted"


def test_clean_removes_the_job_of_a_killed_run_and_none_of_a_submission(site):
    site.hold()
    context = json.dumps({"k8s": {"kubeconfig": str(site.cluster.kubeconfig())}})
    started = site.start("run", "--tags", "a", "-c", context)
    wait_until(lambda: list(site.folder.glob("madlite_runs/*/run.log")) and "line 40" in site.log(), "output")
    started.kill()
    started.communicate()
    assert [kind for kind, _ in site.cluster.objects].count("jobs") == 1
    code, out = site.call("clean", "--yes")
    assert code == 0 and "a session of runtime kubernetes, Running" in out, out
    wait_until(lambda: not site.cluster.objects and not site.cluster.pods, "the removal of all objects")

    started = site.start("run", "--cluster", "lab", "--tags", "a")
    wait_until(lambda: len(list(site.folder.glob("madlite_runs/*/handle*"))) == 2, "the session")
    started.kill()
    started.communicate()
    assert site.call("clean", "--yes")[0] == 0
    site.let_go()
    code, out = site.call("cluster", "attach")
    assert code == 0 and [row["performance"] for row in site.rows()] == ["", "12.5"], (
        out
    )  # the first one of the run that was killed


def test_a_context_that_is_switched_meanwhile_and_a_login_that_is_over_cost_no_run(site):
    site.hold()
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--detach")[0] == 0
    file = site.cluster.kubeconfig()
    config = json.loads(file.read_text())
    other = {"name": "elsewhere", "cluster": {"server": "http://127.0.0.1:9"}}
    config["clusters"].append(other)
    config["contexts"].append({"name": "elsewhere", "context": {"cluster": "elsewhere", "user": "me"}})
    config["current-context"] = "elsewhere"
    replace_text(file, json.dumps(config))
    assert "1 running" in site.call("cluster", "jobs")[1]
    started = site.start("cluster", "attach")
    wait_until(lambda: list(site.folder.glob("madlite_runs/*/run.log")) and "line 40" in site.log(), "output")
    site.cluster.token, before = "an0ther", len(site.cluster.requests)
    wait_until(lambda: any(path.endswith("/jobs") for _, path in site.cluster.requests[before:]), "a refused poll")
    site.let_go()
    wait_until(lambda: all(pod.over.is_set() for pod in site.cluster.pods.values()), "the pod's end")
    config["users"][0]["user"]["token"] = site.cluster.token
    replace_text(file, json.dumps(config))
    out, _ = started.communicate(timeout=120)
    assert started.returncode == 0, out
    site.has_one_row()


PREEMPTED = {
    "phase": "Failed",
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
}
PORT = "echo 'OSError: [Errno 98] Address already in use'; exit 1\n"


def test_what_is_preempted_is_tried_again_by_another_job_and_has_one_row(site):
    site.hold()
    words = ("--retry", "2", "--retry-wait", "0")
    started = site.start("run", "--cluster", "lab", "--nodes", "2", "--exclude", "n3", "--tags", "a", *words)
    wait_until(lambda: len(site.cluster.pods) == 2 and list(site.folder.glob("madlite_runs/*/run.log")), "the pods")
    wait_until(lambda: "line 40" in site.log(), "output")
    first = {pod.body["metadata"]["labels"]["madlite.run"]: pod.body["spec"] for pod in site.cluster.pods.values()}
    site.cluster.lose(next(iter(site.cluster.pods)), PREEMPTED)
    wait_until(lambda: len(site.jobs_made()) == 2, "another Job")
    site.let_go()
    out, _ = started.communicate(timeout=120)
    assert started.returncode == 0, out
    assert "[preempted]" in out and "(retry 1 of 2)" in out, out
    before, after = site.records()
    assert [one["status"] for one in (before, after)] == ["FAILURE", "SUCCESS"] and before["cause"] == "preempted"
    assert before["attempt"]["next"] == after["id"] and not before["rows"]
    assert after["attempt"] == {
        **after["attempt"],
        "number": 2,
        "retries": 2,
        "earlier": [{"run": before["id"], "cause": "preempted", "micro_batch": None}],
    }
    assert [(row["performance"], row["nnodes"]) for row in site.rows()] == [("12.5", "2")]
    (again,) = [job for job in site.jobs_made() if job["metadata"]["labels"]["madlite.run"] == after["id"]]
    spec, (was,) = again["spec"]["template"]["spec"], first.values()
    assert spec["affinity"] == was["affinity"] and spec["nodeSelector"] == was["nodeSelector"]
    assert before["id"] not in json.dumps(again)
    site.has_one_row()


def test_a_port_in_use_is_tried_again_so_often_and_no_error_of_the_run_itself_is(site):
    script = site.folder / "scripts/a/run.sh"
    script.write_text(PORT)
    code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--retry", "1", "--retry-wait", "0")
    assert code == 3 and "(retry 1 of 1)" in out, out
    assert [row["status"] for row in site.rows()] == ["FAILURE"] and len(site.jobs_made()) == 2
    wait_until(lambda: not site.cluster.objects and not site.cluster.pods, "the removal of all objects")
    for text in ("RuntimeError: HIP out of memory", "loss: nan; FloatingPointError: Loss is NaN"):
        (site.folder / "perf.csv").unlink()
        script.write_text(f"echo '{text}'; exit 1\n")
        code, out = site.call("run", "--cluster", "lab", "--tags", "a", "--retry", "1", "--retry-wait", "0")
        assert code == 3 and "retry 1" not in out and [row["status"] for row in site.rows()] == ["FAILURE"], out
    assert len(site.jobs_made()) == 4


@pytest.mark.full
def test_a_run_that_waits_for_its_next_attempt_is_cancelled_with_its_row(site):
    (site.folder / "scripts/a/run.sh").write_text(PORT)
    started = site.start("run", "--cluster", "lab", "--tags", "a", "--retry", "1", "--retry-wait", "600")
    wait_until(lambda: "1 pending (Retry)" in site.call("cluster", "jobs")[1], "the wait")
    code, out = site.call("cluster", "cancel", site.submission().name.removeprefix("jobs-"))
    assert code == 0 and "FAILURE" in out, out
    out, _ = started.communicate(timeout=60)
    assert started.returncode == 3, out
    assert len(site.jobs_made()) == 1
    site.has_one_row("FAILURE")


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_between_a_failure_and_its_next_attempt_loses_nothing(site, when):
    (site.folder / "scripts/a/run.sh").write_text(PORT)
    words = ("--retry", "1", "--retry-wait", "0")
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--detach", *words)[0] == 0
    wait_until(lambda: all(pod.over.is_set() for pod in site.cluster.pods.values()), "the pod's end")
    (site.folder / "scripts/a/run.sh").write_text("exit 1\n")  # what was submitted is tried again
    killed = site.start_killed("madlite.platforms.kubernetes.scheduler.create", when, "attach")
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    code, out = site.call("runs", "collect")
    assert code == 0 and not site.rows() and len(site.jobs_made()) == 2, out
    code, out = site.call("cluster", "attach")
    assert code == 3 and "[network]" in out or "Address already in use" in out, out
    assert [one["attempt"]["number"] for one in site.records()] == [1, 2]
    site.has_one_row("FAILURE")


def test_a_job_that_is_gone_has_a_row_that_says_so(site):
    site.hold()
    assert site.call("run", "--cluster", "lab", "--tags", "a", "--detach")[0] == 0
    (name,) = [name for kind, name in site.cluster.objects if kind == "jobs"]
    site.cluster.delete("jobs", name, 0)
    code, out = site.call("runs", "collect")
    assert code == 3 and "the job is gone, and its log was not read before" in out, out
    site.has_one_row("FAILURE")


def test_an_image_that_cannot_be_pulled_ends_the_run(site):
    message = 'failed to pull: manifest for "rocm/a:1" not found'
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
    site.cluster.pod_status = lambda pod: {"phase": "Pending", "containerStatuses": [{"state": waiting}]}
    site.pauses = {**PAUSES, "madlite.platforms.kubernetes.runtime._CERTAIN_S": 3.0}
    code, out = site.call("run", "--cluster", "lab", "--tags", "a")
    assert code == 3 and "image rocm/a:1 cannot be pulled" in out, out
    site.has_one_row("FAILURE")


def test_nodes_to_exclude_may_be_ranges_and_files_and_a_wrong_one_is_named(site):
    pods: list[dict] = []
    site.cluster.pod_status = pods.append
    (site.folder / "slow").write_text("n4,n5  # since Monday\n")
    code, out = site.call("run", "--cluster", "lab", "--exclude", "n[1-3]", "--exclude", "./slow", "--tags", "a")
    assert code == 0, out
    terms = pods[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = terms["nodeSelectorTerms"][0]["matchFields"]
    assert [name for field in fields for name in field["values"]] == ["n1", "n2", "n3", "n4", "n5"]
    (file,) = site.folder.glob(f"madlite_runs/jobs-*/{PLANS}/*.json")
    saved = json.loads(file.read_text())["context"]["kubernetes"]
    assert saved["exclude"] == ["n1", "n2", "n3", "n4", "n5"], "the plan alone would use them"
    assert saved["kubeconfig"] == str(site.cluster.kubeconfig()) and saved["context"] and saved["namespace"]
    made = len(site.cluster.made)
    for wrong in ("N_1", "n[3-1]", "n[1"):
        code, out = site.call("run", "--cluster", "lab", "--exclude", wrong, "--tags", "a")
        assert code == 4 and f"--exclude: '{wrong}' is no name of a node" in out and "cluster.toml" not in out, out
    assert len(site.cluster.made) == made


def test_a_check_names_what_is_missing_and_makes_nothing(site):
    site.cluster.objects["secrets", "registry"] = {"metadata": {"name": "registry"}}
    site.cluster.denied += ["create jobs", "watch pods"]
    for node in site.cluster.nodes[:3]:
        node["metadata"]["labels"] = {"pool": "mi300"}
    site.cluster.nodes[0]["status"]["allocatable"]["rdma/hca"] = "8"
    code, out = site.call("cluster", "check", "lab", "--nodes", "2", "--exclude", "n2")
    lines = {line.strip() for line in out.splitlines()}
    assert code == 6, out
    assert "ok       v1.37.0, namespace bench" in lines and "ok       2 of 2 nodes have 8 amd.com/gpu" in lines
    assert "fail     may not create jobs" in lines and "unknown  may not watch pods: pods are polled" in lines
    assert any(line.startswith("fail     2 pods of 8 rdma/hca each") for line in lines)
    assert "ok       Secret registry (image_pull_secrets) is there" in lines
    assert "fail     PersistentVolumeClaim data (volumes) is not there" in lines
    assert not [path for method, path in site.cluster.requests if method == "POST" and "reviews" not in path]
    code, out = site.call("cluster", "check", "lab", "--health")
    assert code == 4 and "--health with scheduler 'kubernetes': no job is made on its nodes" in out, out


def test_a_mistake_in_the_cluster_file_is_refused_with_its_place(site):
    file = site.folder / "cluster.toml"
    right = file.read_text()
    for old, new, message in (
        ("namespace", "namspace", "key 'kubernetes.namspace' is unknown"),
        ('interface = "eth0"', 'prologue = ["module load rocm"]', "key 'prologue' has no effect"),
        ('namespace = "bench"', 'gpu = "MI300X"', "key 'kubernetes.gpu' is not known here"),
        ('claim = "data"', 'claim = "data", nfs = "x:/y"', "the volume at /data has 2 sources"),
        ('scheduler = "kubernetes"', "", "table 'kubernetes' with scheduler 'slurm'"),
    ):
        file.write_text(right.replace(old, new, 1))
        code, out = site.call("run", "--cluster", "lab", "--tags", "a")
        assert code == 4 and message in out and re.search(r"cluster\.toml(, line \d+)?: \[clusters\.lab\]", out), out
    assert site.cluster.requests == []


FAILS_FIRST = "[ -e {folder}/mended ] || exit 7\necho performance: 12.5 tok\n"


def with_slurm(site: Site) -> None:
    """Add a second cluster, a Slurm of stand-ins whose jobs leave no result, and the card b, which needs no image."""
    (site.folder / "bin").mkdir()
    for name in ("scontrol", "squeue", "scancel", "sinfo", "sacct"):
        command(site.folder, name, "exit 0")
    command(site.folder, "sbatch", f"echo x >>{site.folder}/sent; echo $((4000 + $(wc -l <{site.folder}/sent)))")
    site.environ["PATH"] = f"{site.folder}/bin:{site.environ['PATH']}"
    with (site.folder / "cluster.toml").open("a") as file:
        file.write("\n[clusters.bare.slurm]\nexclusive = false\n")
    cards = json.loads((site.folder / "models.json").read_text())
    cards.append({"name": "b", "scripts": "scripts/a/run.sh", "runtimes": ["host"], "n_gpus": "0", "tags": []})
    (site.folder / "models.json").write_text(json.dumps(cards))


def test_one_command_has_runs_on_two_platforms_and_submits_again_what_failed(site):
    with_slurm(site)
    (site.folder / "scripts/a/run.sh").write_text(FAILS_FIRST.format(folder=site.folder))
    code, out = site.call("run", "--cluster", "lab,bare", "--tags", "a,b")
    assert code == 3 and " to lab: 1 run" in out and " to bare: 1 run" in out and "2 FAILURE" in out, out
    assert "not comparable: lab MI300X, bare no GPU" in out
    assert [(row["model"], row["deployment_type"]) for row in sorted(site.rows(), key=lambda row: row["model"])] == [
        ("a", "kubernetes"), ("b", "slurm")
    ]  # fmt: skip
    (site.folder / "mended").touch()
    code, out = site.call("run", "--resume", "--failed", "--cluster", "lab,bare")
    assert code == 3 and "2 failed runs to run again" in out and "1 SUCCESS" in out and "1 FAILURE" in out, out
    assert [row["status"] for row in site.rows() if row["model"] == "a"] == ["FAILURE", "SUCCESS"]
    numbers = {(one["card"], (one["attempt"] or {}).get("number", 1)) for one in site.records()}
    assert numbers == {("a", 1), ("a", 2), ("b", 1), ("b", 2)}
    code, out = site.call("run", "--resume", "--failed", "--cluster", "lab")
    assert code == 0 and "0 failed runs to run again, 0 not over" in out and len(site.rows()) == 4, out
    wait_until(lambda: not site.cluster.objects and not site.cluster.pods, "the removal of all objects")


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_while_what_failed_is_submitted_again_loses_and_doubles_nothing(site, when):
    (site.folder / "scripts/a/run.sh").write_text(FAILS_FIRST.format(folder=site.folder))
    assert site.call("run", "--cluster", "lab", "--tags", "a")[0] == 3
    (site.folder / "mended").touch()
    again = ("run", "--resume", "--failed", "--cluster", "lab")
    killed = site.start_killed("madlite.platforms.kubernetes.scheduler.create", when, *again)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    code, out = site.call(*again)
    assert code == 0 and "0 failed runs to run again" in out, out
    assert [row["status"] for row in site.rows()] == ["FAILURE", "SUCCESS"] and len(site.jobs_made()) == 2
    assert [(one["attempt"] or {}).get("number", 1) for one in site.records()] == [1, 2]
    assert site.call(*again)[0] == 0 and len(site.rows()) == 2
