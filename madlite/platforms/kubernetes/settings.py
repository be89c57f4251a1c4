"""What a run asks Kubernetes for beyond its plan: the key `k8s` (or `kubernetes`) of a context; docs/kubernetes.md.

It is strict: a key that nothing reads is an error.  Keys of madengine 2 are taken under their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from madlite.errors import RuntimeProblem, UsageProblem, did_you_mean
from madlite.files import wrong_key
from madlite.model import Json, Secret
from madlite.plan.cluster import Cluster, KubernetesSettings, check_gpu
from madlite.plan.context import TABLES, Context, merge
from madlite.platforms.kubernetes.manifests import CONTAINER, GPU_RESOURCES, filled, own_container, patched
from madlite.secrets import guard

RUNTIME = "kubernetes"
KEYS = tuple(key for key, platform in TABLES.items() if platform == RUNTIME)
"""The names of the table in a context."""

# madengine 2's keys: the name here, and those that have no effect.
_RENAMED = {"gpu_resource_name": "gpu_resource", "gpu_count": "gpus_per_node", "ttl_seconds_after_finished": "ttl_s"}
_WITHOUT_EFFECT = (
    *("backoff_limit", "output_dir", "results_pvc", "nfs_storage_class", "storage_class", "data_storage_class"),
    *("results_storage_size", "data_storage_size", "recreate_shared_data_pvc", "allow_privileged_profiling"),
    *("results_access_mode", "results_size", "single_node_results_storage_class", "multi_node_results_storage_class"),
)
_OF_SECRETS = {"strategy": "", "image_pull_secret_names": "image_pull_secrets", "runtime_secret_name": "runtime_secret"}
_TABLES = ("pod_annotations", "extra_resources", "security_context", "pod_patch")  # all of which are one patch
_TRANSLATED = (*_TABLES, "data_pvc", "volumes", "gpu_vendor")
_OF_VOLUMES = ("name", "host_path_type")  # madengine's keys of a volume that have no effect
_DATA = "/data"  # where madengine mounts its data claim


def may_have(settings: KubernetesSettings, node: Mapping[str, Any]) -> bool:
    """Return whether pods of the settings may be placed on a node, by its name and its labels."""
    labels, name = node["metadata"].get("labels") or {}, node["metadata"]["name"]
    return name not in settings.exclude and settings.node_selector.items() <= labels.items()


def key_of(context: Context) -> str:
    """Return under which name a context has the table; "" where it has none.

    Raises:
        UsageProblem: it has it twice.
    """
    there = [name for name in KEYS if name in context.values]
    if len(there) > 1:
        raise UsageProblem("the context has both 'k8s' and 'kubernetes'", "they are the same: leave one of them out")
    return there[0] if there else ""


def settings_in(context: Context) -> tuple[KubernetesSettings, tuple[str, ...]] | None:
    """Return the settings of a context, and notes on keys without an effect; None where it says nothing of pods.

    Raises:
        UsageProblem: they cannot be used, or are there twice.
    """
    name = key_of(context)
    if not name:
        return None
    return read_settings(getattr(context.typed, name), f"{context.origins.get(name, 'context')}: {name}")


def renamed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table by the names that keys have here."""
    return {_RENAMED.get(key, key): value for key, value in table.items() if value is not None}


def read_settings(table: Mapping[str, Any], where: str) -> tuple[KubernetesSettings, tuple[str, ...]]:
    """Return the settings of a table, and notes on keys of madengine that have no effect; `where` names it.

    Raises:
        UsageProblem: a key is unknown, or its value wrong.
    """
    own: dict[str, Any] = {}
    table, notes = renamed(table), []
    for key, value in table.items():
        if key in _WITHOUT_EFFECT:
            notes.append(f"{where}: '{key}' has no effect; docs/kubernetes.md lists those that have")
        elif key == "secrets" and isinstance(value, dict):
            own |= _secrets(value, where)
        elif key not in _TRANSLATED:
            own[key] = value
    for key in _OF_VOLUMES:
        if any(isinstance(volume, dict) and key in volume for volume in _listed(table.get("volumes"))):
            notes.append(f"{where}: '{key}' of volumes has no effect; docs/kubernetes.md lists those that have")
    own |= _translated(table, where)
    others = (*_RENAMED, *_WITHOUT_EFFECT, *_TRANSLATED, "secrets")
    _refuse_unknown(own, f"{where}: key '", KubernetesSettings.__struct_fields__, others)
    try:
        settings = msgspec.convert(own, KubernetesSettings)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {wrong_key(error)[1]}", "docs/kubernetes.md lists the keys") from None
    check_settings(settings, where)
    return settings, tuple(notes)


def _translated(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what madengine's keys say that are none here, and the keys here that say the same.

    Raises:
        UsageProblem: one that is a table has another value, or no pod has what it says.
    """
    for key in _TABLES:
        if not isinstance(table.get(key), dict | None):
            raise UsageProblem(f"{where}: {key} is no table", "docs/kubernetes.md lists the keys")
    found: dict[str, Any] = {}
    if volumes := table.get("volumes"):
        found["volumes"] = [*map(_volume, _listed(volumes))] or volumes
    if claim := table.get("data_pvc"):
        found["volumes"] = [*(found.get("volumes") or ()), {"mount": _DATA, "claim": claim}]
    vendor = table.get("gpu_vendor")
    resource = GPU_RESOURCES.get(str(vendor).upper(), "")
    if vendor and not resource:
        raise UsageProblem(f"{where}: gpu_vendor is {vendor!r}", f"one of {', '.join(GPU_RESOURCES)}")
    if resource and not table.get("gpu_resource"):
        found["gpu_resource"] = resource
    _check_patch(table.get("pod_patch") or {}, where)  # before it is merged with what else says something of pods
    if patch := _patch(table):
        found["pod_patch"] = patch
    return found


def _listed(value: Json) -> list[Json]:
    return [*value] if isinstance(value, list | tuple) else []


def _volume(volume: Json) -> Json:
    """Return a volume by its keys here."""
    if not isinstance(volume, dict):
        return volume
    names = {"mount_path": "mount", "pvc": "claim"}
    found = {names.get(key, key): value for key, value in volume.items() if key not in _OF_VOLUMES}
    if isinstance(nfs := found.get("nfs"), dict):
        found["nfs"] = f"{nfs.get('server', '')}:{nfs.get('path', '')}"
    if found.get("host_path"):
        found.setdefault("mount", found["host_path"])
    return found


def _patch(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a table says of the pods' template, as one patch."""
    annotations = {key: str(value) for key, value in (table.get("pod_annotations") or {}).items()}
    amounts = {name: str(count) for name, count in (table.get("extra_resources") or {}).items()}
    resources = {"requests": amounts, "limits": amounts} if amounts else {}
    container = filled({"resources": resources, "securityContext": table.get("security_context")})
    containers: list[Json] = [{"name": CONTAINER, **container}] if container else []
    given = table.get("pod_patch") or {}
    if not (annotations or containers):
        return given
    found = merge({"metadata": {"annotations": annotations}, "spec": {}}, given)
    if containers:
        found["spec"]["containers"] = [*containers, *found["spec"].get("containers", ())]
    return found


def _secrets(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what madengine's `secrets` names; its strategies have no effect, for secrets are the plan's."""
    _refuse_unknown(table, f"{where}: key 'secrets.", _OF_SECRETS)
    return filled({name: table.get(key) for key, name in _OF_SECRETS.items() if name})


def _refuse_unknown(table: Iterable[str], what: str, known: Iterable[str], others: Iterable[str] = ()) -> None:
    for key in table:
        if key not in known:
            near = did_you_mean(key, (*known, *others), most=1)
            raise UsageProblem(f"{what}{key}' is unknown", near or f"accepted: {', '.join(known)}")


def check_settings(settings: KubernetesSettings, where: str) -> None:
    """Refuse values that go together with nothing; `where` names their table.

    What Kubernetes itself refuses with a sentence is left to it.

    Raises:
        UsageProblem: there are such.
    """
    check_gpu(settings.gpu, settings.gpus_per_node, where)
    _check_patch(settings.pod_patch, where)
    for volume in settings.volumes:
        sources = [source for source in (volume.claim, volume.host_path, volume.nfs) if source]
        if len(sources) != 1:
            what = f"{where}: the volume at {volume.mount} has {len(sources)} sources"
            raise UsageProblem(what, "one of claim, host_path and nfs")
        if volume.nfs and ":/" not in volume.nfs:
            raise UsageProblem(f"{where}: nfs '{volume.nfs}' is no HOST:/PATH")


# what a patch is tried on: of the run's container what it cannot run without
_TRIED = {"metadata": {}, "spec": {"containers": [{"name": CONTAINER, "command": ["sh"]}]}}


def _check_patch(patch: Mapping[str, Any], where: str) -> None:
    """Refuse what is no patch of a pod's template, takes out the run's container, or has a secret in clear.

    Raises:
        UsageProblem: it is none, or does one of these.
    """
    for key, value in patch.items():
        if key not in ("metadata", "spec") or not isinstance(value, dict):
            raise UsageProblem(f"{where}: pod_patch has '{key}'", "its keys are metadata and spec, each with a table")
    try:
        tried = patched(_TRIED, patch)
    except RuntimeProblem as problem:
        raise UsageProblem(f"{where}: {problem.message}", problem.hint) from None
    if not isinstance(tried["spec"].get("containers"), list) or not own_container(tried).get("command"):
        what = f"{where}: pod_patch.spec.containers leaves no container '{CONTAINER}', which the run is in"
        raise UsageProblem(what, f'fields of it: {{"containers": [{{"name": "{CONTAINER}", …}}]}}')
    for name, text in _texts(patch):
        given = re.sub(r"\$\([^)]+\)", "", text)  # without references to other variables
        if isinstance(guard({name: given})[name], Secret):
            what = f"{where}: pod_patch has a secret in clear" + (f", {name}" if name else "")
            raise UsageProblem(what, "docker_env_vars of the context keeps it in a Secret; or valueFrom.secretKeyRef")


def _texts(part: Json, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of a part of a patch, each with the variable's name where it is a variable's value."""
    if isinstance(part, str):
        yield name, part
    of = {"value": str(part.get("name", ""))} if isinstance(part, dict) else {}
    for key, value in part.items() if isinstance(part, dict) else enumerate(_listed(part)):
        yield from _texts(value, of.get(str(key), ""))


# Of a cluster of the file.

_ELSEWHERE = ("gpu", "gpus_per_node", "interface", "nodes")  # settings that a cluster has for every scheduler
# keys of a cluster that say nothing of pods, and what does
_NOT_OF_PODS = {
    "container": "the nodes decide what starts containers",
    "container_options": "the keys of [clusters.NAME.kubernetes] describe the pods",
    "image_folder": "the nodes pull images",
    "shared": "pods see what volumes of [clusters.NAME.kubernetes] name",
    "madlite": "pods need no madlite",
    "health": "pods have no madlite that could check their nodes",
    "prologue": "the image has what a run needs",
    "mounts": "volumes of [clusters.NAME.kubernetes] name claims, folders of the node and NFS",
}


def settings_of(cluster: Cluster) -> KubernetesSettings:
    """Return what a cluster file says of pods.

    Raises:
        UsageProblem: it has a key that says nothing of them, or a wrong value.
    """
    where = f"{cluster.source}: [clusters.{cluster.name}]"
    default = Cluster()
    for key, why in _NOT_OF_PODS.items():
        if getattr(cluster, key) != getattr(default, key):
            raise UsageProblem(f"{where}: key '{key}' has no effect with scheduler 'kubernetes'", why)
    table = cluster.kubernetes
    for key in _ELSEWHERE:
        if getattr(table, key) != getattr(KubernetesSettings(), key):
            hint = "--nodes N" if key == "nodes" else f"{key} of [clusters.{cluster.name}]"
            raise UsageProblem(f"{where}: key 'kubernetes.{key}' is not known here", hint)
    settings = replace(table, gpu=cluster.gpu, gpus_per_node=cluster.gpus_per_node, interface=cluster.interface)
    check_settings(settings, f"{where}: kubernetes")
    return settings
