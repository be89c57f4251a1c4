"""Cells as lines of CSV, alike on every Python: a row is one physical line, whatever its cells hold."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

from madlite.measure.limits import CELL_BYTES, NAME_CHARACTERS, is_long, several, short_name, shortened
from madlite.model import Row

# where programs see the end of a line: str.splitlines, spreadsheets, JavaScript, `sshd` reading authorized_keys
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPELLED = {ord(char): ascii(char)[1:-1] for char in (*_BREAKS, "\0")}


def readable(text: str) -> str:
    r"""Return text that every reader of a file can read: what is no text becomes the words `\udc80` or `\x00`.

    One bad byte keeps pandas from reading the whole file, and one NUL the csv module of Python 3.10.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def plain(text: str) -> str:
    r"""Return readable text on one line: where a line would end stands `\n`, `\r`, `\u2028`, … in words.

    Another program that reads a results file line by line (a spreadsheet, a shell, a server its keys) must see no line
    that a workload made up.
    """
    return text if text.isprintable() else readable(text.translate(_SPELLED))


def plain_name(text: str) -> str:
    """Return text as the name of a column: plain, without blanks around it."""
    return plain(text.strip())


def plain_cells(row: Row) -> dict[str, str]:
    """Return a row's cells as plain text, under plain names; a cell without a name is none."""
    cells = {plain(name.strip()): plain(text) for name, text in row.cells.items()}
    return {name: text for name, text in cells.items() if name}


def comparable(cells: Iterable[str]) -> tuple[str, ...]:
    """Return a row of a file as two of them are compared: plain, however written, and without blanks at its end."""
    texts = list(map(plain, cells))
    while texts and not texts[-1]:
        texts.pop()
    return tuple(texts)


def limited_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Return plain cells of the size that a cell may have, under names that are short."""
    return {short_name(plain_name(name)): shortened(plain(text)) for name, text in cells.items()}


def cut_words(rows: Iterable[Mapping[str, str]]) -> str:
    """Return in words which columns of rows have cells or names that are cut for being too long; "" for none."""
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
