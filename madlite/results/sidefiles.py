"""The files that dashboards read beside perf.csv, written into the working folder after a run's rows.

perf_entry.* and perf_entry_super.* tell of the last run, perf_super.* of all, common_info.json of the last one with
several results.  Runs of one folder take turns, so that the files tell of one run.  Format: docs/perf-csv.md.
"""

from __future__ import annotations

import csv
import fcntl
import io
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Json, Result, Row, RunPlan
from madlite.plan.inputs import RUNS
from madlite.results.configs import read_configs
from madlite.results.entry import Entries, build_entries
from madlite.results.header import as_cell, csv_line, indented, limited_cells, on_one_line, plain, plain_name, read_json
from madlite.results.locked import check_side_file, explained, plain_target, write_whole
from madlite.results.perfcsv import append_rows
from madlite.results.rows import build_rows, limited_metric, masked_metric, masked_rows
from madlite.safe_files import folder_of
from madlite.text import unlimited_fields
from madlite.workspace.folder import open_runs

# perf_super.json, the list that grows by every run's entries, and perf_super.csv, the same as a table.
#
# Callers hold the lock of `sidefiles`.  A list that cannot be read is moved aside, never written over.

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


ENTRY_TABLE = "perf_entry.csv"
_LOCK = ".side_files.lock"


def write_side_files(
    plan: RunPlan, result: Result, *, pipeline: str, build_number: str, mask: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Write a run's side files into its working folder, and return what kept any of them from being written.

    Arguments as for `make_entries`.
    """
    entries = make_entries(plan, result, pipeline=pipeline, build_number=build_number, mask=mask)
    return write_entries(plan.workspace, entries)


def make_entries(
    plan: RunPlan, result: Result, *, pipeline: str, build_number: str, mask: Callable[[str], str] = str
) -> Entries:
    """Return a run's part of the side files.

    `pipeline` and `build_number` are as for `build_rows`; `mask` hides secrets, in the configuration too.
    """

    def rows(of: Result) -> tuple[Row, ...]:
        built = build_rows(plan, of, pipeline=pipeline, build_number=build_number, strict_header=False)
        return tuple(Row(cells=limited_cells(row.cells)) for row in masked_rows(built, mask))

    metrics = (limited_metric(masked_metric(metric, mask)) for metric in result.metrics)
    result = replace(result, metrics=tuple(metrics))
    (bare,) = rows(replace(result, metrics=()))
    return build_entries(plan, result, rows(result), bare, read_configs(plan, mask))


def write_entries(folder: Path, entries: Entries, *, again: bool = False) -> tuple[str, ...]:
    """Write a run's part of the side files of a working folder; return what kept any of them from being written.

    `again`, where an earlier try may have been killed in between: what perf_super has of it is not added once more.
    """
    try:
        with side_files_locked(folder):
            return tuple(_write_all(folder, entries, again))
    except RecordError as problem:
        return (problem.message,)


@contextmanager
def side_files_locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a working folder's side files.

    Raises:
        RecordError: there can be no lock in the folder, or what is done under it met an OSError.
    """
    with explained(folder / RUNS / _LOCK), open_runs(folder, make=True) as runs:
        lock = runs.open_lock(_LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _write_all(folder: Path, entries: Entries, again: bool) -> Iterator[str]:
    """Write the list first, for its entries are the ones that are there once; one file's problem is its own."""
    superset, several = entries.superset, entries.common is not None
    every: list[dict[str, Json]] = []
    steps: list[tuple[str, Callable[[Path], None]]] = [
        ("perf_entry_super.json", partial(_write_json, value=[*superset], over_lines=True)),
        ("perf_entry_super.csv", partial(write_table, rows=table_of(superset))),
        ("perf_entry.json", partial(_write_json, value=_one_or_all(entries), over_lines=several)),
        (ENTRY_TABLE, partial(write_table, rows=entries.table)),
    ]
    if entries.ran:
        steps = [
            ("perf_super.json", lambda path: every.extend(add_to_list(path, superset, again=again))),
            ("perf_super.csv", lambda path: add_to_table(path, superset, every or superset, again=again)),
            *steps,
        ]
    if several:
        steps.append(("common_info.json", partial(_write_json, value=entries.common, over_lines=False)))
    for name, write in steps:
        try:
            with explained(folder / name):
                check_side_file(folder / name)
                write(folder / name)
        except RecordError as problem:
            yield problem.message
        except Exception as bug:  # noqa: BLE001 - of this one file: the others still tell of this run
            _log.debug("%s", folder / name, exc_info=True)
            yield f"internal error in {folder / name}: {type(bug).__name__}: {bug}"


def _one_or_all(entries: Entries) -> Json:
    return entries.entry[0] if len(entries.entry) == 1 else [*entries.entry]


def _write_json(path: Path, value: Json, over_lines: bool) -> None:
    write_whole(path, (indented(value) if over_lines else on_one_line(value)) + b"\n")
