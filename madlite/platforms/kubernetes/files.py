"""The files of a run's pods: what its workspace needs, each a key of the ConfigMap, mounted under its own path."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.model import Cause, RunPlan
from madlite.plan.inputs import RUNS
from madlite.store.folder import WORK

MOST_BYTES = 1 << 20
"""What a ConfigMap or a Secret holds at most (k8s.io/api/core/v1, MaxSecretSize)."""


def check_size(content: Mapping[str, str | bytes], run_id: str) -> None:
    """Refuse what is larger than a ConfigMap may be.

    Raises:
        RuntimeProblem: it is; the largest file is named.
    """
    sizes = {key: len(value.encode() if isinstance(value, str) else value) for key, value in content.items()}
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=lambda key: sizes[key])
        raise RuntimeProblem(
            f"the files of run {run_id} are {sum(sizes.values()) / MOST_BYTES:.1f} MiB, and a ConfigMap holds 1 MiB "
            f"(the largest is {_path_of(largest)})",
            "put large files into the image, or on a volume: k8s.volumes",
            cause=Cause.PREPARE,
        )


def workspace_files(plan: RunPlan, rendered: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """Return the files that a pod's workspace needs, by their paths in it: the run's own, and the script's folder.

    Of a script that lies in the workspace itself it is the script alone: what else is there is not the run's.

    `rendered` are the run's own files where its folder is not there yet, by their names in it.

    Raises:
        RuntimeProblem: one cannot be read.
    """
    home = plan.folder.relative_to(plan.workspace)
    own = rendered if rendered is not None else dict(_below(plan.folder / WORK))
    found = {f"{home}/{name}": data for name, data in own.items()}
    if plan.card.scripts and not plan.templates:
        script = plan.workspace / plan.card.scripts
        folder = script if script.is_dir() else script.parent
        if folder != plan.workspace:
            found |= {f"{folder.relative_to(plan.workspace)}/{name}": data for name, data in _below(folder)}
        elif script.is_file():
            found[script.name] = _read(script)
    for action in plan.actions:
        for word in action.argv:
            name = word.removeprefix(f"{plan.inside}/")
            if name != word and ".." not in name.split("/") and (plan.workspace / name).is_file():
                found[name] = _read(plan.workspace / name)
    return found


def _below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not any(map(_is_private, name.parts)):
            yield str(name), _read(path)


def _is_private(part: str) -> bool:
    """Return whether a part of a path is of what no pod needs: credentials, the history, earlier runs."""
    return part in ("credential.json", ".git", RUNS) or part.startswith(".env")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)  # more is refused anyway
    except OSError as error:
        raise RuntimeProblem(f"{path} cannot be read: {error.strerror}", cause=Cause.PREPARE) from error


def key_of(path: str) -> str:
    """Return the key of a file: letters, digits, `-`, `_` and `.`; readable, and another one for each path."""
    return f"{hashlib.sha256(path.encode()).hexdigest()[:8]}--{re.sub(r'[^-A-Za-z0-9_.]+', '-', path)[-200:]}"


def _path_of(key: str) -> str:
    return key.partition("--")[2] or key


def keys_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return files by their keys."""
    return {key_of(path): data for path, data in files.items()}


def content_of(content: Mapping[str, str | bytes]) -> dict[str, dict[str, str]]:
    """Return the fields of a ConfigMap that has this content: what is no text stands in `binaryData`."""
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    for key, value in content.items():
        try:
            data[key] = value if isinstance(value, str) else value.decode()
        except UnicodeDecodeError:
            binary[key] = b64encode(bytes(value)).decode()  # type: ignore[arg-type]
    return {"data": data, **({"binaryData": binary} if binary else {})}
