"""What contexts and manifests of madengine 2 say of the machines that runs go to, as every platform reads it.

Keys and meanings: madengine 2.1's `distributed`, `env_vars` and `deployment_config`; docs/cluster.md and
docs/kubernetes.md have the tables.  A key that madengine does not have is named; one that means nothing here too, with
why.  A platform's own table is read in its folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from madlite.errors import RuntimeProblem, UsageProblem, did_you_mean
from madlite.machine.products import find_product
from madlite.model import Json, Value
from madlite.plan.cluster import Cluster
from madlite.plan.context import MACHINE_KEYS, TABLES, TARGETS, Context, merge, without_comments

ROLES = {"prefill_nodes": "xP", "decode_nodes": "yD"}
"""What `distributed.sglang_disagg` says of roles of nodes, and the variables of scripts of slurm_multi that have it."""
_LATER = {"sglang_disagg": f" beyond {' and '.join(ROLES.values())}, for slurm_multi", "vllm_disagg": ""}
"""Tables of `distributed` for serving, each with how far it has no effect."""
_PRIMUS = {"config_path": "PRIMUS_CONFIG_PATH", "cli_extra": "PRIMUS_CLI_EXTRA", "backend": "BACKEND"}


def target_of(context: Context, deployment: Mapping[str, Json]) -> str:
    """Return where a context, else the deployment of a manifest, sends its runs: slurm, kubernetes, local, or ""."""
    target = str(deployment.get("target") or "")
    return context.target or TARGETS.get(target.lower(), target)


def named_nodes(context: Context) -> int:
    """Return the nodes of each run that a context names; 0 where it names none.

    Raises:
        UsageProblem: it is no number.
    """
    return count_of(context.typed.distributed.get("nnodes") or 0, "distributed.nnodes")


class ReadTable(dict[str, Any]):
    """A table that notes in `read` which keys are asked for, whether it has them or not."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: dict[str, None] = {}

    def __contains__(self, key: object) -> bool:
        self.read[str(key)] = None
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        self.read[key] = None
        return super().get(key, default)

    def without_effect(self, table: str) -> Iterator[str]:
        """Yield a sentence for each key that nothing has asked for; `table` is the name of this one."""
        for key in self:
            if key not in self.read:
                near = did_you_mean(key, self.read, before=f"{table}.", most=1)
                yield f"context key '{table}.{key}' has no effect" + (f"; {near}" if near else "")


class Deployment(Value, frozen=True):
    """A context over the deployment of a manifest: a platform's `own` table, `distributed`, and variables of runs."""

    context: Context
    own: ReadTable
    distributed: ReadTable
    env_vars: dict[str, Json]

    @classmethod
    def read(cls, context: Context, deployment: Mapping[str, Json], key: str) -> Deployment:
        """Return what both say, the context's over the manifest's; `key` is the platform's own table.

        Raises:
            UsageProblem: one of them is no table.
        """
        keys = context.typed
        given = merge(without_comments(deployment), keys.deployment_config)
        own = table_of(merge(table_of(given.get(key), key), getattr(keys, key)), key)
        distributed = table_of(given.get("distributed"), "distributed")
        env_vars = table_of(given.get("env_vars"), "env_vars")
        asked = ReadTable(merge(distributed, keys.distributed))
        return cls(context, ReadTable(own), asked, merge(env_vars, keys.env_vars))

    @property
    def port(self) -> int:
        """The port at which nodes meet; 0 where `distributed` does not say."""
        return count_of(self.distributed.get("port") or self.distributed.get("master_port") or 0, "distributed.port")

    @property
    def nodes(self) -> int:
        """The nodes of each run; 0 where `distributed` does not say."""
        return count_of(self.distributed.get("nnodes") or 0, "distributed.nnodes")

    @property
    def named_gpu(self) -> str:
        """The GPU that the context names; "" where it names none."""
        values = self.context.values
        name = next((str(values[key]) for key in ("device", "gpu_product") if values.get(key)), "")
        product = find_product(name) if name else None
        return product.device if product is not None else ""

    def variables(self, *, with_port: bool) -> dict[str, Json]:
        """Return what goes below the context: variables of the runs, and the launcher that a manifest may have."""
        found: dict[str, Json] = {}
        if self.distributed.get("backend"):
            found["DISTRIBUTED_BACKEND"] = text_of(self.distributed["backend"], "distributed.backend")
        if with_port and self.port:
            found["MASTER_PORT"] = str(self.port)
        primus = table_of(self.distributed.get("primus"), "distributed.primus")
        for key, name in _PRIMUS.items():
            if primus.get(key):
                found[name] = text_of(primus[key], f"distributed.primus.{key}")
        found |= {name: str(value) for name, value in self.env_vars.items()}
        roles = table_of(self.distributed.get("sglang_disagg"), "distributed.sglang_disagg")
        found |= {name: text_of(roles[key], key) for key, name in ROLES.items() if roles.get(key)}
        launcher = self.distributed.get("launcher")
        values: dict[str, Json] = {"distributed": {"launcher": launcher}} if launcher else {}
        return {**values, "docker_env_vars": found} if found else values

    def notes(self) -> Iterator[str]:
        """Yield the keys of `distributed` that nothing asked for so far, or that have no effect."""
        if self.distributed.get("enabled") is False:
            yield "context key 'distributed.enabled' has no effect: nodes decide it"
        for key, more in _LATER.items():
            if self.distributed.get(key):
                yield f"context key 'distributed.{key}' has no effect{more}"
        yield from self.distributed.without_effect("distributed")

    def found_gpu(self, ask: Callable[[], Sequence[str]], by: str, resource: str = "") -> tuple[str, list[str]]:
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
        vendor = self.context.typed.gpu_vendor or ""
        if vendor not in ("AMD", "NVIDIA"):  # else AMD, as madengine 2 takes it
            vendor = "NVIDIA" if resource.startswith("nvidia.com/") else "AMD"
        what = f"planned for {vendor} GPUs of unknown type: neither the context nor {by} names one{why}"
        return vendor, [f"{what}; device in the context (MI300X) does"]


def of_other_machines(context: Context, cluster: Cluster) -> Iterator[str]:
    """Yield the keys that send runs elsewhere, or describe the nodes otherwise than the cluster does."""
    for key, platform in TABLES.items():
        if platform != cluster.scheduler and context.values.get(key):
            yield f"context key '{key}' has no effect: the runs go to cluster '{cluster.name}'"
    if context.values.get("deploy") and context.target != cluster.scheduler:
        yield f"context key 'deploy' has no effect: the runs go to cluster '{cluster.name}'"
    product = find_product(cluster.gpu) if cluster.gpu else None
    same = {cluster.gpu, *((product.device, product.vendor, product.name, product.arch) if product else ())}
    for key in ("gpu_vendor", *MACHINE_KEYS) if cluster.gpu else ():  # how many is the context's, none too
        value = str(context.values.get(key) or "")
        named = find_product(value) if key in ("device", "gpu_product") else None
        if value and value not in same and not (named and named.device == cluster.gpu):
            what = f"cluster '{cluster.name}' has {cluster.gpu}, and its nodes say the rest themselves"
            yield f"context key '{key}' has no effect: {what}"


def fewer_gpus(cluster: Cluster, count: int) -> tuple[Cluster, list[str]]:
    """Return a cluster of the file with as many GPUs of each node as a context asks for, where it has so many."""
    if count <= cluster.gpus_per_node:
        return replace(cluster, gpu=cluster.gpu if count else "", gpus_per_node=count), []
    has = f"cluster '{cluster.name}' has {cluster.gpus_per_node or 'none'}"
    return cluster, [f"the context asks for {count} GPUs of each node: {has}, for which runs are planned"]


def products_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs of the table that words name, however they are joined: `amd_instinct_mi300x_oam`."""
    named = (find_product(re.sub(r"[^A-Za-z0-9]+", " ", word).strip().upper()) for word in words)
    return tuple(dict.fromkeys(product.device for product in named if product is not None))


def table_of(value: Json, key: str) -> dict[str, Any]:
    """Return a table; an empty one where there is none.

    Raises:
        UsageProblem: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageProblem(f"context key '{key}' is no table")
    return dict(value)


def text_of(value: Json, key: str) -> str:
    """Return a value as text on one line.

    Raises:
        UsageProblem: it has several.
    """
    text = str(value)
    if any(char in text for char in "\n\r\0"):
        raise UsageProblem(f"context key '{key}' has a value of several lines")
    return text


def count_of(value: Json, key: str) -> int:
    """Return a value as a whole number.

    Raises:
        UsageProblem: it is none.
    """
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise UsageProblem(f"context key '{key}' is {value!r}, no whole number")
    return number
