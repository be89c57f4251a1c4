"""What contexts and manifests of madengine 2 say of Slurm → a cluster; its table `slurm`: docs/cluster.md."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.machine.products import find_product
from madlite.model import Json, Value
from madlite.plan.cluster import SBATCH_NAMES, TIME, Cluster
from madlite.plan.context import Context
from madlite.plan.inputs import split_hosts
from madlite.plan.schedulers import Translation
from madlite.plan.submission import RESULTS_VARIABLE
from madlite.platforms.contexts import (
    Deployment,
    ReadTable,
    count_of,
    fewer_gpus,
    of_other_machines,
    products_of,
    text_of,
)
from madlite.platforms.slurm.allocation import GPU_GRES, SlurmCommands, job_environment
from madlite.platforms.slurm.scheduler import Slurm

_IGNORED = {
    "output_dir": "jobs and runs have their folders in madlite_runs",
    "results_dir": "runs have their folders in madlite_runs; of cards of slurm_multi perf*.csv is read there",
    "shared_workspace": "the working folder is the shared one",
    "enable_node_check": "madlite cluster check checks nodes, and good_nodes of the cluster file has what passed",
    "auto_cleanup_nodes": "a job ends what it started, and nothing else",
    "verbose_node_check": "madlite cluster check checks nodes",
    "allow_submit_without_clean_nodes": "madlite cluster check checks nodes",
}
_OF_CONTAINERS = {
    "docker_mounts": ("none",),
    "docker_cpus": ("none", "pyxis", "apptainer"),
    "additional_docker_run_options": ("none", "pyxis", "apptainer"),
    "SHM_SIZE": ("none", "pyxis", "apptainer"),
}
"""Keys of a container, with what starts containers on nodes that does not act on them."""
_LIMIT_S = 10.0  # for an answer that a plan can do without


def cluster_of_slurm(
    context: Context, deployment: Mapping[str, Json], base: Cluster | None, environ: Mapping[str, str], asked_nodes: int
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
    nnodes = asked.nodes  # asked for in any case: madengine's contexts have both
    nodes = count_of(slurm.get("nodes") or nnodes, "slurm.nodes")
    several = (asked_nodes or nodes) > 1
    if base is None and several and not cluster.container:  # as madengine runs docker on each node
        cluster = replace(cluster, container="docker")
    flavour = cluster.container or ("none" if several else "")
    values = asked.variables(with_port=True)
    notes += [*_notes(slurm), *asked.notes(), *_not_of_nodes(context, flavour, cluster.name)]
    notes += of_other_machines(context, cluster)
    return Translation(cluster=cluster, nodes=nodes, values=values, notes=tuple(notes))


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
    folder = text_of(slurm.get("results_dir") or "", "results_dir")
    results = [f"export {RESULTS_VARIABLE}={shlex.quote(folder)}"] if folder else []
    modules = [f"module load {text_of(name, 'modules')}" for name in _list(slurm.get("modules"))]
    return replace(
        cluster,
        interface=text_of(slurm.get("network_interface") or cluster.interface, "network_interface"),
        prologue=(*cluster.prologue, *modules, *results),
        image_folder=image_folder(slurm) or cluster.image_folder,
        slurm=replace(asked, **changed),
    )


def image_folder(slurm: Mapping[str, Any]) -> str:
    """Return the folder of images that a context's table `slurm` names, "" for none.

    Raises:
        UsageProblem: it is no absolute path, so that nodes would look for it elsewhere.
    """
    folder = text_of(slurm.get("image_folder") or "", "slurm.image_folder")
    if folder and not folder.startswith("/"):
        raise UsageProblem(f"context key 'slurm.image_folder' is '{folder}', no absolute path")
    return folder


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
    """Yield what a context says of containers that those of a cluster's nodes do not know."""
    for key, flavours in _OF_CONTAINERS.items():
        if context.values.get(key) and flavour in flavours:
            yield f"context key '{key}' has no effect with container '{flavour}' of cluster '{cluster}'"


def _notes(slurm: ReadTable) -> Iterator[str]:
    """Yield the keys of the table that have no effect, once all others were read."""
    for key, why in _IGNORED.items():
        if slurm.get(key):
            yield f"context key 'slurm.{key}' has no effect: {why}"
    yield from slurm.without_effect("slurm")


def _list(value: Json) -> Sequence[str]:
    """Return the parts of a list, or of a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    if not isinstance(parts, (list, tuple)):
        raise UsageProblem(f"context: {value!r} is no list")
    return [str(part).strip() for part in parts if str(part).strip()]


# A cluster file made by asking the cluster: partitions, GPUs of a node, limits, and what starts containers here.

_TOOLS = {
    "docker": "docker",
    "podman": "podman",
    "enroot": "pyxis",
    "apptainer": "apptainer",
    "singularity": "apptainer",
}


class _Partition(Value, frozen=True):
    """A partition as sinfo lists it; `gpu` is the type that its GRES names, "" for none."""

    name: str
    default: bool
    nodes: int
    gpu: str = ""
    gpus_per_node: int = 0
    limit: str = ""


def describe(name: str, partition: str, gpu: str, environ: Mapping[str, str], workspace: Path) -> str:
    """Return the cluster file of the cluster that answers here; `name` and `partition` are its own where they are "".

    Raises:
        UsageProblem: no cluster answers, or it has no such partition.
    """
    slurm = Slurm(Cluster(), environ)
    # those of several kinds of node once for each
    found = tuple(map(_partition, slurm.read("sinfo", "-h", "-o", "%P|%D|%G|%l").splitlines()))
    if not found:
        raise UsageProblem("sinfo lists no partition: this is no login node of a cluster that answers", "sinfo -s")
    name = name or _cluster_name(slurm) or "cluster"
    return "\n".join([*_file_lines(name, _choose(found, partition), gpu, environ, workspace), ""])


def _partition(line: str) -> _Partition:
    name, nodes, gres, limit = [*(part.strip() for part in line.split("|")), "", "", ""][:4]
    gpus = GPU_GRES.search(gres)
    return _Partition(
        name=name.rstrip("*"),
        default=name.endswith("*"),
        nodes=int(nodes) if nodes.isdigit() else 0,
        gpu=(gpus["type"] or "") if gpus else "",
        gpus_per_node=int(gpus["count"]) if gpus else 0,
        limit="" if limit in ("infinite", "n/a") else limit,
    )


def _choose(found: Sequence[_Partition], wanted: str) -> _Partition:
    """Return the partition of this name, else the default one or the first, those with GPUs before others.

    Raises:
        UsageProblem: there is none of this name.
    """
    named = [partition for partition in found if partition.name == wanted] if wanted else [*found]
    if not named:
        raise UsageProblem(
            f"there is no partition '{wanted}'", f"there are {', '.join(partition.name for partition in found)}"
        )
    return max(named, key=lambda partition: (bool(partition.gpus_per_node), partition.default, partition.nodes))


def _cluster_name(slurm: Slurm) -> str:
    """Return the cluster's own name, as it can stand in a file; "" where it has none."""
    found = re.search(r"^ClusterName\s*=\s*(\S+)", slurm.configuration, re.MULTILINE)
    return re.sub(r"[^A-Za-z0-9._-]", "-", found[1]).strip("-.") if found else ""


def _file_lines(
    name: str, partition: _Partition, gpu: str, environ: Mapping[str, str], workspace: Path
) -> Iterator[str]:
    """Yield the lines of a cluster file: what was found, and as comments what nobody but the user knows."""
    kind = (
        gpu or re.sub("[_-]", " ", partition.gpu).upper()
    )  # amd_instinct_mi300x_oam, where slurmd finds GPUs by itself
    product = find_product(kind) if kind else None
    count = partition.gpus_per_node
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
    yield f"[clusters.{key}]"
    if product is not None:
        yield f'gpu = "{product.device}"'
        yield f"gpus_per_node = {count or 8}"
    elif count:
        called = f" (sinfo calls it '{partition.gpu}')" if partition.gpu else ""
        yield f'# gpu = "MI300X"  # sinfo names {count} GPUs per node{called}: which?'
        yield f"# gpus_per_node = {count}"
    tools = [
        *dict.fromkeys(flavour for tool, flavour in _TOOLS.items() if shutil.which(tool, path=environ.get("PATH")))
    ]
    yield f'# container = "{tools[0] if tools else "docker"}"  # on this machine: {", ".join(tools) or "none"}'
    yield f'# shared = ["{workspace}"]  # folders that all nodes see under this name'
    yield '# interface = "eth0"  # ip -br address, on a node'
    yield '# rdma = ["mlx5_0"]  # ls /sys/class/infiniband, on a node'
    yield ""
    yield f"[clusters.{key}.slurm]"
    yield f'partition = "{partition.name}"  # {partition.nodes} nodes'
    yield '# time = "04:00:00"' + (f"  # at most {partition.limit}" if partition.limit else "")
    if partition.gpu and product is not None:
        yield f'gres = "gpu:{partition.gpu}:{count}"'
    yield '# account = ""  # sacctmgr show assoc user=$USER'
    yield '# qos = ""'
