"""Records in the folders of runs: of any version, and perhaps changed by a hostile workload."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import msgspec

from madlite.errors import RecordError
from madlite.files import read_plain, wrong_key
from madlite.jsontext import indented, read_json
from madlite.model import QUANTITIES, Json, Quantity, RunPlan, Value
from madlite.plan.submission import PREFIX
from madlite.store.events import Event, EventLog, RunImported, RunPruned
from madlite.store.folder import PLAN, RECORD, RESULT, exists
from madlite.store.journal import RunRows, read_run
from madlite.store.record import VERSION, Record, record_json

LIMIT_BYTES = 256 << 20
_LIMIT_PLAN_BYTES = 16 << 20
_STATUS_OF_SAYS = {"agrees": "pass", "doubts": "warn", "denies": "fail", "silent": "unknown"}  # of version 1
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class _Versioned(Value, frozen=True):
    version: int


def load_record(folder: Path) -> Record | None:
    """Return the record of a run's folder, None where it has none.

    Raises:
        RecordError: there is one that cannot be read.
    """
    if (data := _content(folder / RECORD)) is None:
        return None
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:  # its fields may have other meanings, also where all of them can be read
            raise RecordError(f"{RECORD}: it is of version {version}, of a newer madlite")
        return _decode_version_1(data) if version == 1 else msgspec.json.decode(data, type=Record)
    except UNREADABLE as error:
        raise RecordError(f"{RECORD}: {error}") from error


def _content(file: Path) -> bytes | None:
    """Return what a file of a run's folder holds; None where there is none.

    Raises:
        RecordError: it cannot be read.
    """
    try:
        return read_plain(file, links=False, limit_bytes=LIMIT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{file.name}: {error.strerror}") from error


class NotedRuns:
    """The runs that were imported or pruned, by the event log of a folder of runs, or by some of its events."""

    def __init__(self, runs: Path, events: Iterable[Event] | None = None) -> None:
        self._runs = runs
        if events is None:
            log = EventLog.read(runs)
            events = (*log.of(RunImported), *log.of(RunPruned))
        events = tuple(events)
        self._imported = {event.run: event for event in events if isinstance(event, RunImported)}
        self.pruned = {event.run: event for event in events if isinstance(event, RunPruned)}
        """The last event of each run that was pruned."""
        self.rows_of_pruned = {
            event.run: event.rows_in for event in events if isinstance(event, RunPruned) and event.rows_in
        }
        """The results file that has the rows of a run whose folder was pruned, whatever became of the run since."""

    @cached_property
    def of_jobs(self) -> frozenset[str]:
        """The runs that jobs of a cluster have, whose submission is still there."""
        found = EventLog.read(self._runs).runs_of_jobs().items()
        return frozenset(name for name, submission in found if exists(self._runs / f"{PREFIX}{submission}"))

    def origin(self, run_id: str) -> str:
        """Return the archive that a run was imported from; "" of a run of this folder."""
        return self._imported[run_id].origin if run_id in self._imported else ""

    def archived_id(self, run_id: str) -> str:
        """Return the id that an imported run had in its archive; "" of a run of this folder."""
        return self._imported[run_id].archived_id if run_id in self._imported else ""


def rows_here(folder: Path, record: Record, noted: NotedRuns) -> RunRows | None:
    """Return the rows that a run has for results files of this folder.

    The record of an imported run names the files of another one; here it has those that `import --rows` appended.
    """
    return record.rows if not noted.origin(folder.name) else read_run(folder).rows


def read_record(folder: Path) -> Record | None:
    """Return the record of a run's folder; None where it has none that can be read."""
    try:
        return load_record(folder)
    except RecordError:
        return None


def read_plan(folder: Path) -> RunPlan | None:
    """Return all of a run's plan, its secrets as `***`; None where it cannot be read, or is of another madlite."""
    try:
        data = read_plain(folder / PLAN, links=False, limit_bytes=_LIMIT_PLAN_BYTES)
        return msgspec.json.decode(data, type=RunPlan, dec_hook=lambda kind, text: kind(text))
    except (OSError, TypeError, *UNREADABLE):
        return None


def _decode_version_1(data: bytes) -> Record:
    """Return a record of version 1: its checks were witnesses, a window named its quantity by its label alone."""
    fields = msgspec.json.decode(data)
    old = fields.pop("witnesses", ())
    fields["checks"] = [
        {**check, "status": _STATUS_OF_SAYS.get(str(check.get("says")), "")} for check in old if isinstance(check, dict)
    ]
    for field in fields["checks"]:
        field["name"] = "foreign_processes" if field.get("name") == "strangers" else field.get("name")
    if isinstance(gpus := fields.get("telemetry"), dict):
        gpus["foreign_processes"] = gpus.pop("strangers", ())
        gpus["processes_known"] = gpus.pop("strangers_known", False)
    if isinstance(fields.get("window"), dict):
        label = fields["window"].get("quantity")
        known = next((quantity for quantity in QUANTITIES.values() if quantity.label == label), None)
        fields["window"]["quantity"] = msgspec.to_builtins(known or Quantity(name=label))
    return msgspec.structs.replace(msgspec.convert(fields, Record), version=VERSION)


# A run's `result.json`: the source of its rows, side files and record, written before any of them.
#
# Format: docs/plan-files.md.  Of a run with `--no-rows` it is the only result until `madlite runs collect`.

RESULT_VERSION = 1


class _File(Value, frozen=True):
    """The file as it lies there; `entries` are read apart, for their numbers keep their spelling."""

    version: int
    record: Record
    entries: msgspec.Raw = msgspec.Raw(b"null")


JsonObject: TypeAlias = dict[str, Json]


class Entries(Value, frozen=True):
    """One run's part of the side files, an object per result.

    `entry` is perf_entry.json and `table` perf_entry.csv; `superset` goes into perf_super, which takes only runs whose
    script was started (`ran`); `common` is common_info.json, None for a run without several results.
    """

    entry: tuple[JsonObject, ...]
    table: tuple[dict[str, str], ...]
    superset: tuple[JsonObject, ...]
    common: JsonObject | None
    ran: bool


class RunResult(Value, frozen=True):
    """The result of a run: its record, with rows that no file has yet, and its entries of the side files.

    Both are masked.  A run without rows has no entries either.
    """

    record: Record
    entries: Entries | None = None


def result_text(result: RunResult) -> str:
    """Return the text of a result file."""
    entries = result.entries
    tables = {name: getattr(entries, name) for name in Entries.__struct_fields__} if entries is not None else None
    tree = {"version": RESULT_VERSION, "record": msgspec.Raw(record_json(result.record).encode()), "entries": tables}
    return indented(tree).decode() + "\n"


def load_result(folder: Path) -> RunResult:
    """Return the result that a run's folder holds.

    Raises:
        RecordError: there is none, or it cannot be read.
    """
    if (data := _content(folder / RESULT)) is None:
        raise RecordError(f"it has no {RESULT}")
    return _read(data)


def _read(data: bytes) -> RunResult:
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != RESULT_VERSION:
            age = "a newer" if version > RESULT_VERSION else "an older"
            raise RecordError(f"{RESULT}: it is of version {version}, of {age} madlite")
        file = msgspec.json.decode(data, type=_File)
        return RunResult(record=file.record, entries=entries_of(read_json(bytes(file.entries))))
    except msgspec.ValidationError as error:
        raise RecordError(f"{RESULT}: {wrong_key(error, msgspec.json.decode(data))[1]}") from error
    except UNREADABLE as error:
        raise RecordError(f"{RESULT}: {error}") from error


def entries_of(tables: Json) -> Entries | None:
    """Return the entries of an object with a key for each of their fields; None of null.

    Raises:
        KeyError, TypeError: it is another object.
    """
    if tables is None:
        return None
    listed = {name: tuple(map(dict, tables[name])) for name in ("entry", "table", "superset")}
    return Entries(**listed, common=tables["common"], ran=tables["ran"])
