"""credential.json of the working folder, and the services of it that the environment can name instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from madlite.errors import UsageProblem
from madlite.files import UNUSABLE, NotJson, decode_json, exists, read_json, texts


def read_credentials(workspace: Path) -> dict[str, dict[str, str]] | None:
    """Return the tables of credential.json of the working folder, name → key → value; None without that file.

    Raises:
        UsageProblem: it cannot be read, or is no such table; the message shows none of it.
    """
    content = _credential_file(workspace)
    if content is None:
        return None
    # NAS_NODES and the like are lists, which no card names
    return {name: _table(entry) for name, entry in content.items() if isinstance(entry, dict)}


def _credential_file(workspace: Path) -> dict[str, Any] | None:
    file = workspace / "credential.json"
    if not exists(file):
        return None
    content = read_json(file, file.name)
    if not isinstance(content, dict):
        raise UsageProblem(f"{file.name} must be an object of tables, found a {type(content).__name__}")
    return content


_SERVICES = ("MAD_MINIO", "MAD_AWS_S3", "NAS_NODES")


def read_services(workspace: Path, environ: Mapping[str, str]) -> dict[str, tuple[dict[str, str], ...]]:
    """Return the services that data comes from, each with its table, `NAS_NODES` with one per storage.

    One in the environment (`MAD_MINIO='{"USERNAME": …}'`) comes before that of credential.json.

    Raises:
        UsageProblem: one in the environment is no such table; the message shows none of it.
    """
    of_file = _credential_file(workspace) or {}
    named = {name: _object(name, environ[name]) for name in _SERVICES if environ.get(name)}
    found = {name: value for name, value in {**of_file, **named}.items() if name in _SERVICES}
    lists = {name: value if isinstance(value, list) else [value] for name, value in found.items()}
    return {name: tuple(_table(item) for item in value if isinstance(item, dict)) for name, value in lists.items()}


def _object(name: str, text: str) -> dict[str, Any] | list[Any]:
    try:
        value = decode_json(os.fsencode(text))
    except NotJson:
        value = None
    fits = isinstance(value, (dict, list) if name == "NAS_NODES" else dict)
    if not fits or any(UNUSABLE.search(inside) for _, inside in texts(value, name)):
        hint = f'{name}=\'{{"USERNAME": "…", "PASSWORD": "…"}}\'   with the other keys of docs/data.md'
        raise UsageProblem(f"{name} of the environment is no JSON object", hint)
    return value  # type: ignore[no-any-return]


def _table(entry: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in entry.items() if isinstance(value, (str, int))}
