"""What contexts and manifests of madengine 2 say of pods: of a cluster's, and of those that a context alone asks for.

The table is `k8s`, or `kubernetes`: docs/kubernetes.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import msgspec
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Json
from madlite.plan.cluster import Cluster, KubernetesSettings
from madlite.plan.context import Context, merge
from madlite.plan.schedulers import Translation
from madlite.platforms.contexts import Deployment, count_of, fewer_gpus, of_other_machines, products_of
from madlite.platforms.kubernetes.settings import KEYS, RUNTIME, key_of, may_have, read_settings, renamed, settings_of

# docker's keys, each with what says the same of pods
_OF_DOCKER = {
    "docker_mounts": "volumes names claims, folders of the node and NFS",
    "docker_gpus": "Kubernetes chooses the GPUs, gpus_per_node is their number",
    "docker_cpus": "cpu and cpu_limit",
    "additional_docker_run_options": "capabilities, privileged, host_network, host_ipc and shm_size",
}
_OF_GPUS = re.compile(r"gpu|accelerator|instance-type|amd\.com|nvidia\.com", re.IGNORECASE)


def values_of_pods(context: Context, deployment: Mapping[str, Json]) -> Translation:
    """Return what a context and a manifest's deployment say of pods without jobs, `distributed` included.

    Where neither names the GPUs of the nodes, the cluster is asked for them.
    """
    key = key_of(context) or KEYS[0]
    below: Json = next((deployment[name] for name in KEYS if deployment.get(name)), {})
    asked = Deployment.read(context, {**deployment, key: below}, key)
    settings = renamed(asked.own)
    if asked.port and not settings.get("port"):
        settings["port"] = asked.port
    if context.typed.SHM_SIZE and not settings.get("shm_size"):
        settings["shm_size"] = _quantity(context.typed.SHM_SIZE)
    values = asked.variables(with_port=False)
    if asked.nodes:  # the pods' number is still to be read
        values = merge(values, {"distributed": {"nnodes": asked.nodes}})
    notes = [*_name_gpus(settings, asked), *asked.notes(), *_not_of_pods(context)]
    return Translation(values={key: settings, **values}, notes=tuple(notes))


def cluster_of_pods(context: Context, deployment: Mapping[str, Json], base: Cluster) -> Translation:
    """Return what a context asks of a cluster of the file."""
    if clash := [key for key in KEYS if key in context.values]:
        what = f"context key '{clash[0]}' beside --cluster {base.name}: the cluster file has it"
        raise UsageProblem(what, f"change [clusters.{base.name}.kubernetes] of {base.source}")
    asked = Deployment.read(context, deployment, KEYS[0])
    own, shm = base.kubernetes, _quantity(context.typed.SHM_SIZE or "")
    settings = replace(own, port=asked.port or own.port, shm_size=shm or own.shm_size)
    cluster = replace(base, kubernetes=settings)
    number = count_of(asked.distributed.get("nproc_per_node", base.gpus_per_node), "distributed.nproc_per_node")
    cluster, notes = fewer_gpus(cluster, number)
    values, nodes = asked.variables(with_port=False), asked.nodes
    notes += [*asked.notes(), *_not_of_pods(context), *of_other_machines(context, cluster)]
    return Translation(cluster=cluster, nodes=nodes, values=values, notes=tuple(notes))


def context_of_pods(cluster: Cluster) -> dict[str, Json]:
    """Return what a cluster says of pods as a context has it, of which the runtime of the plans has its settings."""
    given, default = (msgspec.to_builtins(each) for each in (settings_of(cluster), KubernetesSettings()))
    return {RUNTIME: {key: value for key, value in given.items() if value != default[key]}}


def _name_gpus(settings: dict[str, Any], asked: Deployment) -> list[str]:
    """Add the GPUs of nodes to the settings of pods that want some and do not name them; return notes."""
    each = asked.distributed.get("nproc_per_node")
    count = settings.get("gpus_per_node", each)
    if asked.context.typed.gpu_vendor == "CPU" or not count:
        return []
    if "gpus_per_node" not in settings:
        settings["gpus_per_node"] = count_of(count, "distributed.nproc_per_node")
    if gpu := settings.get("gpu") or asked.named_gpu:
        settings["gpu"] = gpu
        return []
    where = {key: value for key, value in settings.items() if key not in ("gpus_per_node", "gpu")}
    settings["gpu"], notes = asked.found_gpu(
        lambda: _gpus_of_nodes(read_settings(where, KEYS[0])[0]),
        "a label of the nodes",
        str(settings.get("gpu_resource", "")),
    )
    return notes


def _gpus_of_nodes(settings: KubernetesSettings) -> tuple[str, ...]:
    """Return the GPUs that the labels of `node_selector` name, else those of the nodes that pods may be placed on.

    Raises:
        RuntimeProblem: the cluster cannot be asked.
    """
    if named := _gpus_of_labels(settings.node_selector):
        return named
    from madlite.platforms.kubernetes.api import Api

    with closing(Api(settings)) as api:
        labels = [node["metadata"].get("labels") or {} for node in api.nodes() if may_have(settings, node)]
    found = (gpu for each in labels for gpu in _gpus_of_labels(each))
    return tuple(dict.fromkeys(found))


def _gpus_of_labels(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that labels of a node name, as `amd.com/gpu.product-name` and `nvidia.com/gpu.product` do.

    The GPU operators of AMD and NVIDIA write them.
    """
    found: list[str] = []
    for key, value in labels.items():
        if _OF_GPUS.search(key) and value.lower() != "false":
            found += products_of([key if value.lower() == "true" else value])
    return tuple(dict.fromkeys(found))


def _quantity(size: str) -> str:
    """Return a size as docker takes it, such as `64g`, as Kubernetes has it; docker counts in powers of 1024."""
    found = re.fullmatch(r"([0-9]+)([kmgt]?)i?b?", size.strip(), re.IGNORECASE)
    if found is None:
        return size
    return f"{found[1]}{found[2].upper()}i" if found[2] else found[1]


def _not_of_pods(context: Context) -> Iterator[str]:
    """Yield what a context says of docker's containers, and nothing of pods."""
    for key, way in _OF_DOCKER.items():
        if context.values.get(key):
            yield f"context key '{key}' has no effect on pods; k8s: {way}"
