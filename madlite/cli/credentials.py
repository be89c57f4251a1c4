"""credential.json of the working folder, and the services that data comes from, there or in the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from madlite.errors import UsageProblem


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
    from madlite.files import exists, read_json

    file = workspace / "credential.json"
    if not exists(file):
        return None
    content = read_json(file, file.name)
    if not isinstance(content, dict):
        raise UsageProblem(f"{file.name} must be an object of tables, found a {type(content).__name__}")
    return content


_SERVICES = ("MAD_MINIO", "MAD_AWS_S3", "NAS_NODES")


def read_services(workspace: Path) -> dict[str, tuple[dict[str, str], ...]]:
    """Return the services that data comes from, each with its table, `NAS_NODES` with one per storage.

    One in the environment (`MAD_MINIO='{"USERNAME": …}'`) comes before that of credential.json.

    Raises:
        UsageProblem: one in the environment is no such table; the message shows none of it.
    """
    of_file = _credential_file(workspace) or {}
    named = {name: _object(name, os.environ[name]) for name in _SERVICES if os.environ.get(name)}
    found = {name: value for name, value in {**of_file, **named}.items() if name in _SERVICES}
    lists = {name: value if isinstance(value, list) else [value] for name, value in found.items()}
    return {name: tuple(_table(one) for one in value if isinstance(one, dict)) for name, value in lists.items()}


def _object(name: str, text: str) -> dict[str, Any] | list[Any]:
    from madlite.files import UNUSABLE, NotJson, decode_json, texts

    try:
        value = decode_json(os.fsencode(text))
    except NotJson:
        value = None
    several = name == "NAS_NODES"
    fits = isinstance(value, (dict, list) if several else dict)
    if not fits or any(UNUSABLE.search(inside) for _, inside in texts(value, name)):
        table = '{"HOST": "…", "PORT": 22, ' if several else "{"
        hint = f'{name}=\'{table}"USERNAME": "…", "PASSWORD": "…"}}\''
        raise UsageProblem(f"{name} of the environment is no JSON object", hint)
    return value  # type: ignore[no-any-return]


def _table(entry: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in entry.items() if isinstance(value, (str, int))}
