"""`cluster.toml`: what madlite has to know of a cluster, one table `[clusters.NAME]` each; docs/cluster.md.

It is strict: a key that nothing reads is an error, for a job would wait for hours and then run without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from madlite.errors import UsageProblem, did_you_mean
from madlite.files import is_file, read_text, wrong_key
from madlite.machine.host_facts import GID_INDEX, HCA, hca_list, interface_variables
from madlite.model import Json, Value
from madlite.plan.cluster import LINE, TIME, Cluster, check_gpu

NAME = "cluster.toml"
VARIABLE = "MADLITE_CLUSTER"
_HINT = "docs/cluster.md lists the keys; madlite cluster init writes a file"
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN = ("name", "source")  # not keys of the file


def read_cluster(name: str, folders: Sequence[Path], schedulers: Collection[str]) -> Cluster:
    """Return a cluster of the first cluster file in some folders; `schedulers` are the known ones.

    Raises:
        UsageProblem: there is no such file or cluster, or the file has a mistake; all of it is checked.
    """
    file = next((folder / NAME for folder in folders if is_file(folder / NAME)), None)
    if file is None:
        places = " or ".join(map(str, folders))
        raise UsageProblem(f"cluster '{name}': there is no {NAME} in {places}", "madlite cluster init writes one")
    clusters = read_clusters(file, schedulers)
    if name not in clusters:
        near = did_you_mean(name, clusters, before="--cluster ", most=1)
        raise UsageProblem(f"{file} has no cluster '{name}'", near or f"it has {', '.join(clusters) or 'none'}")
    return clusters[name]


def read_clusters(file: Path, schedulers: Collection[str]) -> dict[str, Cluster]:
    """Return the clusters of a file by name.

    Raises:
        UsageProblem: it is no TOML, or a key is unknown or has a wrong value.
    """
    import tomli

    try:
        tree = tomli.loads(read_text(file))
    except tomli.TOMLDecodeError as error:
        raise UsageProblem(f"{file} is no TOML: {error}", _HINT) from None
    if unknown := [key for key in tree if key != "clusters"]:
        raise UsageProblem(f"{file}: key '{unknown[0]}' is unknown", "a cluster is a table [clusters.NAME]")
    tables = tree.get("clusters", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsageProblem(f"{file}: 'clusters' is no table of clusters", "a cluster is a table [clusters.NAME]")
    return {name: _cluster(name, table, file, schedulers) for name, table in tables.items()}


def _cluster(name: str, table: Mapping[str, Json], file: Path, schedulers: Collection[str]) -> Cluster:
    where = f"{file}: [clusters.{name}]"
    if not _CLUSTER_NAME.fullmatch(name):
        raise UsageProblem(f"{where}: {name!r} is no name of a cluster", "letters, digits, '.', '_' and '-'")
    for place, key, known in _unknown(table, Cluster, ""):
        near = did_you_mean(key, known, most=1)
        what = f"{where}: key '{place}' is unknown"
        raise UsageProblem(what, near or f"accepted: {', '.join(known)}")
    try:
        cluster = msgspec.convert({**_with_lines(table), "name": name, "source": str(file)}, Cluster)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {_wrong_value(error)}", _HINT) from None
    _check(cluster, where, schedulers)
    for other in schedulers:
        if table.get(other) and other != cluster.scheduler:
            what = f"{where}: table '{other}' with scheduler '{cluster.scheduler}'"
            raise UsageProblem(what, f'scheduler = "{other}" in [clusters.{name}], or leave the table out')
    return cluster


def _with_lines(table: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return a table whose prologue is a list of lines; a text of several lines stands for one."""
    prologue = table.get("prologue")
    return {**table, "prologue": prologue.splitlines()} if isinstance(prologue, str) else table


def _unknown(table: Mapping[str, Json], kind: type[Value], place: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the keys that a table must not have, each with its place and the known ones."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(kind)}
    known = [key for key in kinds if key not in _OWN]
    for key, value in table.items():
        if key not in known:
            yield f"{place}{key}", key, known
        elif isinstance(value, dict) and isinstance(kinds[key], type) and issubclass(kinds[key], msgspec.Struct):
            yield from _unknown(value, kinds[key], f"{place}{key}.")


# What is wrong with a value, in words.

_PATTERNS = {TIME: "a time as Slurm has it, such as 04:00:00 or 1-00:00:00", LINE: "text on one line"}


def _wrong_value(error: msgspec.ValidationError) -> str:
    """Return a sentence about a wrong value, which is not shown: it may be a secret."""
    place, what = wrong_key(error)
    right = next((words for pattern, words in _PATTERNS.items() if repr(pattern) in what), "")
    return f"key '{place}' is wrong: it is not {right}" if right else what


def _check(cluster: Cluster, where: str, schedulers: Collection[str]) -> None:
    """Refuse values that go together with nothing.

    Raises:
        UsageProblem: there are such.
    """
    if cluster.scheduler not in schedulers:
        near = did_you_mean(cluster.scheduler, schedulers, most=1)
        raise UsageProblem(
            f"{where}: scheduler '{cluster.scheduler}' is unknown", near or f"accepted: {', '.join(schedulers)}"
        )
    check_gpu(cluster.gpu, cluster.gpus_per_node, where)
    for mount in cluster.mounts:
        source, _, target = mount.partition(":")
        if not (source.startswith("/") and target.startswith("/")):
            raise UsageProblem(f"{where}: mount '{mount}' is none", "write it like /data:/data, both absolute")
    for folder in (*cluster.shared, *filter(None, [cluster.image_folder])):
        if not folder.startswith("/"):
            raise UsageProblem(f"{where}: folder '{folder}' is no absolute path", _HINT)


def check_shared(cluster: Cluster, workspace: Path) -> None:
    """Refuse a working folder that the nodes do not see.

    Raises:
        UsageProblem: it lies in none of the cluster's shared folders.
    """
    if cluster.shared and not any(workspace.is_relative_to(folder) for folder in cluster.shared):
        raise UsageProblem(
            f"{workspace} is in no shared folder of cluster '{cluster.name}' ({', '.join(cluster.shared)}): "
            "its nodes would not see the plans, nor this machine the results",
            f"cd to a folder below {cluster.shared[0]}",
        )


def context_values(cluster: Cluster) -> dict[str, Json]:
    """Return what a cluster adds below the user's context: variables and mounts of every run."""
    variables: dict[str, Json] = {}
    if cluster.interface:
        variables |= interface_variables(cluster.interface)
    if cluster.rdma:
        variables[HCA] = hca_list(cluster.rdma)
    if cluster.gid_index is not None:
        variables[GID_INDEX] = str(cluster.gid_index)
    variables |= dict(cluster.env)
    mounts = {target: source for source, _, target in (mount.partition(":") for mount in cluster.mounts)}
    values: dict[str, Json] = {"docker_env_vars": variables, "docker_mounts": dict(mounts)}
    return {key: value for key, value in values.items() if value}
