"""Turn verbatim `docker run` options of a card into changes of the request for a container."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import click

from madlite.errors import UsageProblem
from madlite.model import Json
from madlite.runtimes.docker import values as read
from madlite.runtimes.docker.words import split_words

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
    Option("-v --volume", "HostConfig.Binds", read.bind, kind="list"),
    Option("--mount", "HostConfig.Mounts", read.mount, kind="list"),
    Option("--tmpfs", "HostConfig.Tmpfs", read.tmpfs, kind="table"),
    Option("--volumes-from", "HostConfig.VolumesFrom", kind="list"),
    Option("--device", "HostConfig.Devices", read.device, kind="list"),
    Option("--device-cgroup-rule", "HostConfig.DeviceCgroupRules", kind="list"),
    Option("--gpus", "HostConfig.DeviceRequests", read.gpus, kind="list"),
    Option("--runtime", "HostConfig.Runtime"),
    Option("--network --net", "HostConfig.NetworkMode"),
    Option("--ipc", "HostConfig.IpcMode"),
    Option("--pid", "HostConfig.PidMode"),
    Option("--uts", "HostConfig.UTSMode"),
    Option("--userns", "HostConfig.UsernsMode"),
    Option("--cgroupns", "HostConfig.CgroupnsMode"),
    Option("--cgroup-parent", "HostConfig.CgroupParent"),
    Option("--shm-size", "HostConfig.ShmSize", read.size),
    Option("-m --memory", "HostConfig.Memory", read.size),
    Option("--memory-swap", "HostConfig.MemorySwap", read.size),
    Option("--memory-reservation", "HostConfig.MemoryReservation", read.size),
    Option("--memory-swappiness", "HostConfig.MemorySwappiness", int),
    Option("--oom-kill-disable", "HostConfig.OomKillDisable", kind="flag"),
    Option("--oom-score-adj", "HostConfig.OomScoreAdj", int),
    Option("--pids-limit", "HostConfig.PidsLimit", int),
    Option("--ulimit", "HostConfig.Ulimits", read.ulimit, kind="list"),
    Option("--sysctl", "HostConfig.Sysctls", read.pair, kind="table"),
    Option("--cpus", "HostConfig.NanoCpus", read.nano_cpus),
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
    Option("--storage-opt", "HostConfig.StorageOpt", read.pair, kind="table"),
    Option("--add-host", "HostConfig.ExtraHosts", kind="list"),
    Option("--dns", "HostConfig.Dns", kind="list"),
    Option("--dns-search", "HostConfig.DnsSearch", kind="list"),
    Option("--dns-option --dns-opt", "HostConfig.DnsOptions", kind="list"),
    Option("--log-driver", "HostConfig.LogConfig.Type"),
    Option("--log-opt", "HostConfig.LogConfig.Config", read.pair, kind="table"),
    Option("-u --user", "User"),
    Option("-h --hostname", "Hostname"),
    Option("--domainname", "Domainname"),
    Option("-l --label", "Labels", read.pair, kind="table"),
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
        for option, values in _parse(split_words(text, environ)):
            for value in values:
                _put(body, option, _value(option, value, environ, workspace))
    except ValueError as error:
        raise UsageProblem(
            f"additional_docker_run_options ({origin}): {error}", "docker run --help   lists what docker takes"
        ) from error


def given_options(text: str, environ: Mapping[str, str]) -> list[tuple[list[str], tuple[str | bool, ...]]]:
    """Return the options in `text`, each by its names, the long one last, with its values as they are written.

    Raises:
        ValueError: they cannot be read.
    """
    return [(option.names.split(), values) for option, values in _parse(split_words(text, environ))]


def _parse(words: list[str]) -> list[tuple[Option, tuple[str, ...]]]:
    """Return every option that was given, with its values as text; the last one of a single-valued option."""
    flags = {name for option in OPTIONS if option.kind == "flag" for name in option.names.split()}
    parameters: list[click.Parameter] = [_parameter(option, f"option_{at}") for at, option in enumerate(OPTIONS)]
    command = click.Command("docker run", params=parameters, add_help_option=False)
    try:
        given = command.make_context("docker run", [_switch(word, flags) for word in words]).params
    except click.UsageError as error:
        raise ValueError(error.format_message()) from error
    found = [(option, given[f"option_{at}"]) for at, option in enumerate(OPTIONS)]
    return [(option, value if _repeats(option) else (value,)) for option, value in found if value not in (None, ())]


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
        return read.variables_of_file(given, environ, workspace) if of_file else read.variable(given, environ)
    try:
        if option.names == "--security-opt":
            return read.security_option(given, workspace)
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
