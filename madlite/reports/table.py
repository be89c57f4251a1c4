"""A CSV file as a table of text: no cell passes through a number, so `1.5e+03` and `0012` stay as they were written."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from madlite.errors import UsageProblem
from madlite.model import Value
from madlite.safe_files import size_words
from madlite.safe_read import open_named
from madlite.text import unlimited_fields

_MOST_CELLS = 20_000_000  # blanks of rows that end early among them
_LARGEST_BYTES = 1 << 30  # some three million rows
_MEND = "mend that line, or move the file away"


class Table(Value, frozen=True):
    """Named columns, and rows that have a cell for each of them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def read_table(path: Path) -> Table:
    """Return the table of a CSV file: UTF-8, the first line names the columns, blank lines are no rows.

    A row that ends early gets blank cells.  Bytes that are no UTF-8 are spelled out.

    Raises:
        UsageProblem: the file cannot be read, or is no such table; the message names the line.
    """
    try:
        _check_file(path)
        with unlimited_fields(), _opened(path) as file:
            records = csv.reader(file, strict=True)
            return _table(path, _numbered(path, records))
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror or error}", f"ls -l {path}") from error


def _check_file(path: Path) -> None:
    """Raise for what is no CSV file by its name or kind: a pipe would wait for ever."""
    if path.is_dir():
        raise UsageProblem(f"{path} is a folder, not a CSV file", f"madlite report to-email --directory {path}")
    if not path.exists():
        raise UsageProblem(f"there is no file {path}", f"ls {path.parent}/*.csv")
    if path.suffix.lower() != ".csv" or not path.is_file():
        raise UsageProblem(f"{path} is no .csv file", f"ls {path.parent}/*.csv")


def _opened(path: Path) -> TextIO:
    """Open a table that is no larger than what memory holds."""
    file = os.fdopen(open_named(path), encoding="utf-8-sig", errors="backslashreplace", newline="")
    if os.fstat(file.fileno()).st_size > _LARGEST_BYTES:
        file.close()
        raise OSError(errno.EFBIG, f"it is larger than {size_words(_LARGEST_BYTES)}", str(path))
    return file


def _table(path: Path, records: Iterator[tuple[int, list[str]]]) -> Table:
    first = next(records, None)
    if first is None or not any(name.strip() for name in first[1]):
        raise UsageProblem(f"{path} is empty: no line names its columns", "madlite run writes perf.csv")
    columns = tuple(name.strip() for name in first[1])  # madengine 1 starts a file with `model, n_gpus, …`
    rows: list[tuple[str, ...]] = []
    for line, cells in records:
        if len(cells) > len(columns):
            raise UsageProblem(
                f"{path} is no table: {len(cells)} cells in line {line} under {len(columns)} columns", _MEND
            )
        if len(columns) * (len(rows) + 1) > _MOST_CELLS:
            raise UsageProblem(
                f"{path} is too large a table: {len(columns)} columns to line {line}", "name a part of it"
            )
        rows.append((*cells, *[""] * (len(columns) - len(cells))))
    return Table(columns=columns, rows=tuple(rows))


def _numbered(path: Path, records: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the records that are no blank lines, each with the line it starts in."""
    start = 1
    try:
        for cells in records:
            if any("\0" in cell for cell in cells):
                raise UsageProblem(f"{path} is no text: line {start} holds a zero byte", "name a CSV file")
            if cells:
                yield start, cells
            start = records.line_num + 1  # type: ignore[attr-defined]
    except csv.Error as error:  # Python 3.10 refuses a zero byte itself
        raise UsageProblem(f"{path} is no CSV: {error} (line {start})", _MEND) from error
