"""The journal of a run, `journal.jsonl` in its folder, out of reach of its container; it goes once there is a record.

It has what the row of a run needs that is cut off, then the rows that are being appended to a results file, until the
run's record has where they are, and what `madlite clean` did with a run that was cut off.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from madlite.files import Folder, read_limited, read_plain
from madlite.model import FileName, Value, json_line
from madlite.model.results import Attempt

RUN_JOURNAL = "journal.jsonl"
_LIMIT_BYTES = 256 << 20


class RunRows(Value, frozen=True):
    """The rows of one run, cell by cell as they were appended, and to which file.

    `path` is relative to the working folder where the file is below it.  `at` is when, in UTC, `offset` the size that
    the file had and `columns` the header, none of a new file.  Where `appended` is False after the run, `kept` names
    the file in the run's folder that has them instead.  `strict_header`: they add no columns.
    """

    path: str
    cells: tuple[dict[str, str], ...]
    at: str = ""
    offset: int = 0
    columns: tuple[str, ...] = ()
    appended: bool = False
    kept: FileName = ""
    strict_header: bool = False

    def without(self, columns: Collection[str]) -> RunRows:
        """Return the rows as they are in a file whose header cannot take some columns."""
        left_out = frozenset(columns)
        cells = tuple({name: text for name, text in cell.items() if name not in left_out} for cell in self.cells)
        return msgspec.structs.replace(self, cells=cells)


class RunStart(Value, frozen=True, omit_defaults=True):
    """What the row and the record of a run need and its plan does not have: with it the next command can write them.

    `columns` are madlite's own that the row is to have, `left_out` the places of secrets of the context, `host` is the
    machine that it runs on: another one may not see its lock.
    """

    strict_header: bool = False
    columns: tuple[str, ...] = ()
    pipeline: str = ""
    build_number: str = ""
    command: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    attempt: Attempt | None = None
    host: str = ""
    side_files: bool = True  # whether MAD's files beside perf.csv get its part


class RunEntry(Value, frozen=True, omit_defaults=True):
    """One line of a run's journal: its `rows` right before they are appended, or what `clean` did with the run.

    The first line has its `start`, and the results `file` that its rows go to, as `RunRows.path`; none with --no-rows.
    Later ones have the id of the attempt that comes `next`, of a run that is tried again; or before its rows its part
    of the side files, `entries`, as text.  `interrupted`: its madlite was killed, and the rows that follow are a later
    command's.
    """

    at: str = ""
    start: RunStart | None = None
    rows: RunRows | None = None
    cleaned: str | None = None
    file: str = ""
    next: FileName = ""
    entries: str = ""
    interrupted: bool = False


_NOTHING = RunEntry()


class RunJournal(RunEntry, frozen=True):
    """All lines of a run's journal as one, of each field the last value; `at` is when the run's folder was made.

    Without `rows`, `complete` means that the run certainly has none: a journal that could not take the rows is empty.
    """

    complete: bool = False


def add_entry(home: Folder, entry: RunEntry) -> str:
    """Add a line to the journal of a run's folder, whose lock the caller has; return the error message, "" if none.

    A line that was not written leaves the others as they are.  A journal that cannot take its first rows is emptied,
    which needs no space: it must not be read as complete.
    """
    data: bytes | None = None
    fd = -1
    try:
        fd = home.open_file(RUN_JOURNAL, os.O_RDWR | os.O_APPEND)
        data = read_limited(fd, _LIMIT_BYTES, RUN_JOURNAL)
        if (whole := len(_whole_lines(data))) < len(data):  # an earlier command was killed
            os.ftruncate(fd, whole)
        line = json_line(entry)
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        is_first = entry.rows is not None and not entry.rows.appended
        if data is not None:  # else nobody knows what it has
            is_emptied = is_first and _content(data).rows is None
            with suppress(OSError):
                os.ftruncate(fd, 0 if is_emptied else len(_whole_lines(data)))
        elif fd < 0 and is_first:  # no descriptor is left, say
            home.remove(RUN_JOURNAL)
        return f"{RUN_JOURNAL} could not be written: {error.strerror}"
    finally:
        if fd >= 0:
            os.close(fd)
    return ""


def read_run(folder: Path) -> RunJournal:
    """Return the content of the journal of a run's folder; empty where there is none, or it cannot be read."""
    try:
        return _content(read_plain(folder / RUN_JOURNAL, links=False, limit_bytes=_LIMIT_BYTES))
    except OSError:
        return RunJournal()


def other_host(folder: Path) -> str:
    """Return the host on which a run began where it is not this one, "" otherwise."""
    start = read_run(folder).start
    return "" if start is None or start.host == socket.gethostname() else start.host


def _whole_lines(data: bytes) -> bytes:
    """Return what ends with a line's end: a line is written before what it tells of is done, so a torn one is void."""
    return data[: data.rfind(b"\n") + 1]


def _content(data: bytes) -> RunJournal:
    lines = _whole_lines(data).splitlines()
    entries = tuple(_decoded(lines))
    if not entries:
        return RunJournal()
    begun = entries[0].cleaned is None  # else it was emptied, or there was none, before `clean`
    fields: dict[str, Any] = {
        name: value
        for entry in entries
        for name in RunEntry.__struct_fields__
        if (value := getattr(entry, name)) != getattr(_NOTHING, name)
    }
    known = {"at": entries[0].at if begun else "", "complete": begun and len(entries) == len(lines)}
    return RunJournal(**{**fields, **known})


def _decoded(lines: Iterable[bytes]) -> Iterator[RunEntry]:
    decode = msgspec.json.Decoder(RunEntry).decode
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield decode(line)
