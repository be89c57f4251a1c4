"""Which GPUs the nodes of a cluster have, where a context does not name them: by what the cluster itself answers.

Slurm names them in a partition's GRES; of Kubernetes the labels of nodes do, which the GPU operators of AMD and NVIDIA
write.  Where neither does, the vendor alone is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from madlite.machine.products import INSTINCT_IDS, PRODUCTS, find_product
from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.slurm.allocation import SlurmCommands
from madlite.platforms.slurm.scheduler import job_environment

_GRES = re.compile(r"\bgpu:([^:,()]+):[0-9]+")
_LIMIT_S = 10.0  # for an answer that a plan can do without
_OF_GPUS = re.compile(r"gpu|accelerator|instance-type|amd\.com|nvidia\.com", re.IGNORECASE)
_DEVICE_ID = re.compile(r"(?:0x)?([0-9a-f]{4})", re.IGNORECASE)


def gpus_of_partition(partition: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that Slurm names for the nodes of a partition, of the default one where it has no name."""
    only = ["-p", partition] if partition else []
    listed = SlurmCommands(job_environment(environ), limit_s=_LIMIT_S).read("sinfo", "-h", *only, "-o", "%P|%G")
    lines = [line.partition("|") for line in listed.splitlines()]
    usual = [gres for name, _, gres in lines if partition or name.strip().endswith("*")]
    texts = usual if any(map(_GRES.search, usual)) or partition else [gres for _, _, gres in lines]
    return _products(word for text in texts for word in _GRES.findall(text))


def gpus_of_nodes(settings: KubernetesSettings) -> tuple[str, ...]:
    """Return the GPUs that the labels of `node_selector` name, else those of the nodes that pods may be placed on.

    Raises:
        RuntimeProblem: the cluster cannot be asked.
    """
    if named := gpus_of_labels(settings.node_selector):
        return named
    from madlite.platforms.kubernetes.api import Api

    with closing(Api(settings)) as api:
        nodes = [node["metadata"] for node in api.nodes()]
    return _unique(gpu for node in nodes if _may_have(node, settings) for gpu in gpus_of_labels(node["labels"]))


def gpus_of_labels(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that labels of a node name, as `amd.com/gpu.product-name` and `nvidia.com/gpu.product` do."""
    found: list[str] = []
    for key, value in labels.items():
        if not _OF_GPUS.search(key) or value.lower() == "false":
            continue
        device_id = _DEVICE_ID.fullmatch(value) if "device-id" in key else None
        if device_id is not None:
            number = int(device_id[1], 16)
            own = [product.device for product in PRODUCTS if number in product.device_ids]
            found += own if number in INSTINCT_IDS and len(own) == 1 else []
        else:
            found += _products([key if value.lower() == "true" else value])
    return _unique(found)


def _may_have(node: Mapping[str, Any], settings: KubernetesSettings) -> bool:
    labels = node.get("labels") or {}
    return node["name"] not in settings.exclude and settings.node_selector.items() <= labels.items() and bool(labels)


def _products(words: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs of the table that words name, however they are joined: `amd_instinct_mi300x_oam`."""
    named = (find_product(re.sub(r"[^A-Za-z0-9]+", " ", word).strip().upper()) for word in words)
    return _unique(product.device for product in named if product is not None)


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))


def vendor_of_nodes(gpu_vendor: str, resource: str = "") -> str:
    """Return the vendor of GPUs that nothing names further: the context's, else that of the resource that pods ask for.

    Where neither says it AMD, as madengine 2 takes it.
    """
    if gpu_vendor in ("AMD", "NVIDIA"):
        return gpu_vendor
    return "NVIDIA" if resource.startswith("nvidia.com/") else "AMD"
