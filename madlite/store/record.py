"""The record of one run, `record.json` in its folder: all about it once it has ended.

Format: docs/record.md, and as JSON Schema `record.schema.json` beside this module.  It has the run's rows in
perf.csv, cell by cell, so that the file can be rebuilt.
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property, lru_cache
from operator import is_
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.files import read_plain, wrong_key
from madlite.measure.steps import Steps
from madlite.model import (
    Cause,
    DataUse,
    FileName,
    Json,
    PathBelow,
    Place,
    Result,
    RunPlan,
    Scalar,
    Secret,
    Status,
    Step,
    Study,
    Traits,
    Value,
    Variant,
    to_json,
)
from madlite.model.results import ResultFields
from madlite.plan.caches import CACHE_VARIABLES, CacheState, cache_state
from madlite.plan.inputs import CACHES_INSIDE
from madlite.plan.submission import PREFIX
from madlite.secrets import MASK, Redactor, is_secret
from madlite.store.events import EventLog, RunImported, RunPruned, now
from madlite.store.folder import LOCK, PLAN, PROGRESS, RECORD, RESULT, RUN_JOURNAL, RunRows, RunStart, exists, read_run
from madlite.text import indented, read_json, scalar_text

VERSION = 2
SCHEMA = "record.schema.json"


class File(Value, frozen=True):
    """A file of the run's folder; its SHA-256 where madlite rendered or copied it."""

    path: PathBelow
    bytes: int
    sha256: str = ""


class Record(ResultFields, frozen=True):
    """One run, from its request to its result.

    `cause` is the diagnosed cause, `ended_by` what ended the run.  Times are UTC; `durations_s` has build, data, run
    and total.  `origins` names for each dotted key where its value came from.  `context_left_out` are the places of the
    context whose values are secret, and not in `context.json`.  `caches` is what the run found in the caches of
    compiled and tuned kernels: nothing (`cold`), what a run of the same study left (`warm`), what the user has
    (`user`), or nobody knows (""); of a run that did not start it is "" too.  `env` has the user's variables, None in a
    record of an older madlite; `inputs` is what else of the plan can change the number; `precision` is the row's.
    """

    id: FileName
    status: Status
    version: int = VERSION
    madlite: str = ""
    command: tuple[str, ...] = ()
    ended: str = ""
    card: str = ""
    tags: tuple[str, ...] = ()
    card_source: str = ""
    url: str = ""
    backend: str = ""
    runtime: str = ""
    batch: FileName = ""
    study: Study | None = None
    caches: CacheState = ""
    traits: Traits | None = None
    hostname: str = ""
    device: str = ""
    architecture: str = ""
    place: Place | None = None
    variant: Variant | None = None
    recipe: str = ""
    settings: dict[str, Scalar] = {}
    args: str = ""
    env: dict[str, str] | None = None
    inputs: dict[str, str] = {}
    precision: str = ""
    overrides: tuple[tuple[str, str | None], ...] = ()
    timeout_s: float | None = None
    log_limit_bytes: int | None = None
    origins: dict[str, str] = {}
    context_left_out: tuple[str, ...] = ()
    cause: str = ""
    ended_by: Cause = Cause.NONE
    data: tuple[DataUse, ...] = ()
    rows: RunRows | None = None
    files: tuple[File, ...] = ()

    @property
    def containerised(self) -> bool:
        """Whether it ran in a container; a record that does not say had an image there."""
        return self.traits.containerised if self.traits is not None else bool(self.image.ref)

    @property
    def is_warm_up(self) -> bool:
        """Whether it only filled the caches of a study's runs: then its number is no result."""
        return self.study is not None and self.study.warm_up

    @property
    def is_short(self) -> bool:
        """Whether it is a short run of a study's search: then it is no result, and has no row."""
        return self.study is not None and self.study.short

    @property
    def is_replaced(self) -> bool:
        """Whether another attempt of the same run took its place: then it is no result, and has no row."""
        return self.attempt is not None and bool(self.attempt.next)

    @property
    def rendered(self) -> bool:
        """Whether a backend's recipe made what ran: values of its variant and settings can be set."""
        return bool(self.settings)


def result_of(record: Record) -> Result:
    """Return the result that a record was made from, for code that formats one."""
    return Result(plan_id=record.id, status=record.status, cause=record.ended_by, **_alike(record))


def _alike(source: ResultFields) -> dict[str, Any]:
    return {name: getattr(source, name) for name in ResultFields.__struct_fields__}


def record_json(record: Record) -> str:
    """Return a record as JSON, without NaN and infinities, as its schema has it."""
    return to_json(record)


# A plan, its result and what became of its rows → the record.

# Values for a record: no number that JSON cannot express, no secret in free text.

_LEFT_OUT = object()
_PLAIN = frozenset((int, bool))  # always expressible, and without a text


def sanitized(value: Any, mask: Callable[[str], str]) -> Any:
    """Return a value with its texts masked and without NaN and infinities; None where nothing of it is left.

    Such a number becomes None where the field is optional; else the object that needs it is dropped: a window without a
    mean is no window.  Literals and enumerations are never masked.
    """
    clean = _sanitized(value, mask)
    return None if clean is _LEFT_OUT else clean


def _sanitized(value: Any, mask: Callable[[str], str]) -> Any:
    """Return the clean value: the same object where nothing changes, so that a struct without a change is no copy."""
    if not value or type(value) in _PLAIN:  # nothing of it changes
        return value
    if isinstance(value, str):
        return value if isinstance(value, Enum) or (masked := mask(value)) == value else masked
    if isinstance(value, float):
        return value if math.isfinite(value) else _LEFT_OUT
    if isinstance(value, msgspec.Struct):
        return _struct(value, mask)
    if isinstance(value, (tuple, list)):
        items = [_sanitized(item, mask) for item in value]
        if type(value) is tuple and all(map(is_, items, value)):
            return value
        return tuple(item for item in items if item is not _LEFT_OUT)
    if isinstance(value, Mapping):
        pairs = ((mask(key) if type(key) is str else key, _sanitized(item, mask)) for key, item in value.items())
        return {key: item for key, item in pairs if item is not _LEFT_OUT}
    return value


def _struct(value: msgspec.Struct, mask: Callable[[str], str]) -> Any:
    changed: dict[str, Any] = {}
    for name, optional in _fields(type(value)):
        old = getattr(value, name)
        if not old or type(old) in _PLAIN:  # most fields of most: as `_sanitized` has it
            continue
        new = _sanitized(old, mask)
        if new is _LEFT_OUT and not optional:
            return _LEFT_OUT
        if new is not old:
            changed[name] = None if new is _LEFT_OUT else new
    return msgspec.structs.replace(value, **changed) if changed else value


@lru_cache(maxsize=64)
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the fields that are not a Literal, each with whether it may be None."""
    hints = get_type_hints(kind)
    return tuple(
        (name, type(None) in get_args(hints[name]))
        for name in kind.__struct_fields__
        if get_origin(hints[name]) is not Literal
    )


_BY_SHAPE = Redactor().text
_MOST_FILES = 1000
_PLAN_FIELDS = (
    *("backend", "runtime", "traits", "place", "variant", "settings", "overrides", "timeout_s", "log_limit_bytes"),
    *("origins", "data", "batch", "study"),
)
# free text of users, workloads, engines and results files
_FREE_TEXT = (
    *("url", "command", "settings", "args", "env", "inputs", "overrides", "origins", "reason", "evidence"),
    *("diagnosis", "suspect", "checks", "findings", "config", "provenance", "telemetry", "nodes", "study"),
)


def make_record(
    plan: RunPlan,
    result: Result,
    rows: RunRows | None,
    start: RunStart = RunStart(),  # noqa: B008 - frozen
    *,
    rendered: Iterable[tuple[str, bytes]] = (),
    mask: Callable[[str], str] = _BY_SHAPE,
) -> Record:
    """Return the record of a run that has ended; `rendered` are the files that madlite put into its folder.

    `mask` masks what is a secret by its shape, and known ones.  Metrics and rows are masked already, and stay as they
    went into perf.csv.  In other fields, which are names, only texts that look like secrets are masked.
    """
    from madlite import __version__

    record = Record(
        **plan_fields(plan),
        status=result.status,
        madlite=__version__,
        command=start.command,
        ended=_ended(result),
        context_left_out=start.left_out,
        cause=result.code,
        ended_by=result.cause,
        rows=rows,
        files=tuple(_files(plan.folder, dict(rendered))),
        **_alike(result),
    )
    free = {name: sanitized(getattr(record, name), mask) for name in _FREE_TEXT}
    rest: Record = sanitized(replace(record, **dict.fromkeys(free)), _BY_SHAPE)
    return replace(rest, **free)


def plan_fields(plan: RunPlan) -> dict[str, Any]:
    """Return the fields of a record that come from the plan."""
    return {
        "id": plan.id,
        "card": plan.card.name,
        "tags": plan.card.tags,
        "card_source": plan.card.source,
        "url": plan.card.url,
        "hostname": plan.machine.hostname,
        "device": plan.machine.device,
        "architecture": plan.machine.architecture,
        "recipe": str(plan.settings.get("recipe", "")),
        "args": plan.run_args,
        "env": user_environment(plan),
        "inputs": other_inputs(plan),
        "precision": plan.row_precision,
        "caches": "" if plan.blocked is not None else cache_state(plan),
        **{name: getattr(plan, name) for name in _PLAN_FIELDS},
    }


def step_lines(steps: Steps) -> Iterator[bytes]:
    """Yield each step as a line of JSON: number, rank, phase, values by the names of their units, and when."""
    encode = msgspec.json.Encoder().encode
    for step in steps:
        yield encode(_as_line(step)) + b"\n"


def _as_line(step: Step) -> dict[str, object]:
    line: dict[str, object] = {"n": step.n, "rank": step.rank, "phase": step.phase}
    if step.t_s and math.isfinite(step.t_s):
        line["t_s"] = round(step.t_s, 3)
    line["values"] = {quantity.label: value for quantity, value in step.values.items()}
    return line


def _files(folder: Path, rendered: dict[str, bytes]) -> Iterator[File]:
    """Yield the files of the folder, limited in number, without links and this record's own files."""
    left = _MOST_FILES
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(base, name)
            if path.is_symlink() or (base == str(folder) and name in (LOCK, RUN_JOURNAL, RESULT, RECORD, PROGRESS)):
                continue
            if not left:
                return
            left -= 1
            with suppress(OSError):  # gone meanwhile
                size, data = path.lstat().st_size, rendered.get(where := str(path.relative_to(folder)))
                yield File(path=where, bytes=size, sha256="" if data is None else hashlib.sha256(data).hexdigest())


def _ended(result: Result) -> str:
    """Return when a run ended: of one that waited for another attempt to take its place that is long ago."""
    took_s = result.durations_s.get("total")
    if not result.started or took_s is None:
        return now("seconds")
    return (datetime.fromisoformat(result.started) + timedelta(seconds=took_s)).isoformat(timespec="seconds")


# What a plan asks for that no other field of a record has: the user's environment, and what else can change a number.
#
# By the first, with the card's own values, series of results are told apart; the others are named where they differ.

_MASK = MASK.decode()
# origins of variables that nobody chose for this work: MAD's, the machine's, the caller's shell, the plugin's own
_GIVEN = ("madlite", "environment", "recipe", "runtime host", "data.json", "found on this machine", "--parallel")
_MEETING = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MAD_MULTI_NODE_RUNNER", "MAD_GUEST_OS")
_SET = ("--set", "tag", "card")


def user_variables(origins: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that the user set: by `--set`, card, tag, context, a tool of it, or as a study's point."""
    for key, origin in origins.items():
        name = key.removeprefix("env.")
        is_given = origin.startswith((*_GIVEN, "credential ")) or (name in _MEETING and origin not in _SET)
        # caches are set by their study under its own kind, and named as `caches`
        if key.startswith("env.") and not is_given and (name not in CACHE_VARIABLES or origin in _SET):
            yield name


def user_environment(plan: RunPlan) -> dict[str, str]:
    """Return the variables that the user set, secrets masked."""
    values = {name: plan.env.get(name, "") for name in sorted(user_variables(plan.origins))}
    return {
        name: _MASK if isinstance(value, Secret) or is_secret(name, value) else value for name, value in values.items()
    }


def other_inputs(plan: RunPlan) -> dict[str, str]:
    """Return what else of a plan can change its number, by name; without what follows from other fields of a record."""
    options = plan.engine_options
    values = {
        "launcher": plan.launcher,
        "deployment": plan.deployment,
        "command": "; ".join(_commands(plan)),
        "gpu ids": ", ".join(map(str, plan.place.gpu_ids)),
        "cpuset": options.cpuset,
        "cpuset mems": options.cpuset_mems,
        "until": scalar_text(plan.until) if plan.until else "",
        "profile": "on" if plan.profile else "",
        "telemetry": f"{plan.telemetry_s:g} s",
        "probe": "" if plan.probe else "off",
        "readers": ", ".join(plan.readers),
        **(_container(plan) if plan.traits.containerised else {}),
    }
    return {name: text for name, text in values.items() if text}


def _commands(plan: RunPlan) -> Iterator[str]:
    """Yield the commands before, of and after the workload, those of context and tools among them."""
    for action in plan.actions:
        if action.kind in ("pre", "run", "post"):
            words = [word.replace(plan.id, "RUN") for word in action.argv]
            yield shlex.join(word if len(word) < _LONGEST else f"{word[:_LONGEST]}…" for word in words)


_LONGEST = 300  # characters of a word of a command


def _container(plan: RunPlan) -> dict[str, str]:
    options = plan.engine_options
    own = (
        str(plan.workspace),
        CACHES_INSIDE,
    )  # the same folder by any path, and caches, which have a name of their own
    mounts = (
        f"{mount.source}:{mount.target}{':ro' * mount.read_only}"
        for mount in plan.mounts
        if not {mount.source, mount.target} & {*own}
    )
    return {
        "user": options.user,
        "network": options.network,
        "ipc": options.ipc,
        "groups": " ".join(options.group_add),
        "capabilities": " ".join(options.cap_add),
        "security": " ".join(options.security_opt),
        "ulimits": " ".join(options.ulimits),
        "options": options.extra,
        "mounts": " ".join(sorted(mounts)),
    }


# Records in the folders of runs: of any version, and perhaps changed by a hostile workload.


LIMIT_BYTES = 256 << 20
_LIMIT_PLAN_BYTES = 16 << 20
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


_Kind = TypeVar("_Kind", bound=Value)


class _Versioned(Value, frozen=True):
    version: int


def load_record(folder: Path) -> Record | None:
    """Return the record of a run's folder, None where it has none.

    Raises:
        RecordError: there is one that cannot be read.
    """
    return _load(folder / RECORD, VERSION, Record)


def _load(file: Path, known: int, kind: type[_Kind]) -> _Kind | None:
    """Return what a file of a run's folder holds; None where there is none.

    Raises:
        RecordError: it cannot be read, or is of another version than the `known` one: its fields may have other
            meanings then, also where all of them can be read.
    """
    try:
        data = read_plain(file, links=False, limit_bytes=LIMIT_BYTES)
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != known:
            age = "a newer" if version > known else "an older"
            raise RecordError(f"{file.name}: it is of version {version}, of {age} madlite")
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{file.name}: {error.strerror}") from error
    except UNREADABLE as error:
        what = str(error)
        if isinstance(error, msgspec.ValidationError):
            with suppress(*UNREADABLE):  # of a torn one, too
                what = wrong_key(error, msgspec.json.decode(data))[1]
        raise RecordError(f"{file.name}: {what}") from error


class NotedRuns:
    """The runs that were imported or pruned, by the event log of a folder of runs: the last event of each."""

    def __init__(self, runs: Path) -> None:
        self._runs, log = runs, EventLog.read(runs)
        self.imported = {event.run: event for event in log.of(RunImported)}
        self.pruned = {event.run: event for event in log.of(RunPruned)}
        self.rows_of_pruned = {event.run: event.rows_in for event in log.of(RunPruned) if event.rows_in}
        """The results file that has the rows of a run whose folder was pruned, whatever became of the run since."""

    @cached_property
    def of_jobs(self) -> frozenset[str]:
        """The runs that jobs of a cluster have, whose submission is still there."""
        found = EventLog.read(self._runs).runs_of_jobs().items()
        return frozenset(name for name, submission in found if exists(self._runs / f"{PREFIX}{submission}"))

    def origin(self, run_id: str) -> str:
        """Return the archive that a run was imported from; "" of a run of this folder."""
        return self.imported[run_id].origin if run_id in self.imported else ""

    def archived_id(self, run_id: str) -> str:
        """Return the id that an imported run had in its archive; "" of a run of this folder."""
        return self.imported[run_id].archived_id if run_id in self.imported else ""


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

    `entry` is perf_entry.json and perf_entry.csv; `superset` goes into perf_super, which takes only runs whose
    script was started (`ran`); `common` is common_info.json, None for a run without several results.
    """

    entry: tuple[JsonObject, ...]
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
    if (file := _load(folder / RESULT, RESULT_VERSION, _File)) is None:
        raise RecordError(f"it has no {RESULT}")
    try:
        return RunResult(record=file.record, entries=entries_of(read_json(bytes(file.entries))))
    except UNREADABLE as error:
        raise RecordError(f"{RESULT}: {error}") from error


def entries_of(tables: Json) -> Entries | None:
    """Return the entries of an object with a key for each of their fields; None of null.

    Raises:
        KeyError, TypeError: it is another object.
    """
    if tables is None:
        return None
    listed = {name: tuple(map(dict, tables[name])) for name in ("entry", "superset")}
    return Entries(**listed, common=tables["common"], ran=tables["ran"])
