"""Append rows to perf.csv, safely among concurrent writers.

Text in, text out: no cell is parsed, so what an earlier run wrote stays as it was written.  The format, its columns
and the guarantees: docs/perf-csv.md (source: madengine 1.0 and 2.1, observed).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from madlite.errors import RecordError
from madlite.record.header import MOST_AT_ONCE, MOST_COLUMNS, STANDARD_COLUMNS, Header, may_join, read_header, text_of
from madlite.record.lines import csv_line, plain_cells
from madlite.record.locked import Held, explained, held, looked_at
from madlite.record.tail import mend_of
from madlite.record.whole import sync_folder
from madlite.record.widen import widen
from madlite.types import Row

SAVED_NAME = "rows.csv"

_Cells = Mapping[str, str]
_NAMED = 5
_log = logging.getLogger(__name__)


def append_rows(
    path: Path,
    rows: Sequence[Row],
    *,
    strict_header: bool = False,
    sync: bool = True,
    intend: Callable[[int, tuple[str, ...]], None] = lambda size, columns: None,
    leave_out: Callable[[tuple[str, ...]], None] | None = None,
) -> None:
    """Append one line per row, in the order of the header that the file has; a new file gets the standard one.

    Cells of standard columns that an older file lacks are left out.  Other columns it lacks join its header at the
    end, or are left out with `strict_header`.  Those for which the header has no room are left out too: `leave_out` is
    called with them, or where there is none they are told in the log.  `sync` waits until the disk has the rows.
    `intend` is called right before, with the size that the file has and its columns, none of a new one, while nobody
    else can append.

    Raises:
        RecordError: the rows are not in the file, and what was there before is.
    """
    cells = [plain_cells(row) for row in rows]
    if not cells:
        return
    with explained(path), held(path) as file:
        header = _header(path, file)
        joining = () if strict_header else joining_columns(header.columns if header else (), cells)
        if joining and not may_join(header or Header(columns=STANDARD_COLUMNS), joining):
            leave_out(joining) if leave_out else _log.warning("%s", left_out_words(path, joining))
            joining = ()
        intend(os.fstat(file.fd).st_size, header.columns if header else ())
        if header is None:
            _begin(file, Header(columns=(*STANDARD_COLUMNS, *joining)), cells, sync)
            return
        _mend(file, header)
        if joining:
            widen(file, joining, cells)
        else:
            _append(file, _encoded(header, cells), sync)


def check_appendable(path: Path) -> None:
    """Find before a run what would keep `append_rows` from saving its result; makes and changes nothing.

    Raises:
        RecordError: as `append_rows` would raise it.
    """
    with explained(path), looked_at(path) as file:
        if file is not None:
            _header(path, file)


def save_beside(rows: Sequence[Row], folder: Path) -> Path:
    """Write rows that perf.csv could not take into the run folder, under a header of their own; return the file.

    Raises:
        RecordError: the folder cannot be written either.
    """
    saved = folder / SAVED_NAME
    cells = [plain_cells(row) for row in rows]
    header = Header(columns=(*STANDARD_COLUMNS, *joining_columns((), cells)))
    with explained(saved):
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{SAVED_NAME}"
        try:
            beside.unlink(missing_ok=True)
            with beside.open("xb") as file:
                file.write(header.line.encode() + _encoded(header, cells))
            beside.replace(saved)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    return saved


def _header(path: Path, file: Held) -> Header | None:
    with text_of(file.fd) as text:
        return read_header(path, text)


def joining_columns(columns: Iterable[str], rows: Iterable[_Cells]) -> tuple[str, ...]:
    """Return the result columns that the header lacks, in the order in which they first appear."""
    known = {*columns, *STANDARD_COLUMNS}
    return tuple(dict.fromkeys(name for row in rows for name in row if name not in known))


def left_out_words(path: Path | str, joining: Sequence[str]) -> str:
    """Return in words which columns a file's header has no room for."""
    names = ", ".join(name if len(name) <= 40 else f"{name[:40]}…" for name in joining[:_NAMED])
    more = f" and {len(joining) - _NAMED} more" if len(joining) > _NAMED else ""
    return (
        f"{path}: left out of a row, for its header has no room for them ({MOST_AT_ONCE} columns and 8 KiB at once, "
        f"{MOST_COLUMNS} and 64 KiB in all): {names}{more}"
    )


def _begin(file: Held, header: Header, rows: Iterable[_Cells], sync: bool) -> None:
    if os.fstat(file.fd).st_size:
        os.ftruncate(file.fd, 0)  # blank lines at the most
    _append(file, header.line.encode() + _encoded(header, rows), sync)
    if sync and file.is_new:
        sync_folder(file.target.parent)


def _mend(file: Held, header: Header) -> None:
    mend = mend_of(file.fd, header)
    if mend.cut:
        os.ftruncate(file.fd, os.fstat(file.fd).st_size - mend.cut)
    if mend.text:
        _append(file, mend.text.encode(), sync=False)


def _encoded(header: Header, rows: Iterable[_Cells]) -> bytes:
    return "".join(csv_line(header.arrange(row), header.newline) for row in rows).encode()


def _append(file: Held, data: bytes, sync: bool) -> None:
    """Add the bytes in one write, all or none of them."""
    size = os.fstat(file.fd).st_size
    try:
        written = os.write(file.fd, data)
        if written < len(data):
            raise RecordError(
                f"no space for a row of {file.target}: {written} of {len(data)} bytes fitted; it is as it was",
                f"df -h {file.target.parent}",
            )
        if sync:
            os.fsync(file.fd)
    except BaseException:
        with suppress(OSError):  # the next writer mends what is left
            os.ftruncate(file.fd, size)
        raise
