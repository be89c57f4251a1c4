"""What contexts and manifests of madengine 2 say of Slurm and Kubernetes → a cluster, or the settings of pods.

Keys and meanings: madengine 2.1's `slurm`, `k8s`, `distributed`, `env_vars` and `deployment_config`; docs/cluster.md
and docs/kubernetes.md have the tables.  A key that madengine does not have is named; one that means nothing here too,
with why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from madlite.errors import RuntimeProblem, UsageProblem, did_you_mean
from madlite.jobs.node_gpus import vendor_of_nodes
from madlite.machine.products import find_product
from madlite.model import Json, Value
from madlite.plan.cluster import TIME, Cluster, KubernetesSettings
from madlite.plan.context import TARGETS, Context, Options, merge, without_comments
from madlite.plan.inputs import split_hosts
from madlite.platforms.kubernetes.settings import GPU_KEYS, RESOURCE_KEYS
from madlite.platforms.kubernetes.settings import RUNTIME as KUBERNETES

_SAME = ("partition", "account", "qos", "reservation", "constraint", "time", "mem")
_NAMED = ("nodes", "gpus_per_node", "exclusive", "modules", "nodelist", "exclude", "network_interface")
_IGNORED = {
    "output_dir": "jobs and runs have their folders in madlite_runs",
    "results_dir": "jobs and runs have their folders in madlite_runs",
    "shared_workspace": "the working folder is the shared one",
    "enable_node_check": "madlite cluster check checks nodes, and good_nodes of the cluster file has what passed",
    "auto_cleanup_nodes": "a job ends what it started, and nothing else",
    "verbose_node_check": "madlite cluster check checks nodes",
    "allow_submit_without_clean_nodes": "madlite cluster check checks nodes",
}
_KNOWN = (*_SAME, *_NAMED, *_IGNORED)
DONE = (
    *("slurm", "deploy", "deployment_config", "env_vars", "device", "gpu_product"),
    *(f"distributed.{key}" for key in ("nnodes", "nproc_per_node", "backend", "port", "master_port", "enabled")),
    *("distributed.primus", "distributed.sglang_disagg", "distributed.vllm_disagg"),
)
"""Keys of the context that are done with once it is translated."""
DONE_FOR_PODS = tuple(key for key in DONE if key not in ("slurm", "distributed.nnodes"))
"""Those of a context that sends runs to Kubernetes: the pods' number is still to be read."""
_DISTRIBUTED = ("launcher", "nnodes", "nproc_per_node", "backend", "port", "master_port", "enabled", "primus")
_DISTRIBUTED_LATER = ("sglang_disagg", "vllm_disagg")  # of serving
_PRIMUS = {"config_path": "PRIMUS_CONFIG_PATH", "cli_extra": "PRIMUS_CLI_EXTRA", "backend": "BACKEND"}


class Translation(Value, frozen=True):
    """A cluster with what a context says over it, the nodes of each run (0: it does not say), what goes below the
    context of the runs, and notes for the user.
    """

    cluster: Cluster
    nodes: int = 0
    values: dict[str, Json] = {}
    notes: tuple[str, ...] = ()


PODS = ("k8s", "kubernetes")
"""The two names of the key that has the settings of pods."""
AskPartition = Callable[[str], Sequence[str]]
"""Returns the GPUs that a cluster names for the nodes of a partition."""
AskNodes = Callable[[Mapping[str, Any]], Sequence[str]]
"""Returns the GPUs that the labels of nodes name, by the settings of pods."""


def target_of(context: Context, deployment: Mapping[str, Json]) -> str:
    """Return where a context, else the deployment of a manifest, sends its runs: slurm, kubernetes, local, or ""."""
    target = str(deployment.get("target") or "")
    return context.target or TARGETS.get(target.lower(), target)


def named_nodes(context: Context) -> int:
    """Return the nodes of each run that a context names; 0 where it names none.

    Raises:
        UsageProblem: it is no number.
    """
    return _count(context.typed.distributed.get("nnodes") or 0, "distributed.nnodes")


def translate(
    context: Context,
    deployment: Mapping[str, Json],
    base: Cluster | None,
    ask: AskPartition = lambda partition: (),
    asked_nodes: int = 0,
) -> Translation:
    """Return the cluster of a context and a manifest's deployment, over a cluster of the cluster file.

    Where neither names the GPUs of the nodes, `ask` is called for them.  `asked_nodes` win over the context's.

    Raises:
        UsageProblem: a value cannot be used.
    """
    slurm, distributed, variables = _tables(context, deployment, "slurm")
    if base is not None and base.scheduler == "kubernetes":
        return _of_pods(context, slurm, distributed, variables, base)
    cluster, notes = base if base is not None else Cluster(name="context", source="context"), list[str]()
    cluster = _over(cluster, slurm)
    if base is None:
        cluster, notes = _with_gpus(cluster, slurm, distributed, context, ask)
    else:
        cluster, notes = _fewer_gpus(cluster, _gpu_count(slurm, distributed, cluster.gpus_per_node))
    nodes = _count(slurm.get("nodes") or distributed.get("nnodes") or 0, "slurm.nodes")
    on_several = (asked_nodes or nodes) > 1
    flavour = cluster.container or ("none" if on_several else "")
    notes += [*_notes(slurm, distributed), *_not_of_nodes(context, flavour, cluster.name)]
    return Translation(cluster=cluster, nodes=nodes, values=_variables(distributed, variables), notes=tuple(notes))


def _of_pods(
    context: Context,
    slurm: Mapping[str, Any],
    distributed: Mapping[str, Any],
    variables: Mapping[str, Json],
    base: Cluster,
) -> Translation:
    """Return what a context asks of a cluster of the file whose nodes run pods."""
    port, shm = _port(distributed), _quantity(context.typed.SHM_SIZE or "")
    own = base.kubernetes
    settings = replace(own, port=port or own.port, shm_size=shm or own.shm_size)
    cluster = replace(base, kubernetes=settings)
    cluster, notes = _fewer_gpus(cluster, _gpu_count({}, distributed, base.gpus_per_node))
    unused = [f"context key 'slurm' has no effect: cluster '{base.name}' has pods"] if slurm else []
    if context.values.get("deploy") and context.target != "kubernetes":
        unused.append(f"context key 'deploy' has no effect: the runs go to cluster '{base.name}'")
    notes += [*unused, *_notes({}, distributed), *not_of_pods(context)]
    values = _variables({**distributed, "port": 0, "master_port": 0}, variables)
    nodes = _count(distributed.get("nnodes") or 0, "distributed.nnodes")
    return Translation(cluster=cluster, nodes=nodes, values=values, notes=tuple(notes))


class Pods(Value, frozen=True):
    """What goes below the context of runs that are pods, and notes for the user."""

    values: dict[str, Json] = {}
    notes: tuple[str, ...] = ()


def translate_for_pods(context: Context, deployment: Mapping[str, Json], ask: AskNodes = lambda settings: ()) -> Pods:
    """Return what a context and a manifest's deployment say of runs that are pods, `distributed` included.

    Where neither names the GPUs of the nodes, `ask` is called with the settings for them.

    Raises:
        UsageProblem: a value cannot be used.
    """
    key = next((name for name in PODS if name in context.values), PODS[0])
    if all(name in context.values for name in PODS):
        raise UsageProblem("the context has both 'k8s' and 'kubernetes'", "they are the same: leave one of them out")
    below: Json = next((deployment[name] for name in PODS if deployment.get(name)), {})
    own, distributed, variables = _tables(context, {**deployment, key: below}, key)
    settings = dict(own)
    if (port := _port(distributed)) and not settings.get("port"):
        settings["port"] = port
    if context.typed.SHM_SIZE and not settings.get("shm_size"):
        settings["shm_size"] = _quantity(context.typed.SHM_SIZE)
    notes = _name_gpus_of_pods(settings, distributed, context, ask)
    notes += [*_notes({}, distributed), *not_of_pods(context)]
    values = _variables({**distributed, "port": 0, "master_port": 0}, variables)
    if nodes := _count(distributed.get("nnodes") or 0, "distributed.nnodes"):
        values = merge(values, {"distributed": {"nnodes": nodes}})
    return Pods(values={key: settings, **values}, notes=tuple(notes))


def _name_gpus_of_pods(
    settings: dict[str, Any], distributed: Mapping[str, Any], context: Context, ask: AskNodes
) -> list[str]:
    """Add the GPUs of nodes to the settings of pods that want some and do not name them; return notes."""
    counts = [settings[key] for key in GPU_KEYS if settings.get(key) is not None]
    count = counts[0] if counts else distributed.get("nproc_per_node")
    if context.typed.gpu_vendor == "CPU" or not count:
        return []
    if not counts:
        settings[GPU_KEYS[0]] = _count(count, "distributed.nproc_per_node")
    settings["gpu"] = settings.get("gpu") or _named_gpu(context)
    if settings["gpu"]:
        return []
    resource = str(next((settings[key] for key in RESOURCE_KEYS if settings.get(key)), ""))
    del settings["gpu"]
    where = {key: value for key, value in settings.items() if key not in GPU_KEYS}
    settings["gpu"], notes = _found_gpu(lambda: ask(where), context, "a label of the nodes", resource)
    return notes


def _tables(
    context: Context, deployment: Mapping[str, Json], key: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Json]]:
    """Return the table of where runs go, `distributed` and `env_vars`: the context's over a manifest's."""
    keys = context.typed
    given = merge(without_comments(deployment), keys.deployment_config)
    own = _table(merge(_table(given.get(key), key), getattr(keys, key)), key)
    distributed = _table(merge(_table(given.get("distributed"), "distributed"), keys.distributed), "distributed")
    return own, distributed, merge(_table(given.get("env_vars"), "env_vars"), keys.env_vars)


def _table(value: Json, key: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageProblem(f"context key '{key}' is no table")
    return dict(value)


def _over(cluster: Cluster, slurm: Mapping[str, Any]) -> Cluster:
    """Return a cluster with what a context asks of it."""
    asked = cluster.slurm
    changed: dict[str, Any] = {name: _text(slurm[name], name) for name in _SAME if slurm.get(name)}
    if "exclusive" in slurm:
        changed["exclusive"] = slurm["exclusive"]
        if not isinstance(slurm["exclusive"], bool):
            raise UsageProblem(f"context key 'slurm.exclusive' is {slurm['exclusive']!r}, no true or false")
    if not re.fullmatch(TIME, changed.get("time", "")):
        raise UsageProblem(f"context key 'slurm.time' is {changed['time']!r}, no time", "12:00:00, or 1-00:00:00")
    for name in ("nodelist", "exclude"):
        if slurm.get(name):
            nodes = split_hosts(slurm[name]) if isinstance(slurm[name], str) else _list(slurm[name])
            changed[name] = (*(asked.exclude if name == "exclude" else ()), *nodes)
    modules = [f"module load {_text(name, 'modules')}" for name in _list(slurm.get("modules"))]
    return replace(
        cluster,
        interface=_text(slurm.get("network_interface") or cluster.interface, "network_interface"),
        prologue=(*cluster.prologue, *modules),
        slurm=replace(asked, **changed),
    )


def _gpu_count(slurm: Mapping[str, Any], distributed: Mapping[str, Any], usual: int) -> int:
    return _count(slurm.get("gpus_per_node", distributed.get("nproc_per_node", usual)), "slurm.gpus_per_node")


def _fewer_gpus(cluster: Cluster, count: int) -> tuple[Cluster, list[str]]:
    """Return a cluster of the file with as many GPUs of each node as a context asks for, where it has so many."""
    if count <= cluster.gpus_per_node:
        return replace(cluster, gpu=cluster.gpu if count else "", gpus_per_node=count), []
    has = f"cluster '{cluster.name}' has {cluster.gpus_per_node or 'none'}"
    return cluster, [f"the context asks for {count} GPUs of each node: {has}, for which runs are planned"]


def _with_gpus(
    cluster: Cluster, slurm: Mapping[str, Any], distributed: Mapping[str, Any], context: Context, ask: AskPartition
) -> tuple[Cluster, list[str]]:
    """Return a cluster that no file describes, with the GPUs that the context or Slurm names, and notes on them."""
    number = _gpu_count(slurm, distributed, 8)
    if not number or context.typed.gpu_vendor == "CPU":
        return cluster, []
    if named := _named_gpu(context):
        return replace(cluster, gpu=named, gpus_per_node=number), []
    asked = cluster.slurm
    by_constraint = find_product(asked.constraint) if asked.constraint else None
    if by_constraint is not None:
        return replace(cluster, gpu=by_constraint.device, gpus_per_node=number), []
    gpu, notes = _found_gpu(lambda: ask(asked.partition), context, "the partition's GRES")
    return replace(cluster, gpu=gpu, gpus_per_node=number), notes


def _named_gpu(context: Context) -> str:
    """Return the GPU that a context names; "" where it names none."""
    name = next((str(context.values[key]) for key in ("device", "gpu_product") if context.values.get(key)), "")
    product = find_product(name) if name else None
    return product.device if product is not None else ""


def _found_gpu(
    ask: Callable[[], Sequence[str]], context: Context, by: str, resource: str = ""
) -> tuple[str, list[str]]:
    """Return the GPU that the cluster names, else the vendor alone, and a note that says which it is."""
    why = ""
    try:
        found = ask()
    except RuntimeProblem as problem:
        found, why = (), f" ({problem.message.rstrip('.')})"
    if len(found) == 1:
        return found[0], [f"the context names no GPU: planned for {found[0]}, which {by} names"]
    if found:
        why = f" (which has {' and '.join(found)})"
    vendor = vendor_of_nodes(context.typed.gpu_vendor or "", resource)
    what = f"planned for {vendor} GPUs of unknown type: neither the context nor {by} names one{why}"
    return vendor, [f"{what}; device in the context (MI300X) does"]


def _variables(distributed: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Json]:
    """Return what goes below the context: variables of the runs, and the launcher that a manifest may have."""
    found: dict[str, Json] = {}
    if distributed.get("backend"):
        found["DISTRIBUTED_BACKEND"] = _text(distributed["backend"], "distributed.backend")
    if port := _port(distributed):
        found["MASTER_PORT"] = str(port)
    primus = _table(distributed.get("primus"), "distributed.primus")
    found |= {name: _text(primus[key], f"distributed.primus.{key}") for key, name in _PRIMUS.items() if primus.get(key)}
    found |= {name: str(value) for name, value in variables.items()}
    launcher = {"distributed": {"launcher": distributed["launcher"]}} if distributed.get("launcher") else {}
    return {**launcher, **({"docker_env_vars": found} if found else {})}


def _quantity(size: str) -> str:
    """Return a size as docker takes it, such as `64g`, as Kubernetes has it; docker counts in powers of 1024."""
    found = re.fullmatch(r"([0-9]+)([kmgt]?)i?b?", size.strip(), re.IGNORECASE)
    if found is None:
        return size
    return f"{found[1]}{found[2].upper()}i" if found[2] else found[1]


def _port(distributed: Mapping[str, Any]) -> int:
    """Return the port at which nodes meet; 0 where `distributed` does not say."""
    return _count(distributed.get("port") or distributed.get("master_port") or 0, "distributed.port")


# docker's keys, each with what says the same of pods
_OF_DOCKER = {
    "docker_mounts": "volumes names claims, folders of the node and NFS",
    "docker_gpus": "Kubernetes chooses the GPUs, gpus_per_node is their number",
    "docker_cpus": "cpu and cpu_limit",
    "additional_docker_run_options": "capabilities, privileged, host_network, host_ipc and shm_size",
}
_OF_CONTAINERS = {
    "docker_mounts": ("none",),
    "docker_cpus": ("none", "pyxis", "apptainer"),
    "additional_docker_run_options": ("none", "pyxis", "apptainer"),
    "SHM_SIZE": ("none", "pyxis", "apptainer"),
}
"""Keys of a container, with what starts containers on nodes that does not act on them."""


def not_of_pods(context: Context) -> Iterator[str]:
    """Yield what a context says of docker's containers, and nothing of pods."""
    for key, way in _OF_DOCKER.items():
        if context.values.get(key):
            yield f"context key '{key}' has no effect on pods; k8s: {way}"


def _not_of_nodes(context: Context, flavour: str, cluster: str) -> Iterator[str]:
    """Yield what a context says of containers that those of a cluster's nodes do not know, or of pods."""
    for key, flavours in _OF_CONTAINERS.items():
        if context.values.get(key) and flavour in flavours:
            yield f"context key '{key}' has no effect with container '{flavour}' of cluster '{cluster}'"
    for key in PODS:
        if context.values.get(key):
            yield f"context key '{key}' has no effect: the runs go to Slurm"
    if context.values.get("deploy") and context.target != "slurm":
        yield f"context key 'deploy' has no effect: the runs go to cluster '{cluster}'"


def _notes(slurm: Mapping[str, Any], distributed: Mapping[str, Any]) -> Iterator[str]:
    for key in slurm:
        if key in _IGNORED and slurm[key]:
            yield f"context key 'slurm.{key}' has no effect: {_IGNORED[key]}"
        elif key not in _KNOWN:
            near = did_you_mean(key, _KNOWN, before="slurm.", most=1)
            yield f"context key 'slurm.{key}' has no effect" + (f"; {near}" if near else "")
    for key in distributed:
        if key in _DISTRIBUTED_LATER and distributed[key]:
            yield f"context key 'distributed.{key}' has no effect"
        elif key not in (*_DISTRIBUTED, *_DISTRIBUTED_LATER):
            near = did_you_mean(key, _DISTRIBUTED, before="distributed.", most=1)
            yield f"context key 'distributed.{key}' has no effect" + (f"; {near}" if near else "")


def _list(value: Json) -> Sequence[str]:
    """Return the parts of a list, or of a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    if not isinstance(parts, (list, tuple)):
        raise UsageProblem(f"context: {value!r} is no list")
    return [str(part).strip() for part in parts if str(part).strip()]


def _text(value: Json, key: str) -> str:
    text = str(value)
    if any(char in text for char in "\n\r\0"):
        raise UsageProblem(f"context key '{key}' has a value of several lines")
    return text


def _count(value: Json, key: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise UsageProblem(f"context key '{key}' is {value!r}, no whole number")
    return number


# Runs that stay here, or that a context gives to Kubernetes.


def for_kubernetes(settings: KubernetesSettings, context: Context, options: Options) -> Options:
    """Return the options of runs that a context gives to Kubernetes.

    Raises:
        UsageProblem: the number of nodes is none.
    """
    nodes = context.typed.distributed.get("nnodes") or settings.nodes
    if not (isinstance(nodes, int) and nodes > 0):
        raise UsageProblem(f"distributed.nnodes {nodes!r} is no number of nodes", '"nnodes": 2')
    runtime = options.runtime or KUBERNETES
    origin = options.runtime_origin if options.runtime else context.origins.get("k8s", "context")
    asked = options.nodes or (nodes if nodes > 1 else 0)
    return replace(options, runtime=runtime, runtime_origin=origin, nodes=asked)


def check_local_target(context: Context) -> None:
    """Refuse a context that targets other machines.

    Raises:
        UsageProblem: it does.
    """
    keys = context.typed
    sent = ["slurm"] if keys.slurm else []
    if keys.deploy and context.target != "local":
        sent.append("deploy")
    target = str(keys.deployment_config.get("target") or "local")
    if TARGETS.get(target.lower()) not in ("local", *((KUBERNETES,) if context.target == KUBERNETES else ())):
        sent.append("deployment_config")
    if sent:
        raise UsageProblem(
            f"{context.origins.get(sent[0], 'context')}: key '{sent[0]}' asks for other machines",
            "--cluster NAME sends runs to those of a cluster file; leave the key out to run on this machine alone",
        )
