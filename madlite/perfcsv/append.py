"""Append rows to perf.csv, safely among concurrent writers.

Text in, text out: no cell is parsed, so what an earlier run wrote stays as it was written.  The format, its columns
and the guarantees: docs/perf-csv.md (source: madengine 1.0 and 2.1, observed).
"""

from __future__ import annotations

import codecs
import csv
import errno
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.files import NO_SPACE, folder_of, is_plain, is_read_only, outside, replacing_file, sync_folder
from madlite.model import Value
from madlite.perfcsv.rows import (
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
from madlite.store.events import now
from madlite.store.folder import RunRows
from madlite.store.locks import acquire, release
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


def repair_of(fd: int, header: Header) -> Repair:
    """Return what the file needs before a row can follow, usually nothing.

    A row cut in the middle becomes a row of the file's width: an open quote is closed, missing cells are blank.
    """
    width = len(header.columns)
    with unlimited_fields():
        tail, cells, quoted = _ending_of(fd, width)
    if not quoted and tail[-1:] in (b"", b"\n"):
        return Repair()
    if not quoted and tail[-1:] == b"\r":
        return Repair(text="" if header.newline == "\r" else "\n")
    missing = max(0, width - cells)
    torn = quoted or missing > 0
    return Repair(cut=_partial_character_bytes(tail) if torn else 0, text='"' * quoted + "," * missing + header.newline)


def _ending_of(fd: int, width: int) -> tuple[bytes, int, bool]:
    """Return the end of the file, how many cells its last row has, and whether a quote is open in that.

    It is all of the file where the last line is no row by itself.
    """
    size = os.fstat(fd).st_size
    if size > _LINE_BYTES:
        _, _, tail = os.pread(fd, _LINE_BYTES, size - _LINE_BYTES).partition(b"\n")
        lines = _lines(tail)
        alone = _read(lines[-1:])
        if alone == (width, False) and lines[-1].endswith("\n"):  # as it nearly always is
            return tail, *alone
    tail = os.pread(fd, size, 0)
    return tail, *_read(_lines(tail))


def _lines(tail: bytes) -> list[str]:
    text = tail.decode("utf-8", "surrogateescape").replace("\0", "?")  # csv of Python 3.10 refuses NUL
    return list(io.StringIO(text, newline=""))


def _read(lines: Sequence[str]) -> tuple[int, bool]:
    # a marker on a line of its own is read as a row, unless a quote is open
    last = lines[-1] if lines else ""
    closed = last if last.endswith(("\n", "\r")) else last + "\n"
    rows = list(csv.reader([*lines[:-1], closed, _END + "\n"]))
    quoted = rows[-1] != [_END]
    return len(rows[-1] if quoted else rows[-2]), quoted


def _partial_character_bytes(tail: bytes) -> int:
    """Return how many bytes at the end begin a UTF-8 character without ending it."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    decoder.decode(tail[-3:])
    return len(decoder.getstate()[0])


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
        with file.replaced(_WIDENING) as new:
            new.writelines(line.encode("utf-8", "surrogateescape") for line in _lines_with_columns(file, joining, rows))
            new.flush()
            os.fsync(new.fileno())
            if not file.is_current():
                raise RecordError(f"{file.target} was replaced by another program; no row was added", "run it again")
    except OSError as error:
        raise RecordError(
            f"{file.target} cannot be rewritten for new columns ({', '.join(joining)}): {error.strerror or error}",
            "append without them: madlite run --strict-header",
        ) from error
    sync_folder(file.target.parent)


def _lines_with_columns(file: LockedFile, joining: Sequence[str], rows: Iterable[Mapping[str, str]]) -> Iterator[str]:
    with unlimited_fields(), text_of(file.fd) as text:
        header = read_header(file.target, text) or Header(columns=())
        wide = replace(header, columns=(*header.columns, *joining))
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


class RunAppend(NamedTuple):
    """The rows of one run that go to a file, but for the first that are `written`.

    `note` gets them right before, under the file's lock, with the file's size and columns and without those for which
    it has no room; it returns them as they are recorded, None where they are not to be written.
    """

    rows: RunRows
    note: Callable[[RunRows], RunRows | None]
    written: int = 0


def append_rows(path: Path, rows: Sequence[_Cells], *, strict_header: bool = False) -> tuple[str, ...]:
    """Append one line per row, as `append_runs` does; return the columns that are left out, which the log has, too.

    Raises:
        RecordError: the rows are not in the file, and what was there before is.
    """
    if not rows:
        return ()
    run = RunRows(path=str(path), cells=tuple(map(dict, rows)), strict_header=strict_header)
    ((_, left_out),) = append_runs(path, [RunAppend(run, lambda tried: tried)])
    if left_out:
        _log.warning("%s", left_out_text(path, left_out))
    return left_out


def append_runs(
    path: Path, runs: Sequence[RunAppend], *, target: Path | None = None, begin: Sequence[str] = STANDARD_COLUMNS
) -> list[tuple[RunRows, tuple[str, ...]]]:
    """Append the rows of runs by one write, in the order of the header that the file has; a new one gets `begin`.

    Cells of standard columns that a file lacks are left out.  Other columns join its header at the end, or are left out
    of a run with `strict_header`, or where the header is full.  Where the path no longer leads to `target`, the rows do
    not follow.

    Returned are the rows of each run as they are in the file, and the columns for which that has no room; those that
    were not to be written are not `appended`.

    Raises:
        RecordError: no row is in the file, and what was there before is.
    """
    done: list[tuple[RunRows, tuple[str, ...]]] = []
    with as_record_error(path), locked(path, target) as file:
        header, size = _header(path, file), os.fstat(file.fd).st_size
        wide, left_out = header or Header(columns=tuple(begin)), list[tuple[str, ...]]()
        for run in runs:
            wide, without = widened(wide, run.rows)
            left_out.append(without)
        columns = header.columns if header is not None else ()
        repair = (
            repair_of(file.fd, header) if header is not None else Repair(cut=size, text=wide.line)
        )  # of blank lines
        data, rows = bytearray(repair.text.encode()), list[_Cells]()
        for run, without in zip(runs, left_out, strict=True):
            # where its own begin, as a kill amid the write leaves those before some byte
            offset = size - repair.cut + len(data) if done else size
            tried = replace(run.rows.without(without), at=now(), offset=offset, columns=columns)
            if (noted := run.note(tried)) is not None:
                own = [plain_cells(cells) for cells in tried.cells[run.written :]]
                data += _encoded(wide, own)
                rows += own
                tried = replace(noted, appended=True)
            done.append((tried, without))
        if header is not None and wide.columns != columns:
            if repair != Repair():
                _append(file, repair.cut, repair.text.encode())
            add_columns(file, wide.columns[len(columns) :], rows)
        elif rows:
            _append(file, repair.cut, bytes(data))
    return done


def cut_torn(path: Path, rows: Sequence[_Cells], offset: int) -> None:
    """Take away the row that a kill cut in the middle while these were appended at an offset, if nothing followed it.

    Left there it would become a row of its own, perhaps with half of a number.

    Raises:
        RecordError: the file cannot be read or written.
    """
    with as_record_error(path), locked(path) as file:
        header = _header(path, file)
        if header is None:
            return
        begin = offset or len(header.line.encode())  # of a new file
        whole = _encoded(header, map(plain_cells, rows))
        there = os.pread(file.fd, len(whole) + 1, begin)
        if there and len(there) < len(whole) and whole.startswith(there):
            os.ftruncate(file.fd, begin + there.rfind(b"\n") + 1)


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


def widened(header: Header, rows: RunRows) -> tuple[Header, tuple[str, ...]]:
    """Return a header with the columns of a run's rows, and those of them for which it has no room."""
    cells = map(plain_cells, rows.cells)
    joining = () if rows.strict_header else joining_columns(header.columns, cells)
    if joining and not may_join(header, joining):
        return header, joining
    return replace(header, columns=(*header.columns, *joining)), ()


def left_out_text(path: Path | str, joining: Sequence[str]) -> str:
    """Return a message that names the columns for which a file's header has no room."""
    names = ", ".join(name if len(name) <= 40 else f"{name[:40]}…" for name in joining[:_NAMED])
    more = f" and {len(joining) - _NAMED} more" if len(joining) > _NAMED else ""
    return (
        f"{path}: left out of a row, for its header has no room for them ({MOST_AT_ONCE} columns and 8 KiB at once, "
        f"{MOST_COLUMNS} and 64 KiB in all): {names}{more}"
    )


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


# perf.csv and the files beside it: opened, locked and replaced, with errors as messages.


# Links among the files that madlite writes: a user or a workload may have made them.
#
# A link inside of its folder is followed.  One that leads out of it is followed to an existing results file, or to a
# side file of the same name; nothing is created outside, and no other file is overwritten.


def check_side_file(path: Path) -> None:
    """Check that a side file is no link to a file of another name outside of its folder.

    Raises:
        RecordError: it is one, and what it leads to is not overwritten.
    """
    target = outside(path)
    if target is not None and target.name != path.name:
        what = f"{path} is a link to {target}, which has another name: it is left as it is"
        raise RecordError(what, f"rm {path}")


class LockedFile(Value, frozen=True):
    """A file that nobody else appends to: its path with links resolved, its descriptor, and if it is new."""

    target: Path
    fd: int
    is_new: bool = False

    def is_current(self) -> bool:
        """Return whether the path still names the open file: a writer that adds columns replaces it."""
        try:
            return os.path.samestat(self.target.lstat(), os.fstat(self.fd))
        except FileNotFoundError:
            return False

    @contextmanager
    def replaced(self, mark: str) -> Iterator[IO[bytes]]:
        """Yield a stream whose bytes take the place of the file, as `replacing_file` does with a mark.

        The new file is locked too: the next writer uses the same mark, after this one has cleared away what it made.

        Raises:
            OSError: it cannot be written; what was there is as it was.
        """
        with replacing_file(self.target, mark) as new:
            acquire(new.fileno(), None)
            yield new


@contextmanager
def locked(path: Path, target: Path | None = None) -> Iterator[LockedFile]:
    """Open the file that `path` names, make it where there is none, and lock it.

    Raises:
        RecordError: it cannot be opened or locked, is no plain file, or is another one than `target`.
        OSError: from the body, as it comes.
    """
    while True:
        file = _opened(path, target)
        try:
            _lock(path, file.fd, None)
            if file.is_current():
                yield file
                return
        finally:
            release(file.fd)


@contextmanager
def inspected(path: Path) -> Iterator[LockedFile | None]:
    """Open the file as `locked` would, without creating it and without waiting; None where there is none yet."""
    target = plain_target(path)
    try:
        fd = _open(target, make=False)
    except FileNotFoundError:
        _check_folder(target.parent)
        yield None
        return
    try:
        _lock(path, fd, 0)
        yield LockedFile(target=target, fd=fd)
    finally:
        os.close(fd)


@contextmanager
def as_record_error(path: Path) -> Iterator[None]:
    """Turn an OSError about `path` into a RecordError with a message."""
    try:
        yield
    except OSError as error:
        raise _record_error(path, error) from error


def _opened(path: Path, expected: Path | None) -> LockedFile:
    target = plain_target(path)
    if expected is not None and target != expected:
        what = f"{path} leads to {target} since the command began: it is not written to"
        raise RecordError(what, f"ls -l {path}   shows the link that was laid")
    while True:
        try:
            return LockedFile(target=target, fd=_open(target, make=False))
        except FileNotFoundError:
            with suppress(FileExistsError):  # another one makes it at this moment
                return LockedFile(target=target, fd=_open(target, make=True), is_new=True)


def plain_target(path: Path) -> Path:
    """Return the file that a path names, there or not yet: a link stays a link, and what it names is replaced.

    Raises:
        RecordError: it is a device, a pipe, a file of the kernel's, one that has no name any more, or a link out of its
            folder to what is not there.
    """
    target = Path(os.path.realpath(path))
    with suppress(OSError):  # missing or not accessible: opening it raises
        path.stat()
        if not (target.is_dir() or is_plain(target)):
            raise _no_plain_file(path)
    if target.parts[1:2] in (("proc",), ("sys",)):
        raise _no_plain_file(path)
    if outside(path) is not None and not target.exists():
        raise RecordError(f"{path} is a link to {target}, which is not there", f"-o {target}   or rm {path}")
    return target


def _open(target: Path, *, make: bool) -> int:
    with folder_of(target) as (folder, name):
        return folder.open_file(name, os.O_RDWR | os.O_APPEND | (os.O_EXCL if make else 0), make=make)


def _no_plain_file(path: Path) -> RecordError:
    return RecordError(f"{path} is no plain file, so it is not written to", "name a plain file: -o FILE")


def make_folder(path: Path) -> None:
    """Make the folder of a file that is to be made.

    Raises:
        RecordError: it cannot be made.
    """
    with as_record_error(path):
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)


def _check_folder(folder: Path) -> None:
    """Check that a file can be made in a folder, and the folder where it is not there yet."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _lock(path: Path, fd: int, limit_s: float | None) -> None:
    try:
        acquire(fd, limit_s)
    except BlockingIOError:
        return  # only without waiting: another process appends right now, so locks work
    except OSError as error:
        raise RecordError(
            f"{path} cannot be locked on its file system ({error.strerror}), so rows of two runs could be lost",
            "keep it on a local disk or an NFS that locks: -o /path/on/local/disk/perf.csv",
        ) from error


def _record_error(path: Path, error: OSError) -> RecordError:
    folder = Path(os.path.realpath(path)).parent
    if error.errno == errno.EISDIR:
        return RecordError(f"{path} is a folder, not a file to append rows to", f"name a file: -o {path}/perf.csv")
    if error.errno == errno.ENOTDIR:
        file = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
        return RecordError(f"{path} cannot be made: {file} is no folder", "choose another file: -o FILE")
    if error.errno == errno.ENOENT:
        return RecordError(f"{path} cannot be made: there is no folder {folder}", f"mkdir -p {folder}")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = os.strerror(errno.EROFS) if is_read_only(folder) else error.strerror
        return RecordError(f"{path} cannot be written: {why}", f"ls -ld {folder} {path}   or another file: -o FILE")
    if error.errno in NO_SPACE:
        return RecordError(f"no space left for {path} ({error.strerror}); it is as it was", f"df -h {folder}")
    return RecordError(f"{path} cannot be written: {error.strerror or error}", "choose another file: -o FILE")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file that `path` names, links followed; mode and owner of an earlier one are kept.

    Callers hold a lock: the temporary file has a fixed name, so that the next writer replaces what a killed one left.

    Raises:
        OSError: it cannot be written; what was there is as it was.
        RecordError: it is a device, a pipe or the like, which must not become a file.
    """
    with replacing_file(plain_target(path), "new") as new:
        new.write(data)
