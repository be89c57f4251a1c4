"""What Kubernetes says of pods that do not start, or did not end by themselves → a sentence with cause and hint; pure.

Reasons: k8s.io/api (v1.PodStatus, v1.PodCondition, v1.ContainerState), the kubelet's image manager, the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from madlite.model import Cause, Value
from madlite.platforms.kubernetes.manifests import CONTAINER, own_container

Json = Mapping[str, Any]


class Fault(Value, frozen=True):
    """Why a pod does not run; `lasting` where waiting cannot help."""

    text: str
    hint: str = ""
    cause: Cause = Cause.PREPARE
    lasting: bool = False
    out_of_memory: bool = False
    state: str = ""  # the engine's own word


def pod_name(pod: Json) -> str:
    """Return the name of a pod."""
    return str(pod["metadata"]["name"])


def container_state(pod: Json) -> tuple[str, Json]:
    """Return the state of the pod's container, `waiting`, `running` or `terminated`, and what it says of it."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    own = next((status for status in statuses if status.get("name") == CONTAINER), statuses[0])  # not a sidecar's
    state = own.get("state") or {}
    for name in ("terminated", "running", "waiting"):
        if state.get(name) is not None:
            return name, state[name]
    return "", {}


def has_started(pod: Json) -> bool:
    """Return whether the pod's container runs or ran."""
    return container_state(pod)[0] in ("running", "terminated") or phase_of(pod) in ("Succeeded", "Failed")


def phase_of(pod: Json) -> str:
    """Return the pod's phase."""
    return str(pod.get("status", {}).get("phase", ""))


_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NEVER = re.compile(r"not found|manifest unknown|denied|unauthorized|authentication required|repository does not exist")


def pending_fault(pod: Json) -> Fault | None:
    """Return why a pod has not started, None where it is on its way."""
    name, image = pod_name(pod), own_container(pod).get("image", "")
    state, said = container_state(pod)
    reason, message = str(said.get("reason", "")), _one_line(said.get("message", ""))
    if state == "waiting" and reason in _NO_IMAGE:
        access = "denied" in message or "unauthorized" in message or "authentication" in message
        hint = "k8s.image_pull_secrets names a secret of the registry" if access else "check the name; --image REF"
        return Fault(
            text=f"image {image} cannot be pulled for pod {name} ({reason}{': ' + message if message else ''})",
            hint=hint,
            cause=Cause.IMAGE,
            lasting=reason in ("InvalidImageName", "ErrImageNeverPull") or bool(_NEVER.search(message.lower())),
            state=reason,
        )
    if state == "waiting" and reason in _CONFIG:
        return Fault(
            text=f"the container of pod {name} cannot be made ({reason}: {message})",
            hint="a Secret, claim or device that the settings name is not there",
            lasting=True,
            state=reason,
        )
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _unscheduled(name, condition)
    return None


def _unscheduled(name: str, condition: Json) -> Fault:
    message, reason = _one_line(condition.get("message", "")), str(condition.get("reason", "Unschedulable"))
    if reason == "SchedulingGated":
        return Fault(text=f"pod {name} waits for its queue ({reason})", state=reason)
    hint = "the pods start when there is room"
    if "didn't match" in message or "node(s) had" in message or "taint" in message:
        hint = "k8s.node_selector and k8s.tolerations decide which nodes it may have"
    return Fault(text=f"pod {name} has no node ({reason}: {message})", hint=hint, cause=Cause.GPUS, state=reason)


def capacity_fault(nodes: Sequence[Json], resource: str, count: int, pods: int) -> Fault | None:
    """Return that no node, or too few of them, can ever have so many GPUs; None where they can."""
    if not resource or not nodes:
        return None
    have = [allocatable(node, resource) for node in nodes]
    enough = sum(1 for item in have if item >= count)
    room = sum(item // count for item in have) if count else pods
    if room >= pods:
        return None
    if enough == 0:
        text = f"no node has {count} {resource}: of {len(nodes)} nodes the largest has {max(have)}"
        hint = "is the device plugin installed?" if max(have) == 0 else f"--set n_gpus={max(have)}"
    else:
        text = f"{pods} pods of {count} {resource} each, and the cluster has room for {room}"
        hint = f"k8s.nodes={room}"
    return Fault(text=text, hint=hint, cause=Cause.GPUS, lasting=True, state="Unschedulable")


def allocatable(node: Json, resource: str) -> int:
    """Return how many of a resource the pods of a node can have."""
    text = str((node.get("status", {}).get("allocatable") or {}).get(resource, ""))
    return int(text) if text.isdigit() else 0


def creation_fault(failed_creations: Iterable[Json], job: str) -> Fault | None:
    """Return why the controller of a Job cannot make its pods: a quota, an admission rule."""
    for event in failed_creations:
        message = _one_line(event.get("message", ""))
        if (event.get("involvedObject") or {}).get("name") == job and message:
            if "exceeded quota" in message:
                return quota_fault(message)
            return Fault(text=f"the cluster refuses the run's pods ({message})", lasting="forbidden" in message)
    return None


def quota_fault(message: str) -> Fault:
    """Return that a quota of the namespace does not allow the run."""
    found = re.search(r"exceeded quota: .*", message)
    return Fault(
        text=f"a quota of the namespace does not allow the run ({found[0] if found else message})",
        hint="kubectl describe quota; fewer GPUs, or another namespace: k8s.namespace",
        cause=Cause.GPUS,
        lasting=True,
        state="FailedCreate",
    )


_DISRUPTED = {
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "DeletionByTaintManager": "was removed from its node, which has a taint now",
    "EvictionByEvictionAPI": "was evicted, as when a node is drained",
    "DeletionByPodGC": "is lost: its node is gone",
    "TerminationByKubelet": "was ended by its node, which shuts down or lacks memory",
}


CANCELLED = "madlite.cancelled"
"""The annotation of pods whose run somebody cancels; they are deleted next."""


def ended_fault(pod: Json) -> Fault | None:
    """Return what ended a pod other than its own script; None where it ended by itself or goes on."""
    name, status = pod_name(pod), pod.get("status", {})
    if CANCELLED in (pod["metadata"].get("annotations") or {}):
        return Fault(text="the run was cancelled", cause=Cause.INTERRUPTED, state="cancelled")
    node = pod.get("spec", {}).get("nodeName", "")
    where = f" on node {node}" if node else ""
    state, said = container_state(pod)
    reason, message = str(status.get("reason", "")), _one_line(status.get("message", ""))
    if state == "terminated" and said.get("reason") == "OOMKilled":
        limit = _memory_limit(pod)
        return Fault(
            text=f"pod {name} was killed for memory{where}" + (f": its limit is {limit}" if limit else " (OOMKilled)"),
            hint="k8s.memory_limit",
            cause=Cause.HOST_MEMORY,
            out_of_memory=True,
            state="OOMKilled",
        )
    if reason == "Evicted":
        disk = "ephemeral" in message or "disk" in message.lower()
        return Fault(
            text=f"pod {name} was evicted{where} ({message})",
            hint="the node lacks room: write less into the container, or to a volume" if disk else "",
            cause=Cause.DISK if disk else Cause.PREEMPTED,
            state=reason,
        )
    if reason in ("NodeLost", "NodeAffinity", "UnexpectedAdmissionError", "Shutdown", "NodeShutdown", "Terminated"):
        return Fault(text=f"pod {name} ended{where} ({reason}: {message})", cause=Cause.PREEMPTED, state=reason)
    if reason == "DeadlineExceeded":
        return Fault(text=f"pod {name} ran beyond its own limit", cause=Cause.TIMEOUT, state=reason)
    return _disrupted(status, name, where) or _removed(pod, name, where)


def deletion_grace_s(pod: Json) -> int | None:
    """Return how long a pod that somebody deletes has to end; None of one that nobody does."""
    metadata = pod["metadata"]
    return int(metadata.get("deletionGracePeriodSeconds") or 0) if metadata.get("deletionTimestamp") else None


def _removed(pod: Json, name: str, where: str) -> Fault | None:
    """Return that somebody deleted the pod before its container had ended."""
    metadata = pod["metadata"]
    gone = _time(metadata.get("deletionTimestamp"))
    if gone is None:
        return None
    asked = gone - timedelta(seconds=deletion_grace_s(pod) or 0)
    state, said = container_state(pod)
    ended = _time(said.get("finishedAt")) if state == "terminated" else None
    if phase_of(pod) == "Succeeded" or (ended is not None and ended < asked):
        return None
    return Fault(text=f"pod {name} was removed while it ran{where}", **_LOST)


def gone_fault(pod: Json) -> Fault:
    """Return that a pod is not there any more, and had not ended when it was seen last."""
    return Fault(text=f"pod {pod_name(pod)} was removed while it ran", **_LOST)


_LOST: dict[str, Any] = {"hint": "kubectl get events", "cause": Cause.PREEMPTED, "state": "removed"}


def _time(text: object) -> datetime | None:
    """Return a time of the API, in seconds."""
    found = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", str(text or ""), re.ASCII)
    return datetime.fromisoformat(found[0]) if found else None


def _disrupted(status: Json, name: str, where: str) -> Fault | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            word = str(condition.get("reason", ""))
            what = _DISRUPTED.get(word, f"was ended by the cluster ({word})")
            message = _one_line(condition.get("message", ""))
            text = f"pod {name}{where} {what}" + (f" ({message})" if message else "")
            return Fault(text=text, hint="--retry starts such a run again", cause=Cause.PREEMPTED, state=word)
    return None


def exit_code(pod: Json) -> int | None:
    """Return the exit code of the pod's container; None where it has none yet, or nobody knows it."""
    state, said = container_state(pod)
    is_known = state == "terminated" and said.get("reason") != "ContainerStatusUnknown"
    return int(said["exitCode"]) if is_known and said.get("exitCode") is not None else None


def _memory_limit(pod: Json) -> str:
    resources = own_container(pod).get("resources") or {}
    return str((resources.get("limits") or {}).get("memory", ""))


def _one_line(text: object) -> str:
    return " ".join(str(text or "").split())[:400]
