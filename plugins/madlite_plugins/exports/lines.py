"""Rows → CSV and lines of JSON: a file written whole, or one that grows by what it does not have."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from madlite import Exported, ExportOptions, ExportRow, UsageProblem, escape_formula, rewriting_named, writing_named
from madlite_plugins.exports.columns import COLUMNS, Cell, as_object, cells_of

STDOUT = Path("/dev/stdout")


def path_of(target: str) -> Path:
    """Return the file that `-o` names; none, and `-`, stand for the standard output."""
    return STDOUT if target in ("", "-") else Path(target)


def shown_target(path: Path) -> str:
    """Return a file as the summary names it; "" for the standard output."""
    return "" if path == STDOUT else str(path)


class NewRows:
    """Rows without those whose keys a file has; counts both."""

    def __init__(self, rows: Iterable[ExportRow], keys: Iterable[str]) -> None:
        self._rows, self._keys = rows, frozenset(keys)
        self.new = self.present = 0

    def __iter__(self) -> Iterator[ExportRow]:
        for row in self._rows:
            if row.key in self._keys:
                self.present += 1
            else:
                self.new += 1
                yield row


class _TextFile:
    """A format of one line a row; `head` comes before them."""

    head = b""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write the rows into a file, as a whole or after those that it has."""
        path = path_of(target)
        if options.append and path != STDOUT:
            return self._append(rows, path)
        with writing_named(path) as stream:
            stream.write(self.head)
            coming = NewRows(rows, ())
            stream.writelines(map(self.line, coming))
        return Exported(new=coming.new, target=shown_target(path))

    def _append(self, rows: Iterable[ExportRow], path: Path) -> Exported:
        with rewriting_named(path) as (old, stream):
            coming = NewRows(rows, self.keys(old, path))
            size = old.seek(0, os.SEEK_END)
            old.seek(0)
            shutil.copyfileobj(old, stream)
            stream.write(b"" if size else self.head)
            stream.write(b"\n" if size and os.pread(old.fileno(), 1, size - 1) != b"\n" else b"")
            stream.writelines(map(self.line, coming))
        return Exported(new=coming.new, present=coming.present, target=str(path))

    def line(self, row: ExportRow) -> bytes:
        """Return a row as its line."""
        raise NotImplementedError

    def keys(self, stream: IO[bytes], path: Path) -> Iterator[str]:
        """Yield the keys of the rows that a file has.

        Raises:
            UsageProblem: it has other columns, or is none of ours.
        """
        raise NotImplementedError


def _csv_line(cells: Iterable[Cell]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_csv_cell(cell) for cell in cells])
    return text.getvalue().encode()


def _csv_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return escape_formula(cell)
    return "" if cell is None else cell.isoformat() if isinstance(cell, datetime) else repr(cell)


class CsvExporter(_TextFile):
    """CSV in UTF-8; no cell is a formula where a spreadsheet opens it."""

    head = _csv_line(COLUMNS)

    def line(self, row: ExportRow) -> bytes:
        """Return its cells with commas."""
        return _csv_line(cells_of(row))

    def keys(self, stream: IO[bytes], path: Path) -> Iterator[str]:
        """Yield the first cells of its lines."""
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        limit = csv.field_size_limit(sys.maxsize)
        try:
            yield from self._keys(csv.reader(text), path)
        except csv.Error as error:
            raise UsageProblem(f"{path} is no CSV: {error}", _REWRITE) from None
        finally:
            csv.field_size_limit(limit)
            text.detach()

    def _keys(self, lines: Iterator[list[str]], path: Path) -> Iterator[str]:
        header = next(lines, None)
        if header is not None and tuple(header) != tuple(COLUMNS):
            raise _other_columns(path, header)
        yield from (cells[0] for cells in lines if cells)


class JsonLinesExporter(_TextFile):
    """JSON Lines: an object per result, null for what is not known."""

    def line(self, row: ExportRow) -> bytes:
        """Return its object."""
        return msgspec.json.encode(as_object(row)) + b"\n"

    def keys(self, stream: IO[bytes], path: Path) -> Iterator[str]:
        """Yield the keys of its objects."""
        for number, line in enumerate(stream, 1):
            try:
                yield json.loads(line)["key"] if line.strip() else ""
            except (ValueError, KeyError, TypeError, RecursionError):
                raise UsageProblem(f"{path}: line {number} is no exported result", _REWRITE) from None


_REWRITE = "name another file, or write it as a whole, without --append"


def _other_columns(path: Path, header: Iterable[str]) -> UsageProblem:
    own = [name for name in header if name not in COLUMNS]
    lacks = [name for name in COLUMNS if name not in header]
    what = (
        f"it has {', '.join(own[:3])}" if own else f"it lacks {', '.join(lacks[:3])}" if lacks else "in another order"
    )
    return UsageProblem(f"{path} has other columns than an export: {what}", _REWRITE)
