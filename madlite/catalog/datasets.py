"""data.json → data sets: where each can be had from, checked field by field.

Format: `{name: {provider: {path, home?, mirrorlocal?, readwrite?, args?}}}`, as madengine 1.0 and 2.1 read it
(docs/data.md); fields of other names are left alone, as they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from madlite.errors import UsageProblem
from madlite.files import exists, read_json, wrong_key
from madlite.model import Json, Value

PROVIDERS = ("custom", "local", "minio", "nas", "aws")
"""In order; the first that has the data is used."""


class Provider(Value, frozen=True):
    """One place a data set can be had from."""

    path: str
    home: str = ""  # the folder it is wanted in
    mirrorlocal: str = ""  # a folder of the machine that keeps what was fetched
    readwrite: str = ""  # the word `true` lets the run write into a local folder
    args: str = ""


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
    if not isinstance(entry, dict):
        raise UsageProblem(f"{where} must be an object of providers, found a {type(entry).__name__}")
    if unknown := [name for name in entry if name not in PROVIDERS]:
        raise UsageProblem(f"{where} has no provider '{unknown[0]}'", f"providers: {', '.join(PROVIDERS)}")
    return {name: _provider(name, entry[name], where) for name in PROVIDERS if name in entry}


def _provider(name: str, entry: Json, where: str) -> Provider:
    table = dict(entry) if isinstance(entry, dict) else {}
    if isinstance(table.get("readwrite"), bool):
        table["readwrite"] = str(table["readwrite"]).lower()
    try:
        provider = msgspec.convert(table if isinstance(entry, dict) else entry, Provider)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}, provider {name}: {wrong_key(error)[1]}") from None
    if name == "local" and provider.mirrorlocal:
        raise UsageProblem(f"{where}: provider local takes no mirrorlocal", "its data is on this machine already")
    return provider


def _mirrored(providers: Mapping[str, Provider], mirror: str) -> dict[str, Provider]:
    return {
        name: msgspec.structs.replace(provider, mirrorlocal=mirror) if mirror and name != "local" else provider
        for name, provider in providers.items()
    }
