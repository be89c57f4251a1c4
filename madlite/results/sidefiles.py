"""The files that dashboards read beside perf.csv, written into the working folder after a run's rows.

perf_entry.* and perf_entry_super.* are of the last run, perf_super.* of all, common_info.json of the last one with
several results.  A lock keeps the files of one run together.  Format: docs/perf-csv.md.
"""

from __future__ import annotations

import csv
import fcntl
import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Json, Metric, Result, Row, RunPlan, Value
from madlite.plan.inputs import RUNS
from madlite.results.configs import read_configs
from madlite.results.header import (
    STANDARD_COLUMNS,
    as_cell,
    as_number,
    csv_line,
    indented,
    limited_cells,
    on_one_line,
    plain,
    plain_cells,
    plain_name,
    read_json,
    typed_rows,
)
from madlite.results.locked import as_record_error, check_side_file, plain_target, write_atomically
from madlite.results.perfcsv import append_rows
from madlite.results.rows import build_rows, has_results, limited_metric, masked_metric, masked_rows
from madlite.safe_files import folder_of
from madlite.text import unlimited_fields
from madlite.workspace.folder import open_runs

# A result's rows → the entries of the side files: typed, with the configuration and the results of a results file.
#
# Keys, their order and their types are madengine 2's, observed (docs/perf-csv.md).

# Which row of a configuration file a result belongs to.
#
# A row matches a result where every column that both have, and neither leaves blank, matches: `model` and the
# result's label where one has the other's words in a row (`meta/llama-8b` and `llama_8b_serving`), other columns where
# text or number is the same.  The best match is taken: the same model before one that is a part of it, the longer
# part, then more columns.  Without a match, or with several equal ones, there is none: a wrong configuration is worse
# than none.

_NO_CONFIG = ("model", "performance", "metric", "status")
_WORD = re.compile(r"[a-z0-9]+")
_MOST_WORDS = 100  # of a name
_MOST_PAIRS = 1_000_000  # of a row with a result and each of its columns: some seconds
_MOST_BYTES, _TOO_MUCH = 64 << 20, "more than 64 MiB"  # of the configurations of one run's results
_Rank: TypeAlias = tuple[bool, int, int]
_Words: TypeAlias = tuple[str, ...]
_log = logging.getLogger(__name__)


def configs_of(configs: Json, metrics: Sequence[Metric]) -> list[Json]:
    """Return for each result its one configuration row; anything but a list of rows applies to every result.

    None, with a warning, where all of them together would be far larger than the results.
    """
    chosen = _chosen(configs, metrics)
    known = {id(one): one for one in chosen}  # all alive at once, so that no two have one id
    sizes = {name: len(on_one_line(one)) for name, one in known.items()}
    if len(chosen) > 1 and sum(sizes[id(one)] for one in chosen) > _MOST_BYTES:
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
    found = _words(metric.label)
    ranked = [(rank, row) for wanted, row in configs if (rank := _rank(wanted, found, row, metric)) is not None]
    best = max((rank for rank, _ in ranked), default=None)
    winners = [row for rank, row in ranked if rank == best]
    return winners[0] if len(winners) == 1 else None


def _rank(wanted: _Words, found: _Words, row: Mapping[str, Json], metric: Metric) -> _Rank | None:
    """Return how well a row matches; None where it does not, or has nothing in common with the result."""
    shared = _shared_words(wanted, found)
    if wanted and found and not shared:
        return None
    pairs = [
        (as_cell(row[name]).strip(), text.strip())
        for name, text in metric.columns.items()
        if _is_config_column(row, name)
    ]
    pairs = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if not all(_same(ours, theirs) for ours, theirs in pairs):
        return None
    return (wanted == found, shared, len(pairs)) if shared or pairs else None


def _is_config_column(row: Mapping[str, Json], name: str) -> bool:
    return name in row and name not in _NO_CONFIG


def _words(text: str) -> _Words:
    return tuple(found[0] for found in islice(_WORD.finditer(text.lower()), _MOST_WORDS))


def _shared_words(one: _Words, other: _Words) -> int:
    """Return how many words they share where the shorter is a stretch of the longer, else 0."""
    part, whole = sorted((one, other), key=len)
    starts = range(len(whole) - len(part) + 1)
    return len(part) if any(whole[at : at + len(part)] == part for at in starts) else 0


def _same(one: str, other: str) -> bool:
    try:
        return one.lower() == other.lower() or float(one) == float(other)
    except ValueError:
        return False


_SECONDS = ("build_duration", "test_duration", "data_download_duration")
_JUDGED = ("model", "performance", "metric", "status")  # of one result; the rest is common to all
_Cells = Mapping[str, str]
_JsonObject: TypeAlias = dict[str, Json]


class Entries(Value, frozen=True):
    """One run's part of the side files, an object per result.

    `entry` is perf_entry.json and `table` perf_entry.csv; `superset` goes into perf_super, which takes only runs whose
    script was started (`ran`); `common` is common_info.json, None for a run without several results.
    """

    entry: tuple[_JsonObject, ...]
    table: tuple[dict[str, str], ...]
    superset: tuple[_JsonObject, ...]
    common: _JsonObject | None
    ran: bool


def build_entries(plan: RunPlan, result: Result, rows: Sequence[Row], bare: Row, configs: Json = None) -> Entries:
    """Return the entries of a result from its rows of perf.csv, which have every column.

    `bare` is the row of the same result without its metrics: what all of them have in common.
    """
    cells = [plain_cells(row) for row in rows]
    if plan.result_rule.kind == "performance_line" or not result.metrics or not has_results(result):
        return _single(plan, result, cells[0], configs)
    return _multiple(result, cells, _typed(plain_cells(bare)), configs)


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
        table=(cells,),
        superset=(base | {"configs": configs, "multi_results": more or None},),
        common=None,
        ran=ran,
    )


def _multiple(result: Result, cells: Sequence[dict[str, str]], base: _JsonObject, configs: Json) -> Entries:
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
        table=tuple(
            {name: row.get(name, as_cell(one[name])) for name in one} for one, row in zip(entry, cells, strict=True)
        ),
        superset=tuple(_super(common, *one) for one in zip(results, names, cells, chosen, strict=True)),
        common=common | {"configs": configs},
        ran=True,
    )


def _super(common: _JsonObject, results: _JsonObject, names: Sequence[str], cells: _Cells, config: Json) -> _JsonObject:
    """Return the entry of one of several results: columns of the file stay apart from those of the run."""
    multi_results = {name: results[name] for name in names if name != "test_duration"}
    return (
        common
        | {"test_duration": cells["test_duration"] if "test_duration" in names else "", "configs": config}
        | {name: results[name] for name in ("model", "performance", "metric")}
        | {"multi_results": multi_results or None, "status": cells["status"]}
    )


def _names(metric: Metric) -> list[str]:
    names = plain_cells(Row(cells=dict(metric.columns)))
    return [name for name in names if name not in _JUDGED]


def _beyond(typed: _JsonObject) -> _JsonObject:
    return {name: value for name, value in typed.items() if name not in STANDARD_COLUMNS}


def _typed(cells: _Cells) -> _JsonObject:
    """Return the standard columns: text, but durations are numbers where there is one."""
    base: _JsonObject = {name: cells[name] for name in STANDARD_COLUMNS}
    return base | {name: as_number(cells[name]) or cells[name] for name in _SECONDS}


# perf_super.json, the list that grows by every run's entries, and perf_super.csv, the same as a table.
#
# Callers hold the lock of `sidefiles`.  A list that cannot be read is renamed, never overwritten.

_LIMIT_BYTES = 1 << 30


def add_to_list(path: Path, entries: Sequence[_JsonObject], *, again: bool = False) -> list[_JsonObject]:
    """Add a run's entries to the list, `again` unless it has them, and return all it holds now.

    Raises:
        RecordError: it is no plain file.
        OSError: it cannot be read or written.
    """
    earlier = _earlier(path)
    if again and _contains([on_one_line(one) for one in earlier], [on_one_line(one) for one in entries]):
        return earlier
    every = [*earlier, *entries]
    write_atomically(path, indented(every) + b"\n")
    return every


def add_to_table(
    path: Path, entries: Sequence[_JsonObject], every: Sequence[_JsonObject], *, again: bool = False
) -> None:
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
    """Return whether a table has these rows, one after the other; columns that its header lacks do not count."""
    with folder_of(plain_target(path)) as (folder, name), unlimited_fields():
        text = folder.read(name, _LIMIT_BYTES).decode("utf-8", "replace").replace("\0", "\\x00")
        found = csv.DictReader(io.StringIO(text, newline=""))
        columns = found.fieldnames or ()
        every = [tuple(row.get(name) or "" for name in columns) for row in found]
    return _contains(every, [tuple(row.get(name, "") for name in columns) for row in rows])


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


def table_of(entries: Sequence[_JsonObject]) -> list[dict[str, str]]:
    """Return entries as rows of text."""
    return [_cells(entry) for entry in entries]


def _cells(entry: _JsonObject) -> dict[str, str]:
    return {plain_name(name): plain(as_cell(value)) for name, value in entry.items()}


def _earlier(path: Path) -> list[_JsonObject]:
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


def _entries(data: bytes) -> list[_JsonObject]:
    if not data.strip():
        return []
    entries = read_json(data)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("JSON, but no list of objects")
    return entries


def _rename_broken(path: Path) -> Path:
    """Rename the file to an unused name beside it."""
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
    """Write a run's side files into its working folder, and return the error messages.

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
    """Write a run's part of the side files of a working folder; return the error messages.

    `again`, where an earlier attempt may have been killed: entries that perf_super has already are not added twice.
    """
    try:
        with side_files_locked(folder):
            return tuple(_write_all(folder, entries, again))
    except RecordError as problem:
        return (problem.message,)


@contextmanager
def side_files_locked(folder: Path) -> Iterator[None]:
    """Lock a working folder's side files.

    Raises:
        RecordError: the lock cannot be taken, or the block raised an OSError.
    """
    with as_record_error(folder / RUNS / _LOCK), open_runs(folder, make=True) as runs:
        lock = runs.open_lock(_LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _write_all(folder: Path, entries: Entries, again: bool) -> Iterator[str]:
    """Write the list first, for its entries are in no other file; an error of one file does not stop the others."""
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
