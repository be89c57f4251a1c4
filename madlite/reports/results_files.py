"""Results files of any origin → results: whatever of a damaged file can be read, and one sentence on what cannot."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TextIO, TypeVar

import msgspec

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.files import open_plain, read_bytes
from madlite.model import Json, Value
from madlite.perfcsv.rows import STANDARD_COLUMNS, as_number, comparable, recorded_row, typed_rows
from madlite.reports.series import Entry, RowParser, matches
from madlite.text import read_json, size_text, unlimited_fields

T = TypeVar("T")
_NEEDED = frozenset(("performance", "metric"))
_LONGEST_ROW = 64  # lines that a row with line ends in its cells may have
_MOST_NOTED = 3


class RecordedRows(Generic[T]):
    """What is known of rows that runs appended to a file with these columns, by their cells."""

    def __init__(self, columns: Sequence[str], rows: Iterable[tuple[Mapping[str, str], T]]) -> None:
        self._known: dict[tuple[str, ...], list[T]] = {}
        for cells, known in rows:
            self._known.setdefault(recorded_row(cells, columns), []).append(known)

    def __bool__(self) -> bool:
        return bool(self._known)

    def next(self, texts: Sequence[str]) -> T | None:
        """Return what is known of a row; of equal rows each has its own, in their order, further ones the last."""
        found = self._known.get(comparable(texts))
        if not found:
            return None
        return found.pop(0) if len(found) > 1 or found[0] is LEFT_OUT else found[0]


LEFT_OUT = Entry(key=(), status="")  # of as many rows as there are, and not of further ones
Appended = Iterable[tuple[Mapping[str, str], Entry]]
"""The cells of rows that runs appended to a file, with their results: records know more.  LEFT_OUT leaves a row out."""


def read_results(
    path: Path, *, where: Mapping[str, str] | None = None, by: str = "", appended: Appended = (), links: bool = True
) -> tuple[dict[str, list[Entry]], tuple[str, ...]]:
    """Return the results of a file, under "", or by each value of a column `by`; and what could not be read.

    `where` keeps the rows whose cells of these columns, or dimensions, are these.  Without `links` the file is none.

    Raises:
        UsageProblem: it cannot be read at all, or has not the columns of results.
    """
    entries: dict[str, list[Entry]] = {}
    with open_results(path, links=links) as rows:
        if by and by not in rows.columns:
            hint = one_hint(did_you_mean(by, rows.columns, most=1), f"it has {', '.join(rows.columns)}")
            raise UsageProblem(f"{path} has no column {by!r}", hint)
        known, read = RecordedRows(rows.columns, appended), RowParser(path, rows.columns)
        for line, texts in rows:
            recorded = known.next(texts) if known else None
            entry = read(texts, line) if recorded is None else recorded
            cells = dict(zip(rows.columns, texts, strict=True)) if where or by else {}
            if entry is not LEFT_OUT and (not where or matches(entry.key, cells, where)):
                entries.setdefault(cells.get(by, "").strip(), []).append(entry)
        return entries, rows.notes


@contextmanager
def open_results(path: Path, *, links: bool = True, needed: frozenset[str] = _NEEDED) -> Iterator[ResultRows]:
    """Open a results file, whatever bytes it has; UTF-16 by its byte order mark.  It has the `needed` columns.

    Raises:
        UsageProblem: as `read_results`.
    """
    try:
        if path.is_dir():
            raise UsageProblem(f"{path} is a folder, not a results file", f"ls {path}")
        fd = open_plain(path, links=links)
        encoding = "utf-16" if os.pread(fd, 2, 0) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with os.fdopen(fd, encoding=encoding, errors="backslashreplace", newline="") as file, unlimited_fields():
            yield ResultRows(path, file, needed)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror or error}", f"ls -l {path}") from error


class ResultRows:
    """The rows of a results file, each with its line: what is damaged costs its row, not those after it.

    A row has a cell for each of the columns; of two columns of one name the first that has a text counts.
    """

    def __init__(self, path: Path, file: TextIO, needed: frozenset[str]) -> None:
        self._path, self._file, self._line = path, file, 1
        self._ahead: list[str] = []
        self._skipped: list[str] = []
        self._header = self._read_header(needed)
        self.columns = tuple(dict.fromkeys(self._header))

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on rows that are left out; nothing for none."""
        if not (count := len(self._skipped)):
            return ()
        rows = "1 row cannot be read and is" if count == 1 else f"{count} rows cannot be read and are"
        more = ", …" if count > _MOST_NOTED else ""
        return (f"{self._path}: {rows} left out: {'; '.join(self._skipped[:_MOST_NOTED])}{more}",)

    def _read_header(self, needed: frozenset[str]) -> tuple[str, ...]:
        lines = iter(lambda: self._file.readline(1 << 20), "")
        line = next((line for line in lines if line.strip(" \t\r\n,")), "")
        cells = _split(line, skipinitialspace=True)
        columns = tuple(name.strip() for name in cells)
        if missing := sorted(needed.difference(columns)):
            raise UsageProblem(
                f"{self._path} has no results: its first line names no column {' and no '.join(missing)}",
                "name a perf.csv, a run's id, a folder, or a baseline",
            )
        return columns

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        wide = len(self._header)
        while line := self._next():
            begin = self._line
            cells = self._of_several_lines(line) if _is_open(line) else _split(line)
            if not any(map(str.strip, cells)):
                continue
            if len(cells) > wide:
                self._skipped.append(f"line {begin} has {len(cells)} cells under {wide} columns")
            elif not self._is_header(cells):
                if len(cells) < wide:
                    cells += [""] * (wide - len(cells))
                yield begin, cells if len(self.columns) == wide else self._merged(cells)

    def _is_header(self, cells: Sequence[str]) -> bool:
        return cells[0].strip() == self._header[0] and tuple(map(str.strip, cells)) == self._header

    def _merged(self, cells: Sequence[str]) -> list[str]:
        found = dict.fromkeys(self.columns, "")
        for name, text in zip(self._header, cells, strict=True):
            found[name] = found[name] or text
        return list(found.values())

    def _next(self) -> str:
        line = self._ahead.pop(0) if self._ahead else self._file.readline()
        self._line += bool(line)
        return line

    def _of_several_lines(self, line: str) -> list[str]:
        """Return the cells of a row whose quote closes in another line; where none does, the first line is no row."""
        begin, lines = self._line, [line]
        while _is_open(text := "".join(lines)) and len(lines) < _LONGEST_ROW and (more := self._next()):
            lines.append(more)
        cells = _split(text)
        if len(lines) > 1 and (_is_open(text) or len(cells) > len(self._header)):
            self._line, self._ahead = begin, [*lines[1:], *self._ahead]
            self._skipped.append(f"line {begin} has a quote that never closes")
            return []
        return cells


def _is_open(text: str) -> bool:
    """Return whether a quote is open at the end of a row."""
    return text.count('"') % 2 == 1


def _split(text: str, *, skipinitialspace: bool = False) -> list[str]:
    try:
        return next(csv.reader((text.replace("\0", "").rstrip("\r\n"),), skipinitialspace=skipinitialspace), [])
    except csv.Error:
        return []


# A CSV file as a table of text: no cell is converted to a number, so `1.5e+03` and `0012` stay as they are.

_MOST_CELLS = 20_000_000  # blanks of rows that end early among them
_LARGEST_BYTES = 1 << 30  # some three million rows


class Table(Value, frozen=True):
    """Named columns, and rows that have a cell for each of them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # on rows that are left out


def read_table(path: Path) -> Table:
    """Return the table of a CSV file: the first line names the columns, blank lines are no rows.

    A damaged row is left out, which the notes say; a row that ends early gets blank cells.

    Raises:
        UsageProblem: the file cannot be read, or is no table.
    """
    rows: list[tuple[str, ...]] = []
    with open_results(path, needed=frozenset()) as found:
        if path.suffix.lower() != ".csv":
            raise UsageProblem(f"{path} is no .csv file", f"ls {path.parent}/*.csv")
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageProblem(f"{path} is larger than {size_text(_LARGEST_BYTES)}", "name a part of it")
        if not found.columns:
            raise UsageProblem(f"{path} is empty: no line names its columns", "madlite run writes perf.csv")
        for line, cells in found:
            if len(found.columns) * (len(rows) + 1) > _MOST_CELLS:
                raise UsageProblem(
                    f"{path} is too large a table: {len(found.columns)} columns to line {line}", "name a part of it"
                )
            rows.append(tuple(cells))
        return Table(columns=found.columns, rows=tuple(rows), notes=found.notes)


class ContentKeys:
    """Gives each of a file's contents its key: of what it holds, and of how many like it came before."""

    def __init__(self) -> None:
        self._seen: Counter[bytes] = Counter()

    def __call__(self, content: Mapping[str, Json]) -> str:
        """Return the key of the next content, 64 hexadecimal digits."""
        text = msgspec.json.encode(content, order="deterministic")
        seen = hashlib.sha256(text).digest()
        self._seen[seen] += 1
        return hashlib.sha256(b"%d " % self._seen[seen] + text).hexdigest()


# A results file of either kind as typed objects.

_NUMBERS = {
    *("n_gpus", "nnodes", "gpus_per_node", "performance", "relative_change"),
    *("build_duration", "test_duration", "data_download_duration"),
}
_LARGEST_INTEGER = 1 << 63  # more bits few programs take


def read_typed_rows(path: Path) -> tuple[dict[str, dict[str, Json]], tuple[str, ...]]:
    """Return a CSV or JSON results file's rows by their keys, typed as madengine 2 has them, and what is left out.

    The name's end decides which kind it is, else the first character.  A key is of what a row holds, and of how many
    like it came before; no blank goes into it, so that a column more changes none.  A blank is null.  `performance`,
    numbers of GPUs and durations are numbers where they are written as ones, other standard columns texts; of further
    columns those with only numbers hold numbers, and a cell with a list or an object is that.  Objects of JSON keep
    their types.  An integer beyond 64 bits is a text of its digits, and what JSON has no number for is null.

    Raises:
        UsageProblem: it cannot be read, or is neither.
    """
    is_json = path.suffix.lower() == ".json"
    if not is_json and path.suffix.lower() != ".csv" and path.is_file():
        is_json = read_bytes(path, given=True).lstrip()[:1] in (b"{", b"[")
    key = ContentKeys()
    if is_json:
        rows = _json_rows(path)
        return {key({name: item for name, item in row.items() if item is not None}): row for row in rows}, ()
    table = read_table(path)
    texts = [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]
    keys = [key({name: text for name, text in row.items() if text.strip()}) for row in texts]
    return dict(zip(keys, _typed(texts), strict=True)), table.notes


def _json_rows(path: Path) -> list[dict[str, Json]]:
    try:
        value = read_json(read_bytes(path, given=True))
    except (ValueError, RecursionError) as error:
        why = type(error).__name__
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg} (line {error.lineno})"
        raise UsageProblem(f"{path} is no JSON: {why}", "name a results file: perf.csv, perf_entry.json") from None
    rows = [_plain_value(item) for item in (value if isinstance(value, list) else [value])]
    for n, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageProblem(f"{path}: entry {n} is no object but a {type(row).__name__}", "a list of objects")
    return rows


def _typed(rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, Json]]:
    others = typed_rows([{name: text for name, text in row.items() if name not in STANDARD_COLUMNS} for row in rows])
    for row, more in zip(rows, others, strict=True):
        yield {name: _parse_cell(more[name]) if name in more else _cell(name, text) for name, text in row.items()}


def _cell(name: str, text: str) -> Json:
    number = as_number(text.strip()) if name in _NUMBERS else None
    return (text if text.strip() else None) if number is None else _plain_value(number)


def _parse_cell(value: Json) -> Json:
    """Return the list or object in a cell (`configs`, `multi_results`), else the cell."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return _plain_value(read_json(value.encode()))
        except (ValueError, RecursionError):
            return value
    return _plain_value(value)


def _plain_value(value: Json) -> Json:
    """Return a value with its numbers as Python has them."""
    if isinstance(value, msgspec.Raw):
        value = json.loads(bytes(value))
    if isinstance(value, int) and not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        return str(value)
    if isinstance(value, dict):
        return {name: _plain_value(item) for name, item in value.items()}
    return [_plain_value(item) for item in value] if isinstance(value, list) else value
