"""Runs on a stand-in cluster whose pods are processes: output, exits, stops, faults, and what is left."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from msgspec.structs import replace

from madlite.errors import RuntimeProblem
from madlite.model import Cause, Exit, Secret
from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.kubernetes.manifests import job_name
from madlite.platforms.kubernetes.runtime import KubernetesRuntime
from tests.pods.stand_in import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.host


class Output:
    """What came of each node."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.some = threading.Event()

    def __call__(self, chunk) -> None:
        self.parts[chunk.node] = self.parts.get(chunk.node, b"") + chunk.data
        self.some.set()

    def text(self, node: int = 0) -> str:
        return self.parts.get(node, b"").decode()


def run(runtime: KubernetesRuntime, plan) -> tuple[list[Exit], list[Output]]:
    exits, outputs = [], []
    with runtime.open(plan) as session:
        for action in plan.actions:
            outputs.append(Output())
            exits.append(session.run(action, outputs[-1]))
            if exits[-1].code:
                break
    return exits, outputs


def assert_nothing_left(cluster: Cluster) -> None:
    wait_until(lambda: not cluster.pods and not cluster.objects, "the removal of all objects")
    assert cluster.invalid == []


def test_actions_follow_each_other_and_each_has_its_own_output(cluster, runtime, plan):
    exits, outputs = run(runtime, plan("echo one; cat run.sh", "printf two; exit 3", "echo never"))
    assert [one.code for one in exits] == [0, 3]
    assert outputs[0].text() == "one\necho from run.sh\n" and outputs[1].text() == "two\n"
    assert_nothing_left(cluster)


def test_nodes_have_their_rank_and_the_first_to_fail_is_named(cluster, runtime, plan, tmp_path):
    script = f"""
echo "$NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT"
[ "$NODE_RANK" != 1 ] || {{ touch {tmp_path}/failing; exit 4; }}
until [ -e {tmp_path}/failing ]; do sleep 0.05; done # however late the other one began
sleep 2
exit 5
"""
    (ended,), (output,) = run(runtime, plan(script, nodes=2))
    assert (ended.code, ended.failed_node, ended.codes[1]) == (4, 1, 4)
    for node in (0, 1):
        assert output.text(node).startswith(f"{node} of 2 at madlite-") and "-0.madlite-" in output.text(node)
        assert output.text(node).endswith(":29500\n")


def test_secrets_reach_the_workload_and_stand_in_the_secret_alone(cluster, runtime, plan):
    made = plan(
        'echo "$HF_TOKEN" | rev; echo "$OWN" | rev; echo "$DOLLAR"',
        env={"HF_TOKEN": Secret("s3cr3t-hub"), "DOLLAR": "$(HOME) $x"},
    )
    action = replace(made.actions[0], env={"OWN": Secret("s3cr3t-own")})
    seen: list[str] = []

    def keep(pod):
        seen.append(repr([one for (kind, _), one in cluster.objects.items() if kind != "secrets"]) + repr(pod))

    cluster.pod_status = keep
    _, (output,) = run(runtime, replace(made, actions=(action,)))
    assert output.text() == "buh-t3rc3s\nnwo-t3rc3s\n$(HOME) $x\n"
    assert seen and "s3cr3t" not in seen[0]


def test_a_log_that_breaks_is_read_on_and_no_line_comes_twice_or_is_lost(cluster, runtime, plan):
    cluster.cut_logs_after = 700
    (ended,), (output,) = run(runtime, plan('i=0; while [ $((i += 1)) -le 60 ]; do echo "line $i"; done'))
    assert ended.code == 0 and output.text() == "".join(f"line {n}\n" for n in range(1, 61))
    assert sum(1 for method, path in cluster.requests if path.endswith("/log")) > 3


def test_pods_are_watched_and_a_watch_that_breaks_or_is_too_old_loses_nothing(cluster, runtime, plan):
    cluster.cut_watches_after = 1
    cluster.pod_status = lambda pod: setattr(cluster, "oldest", cluster._version + 2)
    (ended,), (output,) = run(runtime, plan("echo one; sleep 4; exit 3"))
    assert ended.code == 3 and output.text() == "one\n"
    assert len(cluster.watches) > 1
    lists = [1 for method, path in cluster.requests if (method, path) == ("GET", "/api/v1/namespaces/bench/pods")]
    assert len(lists) - len(cluster.watches) <= 3  # not polled
    assert_nothing_left(cluster)


def test_a_cluster_that_allows_no_watch_is_polled(cluster, runtime, plan):
    cluster.may_watch = False
    (ended,), (output,) = run(runtime, plan("echo one; exit 3"))
    assert ended.code == 3 and output.text() == "one\n"


@pytest.mark.parametrize("nodes", [1, 2])
def test_pods_keep_the_run_s_limit_where_nobody_follows_them(cluster, runtime, plan, monkeypatch, tmp_path, nodes):
    monkeypatch.setattr("madlite.platforms.kubernetes.manifests._LIMIT_SLACK_S", 0)
    (tmp_path / "bin").mkdir()
    sleep = tmp_path / "bin/sleep"  # no second passes before the workload has begun
    begun = f"{tmp_path}/begun-$NODE_RANK"
    sleep.write_text(f'#!/bin/sh\nuntil [ -e "{begun}" ]; do /bin/sleep 0.05; done\nexec /bin/sleep "$@"\n')
    sleep.chmod(0o755)
    script = f"trap 'echo last words; exit 0' INT; echo begun; echo > {begun}; while :; do /bin/sleep 0.1; done"
    env = {"PATH": f"{sleep.parent}:{os.environ['PATH']}"}
    made = plan(script, nodes=nodes, stop_grace_s=20.0, timeout_s=1.0, env=env)
    output = Output()
    with runtime.open(made) as session, pytest.raises(RuntimeProblem) as problem:
        session.run(made.actions[0], output)
    assert problem.value.cause == Cause.TIMEOUT and "ended it at the time limit of 1 s" in problem.value.message
    assert [output.text(node) for node in range(nodes)] == ["begun\nlast words\n"] * nodes
    assert_nothing_left(cluster)


def test_a_run_that_ends_before_its_limit_ends_as_it_does(cluster, runtime, plan):
    (ended,), _ = run(runtime, plan("exit 124", timeout_s=600.0))
    assert ended.code == 124
    assert_nothing_left(cluster)


def test_files_that_a_run_leaves_come_back(cluster, runtime, plan, tmp_path):
    made = plan("mkdir -p out; printf 'a\\0b' > numbers.bin; echo x > ../../elsewhere")
    with runtime.open(made) as session:
        session.run(made.actions[0], Output())
        session.collect([f"madlite_runs/{made.id}/work/*"], tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["numbers.bin"]
    assert (tmp_path / "back/numbers.bin").read_bytes() == b"a\0b"


@pytest.mark.parametrize(
    ("status", "cause", "words"),
    [
        (
            {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
            Cause.DISK,
            "was evicted",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            Cause.HOST_MEMORY,
            "was killed for memory",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "DeletionByPodGC",
                        "message": "node n1 is gone",
                    }
                ]
            },
            Cause.PREEMPTED,
            "is lost: its node is gone",
        ),
    ],
)
def test_what_the_cluster_ends_is_told_in_one_sentence(cluster, runtime, plan, status, cause, words):
    made = plan("echo begun; sleep 600")
    output = Output()

    def end() -> None:
        output.some.wait(60)
        (name,) = cluster.pods
        cluster.lose(name, {"phase": "Failed", **status})

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(RuntimeProblem) as problem, runtime.open(made) as session:
        session.run(made.actions[0], output)
    assert (problem.value.cause, words in problem.value.message) == (cause, True), problem.value.message
    assert_nothing_left(cluster)


def waiting(state: str, reason: str, message: str) -> dict:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


def unscheduled(message: str) -> dict:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def test_a_run_that_no_node_can_have_is_refused_at_once(cluster, runtime, plan):
    cluster.pod_status = lambda pod: unscheduled("0/4 nodes are available: 4 Insufficient amd.com/gpu.")
    big = plan("true")
    big = replace(big, place=replace(big.place, gpus_per_node=16), machine=replace(big.machine, vendor="AMD"))
    with pytest.raises(RuntimeProblem) as problem, runtime.open(big):
        pass
    assert "no node has 16 amd.com/gpu: of 4 nodes the largest has 8" in problem.value.message
    assert problem.value.cause is Cause.GPUS
    assert_nothing_left(cluster)


def test_a_job_that_is_removed_before_its_pods_started_ends_the_wait(cluster, runtime, plan):
    def wait(pod: dict) -> dict:
        threading.Timer(
            0.5, lambda: cluster.delete("jobs", next(name for kind, name in cluster.objects if kind == "jobs"), 0)
        ).start()
        return unscheduled("0/4 nodes are available: 4 Insufficient cpu.")

    cluster.pod_status = wait
    with pytest.raises(RuntimeProblem, match="was removed before its pods had started"), runtime.open(plan("true")):
        pass
    assert_nothing_left(cluster)


def test_a_run_that_waits_for_room_says_so_and_begins_when_there_is_some(cluster, runtime, plan, caplog):
    cluster.pod_status = lambda pod: unscheduled("0/4 nodes are available: 4 Insufficient amd.com/gpu.")
    made = plan("echo it ran")
    made = replace(made, place=replace(made.place, gpus_per_node=8), machine=replace(made.machine, vendor="AMD"))

    def make_room() -> None:
        wait_until(lambda: "waits" in caplog.text)
        (pod,) = cluster.pods.values()
        cluster._run(pod, 0)

    threading.Thread(target=make_room, daemon=True).start()
    _, (output,) = run(runtime, made)
    assert output.text() == "it ran\n" and "Insufficient amd.com/gpu" in caplog.text


def test_an_image_that_is_not_there_is_told(cluster, runtime, plan, monkeypatch):
    monkeypatch.setattr("madlite.platforms.kubernetes.runtime._CERTAIN_S", 0.5)
    cluster.pod_status = lambda pod: waiting("waiting", "ImagePullBackOff", "manifest for rocm/primus:v25.10 not found")
    with pytest.raises(RuntimeProblem) as problem, runtime.open(plan("true")):
        pass
    assert "image rocm/primus:v25.10 cannot be pulled" in problem.value.message and problem.value.cause is Cause.IMAGE
    assert_nothing_left(cluster)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (
                "POST /apis/batch",
                403,
                'jobs.batch "x" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8',
            ),
            "a quota of the namespace",
        ),
        (
            ("POST /apis/batch", 403, 'jobs.batch is forbidden: User "me" cannot create resource "jobs"'),
            "does not allow POST jobs",
        ),
        (("POST /api/v1/namespaces/bench/configmaps", 409, 'configmaps "x" already exists'), "it is there already"),
    ],
)
def test_a_refusal_is_told_and_nothing_is_left(cluster, runtime, plan, answer, words):
    cluster.answers.append(answer)
    with pytest.raises(RuntimeProblem) as problem, runtime.open(plan("true")):
        pass
    assert words in problem.value.message
    assert_nothing_left(cluster)


def test_a_quota_on_pods_is_told(cluster, runtime, plan):
    cluster.start = lambda job: None
    message = 'Error creating: pods "x" is forbidden: exceeded quota: gpus, requested: amd.com/gpu=8'
    made = plan("true")
    about = {"involvedObject": {"name": job_name(made.id)}, "message": message}
    cluster.events.append({"metadata": {"name": "e"}, "reason": "FailedCreate", **about})
    with pytest.raises(RuntimeProblem, match="exceeded quota: gpus") as problem, runtime.open(made):
        pass
    assert problem.value.cause is Cause.GPUS


def test_a_server_that_is_busy_is_asked_again(cluster, runtime, plan):
    cluster.answers += [("POST /apis/batch", 503, "busy"), ("GET /api/v1/namespaces/bench/pods", 429, "too many")]
    (ended,), (output,) = run(runtime, plan("echo fine"))
    assert ended.code == 0 and output.text() == "fine\n"


def test_a_server_that_asks_to_wait_is_asked_again_then(cluster, runtime, plan, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("madlite.platforms.kubernetes.api._pause", waits.append)
    cluster.answers += [("POST /apis/batch", 429, "too many")]
    (ended,), _ = run(runtime, plan("echo fine"))
    assert ended.code == 0 and waits == [3.0]


def test_a_run_that_waits_outlives_a_server_that_is_away(cluster, runtime, plan, monkeypatch, caplog):
    monkeypatch.setattr("madlite.platforms.kubernetes.api._pause", lambda wait_s: None)
    cluster.pod_status = lambda pod: unscheduled("0/4 nodes are available: 4 Insufficient cpu.")

    def go_away() -> None:
        wait_until(lambda: "Insufficient cpu" in caplog.text)
        cluster.away = 40  # more than a call that nobody waits for is tried
        wait_until(lambda: not cluster.away)
        (pod,) = cluster.pods.values()
        cluster._run(pod, 0)

    threading.Thread(target=go_away, daemon=True).start()
    (ended,), (output,) = run(runtime, plan("echo it ran"))
    assert (ended.code, output.text()) == (0, "it ran\n")
    assert_nothing_left(cluster)


def test_a_token_whose_time_is_over_is_fetched_anew(cluster, plan, tmp_path):
    tokens, plugin = tmp_path / "token", tmp_path / "login"
    tokens.write_text("t0ken")
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    plugin.write_text(
        f"#!{sys.executable}\nimport json, pathlib\n"
        f"token = pathlib.Path({str(tokens)!r}).read_text()\n"
        f"print(json.dumps({{**{credential!r}, 'status': {{'token': token}}}}))\n"
    )
    plugin.chmod(0o755)
    command = {"apiVersion": credential["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}
    runtime = KubernetesRuntime(KubernetesSettings(kubeconfig=str(cluster.kubeconfig({"exec": command}))))
    made, output = plan('echo begun; while [ ! -e "$MADLITE_WORKSPACE/over" ]; do sleep 0.1; done; echo done'), Output()

    def expire() -> None:
        output.some.wait(60)
        cluster.token = "an0ther"
        tokens.write_text(cluster.token)
        (pod,) = cluster.pods
        (cluster.home / pod / "myworkspace/over").touch()

    threading.Thread(target=expire, daemon=True).start()
    with runtime.open(made) as session:
        assert session.run(made.actions[0], output).code == 0
    assert output.text() == "begun\ndone\n"
    assert_nothing_left(cluster)


def test_a_pod_whose_node_says_nothing_any_more_is_lost(cluster, runtime, plan, monkeypatch):
    monkeypatch.setattr("madlite.platforms.kubernetes.session._LOST_S", 0.0)
    made, output = plan("echo begun; sleep 600"), Output()

    def lose() -> None:
        output.some.wait(60)
        (name,) = cluster.pods
        body = cluster.pods[name].body
        taint = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        body["status"]["conditions"] = [taint]
        body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 0}
        cluster.answers += [("/log", 500, "dial tcp 10.0.0.1:10250: connect: no route to host")] * 99
        cluster.kill(cluster.pods[name], 0)  # and nobody notes it at the pod
        body["status"]["phase"] = "Running"

    cluster._ended = lambda pod, code: pod.over.set()
    threading.Thread(target=lose, daemon=True).start()
    with pytest.raises(RuntimeProblem, match="was removed from its node") as problem, runtime.open(made) as session:
        session.run(made.actions[0], output)
    assert problem.value.cause is Cause.PREEMPTED
    assert session.notes == (f"the end of the log of pod {session.nodes[0]} could not be read: its node may be gone",)


def test_a_handle_cancels_and_reports_from_another_process(cluster, runtime, plan):
    made = plan("echo begun; sleep 600", keep_alive=True)
    with runtime.open(made) as session:
        handle = session.handle
    other = KubernetesRuntime(runtime.settings)
    answer = other.outcome(handle)
    assert answer is not None and not answer.ended and answer.state == "Running"
    other.cancel(handle)
    assert_nothing_left(cluster)
    other.cancel(handle)
    assert other.outcome(handle) is None and other.outcome("nonsense") is None
    with pytest.raises(RuntimeProblem, match="names no Job"):
        other.cancel("nonsense")


def test_without_a_cluster_it_is_not_available(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    problem = KubernetesRuntime(KubernetesSettings(kubeconfig=str(tmp_path / "none"))).available()
    assert problem is not None and "kubeconfig" in problem.what
