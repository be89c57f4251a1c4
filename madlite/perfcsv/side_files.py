"""The files that dashboards read beside perf.csv, written into the working folder after a run's rows.

perf_entry.* and perf_entry_super.* are of the last run, perf_super.* of all, common_info.json of the last one with
several results.  A lock keeps the files of one run together.  Format: docs/perf-csv.md.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeAlias, cast

import msgspec
from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.files import Folder, append_lines, folder_of, read_plain, way_out
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
    masked_cells,
    masked_metric,
    plain,
    plain_cells,
    plain_name,
    recorded_row,
    truncation_text,
    typed_rows,
)
from madlite.plan.inputs import RUNS
from madlite.secrets import Redactor, assigned, mask_json
from madlite.store.folder import RunRows, RunStart, open_runs
from madlite.store.locks import locked_file
from madlite.store.record import Entries, JsonObject, RunResult, entries_of, make_record
from madlite.text import as_cell, indented, on_one_line, read_json, readable_json, spelled_objects, unlimited_fields

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
            return mask_json(readable_json(found), lambda text: Redactor(assigned([text])).text(mask(text)))[0]
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
_MOST_WORDS = 100  # of a name
_MOST_PAIRS = 1_000_000  # of a row with a result and each of its columns: some seconds
_MOST_BYTES, _TOO_MUCH = 64 << 20, "more than 64 MiB"  # of the configurations of one run's results
_Words: TypeAlias = tuple[str, ...]


def configs_of(configs: Json, metrics: Sequence[Metric]) -> list[Json]:
    """Return for each result its one configuration row; anything but a list of rows applies to every result.

    None, with a warning, where all of them together would be far larger than the results.
    """
    chosen = _chosen(configs, metrics)
    known = {id(config): config for config in chosen}  # all alive at once, so that no two have one id
    sizes = {name: len(on_one_line(config)) for name, config in known.items()}
    if len(chosen) > 1 and sum(sizes[id(config)] for config in chosen) > _MOST_BYTES:
        _log.warning("entries have no configs: with %d results they would be %s", len(chosen), _TOO_MUCH)
        return [None for _ in metrics]
    return chosen


def _chosen(configs: Json, metrics: Sequence[Metric]) -> list[Json]:
    if not isinstance(configs, list) or not all(isinstance(row, dict) for row in configs):
        return [configs for _ in metrics]
    if len(configs) == 1:
        return [configs[0] for _ in metrics]
    if len(configs) * sum(1 + len(metric.columns) for metric in metrics) > _MOST_PAIRS:
        _log.warning("entries have no configs: %d rows are too many for %d results", len(configs), len(metrics))
        return [None for _ in metrics]
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
    return tuple(found[0] for found in islice(_WORD.finditer(text.lower()), _MOST_WORDS))


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


def make_entries(plan: RunPlan, result: Result, start: RunStart, mask: Callable[[str], str] = str) -> Entries:
    """Return a run's part of the side files; `mask` hides secrets, in the configuration too."""
    start = replace(start, strict_header=False, columns=())

    def rows(of: Result) -> list[dict[str, str]]:
        return [limited_cells(masked_cells(row, mask)) for row in build_rows(plan, of, start)]

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

    `entries` are None without rows or side files, and after a bug, which is the `problem` and costs no row.
    `truncated` is a message about cells that were.
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
    masked = [masked_cells({**row, **added(row)}, mask) for row in build_rows(plan, result, start)]
    entries, problem = None, ""
    try:
        if start.side_files:
            made = make_entries(plan, result, start, mask)
            entries_line(made)  # the journal gets it before the row is written
            entries = made
    except Exception as bug:  # noqa: BLE001 - raised here, it would cost the row
        _log.debug("side files of %s", plan.id, exc_info=True)
        problem = f"internal error in the files beside perf.csv: {type(bug).__name__}: {bug}"
    return RunOutput(
        rows=tuple(map(limited_cells, masked)), entries=entries, truncated=truncation_text(masked), problem=problem
    )


def make_result(
    plan: RunPlan,
    result: Result,
    start: RunStart,
    mask: Callable[[str], str],
    output: RunOutput | None = None,
    rendered: Iterable[tuple[str, bytes]] = (),
) -> RunResult:
    """Return what result.json has of a result, by its `output`: rows that no file has yet are in its record."""
    output = output or make_output(plan, result, start, mask=mask)
    rows = RunRows(path="", cells=output.rows, strict_header=start.strict_header) if output.rows else None
    record = make_record(plan, result, rows, start, rendered=rendered, mask=mask)
    return RunResult(record=record, entries=output.entries)


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
# Callers hold the lock of `sidefiles`.  A list that cannot be read is renamed, never overwritten.

_LIMIT_BYTES = 1 << 30
_Listed: TypeAlias = JsonObject | msgspec.Raw


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


def leave_entries(folder: Path, *entries: Entries) -> tuple[str, ...]:
    """Let runs' parts of the side files of a working folder wait for the next write; return the error messages."""
    return _locked_write(folder, lambda runs: _append(runs, *map(entries_line, entries)))


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


def _append(runs: Folder, *lines: bytes) -> tuple[str, ...]:
    """Add lines to what waits, or nothing of them."""
    fd = runs.open_file(_WAITING, os.O_RDWR | os.O_APPEND)
    try:
        append_lines(fd, b"".join(line + b"\n" for line in lines), _WAITING)
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
        (ENTRY_TABLE, partial(write_table, rows=_entry_table(last))),
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


def _entry_table(entries: Entries) -> list[dict[str, str]]:
    """Return the rows of perf_entry.csv: `configs` are there where a run has several results."""
    left_out = "configs" if entries.common is None else ""
    return table_of({name: value for name, value in entry.items() if name != left_out} for entry in entries.entry)


def _one_or_all(entries: Entries) -> Json:
    return entries.entry[0] if len(entries.entry) == 1 else [*entries.entry]


def _write_json(path: Path, value: Json, over_lines: bool) -> None:
    write_atomically(path, (indented(value) if over_lines else on_one_line(value)) + b"\n")
