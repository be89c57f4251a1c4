"""A plan → the objects of its run: Job, headless Service, ConfigMap with its files, Secret; pure.

The Job is Indexed: one pod a node, its completion index is the node's rank, and pod 0's name in the Service is the
master's address.  Secrets stand in the Secret alone.  Formats: Kubernetes' batch/v1 and v1, JobSet's
jobset.x-k8s.io/v1alpha2, Kueue's label kueue.x-k8s.io/queue-name.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from madlite.errors import RuntimeProblem
from madlite.machine.host_facts import interface_variables
from madlite.model import Action, Cause, EnvValue, RunPlan, Secret, Value
from madlite.plan.cluster import KubernetesSettings, Volume
from madlite.platforms.kubernetes.files import check_size
from madlite.platforms.sessions import cwd_of
from madlite.store.folder import RUN_LABEL


def key_of(path: str) -> str:
    """Return the key of a file: letters, digits, `-`, `_` and `.`; readable, and another one for each path."""
    return f"{hashlib.sha256(path.encode()).hexdigest()[:8]}--{re.sub(r'[^-A-Za-z0-9_.]+', '-', path)[-200:]}"


def filled(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without the keys that have nothing."""
    return {key: value for key, value in table.items() if value}


def content_of(content: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """Return the fields of a ConfigMap that has this content: what is no text stands in `binaryData`."""
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    for key, value in content.items():
        try:
            data[key] = value.decode()
        except UnicodeDecodeError:
            binary[key] = b64encode(value).decode()
    return {"data": data, **filled({"binaryData": binary})}


CONTAINER = "run"
MANAGED = {"app.kubernetes.io/managed-by": "madlite"}
QUEUE = "kueue.x-k8s.io/queue-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_VOLCANO_MEMBERS = "scheduling.volcano.sh/group-min-member"
_SCRIPT = "pod.sh"
_ACTIONS = "actions.sh"
_LIMIT_SLACK_S = 30  # beyond the run's limit, by which whoever follows it has ended it
_LIMIT_MORE_S = 3600  # of a pod's own limit beyond the run's: the kubelet counts from before it pulls the image
_DEADLINE_S = 7 * 86400  # of a run without a limit
_NAME = 52  # of a Job: its pods add an index and five characters, and a name of a label has 63
GPU_RESOURCES = {"AMD": "amd.com/gpu", "NVIDIA": "nvidia.com/gpu"}
"""What the device plugins call a GPU, by its vendor."""


class Objects(Value, frozen=True):
    """The objects of a run by kind, each as JSON; `secret` None where there is nothing secret."""

    name: str
    job: dict[str, Any]
    service: dict[str, Any]
    config: dict[str, Any]
    secret: dict[str, Any] | None

    def all(self) -> tuple[dict[str, Any], ...]:
        """Return them in an order in which they can be applied."""
        return (*((self.secret,) if self.secret else ()), self.config, self.service, self.job)


def job_name(run_id: str) -> str:
    """Return the name of a run's objects: a DNS label (RFC 1123), of at most 52 characters, no other run's."""
    name = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return f"madlite-{name[: _NAME - 17].strip('-')}-{digest}"


def job_kind(settings: KubernetesSettings) -> str:
    """Return the kind of object that a run is."""
    return "JobSet" if settings.jobset else "Job"


def label_value(run_id: str) -> str:
    """Return the run's id as the value of a label: at most 63 characters, as they must be there."""
    value = re.sub(r"[^A-Za-z0-9._-]+", "-", run_id)
    return value if len(value) <= 63 else job_name(run_id)


def make_objects(plan: RunPlan, files: Mapping[str, bytes], settings: KubernetesSettings, archive: str = "") -> Objects:
    """Return the objects of a run; `files` are those of the workspace that its actions need, by their paths in it.

    `archive` is where pods see further ones, "" for none.

    Raises:
        RuntimeProblem: the files are more than a ConfigMap holds, or there is no image.
    """
    name = job_name(plan.id)
    values = {**plan.env, **_secret_actions(plan.actions)}
    secrets = {key: value.reveal() for key, value in values.items() if isinstance(value, Secret)}
    scripts = {
        _SCRIPT: Path(__file__).with_name(_SCRIPT).read_bytes(),  # what every pod runs before the actions
        _ACTIONS: actions_script(plan).encode(),
    }
    check_size({name: len(data) for name, data in {**scripts, **files}.items()}, f"run {plan.id}")
    content = {**scripts, **{key_of(path): data for path, data in files.items()}}
    own = {"namespace": settings.namespace, "annotations": settings.annotations}
    metadata = {"name": name, "labels": _labels(plan, settings), **filled(own)}
    template = _pod_template(plan, settings, sorted(files), secrets, archive)
    return Objects(
        name=name,
        job=_job(settings, metadata, _job_spec(plan, settings, template)),
        service=_service(plan, metadata, name, settings),
        config={
            **{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata},
            **content_of(content),
            "immutable": True,
        },
        secret=_secret(metadata, secrets) if secrets else None,
    )


def _labels(plan: RunPlan, settings: KubernetesSettings) -> dict[str, str]:
    queue = {QUEUE: settings.queue} if is_queued(settings) else {}
    return {**settings.labels, **MANAGED, RUN_LABEL: label_value(plan.id), **queue}


def is_queued(settings: KubernetesSettings) -> bool:
    """Return whether Kueue starts the Job; a queue of Volcano is one of pods."""
    return bool(settings.queue) and not _has_volcano(settings)


def _has_volcano(settings: KubernetesSettings) -> bool:
    return (settings.pod_patch.get("spec") or {}).get("schedulerName") == "volcano"


def _secret(metadata: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    return {
        **{"apiVersion": "v1", "kind": "Secret", "metadata": dict(metadata), "type": "Opaque"},
        "data": {key: b64encode(text.encode("utf-8", "surrogateescape")).decode() for key, text in secrets.items()},
        "immutable": True,
    }


# Scripts.


def numbered(actions: Sequence[Action], *, skip_run: bool = False) -> Iterator[tuple[int, Action]]:
    """Yield the actions that pods run, with their numbers in the plan; what a pod leaves goes with it."""
    for number, action in enumerate(actions):
        if action.kind != "clean" and not (skip_run and action.kind == "run"):
            yield number, action


def _secret_name(number: int, name: str) -> str:
    return f"MADLITE_ACTION_{number}_{name}"


def _secret_actions(actions: Sequence[Action]) -> dict[str, EnvValue]:
    """Return the secrets of single actions under names of their own."""
    return {
        _secret_name(number, name): value
        for number, action in numbered(actions)
        for name, value in action.env.items()
        if isinstance(value, Secret)
    }


def actions_script(plan: RunPlan) -> str:
    """Return the part of the script that is the plan's: one line for each action, without secrets."""
    lines = [". /madlite/script/pod.sh"]
    for number, action in numbered(plan.actions, skip_run=plan.skip_model_run):
        cwd = str(cwd_of(plan, action, inside=True))
        env = [
            f'{name}="${{{_secret_name(number, name)}}}"'
            if isinstance(value, Secret)
            else f"{name}={shlex.quote(value)}"
            for name, value in action.env.items()
        ]
        words = (["env", *env] if env else []) + [shlex.quote(word) for word in action.argv]
        lines += ["sends=yes"] if action.kind == "run" else []
        lines.append(f"act {number} {shlex.quote(cwd)} {' '.join(words)}  # {action.kind}")
    return "\n".join(lines) + "\n"


def result_names(plan: RunPlan) -> tuple[str, ...]:
    """Return the files and patterns, relative to the workspace, that pods send by their log."""
    rule, names = plan.result_rule, [f"{plan.folder.relative_to(plan.workspace)}/*"]
    if rule.kind == "multiple_results":
        names += [f"{plan.model_dir}/{rule.file}".lstrip("/"), rule.file]
    names += [f"{plan.model_dir}/{pattern}".lstrip("/") for pattern in plan.outputs]
    return tuple(dict.fromkeys(names))


# The pods.


def _pod_template(
    plan: RunPlan, settings: KubernetesSettings, paths: Sequence[str], secrets: Mapping[str, str], archive: str
) -> dict[str, Any]:
    if plan.image is None:
        raise RuntimeProblem(f"card '{plan.card.name}' names no image", "--image REF names one", cause=Cause.IMAGE)
    name, grace = job_name(plan.id), _grace(plan)
    mounts, volumes = _volumes(settings, name, paths)
    variables = [{"secretRef": {"name": settings.runtime_secret}}] if settings.runtime_secret else []
    own = {"imagePullPolicy": settings.image_pull_policy, "securityContext": _security(settings)}
    container = {
        "name": CONTAINER,
        "image": plan.image.ref,
        "command": ["/bin/sh", f"/madlite/script/{_ACTIONS}"],
        "env": [*_environment(plan, settings, name, secrets, archive)],
        "resources": _resources(plan, settings),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **filled({"envFrom": variables, **own}),
    }
    limit = plan.timeout_s + _LIMIT_MORE_S if plan.timeout_s else _DEADLINE_S
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(limit),  # of the pod's own time: the Job's would count how long it waits
        "terminationGracePeriodSeconds": 2 * grace + 15,
        "containers": [container],
        "volumes": volumes,
        "subdomain": name,
        "automountServiceAccountToken": False,
        **_placement(settings),
    }
    # the Job queues, not its pods; those of Volcano do
    labels = {key: value for key, value in _labels(plan, settings).items() if key != QUEUE}
    queue = {_VOLCANO_QUEUE: settings.queue} if settings.queue and _has_volcano(settings) else {}
    metadata = {"labels": labels, **filled({"annotations": {**settings.annotations, **queue}})}
    found = patched({"metadata": metadata, "spec": spec}, settings.pod_patch)
    # the labels by which pods are found stay
    template: dict[str, Any] = patched(found, {"metadata": {"labels": {**MANAGED, RUN_LABEL: label_value(plan.id)}}})
    return template


def own_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a pod, or of a pods' template, that the run is in: others may stand before it."""
    containers = template.get("spec", {}).get("containers", ())
    return next((item for item in containers if item.get("name") == CONTAINER), {})


# What names an item of a list of a pod (patchMergeKey of k8s.io/api/core/v1); a patch replaces every other list.
MERGE_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets", "resourceClaims"), "name"),
    **{"schedulingGates": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath"},
    **{"ports": "containerPort", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey"},
}


def patched(old: Any, patch: Any, key: str = "") -> Any:
    """Return a part of a pod, under a `key`, after a strategic merge patch, as `kubectl patch` merges one.

    Raises:
        RuntimeProblem: an item of a list has not what names it, or `$retainKeys` is no list.
    """
    if isinstance(patch, list) and key in MERGE_KEYS:
        return _patched_list(old or (), patch, key)
    if not isinstance(patch, dict):
        return patch
    old = old if isinstance(old, dict) and patch.get("$patch") not in ("replace", "delete") else {}
    kept = patch.get("$retainKeys", [*old])
    if not isinstance(kept, list):
        raise RuntimeProblem("pod_patch: $retainKeys is no list", "the fields that stay", cause=Cause.PREPARE)
    found = {name: value for name, value in old.items() if name in kept}
    found |= {name: patched(found.get(name), value, name) for name, value in patch.items() if not name.startswith("$")}
    return {name: value for name, value in found.items() if value is not None}


def _patched_list(old: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    """Return a list whose items have names after a patch: one of a new name comes last."""
    name, replaced = MERGE_KEYS[key], {"$patch": "replace"}
    items = {} if replaced in patch else {item[name]: item for item in old}
    for item in patch:
        if not isinstance(item, dict) or (not isinstance(item.get(name), str | int) and item != replaced):
            what = f"pod_patch: an item of {key} has no {name}"
            raise RuntimeProblem(what, f"its {name} says which one is changed, or added", cause=Cause.PREPARE)
        if item.get("$patch") == "delete":
            items.pop(item[name], None)
        elif item != replaced:
            items[item[name]] = patched(items.get(item[name]), item)
    return list(items.values())


def _grace(plan: RunPlan) -> int:
    return max(1, math.ceil(plan.stop_grace_s))


def _security(settings: KubernetesSettings) -> dict[str, Any]:
    pinning = ["IPC_LOCK"] if settings.rdma else []  # RDMA pins memory
    capabilities = filled({"add": [*dict.fromkeys((*settings.capabilities, *pinning))]})
    return filled({"privileged": settings.privileged, "capabilities": capabilities})


def _placement(settings: KubernetesSettings) -> dict[str, Any]:
    tolerations = [
        {key: value for key, value in msgspec.to_builtins(toleration).items() if value not in ("", None)}
        for toleration in settings.tolerations
    ]
    given = {
        "nodeSelector": dict(settings.node_selector),
        "affinity": _affinity(settings.exclude),
        "tolerations": tolerations,
        "priorityClassName": settings.priority_class,
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": secret} for secret in settings.image_pull_secrets],
        "hostNetwork": settings.host_network,
        "dnsPolicy": "ClusterFirstWithHostNet" if settings.host_network else "",
        "hostIPC": settings.host_ipc,
    }
    return filled(given)


def _affinity(excluded: Sequence[str]) -> dict[str, Any]:
    """Return that a pod is on none of these nodes."""
    if not excluded:
        return {}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in dict.fromkeys(excluded)]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def gpu_resource(plan: RunPlan, settings: KubernetesSettings) -> str:
    """Return the resource that the device plugin of the plan's GPUs has; "" for a run without GPUs."""
    return settings.gpu_resource or GPU_RESOURCES.get(plan.machine.vendor, "") if plan.place.gpus_per_node else ""


def _resources(plan: RunPlan, settings: KubernetesSettings) -> dict[str, Any]:
    """Return requests and limits; extended resources cannot be overcommitted, so that both are the same."""
    extended = {name: str(count) for name, count in settings.rdma.items()}
    if resource := gpu_resource(plan, settings):
        extended[resource] = str(plan.place.gpus_per_node)
    requests = {"cpu": settings.cpu, "memory": settings.memory, **extended}
    limits = {"cpu": settings.cpu_limit, "memory": settings.memory_limit, **extended}
    return {"requests": filled(requests), "limits": filled(limits)}


def _environment(
    plan: RunPlan, settings: KubernetesSettings, name: str, secrets: Mapping[str, str], archive: str
) -> Iterator[dict[str, Any]]:
    """Yield the variables; Kubernetes reads `$(NAME)` of a value as a reference, and `$$` as `$`."""
    fixed = {  # what the plan's own variables do not replace: where the nodes are, only Kubernetes knows
        "MADLITE_MARK": plan.id,
        "MADLITE_GRACE": str(_grace(plan)),
        "MADLITE_LIMIT": str(math.ceil(plan.timeout_s + _LIMIT_SLACK_S) if plan.timeout_s else 0),
        "MADLITE_WORKSPACE": plan.inside,
        "MADLITE_RESULTS": " ".join(result_names(plan)),
        **filled({"MADLITE_ARCHIVE": archive}),
        "NNODES": str(plan.place.nodes),
        "MASTER_ADDR": f"{name}-0.{name}" if not settings.jobset else f"{name}-{CONTAINER}-0-0.{name}",
    }
    own = {"MASTER_PORT": str(settings.port)}
    if settings.interface:
        own |= interface_variables(settings.interface)
    # madengine 2's names
    own |= {"MAD_DEPLOYMENT_TYPE": "kubernetes", "MAD_K8S_JOB": "true", "MAD_TOTAL_NODES": str(plan.place.nodes)}
    if plan.place.gpus_per_node:
        own |= dict.fromkeys(("GPUS_PER_NODE", "NPROC_PER_NODE"), str(plan.place.gpus_per_node))
    for key, field in (("MAD_K8S_POD_NAME", "metadata.name"), ("MAD_K8S_NAMESPACE", "metadata.namespace")):
        yield {"name": key, "valueFrom": {"fieldRef": {"fieldPath": field}}}
    plain = {key: value for key, value in plan.env.items() if not isinstance(value, Secret)}
    for key, value in {**own, **plain, **fixed}.items():
        yield {"name": key, "value": str(value).replace("$", "$$")}
    for key in secrets:
        yield {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def _volumes(
    settings: KubernetesSettings, name: str, paths: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return mounts and volumes: script, files, /dev/shm, and those of the settings."""
    scripts = [{"key": key, "path": key} for key in (_SCRIPT, _ACTIONS)]
    items = [{"key": key_of(path), "path": path} for path in paths]
    # a script may start another one of its folder: a ConfigMap does not know which files may be executed
    files = {"configMap": {"name": name, "items": items, "defaultMode": 0o755}} if items else {"emptyDir": {}}
    volumes: list[dict[str, Any]] = [
        {"name": "script", "configMap": {"name": name, "items": scripts, "defaultMode": 0o555}},
        {"name": "files", **files},
        {"name": "shm", "emptyDir": {"medium": "Memory", **filled({"sizeLimit": settings.shm_size})}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "script", "mountPath": "/madlite/script", "readOnly": True},
        {"name": "files", "mountPath": "/madlite/files", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's
    ]
    for number, volume in enumerate(settings.volumes):
        volumes.append({"name": f"volume-{number}", **_source(volume)})
        mount = {"name": f"volume-{number}", "mountPath": volume.mount}
        mounts.append({**mount, **filled({"readOnly": volume.read_only, "subPath": volume.sub_path})})
    return mounts, volumes


def _source(volume: Volume) -> dict[str, Any]:
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.host_path:
        return {"hostPath": {"path": volume.host_path}}
    server, _, path = volume.nfs.partition(":")
    return {"nfs": {"server": server, "path": path}}


# Job, JobSet, Service.


def _job_spec(plan: RunPlan, settings: KubernetesSettings, template: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": plan.place.nodes,
        "parallelism": plan.place.nodes,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                # 1.28 wants both fields, one of them empty
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}, "onPodConditions": []},
            ]
        },
        "ttlSecondsAfterFinished": settings.ttl_s,
        "template": dict(template),
    }


def _job(settings: KubernetesSettings, metadata: Mapping[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the run's Job, or a JobSet of one; where there is a queue, it starts the Job when there is room.

    Volcano makes a PodGroup of a Job's pods, of as many as the Job's annotation says.
    """
    suspended = filled({"suspend": is_queued(settings)})
    gang = {_VOLCANO_MEMBERS: str(spec["completions"])} if _has_volcano(settings) else {}
    if not settings.jobset:
        own = {**metadata, **filled({"annotations": {**settings.annotations, **gang}})}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": {**spec, **suspended}}
    # its own Service has the pods' names, and it restarts nothing
    ttl = spec.pop("ttlSecondsAfterFinished")
    spec["template"]["spec"].pop("subdomain", None)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": dict(metadata),
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "subdomain": metadata["name"]},
            "ttlSecondsAfterFinished": ttl,
            **suspended,
            "replicatedJobs": [
                {
                    "name": CONTAINER,
                    "replicas": 1,
                    "template": {**filled({"metadata": filled({"annotations": gang})}), "spec": spec},
                }
            ],
        },
    }


def _service(plan: RunPlan, metadata: Mapping[str, Any], name: str, settings: KubernetesSettings) -> dict[str, Any]:
    """Return the headless Service by which pods find each other, before they are ready."""
    own = metadata if not settings.jobset else {**metadata, "name": f"{name}-own"}  # the JobSet makes one of its name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": dict(own),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {RUN_LABEL: label_value(plan.id)},
            "ports": [{"name": "rendezvous", "port": settings.port, "protocol": "TCP"}],
        },
    }


def shown(objects: Objects) -> list[dict[str, Any]]:
    """Return the objects as they are shown: the secrets' values masked."""
    found = [dict(item) for item in objects.all()]
    for item in found:
        if item["kind"] == "Secret":
            item["stringData"] = dict.fromkeys(item.pop("data"), "***")
    return found


def yaml_of(objects: Objects) -> str:
    """Return the objects as YAML documents that `kubectl apply -f -` takes; it has the secrets' values masked.

    Comments say how to remove them, and that the values are to be written before they are applied.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes scripts as they are, line by line."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    kinds = ",".join(sorted(str(item["kind"]).lower() for item in objects.all()))
    label = f"{RUN_LABEL}={objects.job['metadata']['labels'][RUN_LABEL]}"
    head = f"# Made by madlite; what was applied by hand is removed by: kubectl delete {kinds} -l {label}\n"
    if objects.secret is not None:
        names = ", ".join(objects.secret["data"])
        head += f"# Secrets are masked: before this is applied by hand, write what *** stands for ({names}).\n"
    documents = (yaml.dump(item, Dumper=Dumper, sort_keys=False, width=120) for item in shown(objects))
    return head + "---\n" + "---\n".join(documents)


def renamed(objects: Objects, run_id: str, other: str) -> Objects:
    """Return the objects of a run as they are for another attempt: ids stand in names, labels and paths."""
    text = msgspec.json.encode(objects).decode()
    for name in (str, job_name, label_value):
        text = text.replace(name(run_id), name(other))
    return msgspec.json.decode(text, type=Objects)
