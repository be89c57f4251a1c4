"""Word a plan as the engine's request for a container.

Contents: what madengine asks `docker run` for (docs/differences.md lists what differs); format: the Engine API's
ContainerCreate. What a dry run prints and what is sent come from the same function.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from madlite.errors import UsageProblem
from madlite.images.client import proxy_environment
from madlite.model import EnvValue, Json, Mount, RunPlan, Secret
from madlite.runtimes.docker.options import add_options, odd_words, split_words, ulimit
from madlite.secrets import Redactor, assigned, collect, mask_values, reveal
from madlite.workspace.folder import FOLDER_LABEL, KEPT_LABEL, RUN_LABEL, RUN_MARK
from madlite.workspace.mounts import container_mounts

KEEPER = ["cat"]  # waits on its terminal for ever: the container lives until it is stopped


def shown(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the request for people: secrets as `***`, and the name the container gets if it is free."""
    return {"Name": container_name(plan), **_request(plan, environ, mask_values)}


def container_name(plan: RunPlan) -> str:
    """Return the name the container gets where it is free, in the characters docker takes."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", plan.name) or f"madlite-{plan.id}"


def sent(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the request with its secrets, for the engine alone."""
    return _request(plan, environ, reveal)


def secrets_asked(plan: RunPlan, environ: Mapping[str, str]) -> tuple[Secret, ...]:
    """Return the secrets that only the request holds: of the card's docker options, their files, and proxies.

    Never raises: options that cannot be read are told where the container starts; they are masked as far as they go.
    """
    if plan.image is None:
        return ()
    options = plan.engine_options.extra
    body: dict[str, Json] = {"Env": {}, "Labels": {}, "HostConfig": {}}
    try:
        add_options(body, options, environ, "", plan.workspace)
        spelled = _spelled_out(options, environ, body["HostConfig"])
    except UsageProblem:
        spelled = _spelled_somewhere(options)
    asked = [value for value in body["Env"].values() if isinstance(value, Secret)]
    proxies = [value for value in proxy_environment(environ).values() if isinstance(value, Secret)]
    return (*asked, *map(Secret, spelled), *(value for value in proxies if "@" in value.reveal()))


def _spelled_out(options: str, environ: Mapping[str, str], host: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the secrets of labels, log options and inside of values; a folder `/run/secrets` is none."""
    places = str({name: value for name, value in host.items() if name != "LogConfig"})
    found = assigned((*split_words(options, environ), *odd_words(options)))
    return tuple(text for text in found if text not in places)


def _spelled_somewhere(options: str) -> tuple[str, ...]:
    try:
        return assigned((options, *shlex.split(options)))
    except ValueError:
        return assigned((options,))


def _request(
    plan: RunPlan, environ: Mapping[str, str], show: Callable[[Mapping[str, EnvValue]], Mapping[str, EnvValue | str]]
) -> dict[str, Json]:
    if plan.image is None:
        raise UsageProblem(f"card '{plan.card.name}' names no image to run in", "--image REF names one")
    body: dict[str, Json] = {
        "Image": plan.image.ref,
        "Cmd": KEEPER,
        "User": plan.engine_options.user,
        "Tty": True,
        "Env": {**proxy_environment(environ), **plan.env},
        "Labels": {},
        "HostConfig": _host_config(plan),
    }
    origin = plan.origins.get("engine_options.extra", f"card '{plan.card.name}'")
    add_options(body, plan.engine_options.extra, environ, origin, plan.workspace)
    _drop_what_has_no_effect(body["HostConfig"])
    body["WorkingDir"] = f"{plan.inside}/"
    body["Labels"] = _hidden(body["Labels"], environ, body["Env"]) | _labels(plan)
    body["Env"] = [f"{name}={value}" for name, value in show({**body["Env"], RUN_MARK: plan.id}).items()]
    body["HostConfig"] = {name: value for name, value in body["HostConfig"].items() if value not in ((), [], "")}
    return body


def _hidden(labels: Mapping[str, str], environ: Mapping[str, str], env: Mapping[str, EnvValue]) -> dict[str, str]:
    """Return a card's labels without secrets: who may ask the engine reads them, and nothing reads a password there."""
    spelled = assigned(f"{name}={value}" for name, value in labels.items())
    mask = Redactor((*collect(environ, env.values()), *spelled)).text if labels else str
    return {mask(name): mask(value) for name, value in labels.items()}


def _drop_what_has_no_effect(host: dict[str, Json]) -> None:
    """Leave out what docker takes and ignores, and podman refuses."""
    if host["IpcMode"] == "host":
        host.pop("ShmSize", None)
    if host.get("PidMode"):  # an init adopts orphans only as the first process
        host.pop("Init", None)


def _host_config(plan: RunPlan) -> dict[str, Json]:
    options = plan.engine_options
    every = container_mounts(plan)
    return {
        "NetworkMode": options.network,
        "IpcMode": options.ipc,
        "CapAdd": list(options.cap_add),
        "SecurityOpt": list(options.security_opt),
        "GroupAdd": list(options.group_add),
        "Devices": [_device(path) for path in plan.devices],
        "DeviceRequests": _gpu_requests(plan),
        "Binds": [_bind(mount) for mount in every if ":" not in mount.source],
        "Mounts": [_mount(mount) for mount in every if ":" in mount.source],  # a bind's text has no way to say it
        "Ulimits": [ulimit(text) for text in options.ulimits],
        "CpusetCpus": options.cpuset,
        "Init": True,
    }


def _gpu_requests(plan: RunPlan) -> list[Json]:
    if plan.machine.vendor != "NVIDIA" or not plan.place.gpu_ids:
        return []
    ids = [str(gpu) for gpu in plan.place.gpu_ids]
    return [{"Driver": "", "DeviceIDs": ids, "Capabilities": [["gpu"]]}]


def _device(path: str) -> Json:
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}


def _bind(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")


def _mount(mount: Mount) -> Json:
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def _labels(plan: RunPlan) -> dict[str, str]:
    kept = {KEPT_LABEL: "1"} if plan.keep_alive else {}
    return {RUN_LABEL: plan.id, FOLDER_LABEL: str(plan.folder), **kept}
