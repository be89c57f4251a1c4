"""Whether Kubernetes can have the runs that a cluster file describes, by questions alone: no pod is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from madlite.machine.products import find_product
from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.kubernetes.api import Api, Refusal
from madlite.platforms.kubernetes.faults import allocatable, capacity_fault
from madlite.platforms.kubernetes.manifests import GPU_RESOURCES, job_kind
from madlite.platforms.kubernetes.settings import may_have


class Examined(NamedTuple):
    """What is known of a cluster in one respect; `unknown` where it could not be asked, or does no harm."""

    state: Literal["ok", "fail", "unknown"]
    text: str
    hint: str = ""


_MADE = ("create", "get", "list", "delete")
_JOBS = {"Job": ("batch", "jobs"), "JobSet": ("jobset.x-k8s.io", "jobsets")}
# what madlite does, by group and resource, and what is missing without it where that is not all
_RIGHTS = (
    ("", "services", _MADE, ""),
    ("", "configmaps", _MADE, ""),
    ("", "secrets", _MADE, ""),
    ("", "pods", ("get", "list", "patch", "delete"), ""),
    ("", "pods/log", ("get",), ""),
    ("", "pods", ("watch",), "pods are polled"),
    ("", "events", ("list",), "why pods are not made is not told"),
    ("", "nodes", ("list",), "whether there are nodes with so many GPUs is not known"),
)


def examine(api: Api, settings: KubernetesSettings, nodes: int) -> Iterator[Examined]:
    """Yield what is fine, missing or wrong for runs on so many `nodes` each.

    Raises:
        RuntimeProblem: the cluster does not answer.
    """
    yield Examined("ok", f"{api.version()}, namespace {api.namespace}")
    hint = f"kubectl auth can-i --list --namespace {api.namespace}"
    for group, resource, verbs, without in ((*_JOBS[job_kind(settings)], (*_MADE, "patch"), ""), *_RIGHTS):
        if not (missing := [verb for verb in verbs if not api.may(verb, group, resource)]):
            yield Examined("ok", f"may {', '.join(verbs)} {resource}")
        elif without:
            yield Examined("unknown", f"may not {', '.join(missing)} {resource}: {without}")
        else:
            yield Examined("fail", f"may not {', '.join(missing)} {resource}", hint)
    if there := api.nodes():
        yield from _nodes(there, settings, nodes)
    for kind, name, key in (
        *(("Secret", name, "image_pull_secrets") for name in settings.image_pull_secrets),
        ("Secret", settings.runtime_secret, "runtime_secret"),
        ("ServiceAccount", settings.service_account, "service_account"),
        ("PriorityClass", settings.priority_class, "priority_class"),
        *(("PersistentVolumeClaim", volume.claim, "volumes") for volume in settings.volumes),
    ):
        if name:
            yield _named(api, kind, name, key)


def _nodes(there: Sequence[Mapping[str, Any]], settings: KubernetesSettings, nodes: int) -> Iterator[Examined]:
    """Yield whether there are nodes with the GPUs and RDMA resources of a run."""
    own = [node for node in there if may_have(settings, node)]
    if not own:
        what = f"none of {len(there)} nodes has the labels of node_selector and is not excluded"
        yield Examined("fail", what, "kubectl get nodes --show-labels")
    product = find_product(settings.gpu) if settings.gpu else None
    vendor = product.vendor if product is not None else settings.gpu
    resource = settings.gpu_resource or GPU_RESOURCES.get(vendor, "")
    needs = {**({resource: settings.gpus_per_node} if resource else {}), **settings.rdma}
    for name, count in needs.items() if own else ():
        if fault := capacity_fault(own, name, count, nodes):
            yield Examined("fail", fault.text, "kubectl describe nodes: is the device plugin there?")
        else:
            enough = sum(allocatable(node, name) >= count for node in own)
            yield Examined("ok", f"{enough} of {len(own)} nodes have {count} {name}")


def _named(api: Api, kind: str, name: str, key: str) -> Examined:
    """Return whether what the settings name is there."""
    try:
        if api.get(kind, name) is not None:
            return Examined("ok", f"{kind} {name} ({key}) is there")
    except Refusal as refusal:
        if refusal.status != 403:
            raise
        return Examined("unknown", f"{kind} {name} ({key}) may not be seen")
    hint = f"kubectl get {kind.lower()} --namespace {api.namespace}"
    return Examined("fail", f"{kind} {name} ({key}) is not there", hint)
