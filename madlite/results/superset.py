"""perf_super.json, the list that grows by every run's entries, and perf_super.csv, the same as a table.

Callers hold the lock of `sidefiles`.  A list that cannot be read is moved aside, never written over.
"""

from __future__ import annotations

import csv
import io
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from madlite.model import Json, Row
from madlite.results.lines import csv_line, plain, plain_name
from madlite.results.locked import plain_target
from madlite.results.perfcsv import append_rows
from madlite.results.typed import as_cell, indented, on_one_line, read_json
from madlite.results.whole import write_whole
from madlite.safe_files import folder_of
from madlite.text import unlimited_fields

_Object: TypeAlias = dict[str, Json]
_LIMIT_BYTES = 1 << 30
_log = logging.getLogger(__name__)


def add_to_list(path: Path, entries: Sequence[_Object], *, again: bool = False) -> list[_Object]:
    """Add a run's entries to the list, `again` unless it has them, and return all it holds now.

    Raises:
        RecordError: it is no plain file.
        OSError: it cannot be read or written.
    """
    earlier = _earlier(path)
    if again and _holds([on_one_line(one) for one in earlier], [on_one_line(one) for one in entries]):
        return earlier
    every = [*earlier, *entries]
    write_whole(path, indented(every) + b"\n")
    return every


def add_to_table(path: Path, entries: Sequence[_Object], every: Sequence[_Object], *, again: bool = False) -> None:
    """Add a run's entries to the table, `again` unless it has them; a new one is written from `every` of the list.

    Raises:
        RecordError: it is no table of results.
        OSError: it cannot be written.
    """
    if path.exists() and path.stat().st_size:
        if again and _in_table(path, table_of(entries)):
            return
        append_rows(path, [Row(cells=_cells(entry)) for entry in entries])
    else:
        write_table(path, table_of(every))


def _in_table(path: Path, rows: Sequence[dict[str, str]]) -> bool:
    """Say whether a table has rows one after the other; columns that its header had no room for do not count."""
    with folder_of(plain_target(path)) as (folder, name), unlimited_fields():
        text = folder.read(name, _LIMIT_BYTES).decode("utf-8", "replace").replace("\0", "\\x00")
        found = csv.DictReader(io.StringIO(text, newline=""))
        columns = found.fieldnames or ()
        every = [tuple(row.get(name) or "" for name in columns) for row in found]
    return _holds(every, [tuple(row.get(name, "") for name in columns) for row in rows])


def _holds(every: Sequence[object], some: Sequence[object]) -> bool:
    """Say whether some stand among every, one after the other."""
    count = len(some)
    return any(every[start : start + count] == some for start in range(len(every) - count + 1))


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows as a CSV of their own; its columns are theirs, in the order in which they first come.

    Raises:
        OSError: it cannot be written.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    write_whole(path, "".join(csv_line(map(plain, cells), "\n") for cells in lines).encode())


def table_of(entries: Sequence[_Object]) -> list[dict[str, str]]:
    """Return entries as rows of text."""
    return [_cells(entry) for entry in entries]


def _cells(entry: _Object) -> dict[str, str]:
    return {plain_name(name): plain(as_cell(value)) for name, value in entry.items()}


def _earlier(path: Path) -> list[_Object]:
    try:
        with folder_of(plain_target(path)) as (folder, name):
            data = folder.read(name, _LIMIT_BYTES)
    except FileNotFoundError:
        return []
    try:
        return _entries(data)
    except (ValueError, RecursionError) as error:
        kept = _move_aside(path)
        _log.warning("%s is no list of results (%s): it is kept as %s and a new one begins", path, error, kept.name)
        return []


def _entries(data: bytes) -> list[_Object]:
    if not data.strip():
        return []
    entries = read_json(data)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("JSON, but no list of objects")
    return entries


def _move_aside(path: Path) -> Path:
    """Give the file another name beside it, one that no other file has."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    with folder_of(path) as (folder, name):
        names = (f"{name}.broken-{stamp}{n}" for n in ("", *(f"-{n}" for n in range(2, 1000))))
        kept = next(one for one in names if not folder.holds(one))
        folder.rename(name, kept)
    return path.with_name(kept)
