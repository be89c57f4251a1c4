"""What contexts and manifests of madengine 2 say of Slurm → a cluster; docs/cluster.md has the table.

Keys and meanings: madengine 2.1's `slurm`, `distributed`, `env_vars` and `deployment_config`.  A key that madengine
does not have is named; one that means nothing here too, with why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from madlite.errors import UsageProblem, did_you_mean
from madlite.machine.products import find_product
from madlite.model import Json, Value
from madlite.plan.cluster import TIME, Cluster
from madlite.plan.context import Context, merge
from madlite.plan.inputs import split_hosts

_SAME = ("partition", "account", "qos", "reservation", "constraint", "time")
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
    *(f"distributed.{key}" for key in ("nnodes", "nproc_per_node", "backend", "port", "enabled", "sglang_disagg")),
    *("distributed.primus", "distributed.vllm_disagg"),
)
"""Keys of the context that are done with once it is translated."""
_DISTRIBUTED = ("launcher", "nnodes", "nproc_per_node", "backend", "port", "enabled", "primus")
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


def wants_slurm(context: Context, deployment: Mapping[str, Json]) -> bool:
    """Return whether a context, or the deployment of a manifest, sends its runs to Slurm."""
    keys = context.typed
    target = keys.deployment_config.get("target") or deployment.get("target")
    return bool(keys.slurm) or target == "slurm" or keys.deploy.get("target") == "slurm"


def named_nodes(context: Context) -> int:
    """Return the nodes of each run that a context names; 0 where it names none.

    Raises:
        UsageProblem: it is no number.
    """
    return _count(context.typed.distributed.get("nnodes") or 0, "distributed.nnodes")


def translate(context: Context, deployment: Mapping[str, Json], base: Cluster | None) -> Translation:
    """Return the cluster of a context and a manifest's deployment, over a cluster of the cluster file.

    Raises:
        UsageProblem: a value cannot be used, or nothing names the GPUs of the nodes.
    """
    keys = context.typed
    given = merge(deployment, keys.deployment_config)
    slurm = _table(merge(_table(given.get("slurm"), "slurm"), keys.slurm), "slurm")
    distributed = _table(merge(_table(given.get("distributed"), "distributed"), keys.distributed), "distributed")
    variables = merge(_table(given.get("env_vars"), "env_vars"), keys.env_vars)
    cluster = base if base is not None else Cluster(name="context", source="context")
    cluster = _over(cluster, slurm)
    if base is None:
        cluster = _with_gpus(cluster, slurm, distributed, context)
    values = _variables(distributed, variables)
    nodes = _count(slurm.get("nodes") or distributed.get("nnodes") or 0, "slurm.nodes")
    return Translation(cluster=cluster, nodes=nodes, values=values, notes=tuple(_notes(slurm, distributed)))


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


def _with_gpus(cluster: Cluster, slurm: Mapping[str, Any], distributed: Mapping[str, Any], context: Context) -> Cluster:
    """Return a cluster that no file describes, with the GPUs that the context names."""
    count = slurm.get("gpus_per_node", distributed.get("nproc_per_node", 8))
    number = _count(count, "slurm.gpus_per_node")
    if not number or context.typed.gpu_vendor == "CPU":
        return cluster
    name = next((str(context.values[key]) for key in ("device", "gpu_product") if context.values.get(key)), "")
    product = find_product(name) if name else None
    if product is None:
        raise UsageProblem(
            "context key 'slurm' asks for other machines, and nothing names their GPUs, for which runs are planned",
            "--cluster NAME of a cluster file (madlite cluster init writes one), or device in the context: MI300X",
        )
    return replace(cluster, gpu=product.device, gpus_per_node=number)


def _variables(distributed: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Json]:
    """Return what goes below the context: variables of the runs."""
    found: dict[str, Json] = {}
    if distributed.get("backend"):
        found["DISTRIBUTED_BACKEND"] = _text(distributed["backend"], "distributed.backend")
    if distributed.get("port"):
        found["MASTER_PORT"] = str(_count(distributed["port"], "distributed.port"))
    primus = _table(distributed.get("primus"), "distributed.primus")
    found |= {name: _text(primus[key], f"distributed.primus.{key}") for key, name in _PRIMUS.items() if primus.get(key)}
    found |= {name: str(value) for name, value in variables.items()}
    return {"docker_env_vars": found} if found else {}


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
