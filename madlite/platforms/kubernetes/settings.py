"""What a run asks Kubernetes for beyond its plan: the key `k8s` (or `kubernetes`) of a context; docs/kubernetes.md.

It is strict: a key that nothing reads is an error.  Keys of madengine 2 are taken under their own names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from madlite.errors import UsageProblem, did_you_mean
from madlite.files import wrong_key
from madlite.model import Json
from madlite.plan.cluster import KubernetesSettings, check_gpu
from madlite.plan.context import TABLES, Context

RUNTIME = "kubernetes"
KEYS = tuple(key for key, platform in TABLES.items() if platform == RUNTIME)
"""The names of the table in a context."""

# madengine 2's keys: the name here, and those that have no effect.
_RENAMED = {"gpu_resource_name": "gpu_resource", "gpu_count": "gpus_per_node", "ttl_seconds_after_finished": "ttl_s"}
_WITHOUT_EFFECT = (
    *("backoff_limit", "output_dir", "results_pvc", "nfs_storage_class", "storage_class", "data_storage_class"),
    *("results_storage_size", "data_storage_size", "recreate_shared_data_pvc", "allow_privileged_profiling"),
)
GPU_KEYS = ("gpus_per_node", "gpu_count")
"""The names of the key that says how many GPUs a pod has."""
RESOURCE_KEYS = ("gpu_resource", "gpu_resource_name")
"""The names of the key that says which resource of the device plugin they are."""
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


def read_settings(table: Mapping[str, Any], where: str) -> tuple[KubernetesSettings, tuple[str, ...]]:
    """Return the settings of a table, and notes on keys of madengine that have no effect; `where` names it.

    Raises:
        UsageProblem: a key is unknown, or its value wrong.
    """
    own: dict[str, Any] = {}
    notes = []
    for key, value in table.items():
        if key in _WITHOUT_EFFECT:
            notes.append(f"{where}: '{key}' has no effect; docs/kubernetes.md lists those that have")
        elif key == "secrets" and isinstance(value, dict):
            own |= _secrets(value, where)
        elif key == "data_pvc":
            own["volumes"] = [*own.get("volumes", ()), {"mount": _DATA, "claim": value}]
        elif value is not None:
            own[_RENAMED.get(key, key)] = value if key != "volumes" else [*own.get("volumes", ()), *value]
    _refuse_unknown(own, where)
    try:
        settings = msgspec.convert(own, KubernetesSettings)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {wrong_key(error)[1]}", "docs/kubernetes.md lists the keys") from None
    check_settings(settings, where)
    return settings, tuple(notes)


def _secrets(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what madengine's `secrets` names; its strategies have no effect, for secrets are the plan's."""
    for key in table:
        if key not in ("strategy", "image_pull_secret_names", "runtime_secret_name"):
            near = did_you_mean(key, ("strategy", "image_pull_secret_names", "runtime_secret_name"), most=1)
            raise UsageProblem(f"{where}: key 'secrets.{key}' is unknown", near)
    found = {
        "image_pull_secrets": table.get("image_pull_secret_names"),
        "runtime_secret": table.get("runtime_secret_name"),
    }
    return {key: value for key, value in found.items() if value}


def _refuse_unknown(table: Mapping[str, Json], where: str) -> None:
    known = KubernetesSettings.__struct_fields__
    for key in table:
        if key not in known:
            near = did_you_mean(key, (*known, *_RENAMED, *_WITHOUT_EFFECT, "secrets", "data_pvc"), most=1)
            raise UsageProblem(f"{where}: key '{key}' is unknown", near or f"accepted: {', '.join(known)}")


_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def check_settings(settings: KubernetesSettings, where: str) -> None:
    """Refuse values that go together with nothing; `where` names their table.

    Raises:
        UsageProblem: there are such.
    """
    check_gpu(settings.gpu, settings.gpus_per_node, where)
    for name in (*settings.rdma, *filter(None, [settings.gpu_resource])):
        if not _RESOURCE.fullmatch(name):
            raise UsageProblem(f"{where}: '{name}' is no name of a resource", "such as amd.com/gpu or rdma/hca")
    _check_labels(settings, where)
    _check_mounts(settings, where)
    for volume in settings.volumes:
        sources = [source for source in (volume.claim, volume.host_path, volume.nfs) if source]
        if len(sources) != 1:
            what = f"{where}: the volume at {volume.mount} has {len(sources)} sources"
            raise UsageProblem(what, "one of claim, host_path and nfs")
        if volume.nfs and ":/" not in volume.nfs:
            raise UsageProblem(f"{where}: nfs '{volume.nfs}' is no HOST:/PATH")


_PREFIX = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
_KEY = re.compile(_PREFIX + r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _check_labels(settings: KubernetesSettings, where: str) -> None:
    """Refuse labels and annotations that Kubernetes does not take.

    Raises:
        UsageProblem: there are such.
    """
    for name in ("labels", "annotations", "node_selector"):
        for key, value in getattr(settings, name).items():
            if not _KEY.fullmatch(key):
                what = f"{where}: {name} has the key '{key}', which is none of Kubernetes"
                raise UsageProblem(
                    what, "letters, digits, - _ . and at most 63 of them, after a domain and / where it has one"
                )
            if name != "annotations" and not _LABEL_VALUE.fullmatch(value):
                what = f"{where}: {name}.{key} is '{value}', which is no value of a label"
                raise UsageProblem(what, "letters, digits, - _ . and at most 63 of them")


_SHM = "/dev/shm"  # noqa: S108 - the pod's


def _check_mounts(settings: KubernetesSettings, where: str) -> None:
    """Refuse two volumes in one place, and one where madlite's own are.

    Raises:
        UsageProblem: there are such.
    """
    seen: set[str] = set()
    for volume in settings.volumes:
        mount = volume.mount.rstrip("/") or "/"
        own = next((name for name in ("/madlite", _SHM) if mount == name or mount.startswith(f"{name}/")), "")
        if own or mount == "/":
            hint = "shm_size is its size" if own == _SHM else "another folder"
            raise UsageProblem(f"{where}: a volume is mounted at {mount}, which a pod has already", hint)
        if mount in seen:
            raise UsageProblem(f"{where}: two volumes are mounted at {mount}", "each has a folder of its own")
        seen.add(mount)
