"""A run's `result.json`: what its rows, side files and record are made of, written before any of them.

Format: docs/plan-files.md.  Of a run with `--no-rows` it is all there is until `madlite collect`; its SHA-256 is in the
journal of the folder of runs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from madlite.errors import RecordError
from madlite.model import Json, Value
from madlite.plan.make import RUNS
from madlite.results.entry import Entries
from madlite.results.record import Record, record_json
from madlite.results.stored import LIMIT_BYTES, UNREADABLE
from madlite.results.typed import indented, read_json
from madlite.safe_read import read_regular
from madlite.workspace import journal
from madlite.workspace.folder import RESULT, awaits_collection

VERSION = 1


class _File(Value, frozen=True):
    """The file as it lies there; `entries` are read apart, for their numbers keep their spelling."""

    version: int
    record: Record
    entries: msgspec.Raw = msgspec.Raw(b"null")


class RunResult(Value, frozen=True):
    """What a run came to: its record, with rows that no file has yet, and its entries of the side files.

    Both have no secret.  A run without rows has no entries either.
    """

    record: Record
    entries: Entries | None = None


def result_text(result: RunResult) -> str:
    """Return the text of a result file."""
    entries = result.entries
    tables = {name: getattr(entries, name) for name in Entries.__struct_fields__} if entries is not None else None
    tree = {"version": VERSION, "record": msgspec.Raw(record_json(result.record).encode()), "entries": tables}
    return indented(tree).decode() + "\n"


def load_result(folder: Path) -> RunResult:
    """Return the result that a run's folder holds, as long as it is what madlite wrote.

    Raises:
        RecordError: there is none, it cannot be read, or something else wrote or changed it.
    """
    try:
        data = read_regular(folder / RESULT, LIMIT_BYTES)
    except FileNotFoundError:
        raise RecordError(f"it has no {RESULT}") from None
    except OSError as error:
        raise RecordError(f"{RESULT}: {error.strerror}") from error
    if doubt := _doubt(folder, data):
        raise RecordError(doubt)
    return _read(data)


def _doubt(folder: Path, data: bytes) -> str:
    """Return in words what is wrong with a result file, "" where it is what madlite wrote."""
    written = [entry for entry in journal.read(folder.parent) if entry.result and entry.run == folder.name]
    if not written:
        return f"{RESULT} is not in the journal of {RUNS}: madlite did not write it"
    if hashlib.sha256(data).hexdigest() not in [entry.result for entry in written]:
        return f"{RESULT} was changed by something else after {written[-1].at[:19]} (UTC), when madlite wrote it"
    return ""


def _read(data: bytes) -> RunResult:
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            age = "a newer" if version > VERSION else "an older"
            raise RecordError(f"{RESULT}: it is of version {version}, of {age} madlite")
        file = msgspec.json.decode(data, type=_File)
        return RunResult(record=file.record, entries=_entries(read_json(bytes(file.entries))))
    except UNREADABLE as error:
        raise RecordError(f"{RESULT}: {error}") from error


class _Version(Value, frozen=True):
    version: int


def _entries(tables: Json) -> Entries | None:
    if tables is None:
        return None
    listed = {name: tuple(tables[name]) for name in ("entry", "table", "superset")}
    return Entries(**listed, common=tables["common"], ran=tables["ran"])


def uncollected(workspace: Path) -> tuple[Path, ...]:
    """Return the folders of runs that have ended and whose results no file has yet, the oldest first."""
    runs = workspace / RUNS
    own = journal.own_folders(runs)
    return tuple(folder for folder in awaits_collection(runs) if folder.name in own)
