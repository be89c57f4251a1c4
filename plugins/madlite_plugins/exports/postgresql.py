"""Rows → a table of PostgreSQL, each result once: one transaction, so that all of an export is there or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from madlite import Exported, ExportOptions, ExportRow, RuntimeProblem, UsageProblem
from madlite_plugins.exports.columns import COLUMNS, added_note, cells_of, missing_columns, table_of

if TYPE_CHECKING:
    from psycopg import Connection, Cursor
    from psycopg.sql import Composable

_TYPES = {
    "text": "text",
    "json": "jsonb",
    "time": "timestamp with time zone",
    "integer": "bigint",
    "number": "double precision",
}
_COLUMN_TYPES = {name: _TYPES[kind] for name, kind in COLUMNS.items()}
_CONNECT_S = 10
_LOCK_MS = 30_000  # for others that write the same table
_GONE = ("08", "57P")  # of SQLSTATE: the connection, an operator's intervention; a lost one has none
_HINT = "-o postgresql://user@host:5432/database; PGPASSWORD or ~/.pgpass has the password"


class PostgresqlExporter:
    """A table of PostgreSQL."""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Insert or update the rows in one transaction."""
        table = table_of(options, with_schema=True)
        try:
            import psycopg
        except ImportError:
            raise UsageProblem("psycopg is not installed", "pip install 'madlite[postgresql]'") from None
        settings = _settings(target)
        address = _address(settings)
        try:
            base = psycopg.connect(**settings)
        except psycopg.Error as error:
            raise UsageProblem(f"PostgreSQL at {address}: {_words(error, settings)}", _HINT) from None
        try:
            with base:
                return _write(base, table, f"table {'.'.join(table)} of {address}", rows)
        except psycopg.Error as error:
            if (error.sqlstate or _GONE[0]).startswith(_GONE):
                what = f"PostgreSQL at {address} went away, nothing was written: {_words(error, settings)}"
                raise RuntimeProblem(what, "export again") from None
            raise UsageProblem(f"PostgreSQL at {address}, nothing was written: {_words(error, settings)}") from None


def _settings(target: str) -> dict[str, Any]:
    """Return the parameters of a connection; what `-o` does not name libpq takes from the environment.

    Raises:
        UsageProblem: it is no address.  No part of it is shown: it may have the password.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    if not target.startswith(("postgresql://", "postgres://")) and "=" not in target:
        raise UsageProblem("-o names no PostgreSQL database", _HINT)
    try:
        found = conninfo_to_dict(target)
    except psycopg.Error:
        what = "-o is no address of PostgreSQL (a special character of the password is written as %40 for @)"
        raise UsageProblem(what, _HINT) from None
    return {"connect_timeout": _CONNECT_S, "application_name": "madlite", **found}


def _address(settings: dict[str, Any]) -> str:
    """Return where a server is and as whom, without the password."""
    user = f"{settings['user']}@" if settings.get("user") else ""
    port = f":{settings['port']}" if settings.get("port") else ""
    base = f"/{settings['dbname']}" if settings.get("dbname") else ""
    return f"{user}{settings.get('host') or settings.get('hostaddr') or 'its usual place'}{port}{base}"


def _words(error: Exception, settings: dict[str, Any]) -> str:
    """Return what the server or the client library says, on one line."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    password = str(settings.get("password") or "")
    return (text.replace(password, "***") if password else text).removeprefix("connection failed: ")


def _write(base: Connection[Any], table: tuple[str, ...], where: str, rows: Iterable[ExportRow]) -> Exported:
    from psycopg import sql

    name = sql.Identifier(*table)
    with base.cursor() as cursor:
        cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_MS)))
        # two that make one table at once would fail: CREATE TABLE IF NOT EXISTS looks before it locks
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('madlite export'))")
        added = _prepare(cursor, name, where)
        cursor.execute(sql.SQL("CREATE TEMPORARY TABLE incoming ({}) ON COMMIT DROP").format(_columns()))
        names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
        with cursor.copy(sql.SQL("COPY incoming ({}) FROM STDIN").format(names)) as copy:
            for row in rows:
                copy.write_row(cells_of(row))
        new, total = _upsert(cursor, name, names)
    return Exported(new=new, present=total - new, target=where, notes=added_note(where, added))


def _columns() -> Composable:
    from psycopg import sql

    parts = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in _COLUMN_TYPES.items()]
    return sql.SQL(", ").join(parts)


def _prepare(cursor: Cursor[Any], name: Composable, where: str) -> list[str]:
    """Make the table, or add the columns that an earlier version's lacks; return those."""
    from psycopg import sql

    cursor.execute("SELECT to_regclass(%s)", [name.as_string(cursor)])
    if _only(cursor) is None:
        cursor.execute(sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY (key))").format(name, _columns()))
        return []
    cursor.execute(_COLUMNS_OF, [name.as_string(cursor)])
    there = dict(cursor.fetchall())
    cursor.execute(_KEY_OF, [name.as_string(cursor)])
    missing = missing_columns(where, there, [name for (name,) in cursor.fetchall()], _COLUMN_TYPES)
    for column in missing:
        kind = sql.SQL(_COLUMN_TYPES[column])
        cursor.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(name, sql.Identifier(column), kind))
    return missing


_COLUMNS_OF = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"""
_KEY_OF = """
SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
WHERE indrelid = %s::regclass AND indisprimary"""


def _only(cursor: Cursor[Any]) -> Any:
    row = cursor.fetchone()
    return row[0] if row is not None else None


def _upsert(cursor: Cursor[Any], name: Composable, names: Composable) -> tuple[int, int]:
    """Take the incoming rows over; return how many came new, and how many there were.

    A row that no transaction ever updated has an xmax of 0.
    """
    from psycopg import sql

    changes = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in COLUMNS if name != "key"]
    query = sql.SQL(
        "WITH done AS (INSERT INTO {name} AS old ({names}) SELECT DISTINCT ON (key) {names} FROM incoming "
        "ON CONFLICT (key) DO UPDATE SET {changes} RETURNING old.xmax = 0 AS is_new) "
        "SELECT count(*) FILTER (WHERE is_new), count(*) FROM done"
    )
    cursor.execute(query.format(name=name, names=names, changes=sql.SQL(", ").join(changes)))
    new, total = cursor.fetchone() or (0, 0)
    return int(new), int(total)
