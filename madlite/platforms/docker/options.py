"""Turn verbatim `docker run` options of a card into changes of the request for a container."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import click

from madlite.errors import UsageProblem
from madlite.files import read_as_spelled
from madlite.model import EnvValue, Json
from madlite.secrets import Redactor, assigned, guard

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


def nano_cpus(text: str) -> int:
    """Return billionths of a CPU: `1.5`."""
    return int(float(text) * 1_000_000_000)


def pair(text: str) -> dict[str, str]:
    """Return one entry of a table: `key=value`, or `key` alone."""
    key, _, value = text.partition("=")
    return {key: value}


def tmpfs(text: str) -> dict[str, str]:
    """Return one entry of the tmpfs table: `/run:size=64m`."""
    target, _, options = text.partition(":")
    return {target: options}


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
    path = seccomp_file(text)
    if not path:
        return text
    try:
        profile = read_as_spelled(workspace / path, workspace, limit_bytes=_LARGEST_BYTES)
        return f"seccomp={json.dumps(json.loads(profile))}"
    except OSError as error:
        raise ValueError(f"seccomp profile {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"seccomp profile {path} is no JSON: {error}") from error


def seccomp_file(text: str) -> str:
    """Return the file that a security option names, "" for one that names none."""
    kind, _, path = text.partition("=")
    return "" if kind != "seccomp" or path in ("unconfined", "builtin") else path


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
    Option("--tmpfs", "HostConfig.Tmpfs", tmpfs, kind="table"),
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
    Option("--cpus", "HostConfig.NanoCpus", nano_cpus),
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


def parse_options(text: str, environ: Mapping[str, str]) -> list[tuple[list[str], tuple[str | bool, ...]]]:
    """Return the options in `text`, each by its names, the long one last, with its values as they are written.

    Raises:
        ValueError: they cannot be read.
    """
    return [(option.names.split(), values) for option, values in _parse(tuple(split_words(text, environ)))]


def named_variables(text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the caller's variables that options read (`$NAME`, `-e NAME`); none of unreadable ones."""
    try:
        words = shlex.split(_QUOTED.sub(_protect, text))
        passed = [value for names, values in parse_options(text, environ) if names[-1] == "--env" for value in values]
    except ValueError:  # reported where the container is requested
        return []
    spelled = [found[1] or found[2] for word in words for found in _VARIABLE.finditer(word)]
    return [*spelled, *(str(name) for name in passed if "=" not in str(name))]


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
