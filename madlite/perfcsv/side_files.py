"""The files that dashboards read beside perf.csv, written into the working folder after a run's rows.

perf_entry.* and perf_entry_super.* are of the last run, perf_super.* of all, common_info.json of the last one with
several results.  A lock keeps the files of one run together.  Format: docs/perf-csv.md.
"""

from __future__ import annotations

import codecs
import csv
import errno
import io
import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.files import Folder, folder_of, read_limited, read_plain, way_out
from madlite.model import Json, Metric, Result, RunPlan, Value
from madlite.perfcsv.append import append_rows, as_record_error, check_side_file, plain_target, write_atomically
from madlite.perfcsv.recorded import ends_of, reading_rows
from madlite.perfcsv.rows import (
    STANDARD_COLUMNS,
    as_number,
    build_rows,
    csv_line,
    has_results,
    has_row,
    limited_cells,
    limited_metric,
    masked_metric,
    masked_rows,
    plain,
    plain_cells,
    plain_name,
    recorded_row,
    truncation_text,
    typed_rows,
)
from madlite.plan.inputs import RUNS
from madlite.secrets import Redactor, assigned, mask_json
from madlite.store.folder import RunStart, open_runs
from madlite.store.locks import locked_file
from madlite.store.record import Entries, JsonObject, entries_of
from madlite.text import as_cell, indented, on_one_line, read_json, unlimited_fields

# The file that a script's `--config` names → `configs` of the side files: found, read, without secrets.
#
# Where it is searched: docs/perf-csv.md (source: madengine 2.1).

_OPTION = "--config"
# where MAD and the repositories that hold it as a submodule keep what their scripts share
_SHARED = ("scripts", "scripts/MAD", "scripts/MAD-private", "scripts/MAD-internal")
_CREDENTIALS = "credential.json"
_LARGEST_BYTES = 1 << 20  # it is repeated in every entry of a list that grows
_log = logging.getLogger(__name__)


def read_configs(plan: RunPlan, mask: Callable[[str], str] = str) -> Json:
    """Return what the file named by the run's `--config` holds: the rows of a CSV as objects, else as it stands.

    None where the args name no file of a known kind; also, with a warning, where it is not there or cannot be read.
    """
    name = _config_argument(plan.run_args)
    read = _READERS.get(Path(name).suffix.lower())
    if read is None:
        return None
    path: Path | None = None
    try:
        path, problem = _find(plan, name)
        if path is not None:
            found = read(read_plain(path, *_roots(plan), limit_bytes=_LARGEST_BYTES))
            return mask_json(found, lambda text: Redactor(assigned([text])).text(mask(text)))[0]
    except Exception as error:  # noqa: BLE001 - PyYAML raises errors of many types, and none may cost the run
        problem = f"{path or name} cannot be read: {_first_line(error)}"
    _log.warning("%s: entries have no configs, %s", plan.card.name, mask(problem))
    return None


def _config_argument(args: str) -> str:
    """Return the value of the last `--config`, as scripts' own parsers take it; "" where there is none."""
    try:
        words = shlex.split(args)
    except ValueError:  # an open quote
        words = args.split()
    named = ""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if word == _OPTION:
            named = after
        elif word.startswith(f"{_OPTION}="):
            named = word.partition("=")[2]
    return named


def _find(plan: RunPlan, name: str) -> tuple[Path | None, str]:
    """Return the file that the args name, else the reason: one elsewhere on this machine is not read."""
    problem = f"the file of {_OPTION} {name} is not there"
    for path in _candidates(plan, name):
        if path.is_file():
            why = way_out(path, *_roots(plan)) or _reason_private(path, plan)
            if not why:
                return path, ""
            problem = f"{path} is not read: {why}"
    return None, problem


def _roots(plan: RunPlan) -> tuple[Path, Path]:
    return plan.workspace, plan.card.root


def _reason_private(path: Path, plan: RunPlan) -> str:
    """Return why a file of the folder itself must not be published, "" if it may."""
    for root in _roots(plan):
        with suppress(OSError):
            if path.samefile(root / _CREDENTIALS):
                return f"it is {_CREDENTIALS}"
    return ""


def _candidates(plan: RunPlan, name: str) -> Iterable[Path]:
    path = Path(name)
    if not path.is_absolute():
        return (place / path for place in _places(plan))
    if path.is_relative_to(plan.inside):
        return (plan.workspace / path.relative_to(plan.inside),)
    return (path,) if not plan.traits.containerised else ()  # what is in the image alone is not on this machine


def _places(plan: RunPlan) -> Iterable[Path]:
    """Yield the folder of the script, its parents up to the checkout, and what the checkout's scripts share."""
    root = plan.card.root
    script = root / plan.card.scripts
    folder = script if script.is_dir() else script.parent
    yield folder
    yield from (parent for parent in folder.parents if parent.is_relative_to(root))
    yield from (root / shared for shared in _SHARED)


def _csv(data: bytes) -> Json:
    text = data.decode("utf-8-sig")
    with unlimited_fields():
        header, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if any(map(str.strip, line))]
    names = [name.strip() for name in header]
    return typed_rows([{name: text for name, text in zip(names, line, strict=False) if name} for line in lines])


def _yaml(data: bytes) -> Json:
    import yaml

    value: Json = yaml.safe_load(data)
    return value


def _toml(data: bytes) -> Json:
    import tomli

    return tomli.loads(data.decode("utf-8"))


_READERS: dict[str, Callable[[bytes], Json]] = {
    ".csv": _csv,
    ".json": read_json,
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


# Which row of a configuration file a result belongs to.
#
# A row matches a result where every column that both have, and neither leaves blank, matches: `model` and the
# result's label where one has the other's words in a row (`meta/llama-8b` and `llama_8b_serving`), other columns where
# text or number is the same.  The same model goes before one that is a part of it.  Without a match, or with several,
# there is none: a wrong configuration is worse than none.

_NO_CONFIG = ("model", "performance", "metric", "status")
_WORD = re.compile(r"[a-z0-9]+")
_Words: TypeAlias = tuple[str, ...]


def configs_of(configs: Json, metrics: Sequence[Metric]) -> list[Json]:
    """Return for each result its one configuration row; anything but a list of rows applies to every result."""
    if not isinstance(configs, list) or not all(isinstance(row, dict) for row in configs):
        return [configs for _ in metrics]
    if len(configs) == 1:
        return [configs[0] for _ in metrics]
    named = [(_words(as_cell(row.get("model"))), row) for row in configs]
    return [_config_of(named, metric) for metric in metrics]


def _config_of(configs: Sequence[tuple[_Words, dict[str, Json]]], metric: Metric) -> Json:
    label = _words(metric.label)
    fitting = [(words == label, row) for words, row in configs if _fits(words, label, row, metric)]
    chosen = [row for is_same, row in fitting if is_same] or [row for _, row in fitting]
    return chosen[0] if len(chosen) == 1 else None


def _fits(words: _Words, label: _Words, row: Mapping[str, Json], metric: Metric) -> bool:
    """Return whether a row matches a result, and has something in common with it."""
    is_model = _are_within(words, label)
    if words and label and not is_model:
        return False
    pairs = [
        (as_cell(row[name]).strip(), text.strip())
        for name, text in metric.columns.items()
        if _is_config_column(row, name)
    ]
    pairs = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    return bool(is_model or pairs) and all(_same(ours, theirs) for ours, theirs in pairs)


def _is_config_column(row: Mapping[str, Json], name: str) -> bool:
    return name in row and name not in _NO_CONFIG


def _words(text: str) -> _Words:
    return tuple(_WORD.findall(text.lower()))


def _are_within(words: _Words, other: _Words) -> bool:
    """Return whether the shorter is a stretch of the longer."""
    part, whole = sorted((words, other), key=len)
    starts = range(len(whole) - len(part) + 1) if part else ()
    return any(whole[at : at + len(part)] == part for at in starts)


def _same(text: str, other: str) -> bool:
    try:
        return text.lower() == other.lower() or float(text) == float(other)
    except ValueError:
        return False


_SECONDS = ("build_duration", "test_duration", "data_download_duration")
_JUDGED = ("model", "performance", "metric", "status")  # of one result; the rest is common to all
_Cells = Mapping[str, str]


def _single(plan: RunPlan, result: Result, cells: dict[str, str], configs: Json) -> Entries:
    """Return the entries of a single row: a number is the text of the log; one that was not found is null."""
    ran = "run" in result.durations_s
    base = _typed(cells)
    if ran and has_results(result):
        base["performance"] = base["performance"] or None
        if plan.result_rule.kind == "performance_line":
            base["metric"] = base["metric"] or None
    (more,) = typed_rows([{name: text for name, text in cells.items() if name not in STANDARD_COLUMNS}])
    return Entries(
        entry=(base | {"configs": configs} | more,),
        superset=(base | {"configs": configs, "multi_results": more or None},),
        common=None,
        ran=ran,
    )


def _multiple(result: Result, cells: Sequence[dict[str, str]], base: JsonObject, configs: Json) -> Entries:
    """Return the entries of a results file, typed column by column, as a reader of a table would."""
    names = [_names(metric) for metric in result.metrics]
    results = typed_rows(
        [{name: row[name] for name in (*own, *_JUDGED)} for own, row in zip(names, cells, strict=True)]
    )
    for typed, row in zip(results, cells, strict=True):
        typed |= {"model": row["model"], "metric": row["metric"] or None}  # names, whatever they look like
    chosen = configs_of(configs, result.metrics)
    common = {name: value for name, value in base.items() if name not in _JUDGED}
    entry = tuple(
        {name: typed.get(name, base[name]) for name in STANDARD_COLUMNS} | {"configs": config} | _beyond(typed)
        for typed, config in zip(results, chosen, strict=True)
    )
    return Entries(
        entry=entry,
        superset=tuple(_super(common, *parts) for parts in zip(results, names, cells, chosen, strict=True)),
        common=common | {"configs": configs},
        ran=True,
    )


def _super(common: JsonObject, results: JsonObject, names: Sequence[str], cells: _Cells, config: Json) -> JsonObject:
    """Return the entry of one of several results: columns of the file stay apart from those of the run."""
    multi_results = {name: results[name] for name in names if name != "test_duration"}
    return (
        common
        | {"test_duration": cells["test_duration"] if "test_duration" in names else "", "configs": config}
        | {name: results[name] for name in ("model", "performance", "metric")}
        | {"multi_results": multi_results or None, "status": cells["status"]}
    )


def _names(metric: Metric) -> list[str]:
    names = plain_cells(metric.columns)
    return [name for name in names if name not in _JUDGED]


def _beyond(typed: JsonObject) -> JsonObject:
    return {name: value for name, value in typed.items() if name not in STANDARD_COLUMNS}


def _typed(cells: _Cells) -> JsonObject:
    """Return the standard columns: text, but durations are numbers where there is one."""
    base: JsonObject = {name: cells[name] for name in STANDARD_COLUMNS}
    return base | {name: as_number(cells[name]) or cells[name] for name in _SECONDS}


def make_entries(
    plan: RunPlan, result: Result, *, pipeline: str, build_number: str, mask: Callable[[str], str] = str
) -> Entries:
    """Return a run's part of the side files.

    `pipeline` and `build_number` are as for `build_rows`; `mask` hides secrets, in the configuration too.
    """

    def rows(of: Result) -> list[dict[str, str]]:
        built = build_rows(plan, of, pipeline=pipeline, build_number=build_number, strict_header=False)
        return [limited_cells(row) for row in masked_rows(built, mask)]

    metrics = (limited_metric(masked_metric(metric, mask)) for metric in result.metrics)
    result = replace(result, metrics=tuple(metrics))
    configs, cells = read_configs(plan, mask), rows(result)
    is_line = plan.result_rule.kind == "performance_line" and len(result.metrics) < 2
    if is_line or not result.metrics or not has_results(result):
        return _single(plan, result, cells[0], configs)
    (common,) = rows(replace(result, metrics=()))
    return _multiple(result, cells, _typed(common), configs)


class RunOutput(Value, frozen=True):
    """A run's rows of perf.csv as they may stand in it, without secrets and short, and its part of the side files.

    `entries` are None without rows, and after a bug, which is the `problem` and costs no row.  `truncated` is a message
    about cells that were.
    """

    rows: tuple[dict[str, str], ...] = ()
    entries: Entries | None = None
    truncated: str = ""
    problem: str = ""


def make_output(
    plan: RunPlan,
    result: Result,
    start: RunStart,
    *,
    mask: Callable[[str], str] = str,
    added: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda cells: {},
) -> RunOutput:
    """Return what a result writes, by what is known since its `start`; `added` returns cells that join each row's."""
    if not has_row(plan, result):
        return RunOutput()
    rows = build_rows(
        plan,
        result,
        pipeline=start.pipeline,
        build_number=start.build_number,
        strict_header=start.strict_header,
        columns=start.columns,
    )
    rows = masked_rows(({**row, **added(row)} for row in rows), mask)
    entries, problem = None, ""
    try:
        entries = make_entries(plan, result, pipeline=start.pipeline, build_number=start.build_number, mask=mask)
    except Exception as bug:  # noqa: BLE001 - raised here, it would cost the row
        _log.debug("side files of %s", plan.id, exc_info=True)
        problem = f"internal error in the files beside perf.csv: {type(bug).__name__}: {bug}"
    return RunOutput(
        rows=tuple(map(limited_cells, rows)), entries=entries, truncated=truncation_text(rows), problem=problem
    )


def entries_line(entries: Entries) -> bytes:
    """Return entries as JSON on one line, without its end; `read_entries` reads it, with every number as spelled."""
    return on_one_line({name: getattr(entries, name) for name in Entries.__struct_fields__})


def read_entries(line: bytes) -> Entries | None:
    """Return the entries of a line; None of one that was cut off or is another one."""
    try:
        return entries_of(read_json(line))
    except (ValueError, RecursionError, KeyError, TypeError):
        return None


# perf_super.json, the list that grows by every run's entries, and perf_super.csv, the same as a table.
#
# Callers hold the lock of the side files.  Both are appended to, so that a run's cost does not grow with them: what is
# in them stays byte for byte.  A file that is no list is renamed, never overwritten.

_LIMIT_BYTES = 1 << 30
_END_BYTES = 1 << 10  # of the list in which its last bracket is looked for
_BLANK = b" \t\r\n"


def add_to_list(path: Path, entries: Entries, *, again: bool = False) -> None:
    """Add a run's entries to the list; with `again` unless they are there.

    Raises:
        RecordError: it is no plain file.
        OSError: it cannot be read or written; what was there is there.
    """
    items = indented([*entries.superset])[2:-2]  # without the brackets, which stand on lines of their own
    with folder_of(plain_target(path)) as (folder, name):
        if folder.holds(name):
            fd = folder.open_file(name, os.O_RDWR)
            try:
                if again and items in read_limited(fd, _LIMIT_BYTES, name):
                    return
                if (end := _end_of_list(fd)) is not None:
                    _insert(fd, *end, items)
                    return
            finally:
                os.close(fd)
            _rename_broken(folder, name)
    write_atomically(path, b"[\n" + items + b"\n]\n")


def _end_of_list(fd: int) -> tuple[int, bytes] | None:
    """Return where the last entry of a list ends, and what stands before a further one; None where it is no list."""
    size = os.fstat(fd).st_size
    start = os.pread(fd, _END_BYTES, 0).removeprefix(codecs.BOM_UTF8).lstrip(_BLANK)
    at = max(0, size - _END_BYTES)
    end = os.pread(fd, _END_BYTES, at).rstrip(_BLANK)
    if not (start.startswith(b"[") and end.endswith(b"]")):
        return None
    before = end[:-1].rstrip(_BLANK)
    return at + len(before), b"" if before.endswith(b"[") else b","


def _insert(fd: int, at: int, before: bytes, items: bytes) -> None:
    """Write entries in place of a list's end, and its end after them: all of it, or what was there."""
    data = before + b"\n" + items + b"\n]\n"
    written = os.pwrite(fd, data, at)
    if written < len(data):
        os.pwrite(fd, b"\n]\n", at)
        os.ftruncate(fd, at + 3)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, at + len(data))
    os.fsync(fd)


def _rename_broken(folder: Folder, name: str) -> None:
    """Rename a file that is no list to an unused name beside it; one that holds nothing is replaced."""
    if not folder.read(name, _LIMIT_BYTES).removeprefix(codecs.BOM_UTF8).strip():
        return
    stamp = time.strftime("%Y%m%dT%H%M%S")
    names = (f"{name}.broken-{stamp}{n}" for n in ("", *(f"-{n}" for n in range(2, 1000))))
    kept = next(name for name in names if not folder.holds(name))
    folder.rename(name, kept)
    _log.warning("%s is not a list of results: it was renamed to %s and a new one is written", folder.path / name, kept)


def add_to_table(path: Path, entries: Entries, *, again: bool = False) -> None:
    """Add a run's entries to the table, with `again` unless they are there; a new one is written from the list.

    Raises:
        RecordError: it is no table of results.
        OSError: it cannot be written.
    """
    rows = table_of(entries.superset)
    if not path.exists() or not path.stat().st_size:
        write_table(path, _listed(path.with_name(_LIST)) or rows)
    elif not (again and _in_table(path, rows)):
        append_rows(path, rows)


def _listed(path: Path) -> list[dict[str, str]]:
    """Return the list as rows; nothing of one that cannot be read."""
    with suppress(OSError, RecordError, ValueError, RecursionError), folder_of(plain_target(path)) as (folder, name):
        found = read_json(folder.read(name, _LIMIT_BYTES))
        return table_of(entry for entry in found if isinstance(entry, dict)) if isinstance(found, list) else []
    return []


def _in_table(path: Path, rows: Sequence[dict[str, str]]) -> bool:
    """Return whether a table has these rows, one after the other; columns that its header lacks do not count."""
    with reading_rows(plain_target(path)) as (header, there):
        wanted = [recorded_row(row, header.columns) for row in rows] if header is not None else []
        return any(ends_of(wanted, there))


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


def _cells(entry: JsonObject) -> dict[str, str]:
    return {plain_name(name): plain(as_cell(value)) for name, value in entry.items()}


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
    """Write a run's part of the side files of a working folder, and return the error messages.

    `again`, where an earlier attempt may have been killed: entries that perf_super has already are not added twice.
    """
    try:
        with side_files_locked(folder):
            return tuple(_write_all(folder, entries, again=again))
    except RecordError as problem:
        return (problem.message,)


@contextmanager
def side_files_locked(folder: Path) -> Iterator[None]:
    """Lock a working folder's side files.

    Raises:
        RecordError: the lock cannot be taken, or the block raised an OSError.
    """
    with as_record_error(folder / RUNS / _LOCK), open_runs(folder, make=True) as runs, locked_file(runs, _LOCK):
        yield


def _write_all(folder: Path, entries: Entries, *, again: bool) -> Iterator[str]:
    """Write the list first, for its entries are in no other file; an error of one file does not stop the others."""
    steps: list[tuple[str, Callable[[Path], None]]] = [
        (_ENTRY_SUPER, partial(_write_json, value=[*entries.superset], over_lines=True)),
        (_TABLES[1], partial(write_table, rows=table_of(entries.superset))),
        (_ENTRY, partial(_write_json, value=_one_or_all(entries), over_lines=entries.common is not None)),
        (ENTRY_TABLE, partial(write_table, rows=_entry_table(entries))),
    ]
    if entries.ran:
        steps = [
            (_LIST, partial(add_to_list, entries=entries, again=again)),
            (_TABLES[0], partial(add_to_table, entries=entries, again=again)),
            *steps,
        ]
    if entries.common is not None:
        steps.append(("common_info.json", partial(_write_json, value=entries.common, over_lines=False)))
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


def _entry_table(entries: Entries) -> list[dict[str, str]]:
    """Return the rows of perf_entry.csv: `configs` are there where a run has several results."""
    left_out = "configs" if entries.common is None else ""
    return table_of({name: value for name, value in entry.items() if name != left_out} for entry in entries.entry)


def _one_or_all(entries: Entries) -> Json:
    return entries.entry[0] if len(entries.entry) == 1 else [*entries.entry]


def _write_json(path: Path, value: Json, over_lines: bool) -> None:
    write_atomically(path, (indented(value) if over_lines else on_one_line(value)) + b"\n")
