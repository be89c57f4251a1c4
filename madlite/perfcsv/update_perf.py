"""Results from elsewhere → rows of perf.csv: madengine 1's `report update-perf`."""

from __future__ import annotations

import logging
from pathlib import Path

from madlite.errors import RecordError, UsageProblem
from madlite.files import read_given
from madlite.measure.performance import make_metric, read_results, several
from madlite.model import Json, Metric, Status
from madlite.perfcsv.append import append_rows, as_record_error
from madlite.perfcsv.rows import STANDARD_COLUMNS, cut_of, limited_cells, limited_metric, truncation_text
from madlite.perfcsv.side_files import ENTRY_TABLE, side_files_locked, write_table
from madlite.text import as_cell, read_json

# what madengine writes into its JSON and no row of perf.csv has
_NO_COLUMNS = ("configs", "multi_results")
_log = logging.getLogger(__name__)


def update_perf(
    perf_csv: Path,
    *,
    single: Path | None,
    exception: Path | None,
    multiple: Path | None,
    common_info: Path | None,
    model_name: str,
    folder: Path = Path(),
) -> int:
    """Append results to an existing perf.csv, and return the number of rows.

    `multiple` is a CSV with the columns model, performance and metric, whose rows take everything else from
    `common_info` (JSON) and their name from `model_name`; `single` and `exception` are JSON, an object per row, as
    perf_entry.json holds it.  The first of them that is given counts, in this order.  As with madengine, the rows are
    also left in `folder` as perf_entry.csv.

    Raises:
        UsageProblem: a file is not there or not what it should be, or none is given; nothing was appended.
        RecordError: perf.csv cannot take the rows.
    """
    if not perf_csv.is_file():
        raise UsageProblem(f"there is no file {perf_csv} to append to", f"touch {perf_csv}")
    if multiple is not None:
        rows = _multiple(multiple, common_info, model_name)
    elif single is not None:
        rows = _given(single, "single result", model_name, Status.SUCCESS)
    elif exception is not None:
        rows = _given(exception, "exception result", model_name, Status.FAILURE)
    else:
        raise UsageProblem("there is no result to append", "name one: --single-result FILE")
    if truncated := truncation_text(rows):
        _log.warning("%s", truncated)
    rows = [limited_cells(row) for row in rows]
    append_rows(perf_csv, rows)
    _write_entry(folder, rows)
    return len(rows)


def _multiple(path: Path, common_info: Path | None, model_name: str) -> list[dict[str, str]]:
    if not model_name:
        raise UsageProblem(f"the results of {path} need the name of their model", "--model-name NAME")
    if common_info is None:
        raise UsageProblem(f"the results of {path} need what they have in common", "--common-info FILE")
    common = _cells(_objects(common_info, "common info")[0])
    read = read_results(path)
    if read.problem:
        raise UsageProblem(f"no results in {path}: {read.problem}")
    for note in filter(None, (*read.notes, cut_of(read.metrics))):
        _log.warning("%s", note)
    return [_row(common, limited_metric(metric), model_name) for metric in read.metrics]


def _row(common: dict[str, str], metric: Metric, model_name: str) -> dict[str, str]:
    judged = {
        "model": "_".join(part for part in (model_name, metric.label) if part),
        "performance": metric.text,
        "metric": metric.metric,
        "status": metric.status.value,
    }
    return common | metric.columns | judged


def _given(path: Path, what: str, model_name: str, usual: Status) -> list[dict[str, str]]:
    rows = [_cells(found) for found in _objects(path, what)]
    for cells in rows:
        cells["model"] = cells.get("model", "") or model_name
        if not cells["model"]:
            raise UsageProblem(f"{path}: the {what} names no model", "--model-name NAME")
        cells["status"] = cells.get("status", "") or _status(cells, usual)
    return rows


def _status(cells: dict[str, str], usual: Status) -> str:
    judged = make_metric(cells.get("performance", ""), cells.get("metric", "")).status
    return (judged if usual is Status.SUCCESS else usual).value


def _objects(path: Path, what: str) -> list[dict[str, Json]]:
    """Return the objects of a JSON file: one, or a list of them."""
    try:
        found = read_json(read_given(path))
    except OSError as error:
        raise UsageProblem(f"the {what} {path} cannot be read: {error.strerror}", f"ls -l {path}") from error
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"the {what} {path} is no JSON: {error}") from error
    objects = found if isinstance(found, list) else [found]
    if not objects or not all(isinstance(object_, dict) for object_ in objects):
        raise UsageProblem(f"the {what} {path} is JSON, but no object with the columns of perf.csv")
    return objects


def _cells(values: dict[str, Json]) -> dict[str, str]:
    """Return an object as cells; tags are a list in madengine 1's JSON, and in perf.csv joined by commas."""
    names = [name for name in values if name not in _NO_COLUMNS]
    if not set(STANDARD_COLUMNS) & set(names):
        raise UsageProblem(f"an object with the keys {several(names) or 'none'} is no row of perf.csv")
    return {name: _text(name, values[name]) for name in names}


def _text(name: str, value: Json) -> str:
    if name == "tags" and isinstance(value, list):
        return ",".join(as_cell(tag) for tag in value)
    return as_cell(value)


def _write_entry(folder: Path, rows: list[dict[str, str]]) -> None:
    """Write perf_entry.csv; an error is logged, for the rows are in perf.csv."""
    path = folder / ENTRY_TABLE
    try:
        with side_files_locked(folder), as_record_error(path):
            write_table(path, rows)
    except RecordError as problem:
        _log.warning("%s", problem.message)
