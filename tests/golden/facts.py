"""What a run did, in the words of the expectations: rows, files, builds, containers and what ran inside."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.factories import BASE_IMAGE
from tests.golden.tap import Call

Fact = dict[str, Any]
STANDARD = 29  # columns of a new perf.csv


@dataclass(frozen=True)
class Facts:
    """`rows` and `extra` are None where there is no results file; `left` counts containers that are still there."""

    rows: list[Fact] | None
    extra: list[str] | None
    files: list[str]
    builds: list[Fact]
    containers: list[Fact]
    left: int = 0


# docs/differences.md, "what a container sees of `madlite_runs`"; test_docker_request.py has them in full
_OWN_MOUNT = re.compile(
    r".*/madlite_runs/[^/:]+/(\.view:/myworkspace/madlite_runs:ro|work:/myworkspace/madlite_runs/[^/:]+)"
)


def plan_runs(folder: Path, calls: Sequence[Call], output: str, left: int, own_files: Iterable[str]) -> Facts:
    """Return what is in the folder and what was asked of the engine."""
    header, rows = read_rows(folder / output)
    return Facts(
        rows=rows,
        extra=None if header is None else header[STANDARD:],
        files=sorted({path.name for path in folder.iterdir()} - set(own_files)),
        builds=_builds(calls),
        containers=[_container(call, folder) for call in calls if call.what == "POST /containers/create"],
        left=left,
    )


def read_rows(path: Path) -> tuple[list[str] | None, list[Fact] | None]:
    """Return a results file's header and its rows without their blank cells; None, None where there is none."""
    if not path.exists():
        return None, None
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    names = [name.strip() for name in header]
    return names, [{name: cell for name, cell in zip(names, line, strict=True) if cell} for line in lines]


def in_its_words(facts: Any, folder: Path, image: str) -> Any:
    """Return facts with the run's folder and base image under the names that the expectations have."""
    pairs = ((str(folder), "<CWD>"), (BASE_IMAGE, image), (_flat(BASE_IMAGE), _flat(image)))
    text = json.dumps(facts)
    for ours, theirs in pairs:
        text = text.replace(json.dumps(ours)[1:-1], theirs)
    return json.loads(text)


def _flat(name: str) -> str:
    return re.sub("[/:]", "_", name)


def _builds(calls: Iterable[Call]) -> list[Fact]:
    """Return the builds; the one that follows where a base image could not be refreshed is the same build."""
    builds: list[Fact] = []
    for call in calls:
        if call.what != "POST /build":
            continue
        build = _build(call)
        if not (builds and not build["pull"] and {**build, "pull": True} == builds[-1]):
            builds.append(build)
    return builds


def _build(call: Call) -> Fact:
    asked = call.query
    file = asked["dockerfile"]
    return {
        "image": asked["t"],
        "file": file if "/" in file else f"docker/{file}",
        "context": "." if "/" in file else "./docker",
        "args": dict(sorted(json.loads(asked.get("buildargs", "{}")).items())),
        "network": asked.get("networkmode", ""),
        "pull": _is_on(asked.get("pull", "")),
        **({"no_cache": True} if _is_on(asked.get("nocache", "")) else {}),
    }


def _is_on(value: str) -> bool:
    return value.lower() in ("1", "true")


def _container(call: Call, folder: Path) -> Fact:
    body, host = call.body, call.body["HostConfig"]
    env = dict(entry.split("=", 1) for entry in body["Env"])
    gpus = [gpu for request in host.get("DeviceRequests") or [] for gpu in request["DeviceIDs"]]
    facts = {
        "name": call.query.get("name", ""),
        "image": body["Image"],
        "user": body["User"],
        "workdir": body["WorkingDir"],
        "devices": [device["PathOnHost"] for device in host["Devices"]],
        "gpus": gpus,
        "cap_add": host.get("CapAdd"),
        "security_opt": host.get("SecurityOpt"),
        "group_add": host.get("GroupAdd"),
        "network": host.get("NetworkMode"),
        "ipc": host.get("IpcMode"),
        "mounts": [bind for bind in host.get("Binds") or [] if not _OWN_MOUNT.fullmatch(bind)],
        "cpuset": host.get("CpusetCpus"),
        "shm_size": host.get("ShmSize"),
        "ulimits": [_ulimit(limit) for limit in host.get("Ulimits") or []],
        "init": host.get("Init"),
        "privileged": host.get("Privileged"),
        "steps": _steps(folder / "madlite_runs" / env["MADLITE_RUN_ID"] / "run.log"),
        "env": env,
    }
    return {name: fact for name, fact in facts.items() if fact or name in ("steps", "env")}


def _ulimit(limit: dict[str, Any]) -> str:
    soft, hard = limit["Soft"], limit["Hard"]
    return f"{limit['Name']}={soft}" + ("" if soft == hard else f":{hard}")


def _steps(log: Path) -> list[str]:
    """Return what the scripts said of themselves, in order."""
    return re.findall(r"^step: (.*?)\r?$", log.read_text(errors="replace"), re.MULTILINE)
