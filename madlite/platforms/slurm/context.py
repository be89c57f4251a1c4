"""What contexts and manifests of madengine 2 say of Slurm → a cluster; its table `slurm`: docs/cluster.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.machine.products import find_product
from madlite.model import Json
from madlite.plan.cluster import SBATCH_NAMES, TIME, Cluster
from madlite.plan.context import TABLES, Context
from madlite.plan.inputs import split_hosts
from madlite.plan.schedulers import Translation
from madlite.platforms.contexts import DONE, Deployment, count_of, fewer_gpus, products_of, text_of, without_effect
from madlite.platforms.slurm.allocation import GPU_GRES, SlurmCommands, job_environment

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
_KNOWN = (*SBATCH_NAMES, *_NAMED, *_IGNORED)
_OF_CONTAINERS = {
    "docker_mounts": ("none",),
    "docker_cpus": ("none", "pyxis", "apptainer"),
    "additional_docker_run_options": ("none", "pyxis", "apptainer"),
    "SHM_SIZE": ("none", "pyxis", "apptainer"),
}
"""Keys of a container, with what starts containers on nodes that does not act on them."""
_OTHERS = tuple(key for key, platform in TABLES.items() if platform != "slurm")
_LIMIT_S = 10.0  # for an answer that a plan can do without


class SlurmContext:
    """How Slurm reads contexts: one alone can describe a cluster."""

    direct = None  # its runs are jobs

    def translate(
        self,
        context: Context,
        deployment: Mapping[str, Json],
        base: Cluster | None,
        environ: Mapping[str, str],
        asked_nodes: int = 0,
    ) -> Translation:
        """Return the cluster of a context and a manifest's deployment, over a cluster of the cluster file.

        Where neither names the GPUs of the nodes, Slurm is asked for them.
        """
        asked = Deployment.read(context, deployment, "slurm")
        slurm = asked.own
        cluster = _over(base or Cluster(name="context", source="context"), slurm)
        if base is None:
            cluster, notes = _with_gpus(cluster, asked, environ)
        else:
            cluster, notes = fewer_gpus(cluster, _gpu_count(asked, cluster.gpus_per_node))
        nodes = count_of(slurm.get("nodes") or asked.distributed.get("nnodes") or 0, "slurm.nodes")
        flavour = cluster.container or ("none" if (asked_nodes or nodes) > 1 else "")
        notes += [*_notes(slurm), *asked.notes(), *_not_of_nodes(context, flavour, cluster.name)]
        values = asked.variables(with_port=True)
        return Translation(cluster=cluster, nodes=nodes, values=values, notes=tuple(notes), done=(*DONE, *_OTHERS))


def _over(cluster: Cluster, slurm: Mapping[str, Any]) -> Cluster:
    """Return a cluster with what a context asks of it."""
    asked = cluster.slurm
    changed: dict[str, Any] = {name: text_of(slurm[name], name) for name in SBATCH_NAMES if slurm.get(name)}
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
    modules = [f"module load {text_of(name, 'modules')}" for name in _list(slurm.get("modules"))]
    return replace(
        cluster,
        interface=text_of(slurm.get("network_interface") or cluster.interface, "network_interface"),
        prologue=(*cluster.prologue, *modules),
        slurm=replace(asked, **changed),
    )


def _gpu_count(asked: Deployment, usual: int) -> int:
    number = asked.own.get("gpus_per_node", asked.distributed.get("nproc_per_node", usual))
    return count_of(number, "slurm.gpus_per_node")


def _with_gpus(cluster: Cluster, asked: Deployment, environ: Mapping[str, str]) -> tuple[Cluster, list[str]]:
    """Return a cluster that no file describes, with the GPUs that the context or Slurm names, and notes on them."""
    number = _gpu_count(asked, 8)
    if not number or asked.context.typed.gpu_vendor == "CPU":
        return cluster, []
    by_constraint = find_product(cluster.slurm.constraint) if cluster.slurm.constraint else None
    gpu, notes = asked.named_gpu or (by_constraint.device if by_constraint is not None else ""), list[str]()
    if not gpu:
        partition = cluster.slurm.partition
        gpu, notes = asked.found_gpu(lambda: gpus_of_partition(partition, environ), "the partition's GRES")
    return replace(cluster, gpu=gpu, gpus_per_node=number), notes


def gpus_of_partition(partition: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that Slurm names for the nodes of a partition, of the default one where it has no name."""
    only = ["-p", partition] if partition else []
    listed = SlurmCommands(job_environment(environ), limit_s=_LIMIT_S).read("sinfo", "-h", *only, "-o", "%P|%G")
    lines = [line.partition("|") for line in listed.splitlines()]
    usual = [gres for name, _, gres in lines if partition or name.strip().endswith("*")]
    return products_of(_types(usual) or ([] if partition else _types(gres for _, _, gres in lines)))


def _types(texts: Iterable[str]) -> list[str]:
    """Return the names of the GPUs in the GRES of nodes."""
    return [found["type"] for text in texts for found in GPU_GRES.finditer(text) if found["type"]]


def _not_of_nodes(context: Context, flavour: str, cluster: str) -> Iterator[str]:
    """Yield what a context says of containers that those of a cluster's nodes do not know, or of other platforms."""
    for key, flavours in _OF_CONTAINERS.items():
        if context.values.get(key) and flavour in flavours:
            yield f"context key '{key}' has no effect with container '{flavour}' of cluster '{cluster}'"
    for key in _OTHERS:
        if context.values.get(key):
            yield f"context key '{key}' has no effect: the runs go to Slurm"
    if context.values.get("deploy") and context.target != "slurm":
        yield f"context key 'deploy' has no effect: the runs go to cluster '{cluster}'"


def _notes(slurm: Mapping[str, Any]) -> Iterator[str]:
    for key in slurm:
        if key in _IGNORED and slurm[key]:
            yield f"context key 'slurm.{key}' has no effect: {_IGNORED[key]}"
        elif key not in _KNOWN:
            yield without_effect("slurm", key, _KNOWN)


def _list(value: Json) -> Sequence[str]:
    """Return the parts of a list, or of a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    if not isinstance(parts, (list, tuple)):
        raise UsageProblem(f"context: {value!r} is no list")
    return [str(part).strip() for part in parts if str(part).strip()]
