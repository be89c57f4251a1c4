"""A plan, its result and what became of its rows → the record."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from madlite.measure.steps import Steps
from madlite.model import Result, RunPlan, Step
from madlite.results.intent import Rows
from madlite.results.record import SHARED, File, Record
from madlite.secrets import Redactor
from madlite.workspace.folder import LOCK, RECORD, RESULT, ROWS
from madlite.workspace.progress import PROGRESS

# Values as they may stand in a record: no number that JSON does not know, no secret in what somebody typed or said.

_LEFT_OUT = object()


def tame(value: Any, mask: Callable[[str], str]) -> Any:
    """Return a value with its texts masked and without NaN and infinities; None where nothing of it is left.

    Such a number is None where the field may be, and else takes with it what cannot be without it: a window whose mean
    is no number is no window.  Words of a fixed set, as those of an enumeration, are no secrets.
    """
    tamed = _tame(value, mask)
    return None if tamed is _LEFT_OUT else tamed


def _tame(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, Enum) or value is None:
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _LEFT_OUT
    if isinstance(value, msgspec.Struct):
        return _struct(value, mask)
    if isinstance(value, Mapping):
        pairs = ((mask(key) if type(key) is str else key, _tame(item, mask)) for key, item in value.items())
        return {key: item for key, item in pairs if item is not _LEFT_OUT}
    if isinstance(value, (tuple, list)):
        return tuple(item for one in value if (item := _tame(one, mask)) is not _LEFT_OUT)
    return value


def _struct(value: msgspec.Struct, mask: Callable[[str], str]) -> Any:
    fields: dict[str, Any] = {}
    for name, (fixed, optional) in _fields(type(value)).items():
        old = getattr(value, name)
        new = old if fixed else _tame(old, mask)
        if new is _LEFT_OUT and not optional:
            return _LEFT_OUT
        fields[name] = None if new is _LEFT_OUT else new
    return msgspec.structs.replace(value, **fields)


@lru_cache(maxsize=64)
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[bool, bool]]:
    """Return for each field whether its words are of a fixed set, and whether it may be None."""
    hints = get_type_hints(kind)
    return {
        name: (get_origin(hints[name]) is Literal, type(None) in get_args(hints[name]))
        for name in kind.__struct_fields__
    }


_MOST_FILES = 1000
_AS_PLANNED = (
    *("backend", "runtime", "traits", "place", "variant", "settings", "overrides", "timeout_s", "log_limit_bytes"),
    *("origins", "data", "batch", "study"),
)
# what people type, and what a workload, an engine or a results file says
_SAID = (
    *("url", "command", "settings", "args", "overrides", "origins", "reason", "evidence", "diagnosis", "suspect"),
    *("checks", "findings", "config", "provenance", "telemetry", "study"),
)


def make_record(
    plan: RunPlan,
    result: Result,
    rows: Rows | None,
    *,
    command: Iterable[str] = (),
    rendered: Iterable[tuple[str, bytes]] = (),
    left_out: Iterable[str] = (),
    mask: Callable[[str], str] = str,
) -> Record:
    """Return the record of a run that has ended; `rendered` are the files that madlite put into its folder.

    What the result says of metrics, and the rows, is masked already, and stays as it went into perf.csv.  Of the rest,
    which names things, only what is a secret by its shape is masked.
    """
    from madlite import __version__

    record = Record(
        **_of_plan(plan),
        madlite=__version__,
        command=tuple(command),
        ended=_now(),
        context_left_out=tuple(left_out),
        cause=result.code,
        ended_by=result.cause,
        rows=rows,
        files=tuple(_files(plan.folder, dict(rendered))),
        **{name: getattr(result, name) for name in SHARED},
    )
    masked = {name: tame(getattr(record, name), mask) for name in _SAID}
    tamed: Record = tame(replace(record, **masked), Redactor().text)
    return tamed


def _of_plan(plan: RunPlan) -> dict[str, Any]:
    """Return the fields of a record that the plan decided."""
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
        **{name: getattr(plan, name) for name in _AS_PLANNED},
    }


def step_lines(steps: Steps) -> Iterator[bytes]:
    """Yield each step as a line of JSON: number, rank, phase, values by the names of their units, and when."""
    import msgspec

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
    """Yield what the folder holds, the first of many; links are left out, and what is about this record itself."""
    for path, size in _sizes(folder, _MOST_FILES):
        name = str(path.relative_to(folder))
        data = rendered.get(name)
        yield File(path=name, bytes=size, sha256="" if data is None else hashlib.sha256(data).hexdigest())


def _sizes(folder: Path, most: int) -> Iterator[tuple[Path, int]]:
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(base, name)
            if path.is_symlink() or (base == str(folder) and name in (LOCK, ROWS, RESULT, RECORD, PROGRESS)):
                continue
            if not most:
                return
            most -= 1
            try:
                yield path, path.lstat().st_size
            except OSError:  # gone meanwhile
                continue


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
