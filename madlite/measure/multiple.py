"""A `multiple_results` file: a CSV that the model's script writes, one result per line.

Needed columns: model, performance, metric.  Every other column joins the row.  Format: MAD's (docs/perf-csv.md).
A workload writes it: what is read of it is bounded, and so are the time and the memory that reading takes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from madlite.files import read_given
from madlite.measure.performance import (
    MOST_CELLS_KEPT,
    MOST_CELLS_READ,
    MOST_COLUMNS,
    MOST_RESULTS,
    TOO_LONG,
    is_number,
    is_too_long,
    make_metric,
    names_metric,
    several,
    shortened,
)
from madlite.model import Cause, Metric, Value
from madlite.text import has_decimal_comma, may_be_foreign, unlimited_fields, without_groups

NEEDED = ("model", "performance", "metric")
_RUN_BYTES = 1 << 20
# inside of one cell, of which far less is kept; a run is looked at from its beginning alone
_RUN = re.compile(rb'(?<![^",\r\n])[^",\r\n]{%d,}' % _RUN_BYTES)


class FileBefore(Value, frozen=True):
    """What a file was before the run, so that a left-over is not taken for a result; `data` is what it had."""

    inode: int
    mtime_ns: int
    size: int
    data: bytes = b""


class FileResults(Value, frozen=True):
    """The results of a file, or why there is none; `notes` tell what of it was left out or is no number."""

    metrics: tuple[Metric, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()


def stamp(path: Path, data: bytes = b"") -> FileBefore | None:
    """Return what identifies the file's present content; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileBefore(inode=found.st_ino, mtime_ns=found.st_mtime_ns, size=found.st_size, data=data)


def is_fresh(path: Path, before: FileBefore | None, started_ns: int) -> bool:
    """Return whether the file was written by this run: changed since `before`, and newer than its start.

    Two seconds of grace are given to file systems that keep coarse times.
    """
    now = stamp(path, before.data if before is not None else b"")
    return now is not None and now != before and now.mtime_ns >= started_ns - 2_000_000_000


def is_touched(path: Path, before: FileBefore | None) -> bool:
    """Return whether a file got nothing but another date, before anything reads it: touch(1) sets both dates alike.

    A program that writes the same results anew leaves the date of access as it was.
    """
    try:
        now = path.stat()
    except OSError:
        return False
    return before is not None and now.st_ino == before.inode and now.st_atime_ns == now.st_mtime_ns


def results_since(
    name: str, data: bytes, before: FileBefore | None, *, touched: bool, by_status: bool = False
) -> FileResults | None:
    """Return the results that a run added to a file that it wrote; None where that is what was there before it.

    The results that the file began with before, in their order, are an earlier run's: a script may append.
    `by_status` as for `parse_results`.
    """
    read = parse_results(name, data, by_status=by_status)
    if before is None or not before.data:
        return read
    if data == before.data:
        return None if touched else read
    old = parse_results(name, before.data, by_status=by_status).metrics
    count = len(old)
    if not count or len(read.metrics) <= count or [*map(_named, read.metrics[:count])] != [*map(_named, old)]:
        return read
    note = f"{name}: its first {count} results were there before the run, and are not taken"
    return replace(read, metrics=read.metrics[count:], notes=(*read.notes, note))


def _named(metric: Metric) -> tuple[str, str, str]:
    return metric.label, metric.metric, metric.text


def read_results(path: Path) -> FileResults:
    """Return the file's results; a file that holds none says why, and never raises."""
    try:
        return parse_results(path.name, read_given(path))
    except OSError as error:
        return unreadable(path.name, error)


def unreadable(name: str, error: OSError) -> FileResults:
    """Return the answer for a file that could not be read."""
    return FileResults(problem=f"{name} cannot be read: {error.strerror}")


def parse_results(name: str, data: bytes, *, by_status: bool = False) -> FileResults:
    """Return the results that a file's bytes hold; those that hold none say why, and nothing raises.

    `by_status`: one whose column `status` says FAILURE is none, as in a perf.csv.
    """
    parts = sum(map(data.count, (b",", b"\n", b"\r"))) + data.count(b'"') // 2
    if parts > MOST_CELLS_READ:
        return FileResults(problem=f"{name} has {parts} cells and lines, and {MOST_CELLS_READ} at most are read")
    try:
        with unlimited_fields():
            return _read(name, _records(data), by_status)
    except csv.Error as error:
        return FileResults(problem=f"{name} is not valid CSV: {error}")


def _records(data: bytes) -> Iterator[list[str]]:
    """Yield the records that are not blank, as they are read: together they take many times a file's size."""
    data = _RUN.sub(lambda run: run[0][:_RUN_BYTES], data)
    with io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", "surrogateescape", newline="") as text:
        lines = (line.replace("\0", "\\x00") for line in text)  # which csv of Python 3.10 does not read
        for record in csv.reader(lines, skipinitialspace=True):
            if any(cell and not cell.isspace() for cell in record):
                yield record


def _read(name: str, records: Iterator[list[str]], by_status: bool) -> FileResults:
    header = [column.strip() for column in next(records, [])]
    if not header:
        return FileResults(problem=f"{name} is empty")
    missing = [needed for needed in NEEDED if needed not in header]
    if missing:
        return FileResults(problem=f"{name} has no column {', '.join(missing)} (its columns: {several(header, 20)})")
    first = _first(header, MOST_COLUMNS)
    taken = islice(records, MOST_RESULTS)
    rows = [_taken(cells, header, first) for cells in taken]
    count = len(rows) + sum(1 for _ in records)
    if count > MOST_RESULTS:
        return FileResults(problem=f"{name} has {count} results, and {MOST_RESULTS} at most are taken")
    names = [header[place] for place in first]
    taken_places = _first(names, MOST_CELLS_KEPT // max(1, count))
    places = [(place, names[place]) for place in taken_places]
    table = [{name: row.cells[at].strip() for at, name in places if at < len(row.cells)} for row in rows]
    table = [cells | {"performance": ""} if by_status and _has_failed(cells) else cells for cells in table]
    foreign = any(has_decimal_comma(cells.get("performance", "")) for cells in table)
    metrics = tuple(_metric(cells, row.misfit, foreign) for cells, row in zip(table, rows, strict=True))
    problem = "" if metrics else f"{name} has a header and no results"
    notes = (*_notes(name, header, len(taken_places), table), *_misfits(name, rows))
    return FileResults(metrics=metrics, problem=problem, notes=notes)


def _has_failed(cells: dict[str, str]) -> bool:
    return cells.get("status", "").upper() == "FAILURE"


def _first(header: Sequence[str], most: int) -> list[int]:
    """Return the places of the first columns that have a name, and of those that a result needs, wherever they are."""
    named = [place for place, column in enumerate(header) if column]
    late = [place for place in named[most:] if header[place] in NEEDED]
    return [*named[:most], *late]


def _notes(name: str, header: Sequence[str], taken_places: int, table: Sequence[dict[str, str]]) -> Iterator[str]:
    named = sum(1 for column in header if column)
    if taken_places < named:
        yield f"{name} has {named} columns: {taken_places} are taken, and {named - taken_places} are left out"
    if odd := [cells["performance"] for cells in table if has_decimal_comma(cells.get("performance", ""))]:
        text = shortened(odd[0], 60)
        yield f"{name} has '{text}', which is no number: a comma separates groups of three digits and nothing else"
    if long := [cells.get("model", "") for cells in table if is_too_long(cells.get("performance", ""))]:
        yield f"{name} has no number for {several(long)}: {TOO_LONG}"


class _Record(NamedTuple):
    """The cells of the columns that are taken; `misfit` says how many there are, "" where they fit the header."""

    cells: list[str]
    misfit: str = ""


def _taken(cells: Sequence[str], header: Sequence[str], first: Sequence[int]) -> _Record:
    """Return a record's cells of the columns that are taken.

    A comma that nothing quotes, as in `12,5`, has moved the cells behind it, and a line that was cut short has lost
    some: of a record with more or fewer cells than columns nobody knows whose its cells are, from the number on.
    """
    columns = max(place for place, column in enumerate(header) if column) + 1
    moved = any(cell.strip() for cell in cells[len(header) :])
    if not moved and len(cells) >= columns:
        return _Record([cells[at] for at in first if at < len(cells)])
    sure = header.index("performance")
    text = f"{len(cells)} cells, and the header {columns}"
    return _Record([cells[at] if at < sure else "" for at in first if at < len(cells)], misfit=text)


def _misfits(name: str, rows: Sequence[_Record]) -> Iterator[str]:
    """Yield how many records are no results for their number of cells, and what the first of them has."""
    found = [(place, row.misfit) for place, row in enumerate(rows, 1) if row.misfit]
    if found:
        place, text = found[0]
        of = f" ({len(found)} such records)" if len(found) > 1 else ""
        yield f"{name}: record {place} has {text}, so that none of them is a number{of}: quote a cell that has a comma"


def _metric(cells: dict[str, str], misfit: str, foreign: bool) -> Metric:
    """Return a record's result; in a `foreign` file, which has a decimal comma, only what is the same number there."""
    extra = {name: value for name, value in cells.items() if name not in (*NEEDED, "status")}
    text, metric = cells.get("performance", ""), cells.get("metric", "")
    # 12,5 that nothing quotes is a number and another one in the place of its metric
    moved = is_number(metric) or (foreign and may_be_foreign(text))
    metric = "" if is_number(metric) else metric
    unnamed = bool(text) and not names_metric(metric)  # nobody knows what it counts
    number = "" if moved or unnamed else without_groups(text)
    found = make_metric(number, metric, label=cells.get("model", ""), columns=extra)
    return replace(found, cause=Cause.BAD_NUMBER) if misfit or (moved and text) or unnamed else found
