"""The end of perf.csv, where a writer may have died in the middle of a row.

Only the tail is read, so the cost does not grow with the file.  Nothing is taken away but half a character.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence

from madlite.model import Value
from madlite.results.header import Header
from madlite.text import unlimited_fields

_WINDOW_BYTES = 1 << 16
_WIDEST_WINDOW_BYTES = 1 << 20
_END = "\x1fend\x1f"


class Mend(Value, frozen=True):
    """What makes the last row whole: `cut` bytes to drop from the end, then `text` to append."""

    cut: int = 0
    text: str = ""


class _Ending(Value, frozen=True):
    """How a stretch of rows ends: how many were of full width, the fields of the last, whether a quote is open."""

    full: int
    last: int
    quoted: bool


def mend_of(fd: int, header: Header) -> Mend:
    """Return what the file needs before a row can follow, usually nothing.

    A row cut in the middle becomes a row of the file's width: an open quote is closed, missing cells are blank.
    """
    width = len(header.columns)
    with unlimited_fields():
        tail, ending = _ending_of(fd, width)
    if not ending.quoted and tail[-1:] in (b"", b"\n"):
        return Mend()
    if not ending.quoted and tail[-1:] == b"\r":
        return Mend(text="" if header.newline == "\r" else "\n")
    missing = max(0, width - ending.last)
    torn = ending.quoted or missing > 0
    return Mend(cut=_half_character(tail) if torn else 0, text='"' * ending.quoted + "," * missing + header.newline)


def _ending_of(fd: int, width: int) -> tuple[bytes, _Ending]:
    """Return the end of the file and how its rows end there; looks further back until it has seen a full row."""
    size, window = os.fstat(fd).st_size, _WINDOW_BYTES
    while window < size:
        _, _, tail = os.pread(fd, window, size - window).partition(b"\n")  # from the start of a line
        ending = _likeliest(_lines(tail), width)
        if ending.full or (tail and window >= _WIDEST_WINDOW_BYTES):
            return tail, ending
        window *= 4
    tail = os.pread(fd, size, 0)
    return tail, _read(_lines(tail), width)


def _lines(tail: bytes) -> list[str]:
    text = tail.decode("utf-8", "surrogateescape").replace("\0", "?")  # csv of Python 3.10 refuses NUL
    return list(io.StringIO(text, newline=""))


def _likeliest(lines: Sequence[str], width: int) -> _Ending:
    """Read lines that start outside of a quoted cell or inside of one: right is what gives rows of the file's width."""
    if not lines:
        return _Ending(full=0, last=0, quoted=False)
    alone = _read(lines[-1:], width)
    if alone.full and lines[-1].endswith("\n"):
        return alone
    outside = _read(lines, width)
    inside = _read(['"' + lines[0], *lines[1:]], width)
    return inside if inside.full > outside.full else outside


def _read(lines: Sequence[str], width: int) -> _Ending:
    # a mark on a line of its own comes back alone, unless an open quote has swallowed it
    last = lines[-1] if lines else ""
    closed = last if last.endswith(("\n", "\r")) else last + "\n"
    rows = list(csv.reader([*lines[:-1], closed, _END + "\n"]))
    quoted = rows[-1] != [_END]
    ended = rows[:-1]
    full = sum(len(cells) == width for cells in ended)
    return _Ending(full=full, last=len(rows[-1] if quoted else ended[-1]), quoted=quoted)


def _half_character(tail: bytes) -> int:
    """Return how many bytes at the end begin a UTF-8 character without ending it."""
    for size, byte in enumerate(reversed(tail[-3:]), start=1):
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return size if size < length else 0
    return 0
