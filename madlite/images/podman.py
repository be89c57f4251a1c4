"""Podman behind docker's API: where its socket is, and what it has to be asked for in words of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.model import Cause, Json

SYSTEM_SOCKET = Path("/run/podman/podman.sock")
GPUS_SINCE = (5, 4)  # before, its docker API takes requests for GPUs and gives none (podman pull request 25171)


def found_socket(environ: Mapping[str, str]) -> Path | None:
    """Return podman's socket, the caller's own before the machine's; None where neither is there."""
    own = environ.get("XDG_RUNTIME_DIR", "")
    places = [Path(own, "podman/podman.sock")] if own else []
    return next(filter(is_there, [*places, SYSTEM_SOCKET]), None)


def is_there(path: Path) -> bool:
    """Say whether a path exists and may be looked at."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def podman_version(client: Any) -> str:
    """Return the version of the podman that answers, "" for another engine."""
    parts = client.version().get("Components") or []
    return next((str(part.get("Version", "")) for part in parts if part.get("Name") == "Podman Engine"), "")


def ask_for_gpus(client: Any, host: dict[str, Json]) -> None:
    """Word a request's GPUs as the engine understands them: podman knows NVIDIA's by their CDI names alone.

    Raises:
        RuntimeProblem: this podman would start the container without them.
    """
    asked = host.get("DeviceRequests") or []
    version = podman_version(client) if asked else ""
    if not version:
        return
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < GPUS_SINCE:
        raise RuntimeProblem(
            f"podman {version} gives no NVIDIA GPUs to containers that are asked for by docker's API",
            f"podman {'.'.join(map(str, GPUS_SINCE))} or later does, and so does docker",
            cause=Cause.PREPARE,
        )
    host["DeviceRequests"] = [_by_cdi(request) for request in asked]


def _by_cdi(request: Mapping[str, Json]) -> dict[str, Json]:
    """Return a request for GPUs by the names that NVIDIA's toolkit gives them (Container Device Interface)."""
    if request.get("Driver") == "cdi":
        return dict(request)
    count = int(request.get("Count") or -1)
    ids = request.get("DeviceIDs") or (["all"] if count < 0 else [str(gpu) for gpu in range(count)])
    return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}" for gpu in ids]}
