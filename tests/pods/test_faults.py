"""What Kubernetes says of pods, as sentences."""

from __future__ import annotations

from madlite.model import Cause
from madlite.platforms.kubernetes.faults import capacity_fault, creation_fault, ended_fault, exit_code, pending_fault
from tests.rows import each_row


def pod(**status: object) -> dict:
    container = {"name": "run", "image": "rocm/x:1", "resources": {"limits": {"memory": "64Gi"}}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], "nodeName": "n3"}, "status": status}


def waiting(reason: str, message: str = "") -> dict:
    return pod(phase="Pending", containerStatuses=[{"state": {"waiting": {"reason": reason, "message": message}}}])


def ended(**said: object) -> list[dict]:
    return [{"state": {"terminated": said}}]


@each_row(
    ("given", "words", "cause", "lasting"),
    [
        (waiting("ErrImagePull", "manifest unknown"), "image rocm/x:1 cannot be pulled", Cause.IMAGE, True),
        (waiting("ImagePullBackOff", "dial tcp: i/o timeout"), "cannot be pulled", Cause.IMAGE, False),
        (waiting("InvalidImageName"), "cannot be pulled", Cause.IMAGE, True),
        (waiting("CreateContainerConfigError", 'secret "t" not found'), 'secret "t" not found', Cause.PREPARE, True),
    ],
)
def test_why_a_pod_does_not_start(given, words, cause, lasting):
    fault = pending_fault(given)
    assert fault is not None and words in fault.text
    assert (fault.cause, fault.lasting) == (cause, lasting)


def test_a_registry_that_wants_a_login_names_the_setting():
    fault = pending_fault(waiting("ErrImagePull", "pull access denied, authorization failed"))
    assert fault is not None and "image_pull_secrets" in fault.hint


def test_a_pod_on_its_way_has_no_fault():
    assert pending_fault(waiting("ContainerCreating")) is None and ended_fault(pod(phase="Running")) is None


@each_row(
    ("given", "words", "cause"),
    [
        (
            pod(containerStatuses=ended(exitCode=137, reason="OOMKilled")),
            "killed for memory on node n3: its limit is 64Gi",
            Cause.HOST_MEMORY,
        ),
        (
            pod(reason="Evicted", message="low on resource: memory"),
            "evicted on node n3 (low on resource: memory)",
            Cause.PREEMPTED,
        ),
        (pod(reason="Evicted", message="ephemeral-storage"), "evicted", Cause.DISK),
        (pod(reason="NodeLost", message="Node n3 is unresponsive"), "Node n3 is unresponsive", Cause.PREEMPTED),
        (
            pod(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]),
            "preempted by a pod of higher priority",
            Cause.PREEMPTED,
        ),
    ],
)
def test_what_ended_a_pod(given, words, cause):
    fault = ended_fault(given)
    assert fault is not None and words in fault.text and fault.cause is cause


def test_an_exit_of_its_own_is_no_fault():
    given = pod(phase="Failed", containerStatuses=ended(exitCode=3, reason="Error"))
    assert ended_fault(given) is None and exit_code(given) == 3
    assert exit_code(pod(containerStatuses=ended(exitCode=137, reason="ContainerStatusUnknown"))) is None


def nodes(*gpus: int) -> list[dict]:
    return [{"status": {"allocatable": {"amd.com/gpu": str(count)}}} for count in gpus]


def test_what_a_cluster_can_never_have_is_told():
    fault = capacity_fault(nodes(4, 4), "amd.com/gpu", 8, 1)
    assert fault is not None and fault.text == "no node has 8 amd.com/gpu: of 2 nodes the largest has 4"
    fault = capacity_fault(nodes(8, 8), "amd.com/gpu", 8, 4)
    assert fault is not None and "room for 2" in fault.text
    assert capacity_fault(nodes(8, 8), "amd.com/gpu", 4, 4) is None and capacity_fault([], "amd.com/gpu", 8, 1) is None
    none = capacity_fault(nodes(0), "amd.com/gpu", 8, 1)
    assert none is not None and "device plugin" in none.hint


def test_a_quota_is_told_by_the_controller_s_event():
    message = 'pods "x" is forbidden: exceeded quota: g, used: 8'
    events = [{"involvedObject": {"name": "j"}, "reason": "FailedCreate", "message": message}]
    fault = creation_fault(events, "j")
    assert fault is not None and fault.lasting and "exceeded quota: g, used: 8" in fault.text
    assert creation_fault(events, "other") is None
