"""Cells as lines of CSV, alike on every Python."""

from __future__ import annotations

import csv
from collections.abc import Iterable

from madlite.types import Row


def plain(text: str) -> str:
    r"""Return text that every reader of the file can read: what is no text becomes the words `\udc80` or `\x00`.

    One bad byte keeps pandas from reading the whole file, and one NUL the csv module of Python 3.10.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def plain_cells(row: Row) -> dict[str, str]:
    """Return a row's cells as plain text, without blanks around their names; a cell without a name is none."""
    cells = {plain(name.strip()): plain(text) for name, text in row.cells.items()}
    return {name: text for name, text in cells.items() if name}


class _Echo:
    def write(self, text: str) -> str:
        return text


def csv_line(cells: Iterable[str], newline: str) -> str:
    r"""Return one line: cells with a comma, quote or line end are quoted, all others stand as they are."""
    # csv's own "\r\n" makes it quote a lone "\r", which with "\n" only Python 3.13 does
    line: str = csv.writer(_Echo(), lineterminator="\r\n").writerow(cells)
    return line.removesuffix("\r\n") + newline
