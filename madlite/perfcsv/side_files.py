"""The files that dashboards read beside perf.csv, written into the working folder after a run's rows.

perf_entry.* and perf_entry_super.* are of the last run, perf_super.* of all, common_info.json of the last one with
several results.  A lock keeps the files of one run together.  Format: docs/perf-csv.md.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from madlite.errors import RecordError
from madlite.files import Folder, append_lines, folder_of, read_plain
from madlite.jsontext import indented, on_one_line, read_json, spelled_objects
from madlite.model import Json, Value
from madlite.perfcsv.append import append_rows
from madlite.perfcsv.entries import entries_line, read_entries
from madlite.perfcsv.header import as_cell, csv_line, plain, plain_name, recorded_row
from madlite.perfcsv.locked import as_record_error, check_side_file, plain_target, write_atomically
from madlite.perfcsv.recorded import ends_of, reading_rows
from madlite.plan.inputs import RUNS
from madlite.store.folder import open_runs
from madlite.store.locks import locked_file
from madlite.store.stored import Entries, JsonObject

# perf_super.json, the list that grows by every run's entries, and perf_super.csv, the same as a table.
#
# Callers hold the lock of `sidefiles`.  A list that cannot be read is renamed, never overwritten.

_LIMIT_BYTES = 1 << 30
_Listed: TypeAlias = JsonObject | msgspec.Raw
_log = logging.getLogger(__name__)


class Addition(Value, frozen=True):
    """One run's entries; `again` where an earlier attempt may have written them: what is there is not added twice."""

    entries: Entries
    again: bool = False


def add_to_list(path: Path, runs: Sequence[Addition]) -> list[_Listed]:
    """Add the entries of runs to the list and return all it holds now, earlier ones as they are spelled.

    Raises:
        RecordError: it is no plain file.
        OSError: it cannot be read or written.
    """
    every = _earlier(path)
    known = [on_one_line(entry) for entry in every] if any(run.again for run in runs) else []
    before = len(every)
    for run in runs:
        if not (run.again and _contains(known, [on_one_line(entry) for entry in run.entries.superset])):
            every += run.entries.superset
    if len(every) > before:
        write_atomically(path, indented(every) + b"\n")
    return every


def add_to_table(path: Path, runs: Sequence[Addition], every: Sequence[_Listed]) -> None:
    """Add the entries of runs to the table; a new one is written from `every` of the list.

    Raises:
        RecordError: it is no table of results.
        OSError: it cannot be written.
    """
    if not path.exists() or not path.stat().st_size:
        listed = every or [entry for run in runs for entry in run.entries.superset]
        write_table(path, table_of(map(_read, listed)))
        return
    tables = [(run.again, table_of(run.entries.superset)) for run in runs]
    append_rows(path, [cells for again, rows in tables if not (again and _in_table(path, rows)) for cells in rows])


def _in_table(path: Path, rows: Sequence[dict[str, str]]) -> bool:
    """Return whether a table has these rows, one after the other; columns that its header lacks do not count."""
    with reading_rows(plain_target(path)) as (header, there):
        wanted = [recorded_row(row, header.columns) for row in rows] if header is not None else []
        return any(ends_of(wanted, there))


def _contains(every: Sequence[object], some: Sequence[object]) -> bool:
    """Return whether `some` is a contiguous part of `every`."""
    count = len(some)
    return any(every[start : start + count] == some for start in range(len(every) - count + 1))


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows as a CSV of their own; its columns are theirs, in the order in which they first come.

    Raises:
        OSError: it cannot be written.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    write_atomically(path, "".join(csv_line(map(plain, cells), "\n") for cells in lines).encode())


def table_of(entries: Iterable[JsonObject]) -> list[dict[str, str]]:
    """Return entries as rows of text."""
    return [_cells(entry) for entry in entries]


def _read(entry: _Listed) -> JsonObject:
    return cast("JsonObject", read_json(bytes(entry))) if isinstance(entry, msgspec.Raw) else entry


def _cells(entry: JsonObject) -> dict[str, str]:
    return {plain_name(name): plain(as_cell(value)) for name, value in entry.items()}


def _earlier(path: Path) -> list[_Listed]:
    try:
        with folder_of(plain_target(path)) as (folder, name):
            data = folder.read(name, _LIMIT_BYTES)
    except FileNotFoundError:
        return []
    try:
        return _entries(data)
    except (ValueError, RecursionError) as error:
        kept = _rename_broken(path)
        _log.warning(
            "%s is not a list of results (%s): it was renamed to %s and a new one is written", path, error, kept.name
        )
        return []


def _entries(data: bytes) -> list[_Listed]:
    if not data.strip():
        return []
    if (spelled := spelled_objects(data)) is not None:
        return [*spelled]
    entries = read_json(data)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("JSON, but no list of objects")
    return entries


def _rename_broken(path: Path) -> Path:
    """Rename the file to an unused name beside it."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    with folder_of(path) as (folder, name):
        names = (f"{name}.broken-{stamp}{n}" for n in ("", *(f"-{n}" for n in range(2, 1000))))
        kept = next(name for name in names if not folder.holds(name))
        folder.rename(name, kept)
    return path.with_name(kept)


ENTRY_TABLE = "perf_entry.csv"
_LIST = "perf_super.json"
_ENTRY, _ENTRY_SUPER = "perf_entry.json", "perf_entry_super.json"
_TABLES = ("perf_super.csv", "perf_entry_super.csv")
_CARDS = "models.json"
_OF_MAD = (_CARDS, "scripts", _LIST, _ENTRY, ENTRY_TABLE, _ENTRY_SUPER, *_TABLES)
_LOCK = ".side_files.lock"


def has_readers(folder: Path) -> bool:
    """Return whether a working folder is a checkout of MAD, or has side files: what reads them may come there.

    Cards of MAD have `scripts`; a folder whose cards all go by recipes, as `madlite init` writes them, is no checkout.
    """
    there = [name for name in _OF_MAD if (folder / name).exists()]
    with suppress(OSError):
        return bool(there) and (there != [_CARDS] or b'"scripts"' in read_plain(folder / _CARDS))
    return True


def write_entries(folder: Path, entries: Entries, *, again: bool = False) -> tuple[str, ...]:
    """Write a run's part of the side files of a working folder, after those that wait; return the error messages.

    `again`, where an earlier attempt may have been killed: entries that perf_super has already are not added twice.
    """
    return _locked_write(folder, lambda runs: _write_with(runs, folder, [Addition(entries=entries, again=again)]))


def leave_entries(folder: Path, entries: Entries) -> tuple[str, ...]:
    """Let a run's part of the side files of a working folder wait for the next write; return the error messages."""
    return _locked_write(folder, lambda runs: _append(runs, entries_line(entries)))


def write_waiting(folder: Path) -> tuple[str, ...]:
    """Write what waits for the side files of a working folder, also of a command that was killed."""
    if not (folder / RUNS / _WAITING).exists():
        return ()
    return _locked_write(folder, lambda runs: _write_with(runs, folder, []))


def due_in_s(folder: Path) -> float:
    """Return in how many seconds the list may be written again; 0 where it may be now.

    A run's own cost does not grow with the list: it is written so seldom that this takes a few percent of the time.
    """
    try:
        facts = (folder / _LIST).stat()
    except OSError:
        return 0.0
    age_s = time.time() - facts.st_mtime
    left_s = _EVERY_S + facts.st_size / _BYTES_PER_S - age_s
    return left_s if age_s >= 0 and left_s > 0 else 0.0


def _locked_write(folder: Path, write: Callable[[Folder], tuple[str, ...]]) -> tuple[str, ...]:
    try:
        with side_files_locked(folder) as runs:
            return write(runs)
    except RecordError as problem:
        return (problem.message,)


@contextmanager
def side_files_locked(folder: Path) -> Iterator[Folder]:
    """Lock a working folder's side files; yield its folder of runs.

    Raises:
        RecordError: the lock cannot be taken, or the block raised an OSError.
    """
    with as_record_error(folder / RUNS / _LOCK), open_runs(folder, make=True) as runs, locked_file(runs, _LOCK):
        yield runs


# Entries that wait: perf_super.json is replaced as a whole, so that a reader, and a kill, never meet half of it, and to
# do so for each of 10,000 short runs would cost more than the runs.  A line for each run, in their order, and one that
# says that they are about to be written: where that was cut off, the files may have them.

_WAITING = ".side_files.jsonl"
_BEGUN = "writing"
_EVERY_S, _BYTES_PER_S = 0.25, 2e6  # of the list, written again: some 2 % of the time at 100 MB/s


def _write_with(runs: Folder, folder: Path, more: Sequence[Addition]) -> tuple[str, ...]:
    """Write what waits and then `more`; return the error messages.

    Raises:
        OSError: the journal cannot be read.
    """
    waiting = _read_waiting(runs)
    known = [entries_line(addition.entries) for addition in waiting] if any(addition.again for addition in more) else []
    more = [addition for addition in more if not (addition.again and entries_line(addition.entries) in known)]
    if waiting:
        with suppress(OSError):  # a full disk: written twice after a kill at this moment, rather than not at all
            _append(runs, on_one_line(_BEGUN))
    problems = tuple(_write_all(folder, [*waiting, *more])) if waiting or more else ()
    runs.remove(_WAITING)
    return problems


def _read_waiting(runs: Folder) -> list[Addition]:
    """Return what waits; a line that a kill cut off is in the journal of its run."""
    if not runs.holds(_WAITING):
        return []
    lines = runs.read(_WAITING, _LIMIT_BYTES).splitlines()
    begun = max((n for n, line in enumerate(lines) if line == on_one_line(_BEGUN)), default=-1)
    found = ((n, read_entries(line)) for n, line in enumerate(lines))
    return [Addition(entries=entries, again=n < begun) for n, entries in found if entries is not None]


def _append(runs: Folder, line: bytes) -> tuple[str, ...]:
    """Add a line to what waits, or nothing of it."""
    fd = runs.open_file(_WAITING, os.O_RDWR | os.O_APPEND)
    try:
        append_lines(fd, line + b"\n", _WAITING)
    finally:
        os.close(fd)
    return ()


def _write_all(folder: Path, runs: Sequence[Addition]) -> Iterator[str]:
    """Write the list first, for its entries are in no other file; an error of one file does not stop the others."""
    every: list[_Listed] = []
    last = runs[-1].entries
    several = [run.entries.common for run in runs if run.entries.common is not None]
    steps: list[tuple[str, Callable[[Path], None]]] = [
        (_ENTRY_SUPER, partial(_write_json, value=[*last.superset], over_lines=True)),
        (_TABLES[1], partial(write_table, rows=table_of(last.superset))),
        (_ENTRY, partial(_write_json, value=_one_or_all(last), over_lines=last.common is not None)),
        (ENTRY_TABLE, partial(write_table, rows=last.table)),
    ]
    if ran := [run for run in runs if run.entries.ran]:
        steps = [
            (_LIST, lambda path: every.extend(add_to_list(path, ran))),
            (_TABLES[0], lambda path: add_to_table(path, ran, every)),
            *steps,
        ]
    if several:
        steps.append(("common_info.json", partial(_write_json, value=several[-1], over_lines=False)))
    for name, write in steps:
        try:
            with as_record_error(folder / name):
                check_side_file(folder / name)
                write(folder / name)
        except RecordError as problem:
            yield problem.message
        except Exception as bug:  # noqa: BLE001 - a bug in one file must not cost the others
            _log.debug("%s", folder / name, exc_info=True)
            yield f"internal error in {folder / name}: {type(bug).__name__}: {bug}"


def _one_or_all(entries: Entries) -> Json:
    return entries.entry[0] if len(entries.entry) == 1 else [*entries.entry]


def _write_json(path: Path, value: Json, over_lines: bool) -> None:
    write_atomically(path, (indented(value) if over_lines else on_one_line(value)) + b"\n")
