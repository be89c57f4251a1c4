"""Rows → a table of an SQLite file, each result once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

from madlite import Exported, ExportOptions, ExportRow, UsageProblem, check_writable
from madlite_plugins.exports.columns import COLUMNS, Cell, added_note, cells_of, missing_columns, table_of

_TYPES = {"text": "TEXT", "json": "TEXT", "time": "TEXT", "integer": "INTEGER", "number": "REAL"}
_COLUMN_TYPES = {name: _TYPES[kind] for name, kind in COLUMNS.items()}
_WAIT_S = 10.0  # for another program that writes


class SqliteExporter:
    """A table of an SQLite file."""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Insert or update the rows in one transaction."""
        table = table_of(options)[0]
        if target in ("", "-"):
            raise UsageProblem("SQLite is written to a file, and none is named", "-o results.db")
        path = Path(target)
        check_writable(path)
        if path.exists() and not path.is_file():
            raise UsageProblem(f"{path} is no plain file", "-o results.db")
        try:
            with closing(sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)) as base:
                return _write(base, table, f"table {table} of {path}", rows)
        except sqlite3.Error as error:
            raise UsageProblem(f"{path} cannot be written as SQLite: {error}", f"ls -l {path}") from error


def _write(base: sqlite3.Connection, table: str, where: str, rows: Iterable[ExportRow]) -> Exported:
    base.execute("PRAGMA trusted_schema = OFF")
    base.execute("BEGIN IMMEDIATE")
    try:
        added = _prepare(base, table, where)
        before = _count(base, table)
        total = 0

        def values() -> Iterator[tuple[Cell, ...]]:
            nonlocal total
            for row in rows:
                total += 1
                yield tuple(cell.isoformat() if isinstance(cell, datetime) else cell for cell in cells_of(row))

        base.executemany(_upsert(table), values())
        new = _count(base, table) - before
        base.execute("COMMIT")
    except BaseException:
        if base.in_transaction:
            base.execute("ROLLBACK")
        raise
    return Exported(new=new, present=total - new, target=where, notes=added_note(where, added))


def _prepare(base: sqlite3.Connection, table: str, where: str) -> list[str]:
    """Make the table, or add the columns that an earlier version's lacks; return those."""
    columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMN_TYPES.items() if name != "key")
    base.execute(f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY NOT NULL, {columns})")
    facts = list(base.execute(f"PRAGMA table_info({table})"))
    keys = [name for _, name, _, _, _, place in sorted(facts, key=lambda fact: fact[5]) if place]
    missing = missing_columns(where, {name: kind for _, name, kind, *_ in facts}, keys, _COLUMN_TYPES)
    for name in missing:
        base.execute(f"ALTER TABLE {table} ADD COLUMN {name} {_COLUMN_TYPES[name]}")
    return missing


def _count(base: sqlite3.Connection, table: str) -> int:
    return int(base.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - `table_of` checked the name


def _upsert(table: str) -> str:
    names = ", ".join(COLUMNS)
    marks = ", ".join("?" * len(COLUMNS))
    changes = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "key")
    return f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET {changes}"  # noqa: S608
