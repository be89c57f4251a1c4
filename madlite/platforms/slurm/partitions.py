"""A cluster file made by asking the cluster: partitions, GPUs of a node, limits, and what starts containers here."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.machine.products import find_product
from madlite.model import Value
from madlite.plan.cluster import Cluster
from madlite.plan.schedulers import Description
from madlite.platforms.slurm.allocation import GPU_GRES
from madlite.platforms.slurm.scheduler import Slurm

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


def describe(name: str, partition: str, gpu: str, environ: Mapping[str, str], workspace: Path) -> Description:
    """Return the cluster file of the cluster that answers here; `name` and `partition` are its own where they are "".

    Raises:
        UsageProblem: no cluster answers, or it has no such partition.
    """
    slurm = Slurm(Cluster(), environ)
    # those of several kinds of node once for each
    found = tuple(map(_partition, slurm.read("sinfo", "-h", "-o", "%P|%D|%G|%l").splitlines()))
    if not found:
        raise UsageProblem("sinfo lists no partition: this is no login node of a cluster that answers", "sinfo -s")
    chosen = _choose(found, partition)
    name = name or _cluster_name(slurm) or "cluster"
    lines = [*_file_lines(name, chosen, gpu, slurm.array_limit(), environ, workspace)]
    unknown = 0 if any(line.startswith("gpu = ") for line in lines) else chosen.gpus_per_node
    summary = f"cluster '{name}', partition {chosen.name}, {chosen.nodes} nodes"
    return Description(text="\n".join([*lines, ""]), summary=summary, unknown_gpus=unknown)


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
    name: str, partition: _Partition, gpu: str, array_limit: int, environ: Mapping[str, str], workspace: Path
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
    yield f'time = "{_hours(partition.limit)}"' + (f"  # at most {partition.limit}" if partition.limit else "")
    if partition.gpu and product is not None:
        yield f'gres = "gpu:{partition.gpu}:{count}"'
    if array_limit != 1000:
        yield f"max_array_size = {array_limit + 1}"
    yield '# account = ""  # sacctmgr show assoc user=$USER'
    yield '# qos = ""'


def _hours(limit: str) -> str:
    """Return four hours, or the partition's limit where that is less."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if found is None:
        return "04:00:00"
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total_s = ((24 * days + hours) * 60 + minutes) * 60 + seconds
    return limit if 0 < total_s < 4 * 3600 else "04:00:00"
