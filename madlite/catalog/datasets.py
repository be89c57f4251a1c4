"""data.json → data sets: where each can be had from, checked field by field.

Format: `{name: {provider: {path, home?, mirrorlocal?, readwrite?, args?}}}`, as madengine 1.0 and 2.1 read it
(docs/data.md); fields of other names are left alone, as they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from madlite.errors import UsageProblem
from madlite.files import exists, read_json, wrong_key
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
