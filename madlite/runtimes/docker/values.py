"""Read the values of `docker run` options into what the Engine API calls them.

Formats: https://docs.docker.com/reference/cli/docker/container/run and the API's ContainerCreate.
Every reader raises ValueError with what is wrong.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path

from madlite.model import EnvValue, Json
from madlite.safe_read import read_as_spelled
from madlite.secrets import guard

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
    asked: dict[str, Json] = {"Driver": "", "Capabilities": [["gpu"]]}
    ids: list[str] = []
    for field in _fields(text):
        key, given, value = field.partition("=")
        if key == "device":
            ids += value.split(",")
        elif ids and not given:  # what a shell made of `"device=0,1"`
            ids.append(key)
        elif key == "driver":
            asked["Driver"] = value
        elif key == "capabilities":
            asked["Capabilities"] = [["gpu", *value.split(",")]]
        else:
            count = value if key == "count" else key
            asked["Count"] = -1 if count == "all" else int(count)
    return {**asked, "DeviceIDs": ids} if ids else asked


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
        raise ValueError(f"{text!r} is no CSV: {error}") from error


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
        return f"seccomp={json.dumps(json.loads(read_as_spelled(workspace / path, workspace, _LARGEST_BYTES)))}"
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
        lines = read_as_spelled(workspace / path, workspace, _LARGEST_BYTES).decode("utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text") from None
    found: dict[str, EnvValue] = {}
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            found |= variable(line.lstrip(), environ)
    return found
