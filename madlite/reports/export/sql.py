"""What tables of SQLite and PostgreSQL share: the name, the columns, and whether a table that is there is ours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from madlite.errors import UsageProblem
from madlite.model import ExportOptions
from madlite.reports.export.columns import COLUMNS

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
