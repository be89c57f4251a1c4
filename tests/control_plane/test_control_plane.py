"""What a real API server, scheduler and controllers do with runs: rights, quotas, conflicts, nodes, watches, deletion.

They are of Kubernetes 1.20, which has no Indexed Jobs: pods have no index, so that every run here is on one node.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
import urllib.error
from contextlib import suppress

import pytest
import yaml
from msgspec.structs import replace

from madlite.errors import RuntimeProblem
from madlite.model import Cause, Secret
from madlite.plan.cluster import Toleration, Volume
from madlite.platforms.kubernetes import api
from madlite.platforms.kubernetes.api import Api, Refusal
from madlite.platforms.kubernetes.manifests import job_name, label_value, make_objects, patched
from madlite.platforms.kubernetes.node_check import examine
from madlite.platforms.kubernetes.runtime import create
from tests.pods.test_session import Output, run
from tests.rows import each_row
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]
WORK = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods", "services", "configmaps", "secrets"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]


def api_of(place, user: str = "admin") -> Api:
    return Api(place.runtime(user).settings)


def second(plan, number: int):
    """Return a plan under another id."""
    return replace(plan, id=f"{plan.id}-{number}")


def test_a_run_has_its_output_its_secrets_and_leaves_nothing(place, plan):
    made = plan('cat run.sh; echo "$HF_TOKEN" | rev; exit 3', env={"HF_TOKEN": Secret("s3cr3t")})
    (ended,), (output,) = run(place.runtime(), made)
    assert (ended.code, output.text()) == (3, "echo from run.sh\nt3rc3s\n")
    place.is_left_empty()


def test_the_scheduler_gives_each_run_a_node_with_its_gpus_and_the_third_waits(place, gpu_plan, caplog):
    first = gpu_plan("sleep 600", stop_grace_s=1.0)
    outputs = [Output() for _ in range(3)]

    def start(number: int) -> threading.Thread:
        plan = second(first, number)

        def work() -> None:
            with suppress(RuntimeProblem), place.runtime().open(plan) as session:  # its Job is deleted
                session.run(plan.actions[0], outputs[number])

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def running() -> dict[str, str]:
        pods = [pod for pod in place.objects("pods") if pod["status"]["phase"] == "Running"]
        return {pod["metadata"]["labels"]["madlite.run"]: pod["spec"]["nodeName"] for pod in pods}

    threads = [start(0), start(1)]
    wait_until(lambda: len(running()) == 2, "two runs")
    assert sorted(running().values()) == ["n1", "n2"]
    threads.append(start(2))
    wait_until(lambda: "2 Insufficient amd.com/gpu" in caplog.text, "the scheduler's reason")
    client = api_of(place)
    for number in range(3):
        wait_until(lambda number=number: label_value(second(first, number).id) in running(), f"run {number}")
        client.delete("Job", job_name(second(first, number).id))
    for thread in threads:
        thread.join(120)
    place.is_left_empty()


def test_what_no_node_can_have_ends_at_once_and_what_is_excluded_is_left_out(place, gpu_plan):
    with pytest.raises(RuntimeProblem, match="no node has 16 amd.com/gpu: of 2 nodes the largest has 8") as problem:
        run(place.runtime(), gpu_plan("true", gpus=16))
    assert problem.value.cause is Cause.GPUS
    place.is_left_empty()
    nodes = []
    for name in ("n1", "n2"):
        plan = second(gpu_plan("true"), len(nodes))
        with place.runtime(exclude=(name,)).open(plan) as session:
            session.run(plan.actions[0], Output())
            nodes += [pod["spec"]["nodeName"] for pod in place.objects("pods")]
        place.is_left_empty()
    assert nodes == ["n2", "n1"]


def test_a_taint_keeps_runs_away_and_a_toleration_lets_them_in(place, plane, gpu_plan, caplog):
    taint = {"key": "amd.com/gpu", "value": "", "effect": "NoSchedule"}
    plane.patch("/api/v1/nodes/n1", {"spec": {"taints": [taint]}})
    try:
        selector = {"pool": "n1"}
        with pytest.raises(RuntimeProblem, match="did not start within"):
            run(place.runtime(node_selector=selector, pending_limit_s=5.0), gpu_plan("true"))
        assert "had taint" in caplog.text
        place.is_left_empty()
        tolerated = (Toleration(key="amd.com/gpu", operator="Exists"),)
        (ended,), _ = run(place.runtime(node_selector=selector, tolerations=tolerated), gpu_plan("true"))
        assert ended.code == 0
    finally:
        plane.patch("/api/v1/nodes/n1", {"spec": {"taints": None}})


def test_a_quota_ends_the_run_with_its_own_words(place, plane, gpu_plan):
    hard = {"requests.amd.com/gpu": "4"}
    path = f"/api/v1/namespaces/{place.name}/resourcequotas"
    plane.call("POST", path, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    wait_until(lambda: place.objects("resourcequotas")[0].get("status", {}).get("hard") == hard, "the quota")
    with pytest.raises(RuntimeProblem, match="exceeded quota: gpus, requested: requests.amd.com/gpu=8") as problem:
        run(place.runtime(), gpu_plan("true"))
    assert problem.value.cause is Cause.GPUS
    place.is_left_empty()


def test_who_may_not_make_jobs_is_told_what_is_missing(place, plane, plan):
    plane.allow(place.name, WORK[1:])
    with pytest.raises(RuntimeProblem, match='does not allow POST jobs in namespace .*User "user" cannot create'):
        run(place.runtime("user"), plan("true"))
    place.is_left_empty()


def test_a_check_asks_the_server_what_the_user_may_do_and_what_there_is(place, plane):
    plane.allow(place.name, WORK[1:])
    volumes = (Volume(mount="/data", claim="data"),)
    settings = {"gpu": "MI300X", "gpus_per_node": 8, "priority_class": "system-node-critical", "volumes": volumes}
    admin = {one.text: one.state for one in examine(api_of(place), place.runtime(**settings).settings, 2)}
    assert admin["2 of 2 nodes have 8 amd.com/gpu"] == "ok"
    assert admin["PersistentVolumeClaim data (volumes) is not there"] == "fail"
    assert admin["PriorityClass system-node-critical (priority_class) is there"] == "ok"
    assert admin["may create, get, list, delete, patch jobs"] == "ok"
    user = {
        one.text: one.state for one in examine(api_of(place, "user"), place.runtime("user", **settings).settings, 2)
    }
    assert user["may not create, get, list, delete, patch jobs"] == "fail"
    assert user["may get, list, patch, delete pods"] == "ok" and user["may get pods/log"] == "ok"
    assert user["PersistentVolumeClaim data (volumes) may not be seen"] == "unknown"
    assert user["may not list nodes: whether there are nodes with so many GPUs is not known"] == "unknown"


def test_rights_to_watch_pods_and_to_see_nodes_and_events_are_not_needed(place, plane, plan):
    plane.allow(place.name, [WORK[0], {**WORK[1], "verbs": ["get", "list", "create", "delete"]}, WORK[2]])
    with pytest.raises(Refusal) as refused:
        next(api_of(place, "user").watch_pods("r", "1"))
    assert refused.value.status == 403
    (ended,), (output,) = run(place.runtime("user"), plan("echo fine"))
    assert (ended.code, output.text()) == (0, "fine\n")
    place.is_left_empty()


def test_a_version_that_etcd_has_forgotten_is_gone_and_a_later_watch_goes_on(place, plan, monkeypatch):
    client, made = api_of(place), plan("true")
    run_label = label_value(made.id)
    _, old = client.list_pods(run_label)
    monkeypatch.setattr(api, "_WATCH_S", 1)
    tried: list[int] = []

    def is_gone() -> bool:
        tried.append(0)
        place.plane.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"n": str(len(tried))}}})
        try:
            for _ in client.watch_pods(run_label, old):
                pass
        except Refusal as refusal:
            return refusal.status == 410
        return False

    wait_until(is_gone, "410 Gone")
    monkeypatch.setattr(api, "_WATCH_S", 60)
    _, version = client.list_pods(run_label)
    create(client, make_objects(made, {}, place.runtime().settings))
    kinds = []
    for kind, pod in client.watch_pods(run_label, version):
        kinds.append(kind)
        if pod.get("status", {}).get("phase") == "Succeeded":
            break
    assert kinds[0] == "ADDED" and set(kinds[1:]) <= {"MODIFIED"}
    client.delete("Job", job_name(made.id))
    place.is_left_empty()


def test_what_an_earlier_attempt_made_is_taken_up_and_another_run_s_is_not(place, plan):
    made, client = plan("sleep 60"), api_of(place)
    objects = make_objects(made, {}, place.runtime().settings)
    uid = create(client, objects)
    client.delete("ConfigMap", objects.name)  # as if the attempt had been cut off
    assert create(client, objects) == uid and client.get("ConfigMap", objects.name) is not None
    other = make_objects(made, {}, place.runtime().settings)
    other.job["metadata"]["labels"]["madlite.run"] = "another"
    with pytest.raises(RuntimeProblem, match="it is there already"):
        create(client, other)
    client.delete("Job", objects.name)
    place.is_left_empty()


def test_a_pod_that_somebody_deletes_is_a_run_that_was_preempted(place, plan):
    made, output, problems = plan("echo begun; sleep 600", stop_grace_s=1.0), Output(), []

    def work() -> None:
        try:
            run_with(place.runtime(), made, output)
        except RuntimeProblem as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    assert output.some.wait(120)
    (pod,) = place.objects("pods")
    place.plane.call("DELETE", f"/api/v1/namespaces/{place.name}/pods/{pod['metadata']['name']}")
    thread.join(120)
    assert [one.cause for one in problems] == [Cause.PREEMPTED] and "was removed while it ran" in problems[0].message
    place.is_left_empty()


def run_with(runtime, plan, output: Output) -> None:
    with runtime.open(plan) as session:
        session.run(plan.actions[0], output)


def test_an_ended_job_that_nobody_removed_goes_by_its_ttl(place, plan):
    made, runtime = plan("true"), place.runtime(ttl_s=1)
    create(api_of(place), make_objects(made, {}, runtime.settings))
    place.is_left_empty()


PATCHES = [
    {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"}, "labels": {"pool": "a"}},
        "spec": {
            "schedulerName": "volcano",
            "runtimeClassName": "amd",
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
            ],
        },
    },
    {
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "nodeSelector": None,
            "volumes": [{"name": "shm", "$patch": "delete"}, {"name": "more", "emptyDir": {}}],
            "containers": [
                {
                    "name": "run",
                    "command": ["/bin/bash", "-c"],
                    "env": [{"name": "NNODES", "value": "9"}, {"name": "X", "value": "1"}],
                    "volumeMounts": [
                        {"mountPath": "/dev/shm", "$patch": "delete"},  # noqa: S108 - the pod's
                        {"mountPath": "/more", "name": "more"},
                    ],
                    "ports": [{"containerPort": 29500}],
                },
                {"name": "sidecar", "image": "exporter:1"},
            ],
        }
    },
    {
        "spec": {
            "volumes": [{"$patch": "replace"}, {"name": "script", "emptyDir": {}}],
            "containers": [{"name": "run", "volumeMounts": [{"$patch": "replace"}]}],
        }
    },
    {"spec": {"volumes": [{"name": "shm", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}},
    {"spec": {"nodeSelector": {"$patch": "replace", "zone": "b"}, "imagePullSecrets": [{"name": "b"}]}},
]  # fmt: skip


def in_any_order(value: object) -> object:
    """Return a value with its lists of objects sorted: those of a patch come first in the server's, last in ours."""
    if isinstance(value, dict):
        return {key: in_any_order(item) for key, item in value.items()}
    return sorted(map(in_any_order, value), key=json.dumps) if isinstance(value, list) else value


def test_a_patch_of_pods_is_merged_as_the_server_merges_it(place, gpu_plan):
    settings = place.runtime(node_selector={"pool": "n1"}, image_pull_secrets=("a",)).settings
    plain = make_objects(gpu_plan("true"), {"run.sh": b"true"}, settings).job["spec"]["template"]
    path = f"/api/v1/namespaces/{place.name}/podtemplates"

    def kept(name: str, template: dict) -> dict:
        made = place.plane.call("POST", path, {"metadata": {"name": name}, "template": template})
        return made["template"]

    for number, patch in enumerate(PATCHES):
        kept(f"p{number}", plain)
        merge = "application/strategic-merge-patch+json"
        by_server = place.plane.call("PATCH", f"{path}/p{number}", {"template": patch}, merge)["template"]
        assert in_any_order(kept(f"own{number}", patched(plain, patch))) == in_any_order(by_server), patch


CLUSTER = """
[clusters.lab]
scheduler = "kubernetes"
[clusters.lab.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "{namespace}"
"""


class Checkout:
    """A working folder whose card goes on while `hold` is there."""

    def __init__(self, folder, place) -> None:
        self.folder = folder
        (folder / "scripts").mkdir(parents=True)
        hold = folder / "hold"
        (folder / "scripts/run.sh").write_text(
            f"echo begun\nwhile [ -e {hold} ]; do sleep 0.1; done\necho performance: 12.5 tok\n"
        )
        card = {"name": "a", "scripts": "scripts/run.sh", "image": "rocm/a:1", "n_gpus": "-1", "args": "", "tags": []}
        (folder / "models.json").write_text(json.dumps([card]))
        file = place.plane.kubeconfig("admin", place.name)
        (folder / "cluster.toml").write_text(CLUSTER.format(kubeconfig=file, namespace=place.name))
        hold.touch()

    def start(self, *words: str) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAD", "KUBE"))}
        return subprocess.Popen(
            [sys.executable, "-m", "madlite", *words],
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def call(self, *words: str) -> tuple[int, str]:
        started = self.start(*words)
        out, _ = started.communicate(timeout=200)
        return started.returncode, out

    def rows(self) -> list[dict[str, str]]:
        with suppress(FileNotFoundError), (self.folder / "perf.csv").open() as file:
            return list(csv.DictReader(file))
        return []

    def submission(self) -> str:
        return next(self.folder.glob("madlite_runs/jobs-*")).name.removeprefix("jobs-")


@pytest.fixture
def checkout(tmp_path, place):
    return Checkout(tmp_path / "checkout", place)


def test_jobs_outlive_their_submitter_and_are_collected_once(checkout, place):
    started = checkout.start("run", "--cluster", "lab", "--tags", "a")
    wait_until(lambda: any(pod["status"]["phase"] == "Running" for pod in place.objects("pods")), "the pod")
    started.kill()
    started.communicate()
    assert "1 running" in checkout.call("cluster", "jobs")[1]
    (checkout.folder / "hold").unlink()
    code, out = checkout.call("cluster", "attach")
    assert code == 0, out
    checkout.call("runs", "collect")
    assert [(row["performance"], row["status"]) for row in checkout.rows()] == [("12.5", "SUCCESS")]
    place.is_left_empty()


PATCH = """
include_script_dirs = ["lib"]
volumes = [{{mount = "{shared}", host_path = "{shared}", here = "{shared}"}}]
annotations = {{"kueue.x-k8s.io/podset-required-topology" = "rack"}}
[clusters.lab.kubernetes.pod_patch.spec]
priority = 0
containers = [{{name = "run", env = [{{name = "SPEED", value = "12.5"}}]}}]
[[clusters.lab.kubernetes.pod_patch.spec.topologySpreadConstraints]]
maxSkew = 1
topologyKey = "pool"
whenUnsatisfiable = "ScheduleAnyway"
labelSelector = {{}}
"""
CARD_SCRIPT = (
    "while [ -e {hold} ]; do sleep 0.1; done\n"
    "./go && cat ../lib/speed* link | wc -c && sh ../run.sh && [ $MAD_K8S_NAMESPACE-$MAD_K8S_JOB = {place}-true ]\n"
)


@each_row("large", [False, True])
def test_a_card_s_files_and_a_patch_of_its_pods_reach_the_node(place, tmp_path, large):
    checkout, shared = Checkout(tmp_path / "checkout", place), tmp_path / "shared"
    folder = checkout.folder
    shared.mkdir()
    with (folder / "cluster.toml").open("a") as file:
        file.write(PATCH.format(shared=shared))
    (folder / "scripts/run.sh").write_text(CARD_SCRIPT.format(hold=folder / "hold", place=place.name))
    (folder / "scripts/go").write_text("#!/bin/sh\nexec test -n $MAD_K8S_POD_NAME\n")
    (folder / "scripts/go").chmod(0o755)
    (folder / "run.sh").write_text('echo "performance: $SPEED tok"\n')
    (folder / "lib").mkdir()
    (folder / "lib/speed").write_bytes(os.urandom(2 << 20) if large else b"12.5")
    (folder / "scripts/link").symlink_to("../run.sh")
    made: list[dict] = []
    started = checkout.start("run", "--cluster", "lab", "--tags", "a")
    wait_until(lambda: made.extend(place.objects("pods")) or made, "the pod")
    (folder / "hold").unlink()
    out, _ = started.communicate(timeout=200)
    assert started.returncode == 0, out
    assert [(row["performance"], row["status"]) for row in checkout.rows()] == [("12.5", "SUCCESS")]
    assert [constraint["topologyKey"] for constraint in made[0]["spec"]["topologySpreadConstraints"]] == ["pool"]
    assert made[0]["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == "rack"
    assert len(list(shared.glob("madlite-*.tar"))) == large
    place.is_left_empty()


def test_detached_jobs_are_cancelled_with_a_row(checkout, place):
    assert checkout.call("run", "--cluster", "lab", "--tags", "a", "--detach")[0] == 0
    wait_until(lambda: any(pod["status"]["phase"] == "Running" for pod in place.objects("pods")), "the pod")
    code, out = checkout.call("cluster", "cancel", checkout.submission())
    assert code == 0, out
    assert [row["status"] for row in checkout.rows()] == ["FAILURE"] and "cancelled" in out
    place.is_left_empty()


def test_the_dry_run_is_taken_by_the_server(checkout, place):
    code, out = checkout.call("run", "--cluster", "lab", "--tags", "a", "--dry-run")
    assert code == 0, out
    paths = {"Job": "/apis/batch/v1/namespaces/{0}/jobs", "Service": "/api/v1/namespaces/{0}/services"}
    for one in filter(None, yaml.safe_load_all(out)):
        path = paths.get(one["kind"], f"/api/v1/namespaces/{{0}}/{one['kind'].lower()}s").format(place.name)
        try:
            place.plane.call("POST", f"{path}?dryRun=All", one)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
    assert place.own() == []
