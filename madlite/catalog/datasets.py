"""data.json → data sets: where each can be had from, checked field by field; credential.json, with what it logs in.

Format: `{name: {provider: {path, home?, mirrorlocal?, readwrite?, args?}}}`, as madengine 1.0 and 2.1 read it
(docs/data.md); fields of other names are left alone, as they do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from madlite.errors import UsageProblem
from madlite.files import UNUSABLE, NotJson, decode_json, exists, read_json, texts, wrong_key
from madlite.model import Json, Value


class Provider(Value, frozen=True):
    """One place a data set can be had from."""

    path: str
    home: str = ""  # the folder it is wanted in
    mirrorlocal: str = ""  # a folder of the machine that keeps what was fetched
    readwrite: str | bool = ""  # the word `true` lets the run write into a local folder
    args: str = ""


class _DataSet(Value, frozen=True, forbid_unknown_fields=True):
    """Where a data set can be had, in order: the first that has the data is used."""

    custom: Provider | UnsetType = UNSET
    local: Provider | UnsetType = UNSET
    minio: Provider | UnsetType = UNSET
    nas: Provider | UnsetType = UNSET
    aws: Provider | UnsetType = UNSET


PROVIDERS = _DataSet.__struct_fields__
DataSets = dict[str, dict[str, Provider]]
"""Data set → provider name → provider, in the order of `PROVIDERS`."""


def read_data_sets(
    file: Path, overrides: Mapping[str, Json], origin: str, mirror: str = "", *, given: bool = False
) -> DataSets | None:
    """Return the data sets of a data.json, those of `overrides` (the context's `data`, from `origin`) over them.

    `mirror` is the folder that every provider but `local` has to keep its data in; `given` as for `read_text`.  None
    without both.

    Raises:
        UsageProblem: the file or the overrides are no such table; the message names the place.
    """
    sets: DataSets = {}
    if exists(file):
        sets |= _checked(read_json(file, given=given), str(file))
    elif not overrides:
        return None
    sets |= _checked(dict(overrides), f"{origin}: data")
    return {name: _mirrored(providers, mirror) for name, providers in sets.items()}


def _checked(table: Json, where: str) -> DataSets:
    if not isinstance(table, dict):
        raise UsageProblem(f"{where} must be an object of data sets, found a {type(table).__name__}")
    return {name: _providers(entry, f"{where}: data set '{name}'") for name, entry in table.items()}


def _providers(entry: Json, where: str) -> dict[str, Provider]:
    try:
        found = msgspec.convert(entry, _DataSet)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {wrong_key(error)[1]}", f"providers: {', '.join(PROVIDERS)}") from None
    if found.local is not UNSET and found.local.mirrorlocal:
        raise UsageProblem(f"{where}: provider local takes no mirrorlocal", "its data is on this machine already")
    return {name: provider for name in PROVIDERS if (provider := getattr(found, name)) is not UNSET}


def _mirrored(providers: Mapping[str, Provider], mirror: str) -> dict[str, Provider]:
    return {
        name: msgspec.structs.replace(provider, mirrorlocal=mirror) if mirror and name != "local" else provider
        for name, provider in providers.items()
    }


# credential.json of the working folder, and the services of it that the environment can name instead.


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
