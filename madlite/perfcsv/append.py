"""Append rows to perf.csv, safely among concurrent writers.

Text in, text out: no cell is parsed, so what an earlier run wrote stays as it was written.  The format, its columns
and the guarantees: docs/perf-csv.md (source: madengine 1.0 and 2.1, observed).
"""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from madlite.errors import RecordError
from madlite.files import Folder, outside, sync_folder
from madlite.model import Value
from madlite.perfcsv.header import (
    MOST_AT_ONCE,
    MOST_COLUMNS,
    STANDARD_COLUMNS,
    Header,
    csv_line,
    may_join,
    plain_cells,
    plain_name,
    read_header,
    text_of,
)
from madlite.perfcsv.locked import LockedFile, as_record_error, inspected, locked
from madlite.store.folder import SAVED_ROWS
from madlite.text import unlimited_fields

# The end of perf.csv, where a writer may have died in the middle of a row.
#
# Where the last line is a row by itself nothing else is read, so the cost does not grow with the file.  Only a partial
# character is removed.

_LINE_BYTES = 1 << 12  # most files end with a whole row of fewer
_END = "\x1fend\x1f"


class Repair(Value, frozen=True):
    """Completes the last row: `cut` bytes to drop from the end, then `text` to append."""

    cut: int = 0
    text: str = ""


class _Ending(Value, frozen=True):
    """How a stretch of rows ends: how many were of full width, the fields of the last, whether a quote is open."""

    full: int
    last: int
    quoted: bool


def repair_of(fd: int, header: Header) -> Repair:
    """Return what the file needs before a row can follow, usually nothing.

    A row cut in the middle becomes a row of the file's width: an open quote is closed, missing cells are blank.
    """
    width = len(header.columns)
    with unlimited_fields():
        tail, ending = _ending_of(fd, width)
    if not ending.quoted and tail[-1:] in (b"", b"\n"):
        return Repair()
    if not ending.quoted and tail[-1:] == b"\r":
        return Repair(text="" if header.newline == "\r" else "\n")
    missing = max(0, width - ending.last)
    torn = ending.quoted or missing > 0
    return Repair(
        cut=_partial_character_bytes(tail) if torn else 0, text='"' * ending.quoted + "," * missing + header.newline
    )


def _ending_of(fd: int, width: int) -> tuple[bytes, _Ending]:
    """Return the end of the file and how its rows end there; all of it where the last line is no row by itself."""
    size = os.fstat(fd).st_size
    if size > _LINE_BYTES:
        _, _, tail = os.pread(fd, _LINE_BYTES, size - _LINE_BYTES).partition(b"\n")
        lines = _lines(tail)
        alone = _read(lines[-1:], width)
        if alone.full and lines[-1].endswith("\n"):  # as it nearly always is
            return tail, alone
    tail = os.pread(fd, size, 0)
    return tail, _read(_lines(tail), width)


def _lines(tail: bytes) -> list[str]:
    text = tail.decode("utf-8", "surrogateescape").replace("\0", "?")  # csv of Python 3.10 refuses NUL
    return list(io.StringIO(text, newline=""))


def _read(lines: Sequence[str], width: int) -> _Ending:
    # a marker on a line of its own is read as a row, unless a quote is open
    last = lines[-1] if lines else ""
    closed = last if last.endswith(("\n", "\r")) else last + "\n"
    rows = list(csv.reader([*lines[:-1], closed, _END + "\n"]))
    quoted = rows[-1] != [_END]
    ended = rows[:-1]
    full = sum(len(cells) == width for cells in ended)
    return _Ending(full=full, last=len(rows[-1] if quoted else ended[-1]), quoted=quoted)


def _partial_character_bytes(tail: bytes) -> int:
    """Return how many bytes at the end begin a UTF-8 character without ending it."""
    for size, byte in enumerate(reversed(tail[-3:]), start=1):
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return size if size < length else 0
    return 0


# Result columns join the header of perf.csv: the one case in which the file is written anew.

_WIDENING = "widening"  # of the new file until it is whole: only the holder of the lock writes one


def add_columns(file: LockedFile, joining: Sequence[str], rows: Iterable[Mapping[str, str]]) -> None:
    """Replace the file by one with `joining` at the end of its header and `rows` at its end.

    A kill leaves the old file or the new one; mode, owner and the text of every field are preserved.

    Raises:
        RecordError: the new file cannot be written beside the old one, an earlier row cannot be read as CSV, or another
            program replaced the file meanwhile.
    """
    try:
        _replace(file, joining, rows)
    except OSError as error:
        raise RecordError(
            f"{file.target} cannot be rewritten for new columns ({', '.join(joining)}): {error.strerror or error}",
            "append without them: madlite run --strict-header",
        ) from error
    sync_folder(file.target.parent)


def _replace(file: LockedFile, joining: Sequence[str], rows: Iterable[Mapping[str, str]]) -> None:
    with file.replaced(_WIDENING) as new:
        new.writelines(line.encode("utf-8", "surrogateescape") for line in _lines_with_columns(file, joining, rows))
        new.flush()
        os.fsync(new.fileno())
        if not file.is_current():
            raise RecordError(f"{file.target} was replaced by another program; no row was added", "run it again")


def _lines_with_columns(file: LockedFile, joining: Sequence[str], rows: Iterable[Mapping[str, str]]) -> Iterator[str]:
    with unlimited_fields(), text_of(file.fd) as text:
        header = read_header(file.target, text) or Header(columns=())
        wide = msgspec.structs.replace(header, columns=(*header.columns, *joining))
        yield wide.line
        records = csv.reader(text)
        try:
            for cells in records:
                yield csv_line(_with_blanks(cells, len(header.columns), len(joining)), wide.newline)
        except csv.Error as error:
            raise _unreadable(file.target, records.line_num, error) from error
        for row in rows:
            yield csv_line(wide.arrange(row), wide.newline)


def _with_blanks(cells: list[str], width: int, more: int) -> list[str]:
    """Put blanks under the new columns; cells beyond the header stay beyond it."""
    if not cells:
        return cells  # a blank line is no row
    missing = max(0, width - len(cells))
    return [*cells[:width], *[""] * (missing + more), *cells[width:]]


def _unreadable(path: Path, line: int, error: csv.Error) -> RecordError:
    return RecordError(
        f"{path}: no column can join it, for line {line} after its header is not valid CSV: {error}",
        "fix the line, or append without new columns: madlite run --strict-header",
    )


_Cells = Mapping[str, str]
_NAMED = 5
_log = logging.getLogger(__name__)


def append_rows(
    path: Path,
    rows: Sequence[_Cells],
    *,
    strict_header: bool = False,
    before_write: Callable[[int, tuple[str, ...]], None] = lambda size, columns: None,
    leave_out: Callable[[tuple[str, ...]], None] | None = None,
    target: Path | None = None,
    begin: Sequence[str] = STANDARD_COLUMNS,
) -> None:
    """Append one line per row, in the order of the header that the file has; a new file gets the columns `begin`.

    Cells of standard columns that a file lacks are left out.  Other columns join its header at the end, or are left out
    with `strict_header`, or where the header is full: `leave_out` gets those, or the log.
    `before_write` is called right before, with the file's size and columns (none of a new one), under its lock.  Where
    the path no longer leads to `target`, the rows do not follow.

    Raises:
        RecordError: the rows are not in the file, and what was there before is.
    """
    cells = [plain_cells(row) for row in rows]
    if not cells:
        return
    with as_record_error(path), locked(path, target) as file:
        header = _header(path, file)
        joining = () if strict_header else joining_columns(header.columns if header else (), cells)
        if joining and not may_join(header or Header(columns=tuple(begin)), joining):
            leave_out(joining) if leave_out else _log.warning("%s", left_out_text(path, joining))
            joining = ()
        before_write(os.fstat(file.fd).st_size, header.columns if header else ())
        if header is not None and joining:
            _repair(file, header)
            add_columns(file, joining, cells)
        else:
            _append(file, *_bytes_to_append(file, header, (*begin, *joining), cells))


def cut_torn(path: Path, rows: Sequence[_Cells], offset: int) -> None:
    """Take away the row that a kill cut in the middle while these were appended at an offset, if nothing followed it.

    Left there it would become a row of its own, perhaps with half of a number.

    Raises:
        RecordError: the file cannot be read or written.
    """
    with as_record_error(path), locked(path) as file:
        header = _header(path, file)
        size = os.fstat(file.fd).st_size
        if header is None or not offset or size <= offset:
            return
        whole = _encoded(header, map(plain_cells, rows))
        there = os.pread(file.fd, len(whole) + 1, offset)
        if len(there) < len(whole) and whole.startswith(there):
            os.ftruncate(file.fd, offset + there.rfind(b"\n") + 1)


def _bytes_to_append(
    file: LockedFile, header: Header | None, columns: tuple[str, ...], cells: Iterable[_Cells]
) -> tuple[int, bytes]:
    """Return how many bytes at the end of a file go, and the bytes to append; a new file gets `columns`."""
    if header is None:
        new = Header(columns=columns)
        return os.fstat(file.fd).st_size, new.line.encode() + _encoded(new, cells)  # only blank lines are replaced
    repair = repair_of(file.fd, header)
    return repair.cut, repair.text.encode() + _encoded(header, cells)


def check_appendable(path: Path, root: Path | None = None) -> None:
    """Check before a run that `append_rows` could save its result; creates and changes nothing.

    Raises:
        RecordError: as `append_rows` would raise it; or a link leads out of the folder `root` in which the path is
            written, and not to a results file: a workload may have made it.
    """
    with as_record_error(path), inspected(path) as file:
        header = _header(path, file) if file is not None else None
    if header is None and (target := outside(path, root)) is not None:
        what = f"{path} leads to {target} by a link, and there is no results file"
        raise RecordError(f"{what}: nothing is made there", f"-o {target}   names it without the link")


def check_replaceable(path: Path, file: LockedFile) -> None:
    """Check that what a path led to may be replaced: what a link leads to elsewhere has to be a results file.

    Raises:
        RecordError: it is none.
    """
    if outside(path) is not None:
        _header(path, file)


def is_results_file(path: Path) -> bool:
    """Return whether a path leads to a plain file that begins with a results file's header."""
    try:
        with inspected(path) as file:
            return file is not None and _header(path, file) is not None
    except (RecordError, OSError):
        return False


def save_rows(rows: Sequence[_Cells], folder: Folder, begin: Sequence[str] = STANDARD_COLUMNS) -> Path:
    """Write rows that perf.csv could not take into the run folder, under a header of their own; return the file.

    Raises:
        RecordError: the folder cannot be written either.
    """
    saved = folder.path / SAVED_ROWS
    cells = [plain_cells(row) for row in rows]
    header = Header(columns=(*begin, *joining_columns((), cells)))
    with as_record_error(saved):
        folder.write(SAVED_ROWS, header.line.encode() + _encoded(header, cells))
    return saved


def _header(path: Path, file: LockedFile) -> Header | None:
    """Return the header of a file, None of one that is new or blank.

    Raises:
        RecordError: it is no results file; a blank one that a link elsewhere leads to may be anything.
    """
    with text_of(file.fd) as text:
        header = read_header(path, text)
    if header is None and not file.is_new and outside(path) is not None:
        raise RecordError(f"{path} is a link to {file.target}, which is empty and no results file", f"rm {path}")
    return header


def joining_columns(columns: Iterable[str], rows: Iterable[_Cells]) -> tuple[str, ...]:
    """Return the result columns that the header lacks, in the order in which they first appear."""
    columns = tuple(columns)
    known = {*columns, *STANDARD_COLUMNS}
    new = dict.fromkeys(name for row in rows for name in row if name not in known)
    others = {plain_name(name) for name in columns} if new else set()  # of a header that another program wrote
    return tuple(name for name in new if name not in others)


def left_out_text(path: Path | str, joining: Sequence[str]) -> str:
    """Return a message that names the columns for which a file's header has no room."""
    names = ", ".join(name if len(name) <= 40 else f"{name[:40]}…" for name in joining[:_NAMED])
    more = f" and {len(joining) - _NAMED} more" if len(joining) > _NAMED else ""
    return (
        f"{path}: left out of a row, for its header has no room for them ({MOST_AT_ONCE} columns and 8 KiB at once, "
        f"{MOST_COLUMNS} and 64 KiB in all): {names}{more}"
    )


def _repair(file: LockedFile, header: Header) -> None:
    repair = repair_of(file.fd, header)
    if repair.cut or repair.text:
        _append(file, repair.cut, repair.text.encode())


def _encoded(header: Header, rows: Iterable[_Cells]) -> bytes:
    return "".join(csv_line(header.arrange(row), header.newline) for row in rows).encode()


def _append(file: LockedFile, cut: int, data: bytes) -> None:
    """Add the bytes in one write, all or none of them, in place of the last `cut` bytes, and wait for the disk."""
    size = os.fstat(file.fd).st_size - cut
    if cut:
        os.ftruncate(file.fd, size)
    try:
        written = os.write(file.fd, data)
        if written < len(data):
            what = f"{written} of {len(data)} bytes fitted; it is as it was"
            raise RecordError(f"no space for a row of {file.target}: {what}", f"df -h {file.target.parent}")
        os.fsync(file.fd)
    except BaseException:
        with suppress(OSError):  # the next writer repairs what is left
            os.ftruncate(file.fd, size)
        raise
    if file.is_new:
        sync_folder(file.target.parent)
