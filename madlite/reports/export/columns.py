"""The columns of an exported row, which every table has in this order, and its values for them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias, get_type_hints

import msgspec

from madlite.model import ExportRow, Json

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
