"""Results files of any origin → series: whatever of a damaged file can be read, and one sentence on what cannot.

Files of up to `SMALL_BYTES` are read row by row, without pandas; larger ones in parts by pandas, of which only the
columns that a series needs are kept.
"""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.files import open_named, open_regular
from madlite.measure.performance import is_throughput
from madlite.model import Status, Value
from madlite.perfcsv.header import comparable
from madlite.reports.series import (
    LARGEST,
    WITHOUT_NUMBER,
    Entry,
    Series,
    direction_of,
    group,
    joined_by_key,
    matches,
    merged_facts,
    of_row,
    with_failures,
)
from madlite.reports.series_key import DIMENSIONS, FACTS, RESULT_COLUMNS, dimensions_of_row
from madlite.text import unlimited_fields

if TYPE_CHECKING:
    import pandas

SMALL_BYTES = 5 << 20
_NUMBER = "performance"
_NEEDED = {_NUMBER, "metric"}
_LONGEST_ROW = 64  # lines that a row with line ends in its cells may have
_ROWS_AT_ONCE = 250_000
_MOST_NOTED = 3
_STATUSES = ("", *(status.value for status in Status))  # of a row whose cells did not slip


class Read(Value, frozen=True):
    """What a results file has: its series, how many rows they are of, and what could not be read."""

    series: tuple[Series, ...]
    rows: int
    notes: tuple[str, ...] = ()


RecordedRows = dict[tuple[str, ...], list[Entry | None]]
"""The results that runs appended to a file, by row: records know more than rows.  None is a row that is left out."""
Recorded = Callable[[Sequence[str]], RecordedRows]
"""Returns those of a file with these columns."""


def read_results(
    path: Path,
    *,
    where: Mapping[str, str] | None = None,
    by: str = "",
    recorded: Recorded = lambda columns: {},
    links: bool = True,
) -> dict[str, Read]:
    """Return the series of a results file; with a column `by`, those of each of its values, in the file's order.

    `where` keeps the rows whose cells of these columns, or dimensions, are these.  Rows of a small file that are
    `recorded` are taken from there.  Without `links` the file is none.

    Raises:
        UsageProblem: it cannot be read at all, or has not the columns of results.
    """
    try:
        with _opened(path, links=links) as file:
            header = _header(path, file)
            if by and by not in header:
                raise _no_column(path, by, header)
            size = os.fstat(file.fileno()).st_size
            # rows that have records are matched one by one: records know sequence lengths, batches and doubts
            large = size > SMALL_BYTES and not recorded(header)
            if large and (found := _read_large(path, header, where or {}, by, links=links)) is not None:
                return found
            return _read_rows(path, _Rows(path, file, header), where or {}, by, recorded)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror or error}", f"ls -l {path}") from error


def _opened(path: Path, *, links: bool = True) -> TextIO:
    """Open a file as text, whatever bytes it has; UTF-16 by its byte order mark."""
    if path.is_dir():
        raise UsageProblem(f"{path} is a folder, not a results file", f"ls {path}")
    fd = open_named(path) if links else open_regular(path)
    encoding = "utf-16" if os.pread(fd, 2, 0) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return os.fdopen(fd, encoding=encoding, errors="backslashreplace", newline="")


def _header(path: Path, file: TextIO) -> tuple[str, ...]:
    """Return the names of the columns, and leave the file behind them."""
    line = next((line for line in iter(lambda: file.readline(1 << 20), "") if line.strip(" \t\r\n,")), "")
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        cells = []
    columns = tuple(name.strip().replace("\0", "") for name in cells)
    if missing := sorted(_NEEDED.difference(columns)):
        raise UsageProblem(
            f"{path} has no results: its first line names no column {' and no '.join(missing)}",
            "name a perf.csv, a run's id, a folder, or a baseline",
        )
    return columns


def _no_column(path: Path, name: str, header: Sequence[str]) -> UsageProblem:

    return UsageProblem(
        f"{path} has no column {name!r}", one_hint(did_you_mean(name, header, most=1), f"it has {', '.join(header)}")
    )


# Row by row: what is damaged costs its row, not those after it.


class _Rows:
    """The rows of a file, with their lines; `skipped` has those that are none."""

    def __init__(self, path: Path, file: TextIO, header: Sequence[str]) -> None:
        self.path, self.header = path, tuple(header)
        self._file, self._line = file, 1
        self._ahead: list[str] = []
        self.skipped: list[str] = []
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        with unlimited_fields():
            while line := self._next():
                begin = self._line
                cells = self._record(line)
                if not any(cell.strip() for cell in cells) or tuple(cell.strip() for cell in cells) == self.header:
                    continue
                if len(cells) > len(self.header):
                    self.skipped.append(f"line {begin} has {len(cells)} cells under {len(self.header)} columns")
                    continue
                self.count += 1
                yield begin, cells

    def _next(self) -> str:
        line = self._ahead.pop(0) if self._ahead else self._file.readline()
        self._line += bool(line)
        return line

    def _record(self, line: str) -> list[str]:
        """Return the cells of a row; one whose quote is never closed ends with its line."""
        lines = [line]
        while _is_open("".join(lines)) and len(lines) < _LONGEST_ROW and (more := self._next()):
            lines.append(more)
        if len(lines) > 1 and (_is_open("".join(lines)) or len(_split("".join(lines))) > len(self.header)):
            self._line -= len(lines) - 1
            self._ahead[:0] = lines[1:]
            self.skipped.append(f"line {self._line} has a quote that never closes")
            return []
        return _split("".join(lines))


def _is_open(text: str) -> bool:
    """Return whether a quote is open at the end of a row."""
    return text.count('"') % 2 == 1


def _split(text: str) -> list[str]:
    try:
        return next(csv.reader([text.replace("\0", "").rstrip("\r\n")]), [])
    except csv.Error:
        return []


def as_cells(header: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return a row's cells by column; of two columns of one name the first that has a text counts."""
    found = dict.fromkeys(header, "")  # those that a row cut short does not have, too
    for name, text in zip(header, cells, strict=False):
        if not found[name]:
            found[name] = text
    return found


def _read_rows(path: Path, rows: _Rows, where: Mapping[str, str], by: str, recorded: Recorded) -> dict[str, Read]:
    entries: dict[str, list[Entry]] = {}
    known = recorded(rows.header)
    for line, texts in rows:
        cells = as_cells(rows.header, texts)
        entry = of_row(cells, f"{path}:{line}")
        if found := known.get(comparable(texts)):
            own = found.pop(0) if len(found) > 1 or found[0] is None else found[0]
            if own is None:
                continue
            entry = own
        if matches(entry.dimensions, cells, where):
            entries.setdefault(cells.get(by, "").strip(), []).append(entry)
    notes = _notes(path, rows.skipped, len(rows.skipped))
    found_sides = {name: Read(series=group(part), rows=len(part), notes=notes) for name, part in entries.items()}
    return found_sides or {"": Read(series=(), rows=0, notes=notes)}


def read_cells(path: Path, notes: list[str]) -> Iterator[tuple[tuple[str, ...], int, list[str]]]:
    """Yield columns, line and texts of each row of a file of any size; then add to `notes` what could not be read.

    Raises:
        UsageProblem: as `read_results`.
    """
    try:
        with _opened(path) as file:
            rows = _Rows(path, file, _header(path, file))
            for line, texts in rows:
                yield rows.header, line, texts
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror or error}", f"ls -l {path}") from error
    notes += _notes(path, rows.skipped, len(rows.skipped))


def _notes(path: Path, reasons: Sequence[str], count: int) -> tuple[str, ...]:
    """Return a sentence on rows that are left out; nothing for none."""
    if not count:
        return ()
    rows = "1 row cannot be read and is" if count == 1 else f"{count} rows cannot be read and are"
    more = ", …" if len(reasons) > _MOST_NOTED else ""
    return (f"{path}: {rows} left out: {'; '.join(reasons[:_MOST_NOTED])}{more}",)


# In parts, by pandas.


class _Part:
    """The rows of a large file whose dimensions, status and filtered columns are one combination."""

    def __init__(self) -> None:
        self.values = array("d")
        self.rows = 0
        self.facts: list[dict[str, str]] = []


def _read_large(
    path: Path, header: Sequence[str], where: Mapping[str, str], by: str, *, links: bool
) -> dict[str, Read] | None:
    """Return the series of a large file without their single samples; None where pandas cannot read it."""
    import pandas

    own = (*RESULT_COLUMNS, "status", "suspect", by, *where)
    keys = [name for name in dict.fromkeys(own) if name in header]
    names = sorted({*keys, _NUMBER, *FACTS} & {*header}, key=header.index)
    parts: dict[tuple[str, ...], _Part] = {}
    try:
        for frame in _frames(path, header, names, links=links):
            _add(parts, frame, keys)
    except (pandas.errors.ParserError, UnicodeError, ValueError):
        return None
    at = keys.index("status") if "status" in keys else -1
    shifted = [key for key, part in parts.items() if at >= 0 and not part.values and key[at].upper() not in _STATUSES]
    skipped = [f"a status of {key[at]!r}" for key in shifted]
    count = sum(parts.pop(key).rows for key in shifted)
    return _as_reads(parts, keys, where, by, _notes(path, skipped, count))


def _frames(path: Path, header: Sequence[str], names: Sequence[str], *, links: bool) -> Iterator[pandas.DataFrame]:
    """Yield columns of a file, in parts: numbers as they are, texts as categories; cells beyond the header are cut."""
    import pandas

    places = {header.index(name): name for name in names}
    number = header.index(_NUMBER)
    with _opened(path, links=links) as text:
        for frame in pandas.read_csv(
            text.buffer if text.encoding != "utf-16" else text,
            header=0,
            names=range(len(header)),
            index_col=False,
            usecols=list(places),
            dtype={place: "category" for place in places if place != number},
            na_values={number: ["", "nan", "NaN", "None"]},
            keep_default_na=False,
            chunksize=_ROWS_AT_ONCE,
            low_memory=False,
            skipinitialspace=True,
            encoding_errors="backslashreplace",
        ):
            yield frame.rename(columns=places)


def _add(parts: dict[tuple[str, ...], _Part], frame: pandas.DataFrame, keys: Sequence[str]) -> None:
    """Add the rows of a frame to the parts that they belong to."""
    import pandas

    frame[_NUMBER] = pandas.to_numeric(frame[_NUMBER], errors="coerce")
    for cells, rows in frame.groupby(list(keys), observed=True, sort=False, dropna=False):
        part = parts.setdefault(tuple(map(_text, cells)), _Part())
        own = rows[_NUMBER]
        part.rows += len(own)
        part.values.extend(own[own.notna() & ~own.isin((math.inf, -math.inf))])
        for name in (name for name in FACTS if name in rows):
            part.facts += [{FACTS[name]: text} for text in map(_text, rows[name].unique()) if text]


def _text(cell: object) -> str:
    """Return a cell as text; that of a row which ends before the column is blank."""
    return "" if cell != cell else str(cell).strip()  # noqa: PLR0124 - NaN, which equals nothing


def _as_reads(
    parts: Mapping[tuple[str, ...], _Part],
    keys: Sequence[str],
    where: Mapping[str, str],
    by: str,
    notes: tuple[str, ...],
) -> dict[str, Read]:
    """Return the parts of each value of `by` as series."""
    sides: dict[str, list[Series]] = {}
    rows: dict[str, int] = {}
    for key, part in parts.items():
        cells = dict(zip(keys, key, strict=True))
        dimensions = dimensions_of_row(cells)
        if not matches(dimensions, cells, where):
            continue
        side = cells.get(by, "").strip()
        rows[side] = rows.get(side, 0) + part.rows
        found = _as_series(dimensions, cells.get("status", "").strip().upper(), part, bool(cells.get("suspect")))
        sides.setdefault(side, []).append(found)
    found_sides = {
        name: Read(series=tuple(with_failures(joined_by_key(each))), rows=rows[name], notes=notes)
        for name, each in sides.items()
    }
    return found_sides or {"": Read(series=(), rows=0, notes=notes)}


def _as_series(dimensions: Mapping[str, str], status: str, part: _Part, is_suspect: bool) -> Series:
    skipped = part.rows if status == Status.SKIPPED.value else 0
    metric = dimensions["metric"]
    usable = () if status in WITHOUT_NUMBER else tuple(value for value in part.values if abs(value) <= LARGEST)
    if is_throughput(metric):
        usable = tuple(value for value in usable if value > 0)
    return Series(
        key=tuple(dimensions[name] for name in DIMENSIONS),
        values=usable,
        facts=merged_facts(part.facts if usable else ()),
        failed=part.rows - len(usable) - skipped,
        skipped=skipped,
        direction=direction_of(metric),
        suspect_values=len(usable) if is_suspect else 0,
    )
