"""Format a plan as the engine's request for a container.

Contents: what madengine asks `docker run` for (docs/differences.md lists what differs); format: the Engine API's
ContainerCreate. What a dry run prints and what is sent come from the same function.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import exists, spells
from madlite.images.client import proxy_environment
from madlite.machine.processes import RUN_MARK
from madlite.model import EnvValue, Image, Json, Mount, RunPlan, Secret
from madlite.plan.container import PINS_MEMORY, RDMA
from madlite.platforms.docker.options import (
    add_options,
    device,
    mount,
    named_variables,
    parse_options,
    partly_quoted_words,
    seccomp_file,
    split_words,
    ulimit,
)
from madlite.platforms.sessions import container_mounts
from madlite.secrets import Redactor, assigned, collect, mask_values, reveal
from madlite.store.folder import FOLDER_LABEL, KEPT_LABEL, RUN_LABEL

KEEPER = ["cat"]  # waits on its terminal for ever: the container lives until it is stopped


def masked_request(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the request for people: secrets as `***`, and the name the container gets if it is free."""
    return {"Name": container_name(plan), **_request(plan, environ, mask_values)}


def container_name(plan: RunPlan) -> str:
    """Return the name the container gets where it is free, in the characters docker takes."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", plan.name) or f"madlite-{plan.id}"


def full_request(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the request with its secrets, for the engine alone."""
    return _request(plan, environ, reveal)


def request_secrets(plan: RunPlan, environ: Mapping[str, str]) -> tuple[Secret, ...]:
    """Return the secrets that only the request holds: of the card's docker options, their files, and proxies.

    Never raises: options that cannot be read are reported where the container starts, and masked as far as they go.
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
    found = assigned((*split_words(options, environ), *partly_quoted_words(options)))
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
        "Devices": [device(path) for path in plan.devices],
        "DeviceRequests": _gpu_requests(plan),
        "Binds": [_bind(mount) for mount in every if ":" not in mount.source],
        "Mounts": [_mount(mount) for mount in every if ":" in mount.source],  # a bind's text has no way to say it
        "Ulimits": [ulimit(text) for text in options.ulimits],
        "CpusetCpus": options.cpuset,
        "CpusetMems": options.cpuset_mems,
        "Init": True,
    }


def _gpu_requests(plan: RunPlan) -> list[Json]:
    if plan.machine.vendor != "NVIDIA" or not plan.place.gpu_ids:
        return []
    ids = [str(gpu) for gpu in plan.place.gpu_ids]
    return [{"Driver": "", "DeviceIDs": ids, "Capabilities": [["gpu"]]}]


def _bind(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")


def _mount(mount: Mount) -> Json:
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def _labels(plan: RunPlan) -> dict[str, str]:
    kept = {KEPT_LABEL: "1"} if plan.keep_alive else {}
    return {RUN_LABEL: plan.id, FOLDER_LABEL: str(plan.folder), **kept}


# What of a machine a run requests beyond what every container of MAD's has, in one line for the user.
#
# MAD's own is not told: root in the container, the host's network and IPC, the working folder, the GPUs' devices,
# SYS_PTRACE and SYS_ADMIN, neither seccomp nor AppArmor.

_CAPABILITIES = {"SYS_PTRACE", "SYS_ADMIN", "SYS_NICE"}
_CONFINED = re.compile(r"seccomp[=:](unconfined|builtin)|apparmor[=:](unconfined|docker-default)|no-new-privileges.*")
_OF_GPUS = re.compile(r"/dev/(kfd|dri|fuse|nvidia[^/]*)(/.*)?")
_ENGINE = re.compile(r".*/(docker|podman|containerd|crio)\.sock|/run/docker|/var/run/docker")
_OF_MAD = ("--ipc", "--net")  # of the host
_SPACES = ("--pid", "--uts", "--userns", "--cgroupns", *_OF_MAD)
_MOST, _LONGEST = 12, 200
_OPENS = "the run opens this machine to its container: "


def host_access(plan: RunPlan, environ: Mapping[str, str], mounts: Sequence[Mount] = ()) -> str:
    """Return what a plan opens of this machine by options, devices, Dockerfile and build context; "" for nothing.

    `mounts` are those of its mounts that are told as well: of a card none, for data.json and the user ask for them.
    """
    asked = (text for name, value in _asked(plan, environ) for text in _of_option(name, value, plan.workspace))
    found = dict.fromkeys((*_of_mounts(mounts, plan.workspace), *asked, *image_access(plan.image)))
    listed = _listed(tuple(found), environ)
    return f"{_OPENS}{listed}" if listed else ""


def plan_file_notes(plan: RunPlan, secrets: Iterable[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what a plan that was read from a file asks of this machine, whoever wrote it; `secrets` are the names of
    the variables that it reads.
    """
    if not plan.traits.containerised:
        commands = tuple(dict.fromkeys(shlex.join(action.argv) for action in plan.actions if action.argv))
        yield f"the plan runs on this machine, outside of any container: {_listed(commands, environ) or 'nothing'}"
    else:
        # a file says itself what its checkout is: here it is the working folder
        image = replace(plan.image, root=plan.workspace) if plan.image is not None else None
        if opened := host_access(replace(plan, image=image), environ, plan.mounts):
            yield opened
        secrets = (*secrets, *named_variables(plan.engine_options.extra, environ))
    if names := _listed(tuple(dict.fromkeys(secrets)), environ):
        yield f"the plan reads from your environment or credential.json: {names}"


def is_access_note(note: str) -> bool:
    """Return whether a note of a plan is one of `host_access`."""
    return note.startswith(_OPENS)


def _listed(found: Sequence[str], environ: Mapping[str, str]) -> str:
    listed = [text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…" for text in found][:_MOST]
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return Redactor(collect(environ)).text(f"{', '.join(listed)}{more}")


def image_access(image: Image | None) -> Iterator[str]:
    """Yield the Dockerfile and the contexts of a build that lie outside of the checkout, links followed."""
    if image is None or image.dockerfile is None or image.root is None or image.prebuilt:
        return
    root = Path(os.path.realpath(image.root))
    if not spells(image.dockerfile, image.root):
        yield f"Dockerfile {os.path.realpath(image.dockerfile)}"
    for context in (image.context or image.dockerfile.parent, *image.contexts.values()):
        place = os.path.realpath(context)
        if not Path(place).is_relative_to(root):
            yield f"build context {place}"


def _of_mounts(mounts: Sequence[Mount], workspace: Path) -> Iterator[str]:
    for item in mounts:
        for text in _bind_access(item.source, item.target, workspace):
            yield f"{text} (a folder that is made)" if item.create and not exists(Path(item.source)) else text


def _asked(plan: RunPlan, environ: Mapping[str, str]) -> Iterator[tuple[str, str | bool]]:
    """Yield what a plan's own fields ask for beyond what madlite plans for a card, and its options as written."""
    options = plan.engine_options
    yield from (("--net", options.network), ("--ipc", options.ipc))
    yield from (("--device", path) for path in plan.devices if path != str(RDMA))
    yield from (("--cap-add", name) for name in options.cap_add if name != PINS_MEMORY)
    yield from (("--security-opt", text) for text in options.security_opt)
    with suppress(ValueError):  # reported where the container is requested
        yield from ((names[-1], value) for names, values in parse_options(options.extra, environ) for value in values)


def _of_option(name: str, value: str | bool, workspace: Path) -> Iterator[str]:
    text = str(value)
    if name in _ACCESS_OF:
        yield from _ACCESS_OF[name](text, workspace)
    elif name == "--privileged" and value is True:
        yield name
    elif name in _SPACES and (text.startswith("container:") or (text == "host" and name not in _OF_MAD)):
        yield f"{name}={text}"
    elif name in ("--env-file", "--volumes-from", "--device-cgroup-rule"):
        yield f"{name} {text}"


def _volume(text: str, workspace: Path) -> Iterator[str]:
    source, colon, rest = text.partition(":")
    if colon and source.startswith(("/", ".", "~")):
        yield from _bind_access(source, rest.partition(":")[0], workspace)


def _mount_access(text: str, workspace: Path) -> Iterator[str]:
    try:
        found = mount(text)
    except ValueError:
        return
    if found["Type"] == "bind":
        yield from _bind_access(str(found.get("Source", "")), str(found["Target"]), workspace)


def _bind_access(source: str, target: str, workspace: Path) -> Iterator[str]:
    """Yield a mount of what lies outside of the working folder, links followed, for docker follows them too."""
    place = os.path.realpath(workspace / source)
    if _ENGINE.fullmatch(place) or _ENGINE.fullmatch(source):
        yield f"mount of {place}, the engine's socket: who has it is root on this machine"
    elif not Path(place).is_relative_to(os.path.realpath(workspace)):
        yield f"mount of {place}" + (f" at {target}" if target != place else "")


def _device_access(text: str, _workspace: Path) -> Iterator[str]:
    host = text.partition(":")[0]
    if not _OF_GPUS.fullmatch(os.path.normpath(host)):
        yield f"--device {host}"


def _capability(text: str, _workspace: Path) -> Iterator[str]:
    if text.upper().removeprefix("CAP_") not in _CAPABILITIES:
        yield f"--cap-add {text}"


def _security(text: str, _workspace: Path) -> Iterator[str]:
    if seccomp_file(text) or not _CONFINED.fullmatch(text):
        yield f"--security-opt {text}"


_ACCESS_OF: dict[str, Callable[[str, Path], Iterator[str]]] = {
    "--volume": _volume,
    "--mount": _mount_access,
    "--device": _device_access,
    "--cap-add": _capability,
    "--security-opt": _security,
}
