"""What both the page and the mail say of a table."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from madlite.reports.cells import harmless
from madlite.reports.doubts import doubted
from madlite.reports.table import Table

_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+([eE][-+]?\d+)?")
_KEPT = "\t\n\r"
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def count(table: Table) -> str:
    """Return how many rows there are, and of each status: `3 rows: 1 SUCCESS, 1 SUCCESS (suspect), 1 FAILURE`."""
    text = "1 row" if len(table.rows) == 1 else f"{len(table.rows)} rows"
    if "status" not in table.columns:
        return text
    column = table.columns.index("status")
    counts = Counter(row[column] + " (suspect)" * doubted(table, row) for row in table.rows if row[column])
    return text + (": " + ", ".join(f"{n} {status}" for status, n in counts.most_common()) if counts else "")


def kinds(table: Table) -> tuple[str, ...]:
    """Return for each column how it is shown: `status`, `number` where it holds nothing else, or `text`."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    return tuple(_kind(name, cells) for name, cells in zip(table.columns, columns, strict=True))


def _kind(name: str, cells: tuple[str, ...]) -> str:
    if name == "status":
        return "status"
    written = [cell for cell in cells if cell.strip()]
    return "number" if written and all(_NUMBER.fullmatch(cell.strip()) for cell in written) else "text"


def visible(text: str) -> str:
    """Return the text with control characters spelled out, which HTML has not, and those that turn text around."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _is_control(c) else c for c in text)


def cell(text: str) -> str:
    """Return a cell's text, visible, and no formula where somebody copies the table into a spreadsheet."""
    return visible(harmless(text))


def _is_control(character: str) -> bool:
    return character in _TURNING or (unicodedata.category(character) == "Cc" and character not in _KEPT)
