"""Whether Kubernetes can have the runs that a cluster file describes, by questions alone: no pod is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from madlite.machine.products import find_product
from madlite.plan.cluster import KubernetesSettings
from madlite.plan.schedulers import Examined
from madlite.platforms.kubernetes.api import Api, Refusal
from madlite.platforms.kubernetes.faults import allocatable, capacity_fault
from madlite.platforms.kubernetes.manifests import GPU_RESOURCES, job_kind
from madlite.platforms.kubernetes.settings import may_have

_MADE = ("create", "get", "list", "delete")
# what madlite does, by group and resource: all of it is needed
_NEEDED = {
    ("", "services"): _MADE,
    ("", "configmaps"): _MADE,
    ("", "secrets"): _MADE,
    ("", "pods"): ("get", "list", "patch", "delete"),
    ("", "pods/log"): ("get",),
}
_JOBS = {"Job": ("batch", "jobs"), "JobSet": ("jobset.x-k8s.io", "jobsets")}
# what it does without, and what is missing then
_USEFUL = {
    ("", "pods", "watch"): "pods are polled",
    ("", "events", "list"): "why pods are not made is not told",
    ("", "nodes", "list"): "whether there are nodes with so many GPUs is not known",
}


def examine(api: Api, settings: KubernetesSettings, nodes: int) -> Iterator[Examined]:
    """Yield what is fine, missing or wrong for runs on so many `nodes` each.

    Raises:
        RuntimeProblem: the cluster does not answer.
    """
    yield Examined(text=f"{api.version()}, namespace {api.namespace}", passed=True)
    yield from _rights(api, job_kind(settings))
    yield from _gpus(api.nodes(), settings, nodes)
    for kind, name, key in _named(settings):
        yield _is_there(api, kind, name, key)


def _rights(api: Api, kind: str) -> Iterator[Examined]:
    hint = f"kubectl auth can-i --list --namespace {api.namespace}"
    for (group, resource), verbs in {_JOBS[kind]: (*_MADE, "patch"), **_NEEDED}.items():
        missing = [verb for verb in verbs if not api.may(verb, group, resource)]
        what = f"may not {', '.join(missing)} {resource}" if missing else f"may {', '.join(verbs)} {resource}"
        yield Examined(text=what, passed=not missing, hint=hint if missing else "")
    for (group, resource, verb), without in _USEFUL.items():
        if not api.may(verb, group, resource):
            yield Examined(text=f"may not {verb} {resource}: {without}", passed=None)


def _gpus(found: Sequence[Mapping[str, Any]], settings: KubernetesSettings, nodes: int) -> Iterator[Examined]:
    """Yield whether there are nodes for a run, as far as they can be seen."""
    product = find_product(settings.gpu) if settings.gpu else None
    vendor = product.vendor if product is not None else settings.gpu
    resource = settings.gpu_resource or GPU_RESOURCES.get(vendor, "")
    if not found:
        return
    own = [node for node in found if may_have(settings, node)]
    if not own:
        wanted = ", ".join(f"{key}={value}" for key, value in settings.node_selector.items())
        text = f"none of {len(found)} nodes has the labels of node_selector ({wanted}) and is not excluded"
        yield Examined(text=text, passed=False, hint="kubectl get nodes --show-labels")
        return
    needs = {**({resource: settings.gpus_per_node} if resource else {}), **settings.rdma}
    for name, count in needs.items():
        fault = capacity_fault(own, name, count, nodes)
        if fault is not None:
            yield Examined(text=fault.text, passed=False, hint="kubectl describe nodes: is the device plugin there?")
        else:
            enough = [node for node in own if allocatable(node, name) >= count]
            yield Examined(text=f"{len(enough)} of {len(own)} nodes have {count} {name}", passed=True)


def _named(settings: KubernetesSettings) -> Iterator[tuple[str, str, str]]:
    """Yield what the settings name that has to be there: kind, name, and the key."""
    for name in settings.image_pull_secrets:
        yield "Secret", name, "image_pull_secrets"
    if settings.runtime_secret:
        yield "Secret", settings.runtime_secret, "runtime_secret"
    if settings.service_account:
        yield "ServiceAccount", settings.service_account, "service_account"
    if settings.priority_class:
        yield "PriorityClass", settings.priority_class, "priority_class"
    for volume in settings.volumes:
        if volume.claim:
            yield "PersistentVolumeClaim", volume.claim, "volumes"


def _is_there(api: Api, kind: str, name: str, key: str) -> Examined:
    try:
        there = api.get(kind, name) is not None
    except Refusal as refusal:
        if refusal.status != 403:
            raise
        return Examined(text=f"{kind} {name} ({key}) may not be seen", passed=None)
    text = f"{kind} {name} ({key}) is {'' if there else 'not '}there"
    hint = "" if there else f"kubectl get {kind.lower()} --namespace {api.namespace}"
    return Examined(text=text, passed=there, hint=hint)
