"""The first line of perf.csv: which columns the file has, and in which order."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.jsontext import on_one_line, readable
from madlite.measure.performance import (
    CELL_BYTES,
    NAME_CHARACTERS,
    is_long,
    is_too_long,
    several,
    short_name,
    shortened,
)
from madlite.model import Json, Value

# Cells as lines of CSV, alike on every Python: a row is one physical line, whatever its cells hold.

# where programs see the end of a line: str.splitlines, spreadsheets, JavaScript, `sshd` reading authorized_keys
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_ESCAPES = {ord(char): ascii(char)[1:-1] for char in (*_BREAKS, "\0")}


def plain(text: str) -> str:
    r"""Return readable text on one line: line ends are escaped as `\n`, `\r`, `\u2028`, …

    A program that reads a results file line by line (a spreadsheet, a shell) must see no line that a workload made up.
    """
    return text if text.isprintable() else readable(text.translate(_ESCAPES))


def plain_name(text: str) -> str:
    """Return text as the name of a column: plain, without blanks around it."""
    return plain(text.strip())


def plain_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a row as plain text, under plain names; cells without a name are dropped."""
    plain_texts = {plain_name(name): plain(text) for name, text in cells.items()}
    return {name: text for name, text in plain_texts.items() if name}


def comparable(cells: Iterable[str]) -> tuple[str, ...]:
    """Return a row of a file in the form for comparison: plain cells, without blank ones at its end."""
    texts = list(map(plain, cells))
    while texts and not texts[-1]:
        texts.pop()
    return tuple(texts)


def recorded_row(cells: Mapping[str, str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return recorded cells as `comparable` gives the row of a file with these columns."""
    return comparable(Header(columns=tuple(columns)).arrange(plain_cells(cells)))


def limited_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Return plain cells of the size that a cell may have, under names that are short."""
    return {short_name(name): shortened(text) for name, text in plain_cells(cells).items()}


def truncation_text(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a message that names the columns of rows whose cells or names are truncated; "" for none."""
    cells = (cell for row in rows for cell in row.items())
    cut = [plain_name(name) for name, text in cells if len(name) > NAME_CHARACTERS or is_long(plain(text))]
    what = f"cells of more than {CELL_BYTES >> 10} KiB, or names of more than {NAME_CHARACTERS} characters, were cut"
    return f"{what}: {several(list(dict.fromkeys(cut)), 3)}" if cut else ""


class _Echo:
    def write(self, text: str) -> str:
        return text


def csv_line(cells: Iterable[str], newline: str) -> str:
    r"""Return one record: cells with a comma, quote or line end are quoted, all others stand as they are.

    Of plain cells it is one line.
    """
    # csv's own "\r\n" makes it quote a lone "\r", which with "\n" only Python 3.13 does
    line: str = csv.writer(_Echo(), lineterminator="\r\n").writerow(cells)
    return line.removesuffix("\r\n") + newline


# The columns of madengine 2, in its order; madengine 1 has all but the four marked in docs/perf-csv.md.
STANDARD_COLUMNS: tuple[str, ...] = (
    *("model", "n_gpus", "nnodes", "gpus_per_node", "training_precision", "pipeline", "args", "tags"),
    *("docker_file", "base_docker", "docker_sha", "docker_image", "git_commit", "machine_name"),
    *("deployment_type", "launcher", "gpu_architecture", "performance", "metric", "relative_change", "status"),
    *("build_duration", "test_duration", "dataname", "data_provider_type", "data_size", "data_download_duration"),
    *("build_number", "additional_docker_run_options"),
)
_NOT_IN_CONTRACT_1 = ("nnodes", "gpus_per_node", "deployment_type", "launcher")
_REQUIRED = {"model", "performance", "metric", "status"}
MOST_COLUMNS, MOST_AT_ONCE = 1000, 100  # that joining columns can make, and that can join by one append
_LONGEST_WRITTEN, _LONGEST_AT_ONCE = 1 << 16, 1 << 13
_LEAST_TORN = len("model,n_gpus,")  # of a header's beginning: less may be any text
_LONGEST_LINE = 1 << 20  # characters; what is longer is no header, and reading it would cost what the file costs


def new_columns(contract: int) -> tuple[str, ...]:
    """Return the columns that a new file begins with: under contract 1 madengine 1's 25, else madengine 2's 29."""
    return tuple(name for name in STANDARD_COLUMNS if contract != 1 or name not in _NOT_IN_CONTRACT_1)


class Header(Value, frozen=True):
    """The columns a file has, without the blanks around their names, and how its lines end."""

    columns: tuple[str, ...]
    newline: str = "\n"
    bom: str = ""

    @property
    def line(self) -> str:
        """The first line of a file."""
        return self.bom + csv_line(self.columns, self.newline)

    def arrange(self, cells: Mapping[str, str]) -> list[str]:
        """Return the cells in the file's order: blank where a row has none, once where a name stands twice.

        Names of cells are plain; those of a file that others wrote may have a line's end in them.
        """
        left = dict(cells)
        return [left.pop(name if name.isprintable() else plain_name(name), "") for name in self.columns]


def text_of(fd: int) -> TextIO:
    """Return the file from its start as text that gives back every byte it was read from."""
    text = open(fd, newline="", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115 - the caller closes it
    text.seek(0)
    return text


def read_header(path: Path, text: TextIO) -> Header | None:
    """Read the header and leave `text` behind it; None for a file that holds nothing but blanks, or a part of a header.

    Raises:
        RecordError: the first line with text in it is no header of a perf.csv; `path` is for the message.
    """
    lines: list[str] = []
    try:
        cells = _first_record(_recorded_lines(text, lines))
    except csv.Error as error:
        raise _no_header_error(path, lines) from error
    if cells is None or _is_torn(lines[-1]):
        return None
    columns = tuple(name.strip() for name in cells)
    if not _REQUIRED.issubset(columns) or len(lines[-1]) == _LONGEST_LINE:
        raise _no_header_error(path, lines)
    return Header(columns=columns, newline=_ending(lines[-1]), bom="\ufeff" if lines[0][:1] == "\ufeff" else "")


def _is_torn(line: str) -> bool:
    """Return whether a line begins a header that madlite writes: a file whose first append was cut off."""
    if line.endswith("\n") or len(line) < _LEAST_TORN:
        return False
    whole = (Header(columns=new_columns(contract)).line.rstrip() for contract in (1, 2))
    return any(name.startswith(line) and name != line for name in whole)


def may_join(header: Header, joining: Sequence[str]) -> bool:
    """Return whether all these columns can join a header: it stays within the limits, and can be read back.

    Each row has a cell for each column: a results file with 100,000 of them would make all later rows 100 KB long.  The
    limit of one append is far below that of the file: one results file alone cannot use up the limit of later ones.
    """
    wide = replace(header, columns=(*header.columns, *joining))
    at_once = len(joining) <= MOST_AT_ONCE and len(wide.line) - len(header.line) <= _LONGEST_AT_ONCE
    if not at_once or len(wide.columns) > MOST_COLUMNS or len(wide.line) > _LONGEST_WRITTEN:
        return False
    with io.StringIO(wide.line, newline="") as text:
        try:
            return read_header(Path("perf.csv"), text) == wide
        except RecordError:
            return False


def _recorded_lines(text: TextIO, lines: list[str]) -> Iterator[str]:
    """Yield lines without a byte order mark, and append them to `lines` as they were."""
    while line := text.readline(_LONGEST_LINE):
        lines.append(line)
        yield line.removeprefix("\ufeff") if len(lines) == 1 else line


def _first_record(lines: Iterator[str]) -> list[str] | None:
    # madengine 1 writes a blank after each comma of a new file's header
    records = csv.reader(lines, skipinitialspace=True)
    return next((cells for cells in records if any(cell.strip() for cell in cells)), None)


def _ending(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :] or "\n"


def _no_header_error(path: Path, lines: list[str]) -> RecordError:
    start = next((line.strip() for line in lines if line.strip()), "")[:60]
    return RecordError(
        f"{path}: its first line is no perf.csv header: {start!r}",
        "a perf.csv has at least the columns model, performance, metric and status, divided by commas; "
        f"choose another file: -o {path.with_name('madlite-perf.csv')}",
    )


# Cells and JSON: what is a number in a file of JSON, spelled as it was written.

_NUMBER = re.compile(r"([-+]?)(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_NO_NUMBER = frozenset(("", "nan", "+nan", "-nan", "n/a", "na", "null", "none", "inf", "+inf", "-inf", "infinity"))


def as_number(text: str) -> msgspec.Raw | None:
    """Return a number as JSON spells it, digit for digit; None for other text, or what JSON cannot express.

    `0012` is text: JSON has no such number, and it may be a name.  So is one of too many digits, for which readers
    reject the whole file.
    """
    found = None if is_too_long(text) else _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent = (part or "" for part in found.groups())
    digits = fraction if len(fraction) > 1 else ""
    if not (whole or digits) or not math.isfinite(float(text)):
        return None
    return msgspec.Raw(f"{'-' if sign == '-' else ''}{whole or '0'}{digits}{exponent}".encode())


def typed_rows(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Json]]:
    """Return the rows of a table as objects: a column with only numbers holds numbers, any other text.

    A blank is null; so is a word for "no number" (nan, inf, N/A, none, …) in a column of numbers.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        for name, text in row.items():
            texts.setdefault(name, []).append(text)
    columns = {name: iter(_column(column)) for name, column in texts.items()}
    return [{name: next(columns[name]) for name in row} for row in rows]


def _column(texts: Sequence[str]) -> list[Json]:
    numbers = [as_number(text.strip()) for text in texts]
    others = {text.strip().lower() for text, number in zip(texts, numbers, strict=True) if number is None}
    if any(number is not None for number in numbers) and others <= _NO_NUMBER:
        return [*numbers]
    return [text if text.strip() else None for text in texts]


def as_cell(value: Json) -> str:
    """Return a value as the text of a CSV cell: null is blank, lists and objects are JSON on one line."""
    if value is None:
        return ""
    return value if isinstance(value, str) else on_one_line(value).decode()
