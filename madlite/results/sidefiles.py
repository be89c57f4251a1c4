"""The files that dashboards read beside perf.csv, written into the working folder after a run's rows.

perf_entry.* and perf_entry_super.* tell of the last run, perf_super.* of all, common_info.json of the last one with
several results.  Runs of one folder take turns, so that the files tell of one run.  Format: docs/perf-csv.md.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Json, Result, Row, RunPlan
from madlite.plan.make import RUNS
from madlite.results.configs import read_configs
from madlite.results.entry import Entries, build_entries
from madlite.results.lines import limited_cells
from madlite.results.links import check_side_file
from madlite.results.locked import explained
from madlite.results.rows import build_rows, limited_metric, masked_metric, masked_rows
from madlite.results.superset import add_to_list, add_to_table, table_of, write_table
from madlite.results.typed import indented, on_one_line
from madlite.results.whole import write_whole
from madlite.workspace.folder import open_runs

ENTRY_TABLE = "perf_entry.csv"
_LOCK = ".side_files.lock"
_log = logging.getLogger(__name__)


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
