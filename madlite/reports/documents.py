"""A results file → documents for a database: typed, each with a key that the same row has again.

Types: a blank is null, a cell that holds a list or an object is that, as madengine 2 has them; what is a number goes by
the column, so that a commit such as `1234567e8` stays a text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from madlite.errors import UsageProblem
from madlite.files import read_bytes
from madlite.jsontext import read_json
from madlite.model import Json, Value
from madlite.perfcsv.header import STANDARD_COLUMNS, as_number, typed_rows
from madlite.reports.results_files import open_results
from madlite.text import size_text

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


_NUMBERS = {
    *("n_gpus", "nnodes", "gpus_per_node", "performance", "relative_change"),
    *("build_duration", "test_duration", "data_download_duration"),
}
_LARGEST_INTEGER = 1 << 63  # of BSON's 64 bits
_NAME = "a field's name is no empty text, and has neither a dot nor a first $"


class Document(Value, frozen=True):
    """One row or object; `key` is of its content, and of how many like it came before in the file."""

    key: str
    fields: dict[str, Json]


def read_documents(file: Path) -> list[Document]:
    """Return the documents of a CSV or JSON file, the kind by its name's end, else by its first character.

    Raises:
        UsageProblem: it cannot be read, is neither, or holds nothing.
    """
    is_json = file.suffix.lower() == ".json"
    if not is_json and file.suffix.lower() != ".csv" and file.is_file():
        is_json = read_bytes(file, given=True).lstrip()[:1] in (b"{", b"[")
    found = _of_json(file) if is_json else _of_table(file)
    if not found:
        raise UsageProblem(f"{file} holds no row: there is nothing to upload", "madlite run appends rows to perf.csv")
    for name in dict.fromkeys(name for document in found for name in document.fields):
        if not name or "." in name or "\0" in name or name.startswith("$"):
            raise UsageProblem(f"{file} has a column '{name}', which MongoDB takes for no field", _NAME)
    return found


def _of_table(file: Path) -> list[Document]:
    table = read_table(file)
    if table.notes:
        raise UsageProblem(table.notes[0], "repair the file: nothing was uploaded")
    rows = [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]
    contents = [{name: text for name, text in row.items() if text.strip()} for row in rows]
    return _keyed(contents, _typed(table, rows))


def _typed(table: Table, rows: Sequence[Mapping[str, str]]) -> list[dict[str, Json]]:
    """Return the rows with their types; columns of one's own by what they hold, as in perf_entry.json."""
    others = [name for name in table.columns if name not in STANDARD_COLUMNS]
    own = typed_rows([{name: row[name] for name in others} for row in rows])
    return [
        {name: _parse_cell(more[name]) if name in more else _cell(name, row[name]) for name in row}
        for row, more in zip(rows, own, strict=True)
    ]


def _cell(name: str, text: str) -> Json:
    if not text.strip():
        return None
    number = as_number(text.strip()) if name in _NUMBERS else None
    return text if number is None else _bson_value(number)


def _of_json(file: Path) -> list[Document]:
    try:
        value = read_json(read_bytes(file, given=True))
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        at = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageProblem(f"{file} is no JSON: {why}{at}", "name a results file: perf.csv, perf_entry.json") from None
    objects = value if isinstance(value, list) else [value]
    for n, object_ in enumerate(objects, 1):
        if not isinstance(object_, dict):
            raise UsageProblem(
                f"{file}: entry {n} is no object but a {type(_bson_value(object_)).__name__}", "a list of objects"
            )
    documents: list[dict[str, Json]] = [
        {name: _bson_value(item) for name, item in object_.items()} for object_ in objects if isinstance(object_, dict)
    ]
    contents = [{name: item for name, item in document.items() if item is not None} for document in documents]
    return _keyed(contents, documents)


def _keyed(contents: Iterable[Mapping[str, Json]], documents: Iterable[dict[str, Json]]) -> list[Document]:
    """Return documents with their keys; of blanks nothing goes into a key, so that a column more changes none."""
    key = ContentKeys()
    return [Document(key=key(content), fields=fields) for content, fields in zip(contents, documents, strict=True)]


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


def _bson_value(value: Json) -> Json:
    """Return a value for BSON: numbers as Python has them, an integer too large for it as its digits."""
    if isinstance(value, msgspec.Raw):
        value = json.loads(bytes(value))
    if isinstance(value, int) and not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        return str(value)
    if isinstance(value, dict):
        return {name: _bson_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_bson_value(item) for item in value]
    return value


def _parse_cell(value: Json) -> Json:
    """Return the list or object in a cell (`configs`, `multi_results`), else the cell."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return _bson_value(value)
    try:
        return _bson_value(read_json(value.encode()))
    except (ValueError, RecursionError):
        return value


# Cells of an export that a spreadsheet opens: none of them is a formula there.
#
# Source: OWASP, "CSV Injection" (what begins with =, +, -, @, also of full width, a tab or a line's end is run), and
# its verification standard (1.2.10 adds the zero byte).  Blanks and what is not shown do not count as a beginning.

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_STARTS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
_LINES = ("\t", "\r", "\n", "\0")


def escape_formula(text: str) -> str:
    """Return a cell that a spreadsheet shows and does not run: a quote before what would be a formula."""
    first = next((char for char in text if char.isprintable() and char != " "), "")
    runs = text.startswith(_LINES) or first in _STARTS
    return f"'{text}" if runs and not _NUMBER.fullmatch(text.strip()) else text
