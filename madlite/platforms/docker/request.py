"""Format a plan as the engine's request for a container.

Contents: what madengine asks `docker run` for (docs/differences.md lists what differs); format: the Engine API's
ContainerCreate. What a dry run prints and what is sent come from the same function.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

import click
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import read_as_spelled, spells
from madlite.images.client import proxy_environment
from madlite.machine.processes import RUN_MARK
from madlite.model import EnvValue, Image, Json, RunPlan, Secret
from madlite.platforms.sessions import container_mounts
from madlite.secrets import SHORTEST, Redactor, assigned, collect, guard, is_secret, mask_values, reveal
from madlite.store.folder import FOLDER_LABEL, KEPT_LABEL, RUN_LABEL

# Options of `docker run` that a card has, verbatim → changes of the request.

# Read the values of `docker run` options into what the Engine API calls them.
#
# Formats: https://docs.docker.com/reference/cli/docker/container/run and the API's ContainerCreate.
# Every reader raises ValueError with what is wrong.

_LARGEST_BYTES = 1 << 20  # of a file that an option names
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgtp]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_MOUNT_KEYS = {"type": "Type", "source": "Source", "src": "Source"} | dict.fromkeys(
    ("target", "dst", "destination"), "Target"
)


def size(text: str) -> int:
    """Return bytes: `64G`, `2gb`, `1.5g`; -1 stands for no limit."""
    if text == "-1":
        return -1
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"'{text}' is no size such as 64G")
    return int(float(found["number"]) * 1024 ** _POWERS[found["unit"].lower()])


def pair(text: str, sign: str = "=") -> dict[str, str]:
    """Return one entry of a table: `key=value`, or `key` alone."""
    key, _, value = text.partition(sign)
    return {key: value}


def ulimit(text: str) -> dict[str, Json]:
    """Return a limit: `memlock=-1`, `nofile=1024:2048`."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}


def device(text: str) -> dict[str, str]:
    """Return a device file or folder: `/dev/kfd`, `/dev/a:/dev/b:rw`."""
    host, *rest = text.split(":")
    if rest and set(rest[-1]) <= set("rwm"):
        return {"PathOnHost": host, "PathInContainer": (rest[:-1] or [host])[0], "CgroupPermissions": rest[-1]}
    return {"PathOnHost": host, "PathInContainer": (rest or [host])[0], "CgroupPermissions": "rwm"}


def gpus(text: str) -> dict[str, Json]:
    """Return a request for GPUs: `all`, `2`, `"device=0,1"`."""
    request: dict[str, Json] = {"Driver": "", "Capabilities": [["gpu"]]}
    ids: list[str] = []
    for field in _fields(text):
        key, given, value = field.partition("=")
        if key == "device":
            ids += value.split(",")
        elif ids and not given:  # what a shell made of `"device=0,1"`
            ids.append(key)
        elif key == "driver":
            request["Driver"] = value
        elif key == "capabilities":
            request["Capabilities"] = [["gpu", *value.split(",")]]
        else:
            count = value if key == "count" else key
            request["Count"] = -1 if count == "all" else int(count)
    return {**request, "DeviceIDs": ids} if ids else request


def mount(text: str) -> dict[str, Json]:
    """Return a mount: `type=bind,source=/data,target=/data,readonly`."""
    made: dict[str, Json] = {"Type": "volume"}
    for field in _fields(text):
        key, _, value = field.partition("=")
        if key in _MOUNT_KEYS:
            made[_MOUNT_KEYS[key]] = value
        elif key in ("readonly", "ro"):
            made["ReadOnly"] = value in ("", "1", "true")
        elif key in ("bind-propagation", "propagation"):
            made["BindOptions"] = {"Propagation": value}
        elif key == "tmpfs-size":
            made["TmpfsOptions"] = {**made.get("TmpfsOptions", {}), "SizeBytes": size(value)}
        elif key == "tmpfs-mode":
            made["TmpfsOptions"] = {**made.get("TmpfsOptions", {}), "Mode": int(value, 8)}
        else:
            raise ValueError(f"'{key}' in '{text}' is not known")
    if "Target" not in made:
        raise ValueError(f"'{text}' names no target")
    return made


def _fields(text: str) -> list[str]:
    """Return the fields of a value, which docker reads as CSV."""
    try:
        return [field for field in next(csv.reader([text])) if field]
    except csv.Error as error:
        raise ValueError(f"{text!r} is not valid CSV: {error}") from error


def bind(text: str) -> str:
    """Return a host folder's mount: `/data:/data:ro`; a relative folder is below the current one, as in docker."""
    source, colon, rest = text.partition(":")
    if not colon:
        raise ValueError(f"'{text}' is no HOST:CONTAINER pair")
    return f"{Path(source).absolute()}:{rest}" if source.startswith(".") else text


def security_option(text: str, workspace: Path) -> str:
    """Return a security option; a seccomp profile is sent as its content, not its path."""
    kind, _, path = text.partition("=")
    if kind != "seccomp" or path in ("", "unconfined", "builtin"):
        return text
    try:
        profile = read_as_spelled(workspace / path, workspace, limit_bytes=_LARGEST_BYTES)
        return f"seccomp={json.dumps(json.loads(profile))}"
    except OSError as error:
        raise ValueError(f"seccomp profile {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"seccomp profile {path} is no JSON: {error}") from error


def variable(text: str, environ: Mapping[str, str]) -> dict[str, EnvValue]:
    """Return a variable: `NAME=value`, or `NAME` alone for the caller's own value, nothing where it is not set."""
    name, given, value = text.partition("=")
    if given:
        return guard({name: value})
    return guard({name: environ[name]}) if name in environ else {}


def variables_of_file(path: str, environ: Mapping[str, str], workspace: Path) -> dict[str, EnvValue]:
    """Return the variables of an `--env-file`: a variable per line, `#` starts a comment line."""
    try:
        lines = read_as_spelled(workspace / path, workspace, limit_bytes=_LARGEST_BYTES).decode("utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text") from None
    found: dict[str, EnvValue] = {}
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            found |= variable(line.lstrip(), environ)
    return found


# Split the text of `docker run` options into words, as the shell does that madengine gives them to.
#
# Quotes and backslashes keep `$`, a backquote and `~` as they are written (POSIX, Shell Command Language, 2.2
# Quoting); elsewhere a variable is the caller's. What comes out of a variable is not split again.

_PROTECTED = str.maketrans("$`~", "\ufdd0\ufdd1\ufdd2")  # no text holds these: Unicode gives them to programs
_WRITTEN = str.maketrans("\ufdd0\ufdd1\ufdd2", "$`~")
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)
_PAIR = re.compile(r"\\(.)", re.DOTALL)
_WORD = re.compile(rf"(?:{_QUOTED.pattern}|[^\s'\"\\])+", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def split_words(text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words, with `$NAME`, `${NAME}` and a leading `~` replaced by the caller's.

    Raises:
        ValueError: a quotation does not end, a variable is not set, or a command's output is requested.
    """
    return [_expand(word, environ).translate(_WRITTEN) for word in shlex.split(_QUOTED.sub(_protect, text))]


def partly_quoted_words(text: str) -> list[str]:
    """Return, as they are written, the words whose quotes or backslashes stand inside of what they mean."""
    written = (word for word in _WORD.findall(text) if not _VARIABLE.search(_QUOTED.sub(_protect, word)))
    return [word for word in written if shlex.split(word)[0] not in word]


def _protect(quoted: re.Match[str]) -> str:
    """Mark the signs that mean themselves in a quoted part; its quotes and other backslashes are shlex's."""
    text = quoted[0]
    if text[0] == "'":
        return text.translate(_PROTECTED)
    if text[0] == "\\":
        return text[1].translate(_PROTECTED) if text[1] in "$`~" else text
    protected = _PAIR.sub(lambda pair: pair[1].translate(_PROTECTED) if pair[1] in "$`" else pair[0], text)
    return protected.replace("~", "~".translate(_PROTECTED))


def _expand(word: str, environ: Mapping[str, str]) -> str:
    if "$(" in word or "`" in word:
        raise ValueError(f"'{_shown(word)}' asks for a command's output, and no shell runs here")

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in environ:
            raise ValueError(f"'{_shown(word)}' needs the variable {name}, which is not set")
        return environ[name]

    if word == "~" or word.startswith("~/"):
        word = "$HOME" + word[1:]
    return _VARIABLE.sub(value, word)


def _shown(word: str) -> str:
    """Return a word for a message: of `HF_TOKEN=…` the name alone."""
    word = word.translate(_WRITTEN)
    return Redactor(assigned([word])).text(word)


_IGNORED = ""  # has no meaning here, or is decided by the plan: name, working folder, foreground


class Option(NamedTuple):
    """An option of `docker run` and where its value goes in the API's request."""

    names: str  # as the command line has them
    path: str  # dotted, in the request
    read: Callable[[str], Json] = str
    kind: Literal["value", "flag", "list", "table"] = "value"  # the last two may be given several times


OPTIONS = (
    Option("--env-file", "Env", kind="table"),
    Option("-e --env", "Env", kind="table"),
    Option("-v --volume", "HostConfig.Binds", bind, kind="list"),
    Option("--mount", "HostConfig.Mounts", mount, kind="list"),
    Option("--tmpfs", "HostConfig.Tmpfs", partial(pair, sign=":"), kind="table"),  # /run:size=64m
    Option("--volumes-from", "HostConfig.VolumesFrom", kind="list"),
    Option("--device", "HostConfig.Devices", device, kind="list"),
    Option("--device-cgroup-rule", "HostConfig.DeviceCgroupRules", kind="list"),
    Option("--gpus", "HostConfig.DeviceRequests", gpus, kind="list"),
    Option("--runtime", "HostConfig.Runtime"),
    Option("--network --net", "HostConfig.NetworkMode"),
    Option("--ipc", "HostConfig.IpcMode"),
    Option("--pid", "HostConfig.PidMode"),
    Option("--uts", "HostConfig.UTSMode"),
    Option("--userns", "HostConfig.UsernsMode"),
    Option("--cgroupns", "HostConfig.CgroupnsMode"),
    Option("--cgroup-parent", "HostConfig.CgroupParent"),
    Option("--shm-size", "HostConfig.ShmSize", size),
    Option("-m --memory", "HostConfig.Memory", size),
    Option("--memory-swap", "HostConfig.MemorySwap", size),
    Option("--memory-reservation", "HostConfig.MemoryReservation", size),
    Option("--memory-swappiness", "HostConfig.MemorySwappiness", int),
    Option("--oom-kill-disable", "HostConfig.OomKillDisable", kind="flag"),
    Option("--oom-score-adj", "HostConfig.OomScoreAdj", int),
    Option("--pids-limit", "HostConfig.PidsLimit", int),
    Option("--ulimit", "HostConfig.Ulimits", ulimit, kind="list"),
    Option("--sysctl", "HostConfig.Sysctls", pair, kind="table"),
    Option("--cpus", "HostConfig.NanoCpus", lambda text: int(float(text) * 1_000_000_000)),
    Option("-c --cpu-shares", "HostConfig.CpuShares", int),
    Option("--cpu-period", "HostConfig.CpuPeriod", int),
    Option("--cpu-quota", "HostConfig.CpuQuota", int),
    Option("--cpuset-cpus", "HostConfig.CpusetCpus"),
    Option("--cpuset-mems", "HostConfig.CpusetMems"),
    Option("--privileged", "HostConfig.Privileged", kind="flag"),
    Option("--cap-add", "HostConfig.CapAdd", kind="list"),
    Option("--cap-drop", "HostConfig.CapDrop", kind="list"),
    Option("--group-add", "HostConfig.GroupAdd", kind="list"),
    Option("--security-opt", "HostConfig.SecurityOpt", kind="list"),
    Option("--init", "HostConfig.Init", kind="flag"),
    Option("--read-only", "HostConfig.ReadonlyRootfs", kind="flag"),
    Option("--storage-opt", "HostConfig.StorageOpt", pair, kind="table"),
    Option("--add-host", "HostConfig.ExtraHosts", kind="list"),
    Option("--dns", "HostConfig.Dns", kind="list"),
    Option("--dns-search", "HostConfig.DnsSearch", kind="list"),
    Option("--dns-option --dns-opt", "HostConfig.DnsOptions", kind="list"),
    Option("--log-driver", "HostConfig.LogConfig.Type"),
    Option("--log-opt", "HostConfig.LogConfig.Config", pair, kind="table"),
    Option("-u --user", "User"),
    Option("-h --hostname", "Hostname"),
    Option("--domainname", "Domainname"),
    Option("-l --label", "Labels", pair, kind="table"),
    Option("--entrypoint", "Entrypoint", lambda text: [text]),
    Option("--stop-signal", "StopSignal"),
    Option("--stop-timeout", "StopTimeout", int),
    Option("--name", _IGNORED),
    Option("-w --workdir", _IGNORED),
    Option("-a --attach", _IGNORED, kind="list"),
    Option("-d --detach", _IGNORED, kind="flag"),
    Option("-i --interactive", _IGNORED, kind="flag"),
    Option("-t --tty", _IGNORED, kind="flag"),
    Option("--rm", _IGNORED, kind="flag"),
)
_SWITCH = re.compile(r"(?P<name>--[a-z-]+)=(?P<value>true|false|1|0)", re.IGNORECASE)


def add_options(
    body: dict[str, Json], text: str, environ: Mapping[str, str], origin: str, workspace: Path = Path()
) -> None:
    """Add the options in `text` to a request whose `Env` and `Labels` are tables; a single value replaces.

    `$NAME`, `${NAME}` and a leading `~` outside of quotes are the caller's, as with the shell madengine gave them to.
    Files that options name are found from `workspace` on; a link there that leads out of it is refused.

    Raises:
        UsageProblem: an option is unknown, or a value of one cannot be read; it names `origin`.
    """
    try:
        for option, values in _parse(tuple(split_words(text, environ))):
            for value in values:
                _put(body, option, _value(option, value, environ, workspace))
    except ValueError as error:
        raise UsageProblem(
            f"additional_docker_run_options ({origin}): {error}", "docker run --help   lists what docker takes"
        ) from error


def named_variables(text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the caller's variables that options read (`$NAME`, `-e NAME`); none of unreadable ones."""
    try:
        words = shlex.split(_QUOTED.sub(_protect, text))
        passed = _given("--env", text, environ)
    except ValueError:  # reported where the container is requested
        return []
    spelled = [found[1] or found[2] for word in words for found in _VARIABLE.finditer(word)]
    return [*spelled, *(name for name in passed if "=" not in name)]


def _given(name: str, text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the values of an option as they are given.

    Raises:
        ValueError: the options cannot be read.
    """
    found = _parse(tuple(split_words(text, environ)))
    return [value for option, values in found if name in option.names.split() for value in values]


@lru_cache(maxsize=64)  # a run's options are read when it is planned, requested, masked and shown
def _parse(words: tuple[str, ...]) -> tuple[tuple[Option, tuple[str, ...]], ...]:
    """Return every option that was given, with its values as text; the last one of a single-valued option."""
    if not words:  # most cards have none
        return ()
    flags = {name for option in OPTIONS if option.kind == "flag" for name in option.names.split()}
    parameters: list[click.Parameter] = [_parameter(option, f"option_{at}") for at, option in enumerate(OPTIONS)]
    command = click.Command("docker run", params=parameters, add_help_option=False)
    try:
        given = command.make_context("docker run", [_switch(word, flags) for word in words]).params
    except click.UsageError as error:
        raise ValueError(error.format_message()) from error
    found = [(option, given[f"option_{at}"]) for at, option in enumerate(OPTIONS)]
    there = [(option, value) for option, value in found if value not in (None, ())]
    return tuple((option, value if _repeats(option) else (value,)) for option, value in there)


def _parameter(option: Option, name: str) -> click.Option:
    names = option.names.split()
    if option.kind != "flag":
        return click.Option([*names, name], multiple=_repeats(option))
    return click.Option([*names[:-1], f"{names[-1]}/--no{names[-1][1:]}", name], default=None)


def _switch(word: str, flags: set[str]) -> str:
    """Return `--init=false` as `--no-init`, and `--init=true` as `--init`."""
    found = _SWITCH.fullmatch(word)
    if not found or found["name"] not in flags:
        return word
    return found["name"] if found["value"].lower() in ("true", "1") else f"--no{found['name'][1:]}"


def _value(option: Option, given: str, environ: Mapping[str, str], workspace: Path) -> Json:
    if option.kind == "flag":
        return given
    if option.path == "Env":
        of_file = "file" in option.names
        return variables_of_file(given, environ, workspace) if of_file else variable(given, environ)
    try:
        if option.names == "--security-opt":
            return security_option(given, workspace)
        return option.read(given)
    except ValueError as error:
        raise ValueError(f"{option.names.split()[-1]}: {error}") from error


def _put(body: dict[str, Json], option: Option, value: Json) -> None:
    if option.path == _IGNORED:
        return
    *parents, last = option.path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    if option.kind == "table":
        body[last] = {**body.get(last, {}), **value}
    elif option.kind == "list":
        body[last] = [*body.get(last, []), value]
    else:
        body[last] = value


def _repeats(option: Option) -> bool:
    return option.kind in ("list", "table")


# The request.

KEEPER = ["cat"]  # waits on its terminal for ever: the container lives until it is stopped


def masked_request(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the request for people: secrets as `***`, and the name the container gets if it is free."""
    return {"Name": container_name(plan), **full_request(plan, environ, mask_values)}


def container_name(plan: RunPlan) -> str:
    """Return the name the container gets where it is free, in the characters docker takes."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", plan.name) or f"madlite-{plan.id}"


def request_secrets(plan: RunPlan, environ: Mapping[str, str]) -> tuple[Secret, ...]:
    """Return the secrets that only the request holds: of the card's docker options, their files, and proxies.

    Never raises: options that cannot be read are reported where the container starts, and masked as far as they go.
    """
    options, places = plan.engine_options.extra, ""
    written: list[str] = []
    body: dict[str, Json] = {"Env": {}, "Labels": {}, "HostConfig": {}}
    try:
        add_options(body, options, environ, "", plan.workspace)
        partly = partly_quoted_words(options)
        words = [*split_words(options, environ), *partly]
        written = [value for word in partly for value in _written_values(word)]
        # in labels, log options and inside of values; a folder `/run/secrets` is none
        places = str({name: value for name, value in body["HostConfig"].items() if name != "LogConfig"})
    except UsageProblem:
        words = [options, *_words(options)]
    asked = [value for value in body["Env"].values() if isinstance(value, Secret)]
    proxies = [value for value in proxy_environment(environ).values() if isinstance(value, Secret)]
    spelled = (Secret(text) for text in (*assigned(words), *written) if text not in places)
    return (*asked, *spelled, *(value for value in proxies if "@" in value.reveal()))


def _written_values(word: str) -> Iterator[str]:
    """Yield what is behind the name of a secret to the end of a word, quotes within it included."""
    for sign in re.finditer("=", word):
        name = re.split(r"\W", word[: sign.start()])[-1]
        if is_secret(name, value := word[sign.end() :]) and len(value) >= SHORTEST:
            yield value


def _words(options: str) -> list[str]:
    with suppress(ValueError):
        return shlex.split(options)
    return []


def full_request(
    plan: RunPlan,
    environ: Mapping[str, str],
    show: Callable[[Mapping[str, EnvValue]], Mapping[str, EnvValue | str]] = reveal,
) -> dict[str, Json]:
    """Return the request with its secrets, for the engine alone; `show` is what becomes of them."""
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
    options, ids = plan.engine_options, ",".join(map(str, plan.place.gpu_ids))
    every = container_mounts(plan)
    odd = [mount for mount in every if ":" in mount.source]  # a bind's text has no way to say it
    return {
        "NetworkMode": options.network,
        "IpcMode": options.ipc,
        "CapAdd": list(options.cap_add),
        "SecurityOpt": list(options.security_opt),
        "GroupAdd": list(options.group_add),
        "Devices": [device(path) for path in plan.devices],
        "DeviceRequests": [gpus(f'"device={ids}"')] if plan.machine.vendor == "NVIDIA" and ids else [],
        "Binds": [f"{mount.source}:{mount.target}{':ro' * mount.read_only}" for mount in every if mount not in odd],
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in odd
        ],
        "Ulimits": [ulimit(text) for text in options.ulimits],
        "CpusetCpus": options.cpuset,
        "CpusetMems": options.cpuset_mems,
        "Init": True,
    }


def _labels(plan: RunPlan) -> dict[str, str]:
    kept = {KEPT_LABEL: "1"} if plan.keep_alive else {}
    return {RUN_LABEL: plan.id, FOLDER_LABEL: str(plan.folder), **kept}


# What of a machine a run requests beyond what every container of MAD's has, in one line for the user.
#
# MAD's own is not told: root in the container, the host's network and IPC, the working folder, the devices of GPUs and
# RDMA, SYS_PTRACE and SYS_ADMIN, neither seccomp nor AppArmor.

_NAMESPACES = {
    **{"--net": "NetworkMode", "--ipc": "IpcMode"},
    **{"--pid": "PidMode", "--uts": "UTSMode", "--userns": "UsernsMode", "--cgroupns": "CgroupnsMode"},
}
_OF_MAD = ("--net", "--ipc")  # of the host
_LISTS = (  # an option, its list in the request, and what of it is usual
    ("--cap-add", "CapAdd", r"(CAP_)?(SYS_PTRACE|SYS_ADMIN|SYS_NICE|IPC_LOCK)"),
    (
        *("--security-opt", "SecurityOpt"),
        r"seccomp[=:](unconfined|builtin)|apparmor[=:](unconfined|docker-default)|no-new-privileges.*",
    ),
    ("--volumes-from", "VolumesFrom", ""),
    ("--device-cgroup-rule", "DeviceCgroupRules", ""),
)
_OF_GPUS = re.compile(r"/dev/(kfd|dri|fuse|infiniband|nvidia[^/]*)(/.*)?")
_ENGINE = re.compile(r".*/(docker|podman|containerd|crio)\.sock|/run/docker|/var/run/docker")
_MOST, _LONGEST = 12, 200
_OPENS = "the run opens this machine to its container: "


def host_access(plan: RunPlan, environ: Mapping[str, str]) -> str:
    """Return what a plan opens of this machine by its request, Dockerfile and build context; "" for nothing."""
    listed = _listed(tuple(dict.fromkeys((*_of_request(plan, environ), *image_access(plan.image)))), environ)
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
        if opened := host_access(replace(plan, image=image), environ):
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


def _of_request(plan: RunPlan, environ: Mapping[str, str]) -> Iterator[str]:
    try:
        host = full_request(plan, environ)["HostConfig"]
    except UsageProblem:  # reported where the container is requested; a file that it misses can come until then
        host = {}
    files: list[str] = []
    with suppress(ValueError):
        given = plan.engine_options.extra
        files = _given("--env-file", given, environ)
        # by its file, not by all that a profile of seccomp says
        host = {**host, "SecurityOpt": [*plan.engine_options.security_opt, *_given("--security-opt", given, environ)]}
    for mount in _bind_mounts(host):
        yield from _mount_access(*mount, plan.workspace)
    for option, name in _NAMESPACES.items():
        value = host.get(name, "")
        if value.startswith("container:") or (value == "host" and option not in _OF_MAD):
            yield f"{option}={value}"
    devices = [item["PathOnHost"] for item in host.get("Devices", ())]
    yield from (f"--device {path}" for path in devices if not _OF_GPUS.fullmatch(os.path.normpath(path)))
    for option, name, usual in _LISTS:
        beyond = (text for text in host.get(name, ()) if not re.fullmatch(usual, text, re.IGNORECASE))
        yield from (f"{option} {text}" for text in beyond)
    if host.get("Privileged"):
        yield "--privileged"
    yield from (f"--env-file {file}" for file in files)


def _bind_mounts(host: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield sources and targets of a request's mounts of folders and files."""
    for text in host.get("Binds", ()):
        source, _, rest = text.partition(":")
        if source.startswith(("/", "~")):  # else a volume
            yield source, rest.partition(":")[0]
    for item in host.get("Mounts", ()):
        if item["Type"] == "bind":
            yield str(item.get("Source", "")), str(item["Target"])


def _mount_access(source: str, target: str, workspace: Path) -> Iterator[str]:
    """Yield a mount of what lies outside of the working folder, links followed, for docker follows them too."""
    place = os.path.realpath(workspace / source)
    if _ENGINE.fullmatch(place) or _ENGINE.fullmatch(source):
        yield f"mount of {place}, the engine's socket: who has it is root on this machine"
    elif not Path(place).is_relative_to(os.path.realpath(workspace)):
        yield f"mount of {place}" + (f" at {target}" if target != place else "")
