"""The columns of an exported row, which every table has in this order, and its values for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias, get_type_hints

import msgspec

from madlite import ExportOptions, ExportRow, Json, UsageProblem

Kind: TypeAlias = Literal["text", "integer", "number", "time", "json"]
Cell: TypeAlias = str | int | float | datetime | None

_KINDS: dict[object, Kind] = {
    int | None: "integer",
    float | None: "number",
    datetime | None: "time",
    dict[str, str]: "json",
}
COLUMNS: dict[str, Kind] = {name: _KINDS.get(kind, "text") for name, kind in get_type_hints(ExportRow).items()}
"""Names and kinds; `key` is never null and tells results apart."""


def cells_of(row: ExportRow) -> tuple[Cell, ...]:
    """Return a row's values in the order of COLUMNS; None is what is not known, facts are JSON text."""
    values = (getattr(row, name) for name in COLUMNS)
    return tuple(_json(value) if isinstance(value, dict) else None if value == "" else value for value in values)


def as_object(row: ExportRow) -> dict[str, Json]:
    """Return a row as the object of JSON that has each column, null for what is not known."""
    return {**dict(zip(COLUMNS, cells_of(row), strict=True)), "facts": row.facts}


def _json(facts: dict[str, str]) -> str | None:
    return msgspec.json.encode(facts, order="deterministic").decode() if facts else None


TABLE = "results"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_HINT = "name another: --option table=NAME"


def table_of(options: ExportOptions, *, with_schema: bool = False) -> tuple[str, ...]:
    """Return the name of the table, with its schema where the caller takes one.

    Raises:
        UsageProblem: it is no plain name.
    """
    name = options.values.get("table", TABLE)
    parts = tuple(name.split("."))
    if len(parts) > 1 + with_schema or not all(_NAME.fullmatch(part) for part in parts):
        raise UsageProblem(f"'{name}' is no name for a table", "letters, digits and _: --option table=results")
    return parts


def missing_columns(where: str, there: Mapping[str, str], keys: Sequence[str], types: Mapping[str, str]) -> list[str]:
    """Return the columns that a table of an earlier version lacks.

    `there` has its columns with their types, `keys` its primary key, `types` the types that ours have.

    Raises:
        UsageProblem: it is another program's table.
    """
    if tuple(keys) != ("key",):
        what = f"its primary key is {', '.join(keys)}" if keys else "it has no primary key"
        raise UsageProblem(f"{where} is no table of results: {what}, not key", _HINT)
    for name in COLUMNS:
        if name in there and there[name].lower() != types[name].lower():
            raise UsageProblem(f"{where} has a column {name} of type {there[name]}, not {types[name]}", _HINT)
    return [name for name in COLUMNS if name not in there]


def added_note(where: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the note on columns that were added to a table of an earlier version."""
    return (f"{where} had no column {', '.join(names)}: added",) if names else ()
