"""Pending rows: recorded in a run's journal, and perhaps not in their results file.

A run records its rows right before it appends them, and removes its journal once its record has where they are.  For a
run that was killed in between, the results file is searched for them.
"""

from __future__ import annotations

import csv
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from madlite.errors import RecordError
from madlite.files import open_plain
from madlite.perfcsv.header import Header, comparable, read_header, recorded_row, text_of
from madlite.plan.inputs import RUNS
from madlite.store.events import EventLog, RebuildStarted
from madlite.store.journal import RunRows
from madlite.text import unlimited_fields


def rows_path(perf_csv: Path, workspace: Path) -> str:
    """Return how a results file is named in the records of a working folder."""
    target, home = (Path(os.path.realpath(path)) for path in (perf_csv, workspace))  # also of a loop of links
    return str(target.relative_to(home)) if target.is_relative_to(home) else str(target)


def are_in_file(rows: RunRows, workspace: Path, others: Sequence[RunRows]) -> bool | None:
    """Return whether a run's rows are in their file; None where it cannot be read.

    `others` are the rows that runs certainly appended.  Two runs can have equal rows (both failed before they began,
    say), so equal rows are counted: there have to be more than the others account for.  Where no column has joined
    since and the file was not rebuilt, only rows behind the recorded size count.
    """
    try:
        with reading_rows(workspace / rows.path) as (header, there):
            columns = header.columns if header is not None else ()
            wanted = [recorded_row(cells, columns) for cells in rows.cells] if columns else []
            found = list(_groups(wanted, there))
    except FileNotFoundError:
        return False
    except (OSError, csv.Error, RecordError):
        return None
    same_file = [run_rows for run_rows in others if run_rows.path == rows.path and run_rows.cells == rows.cells]
    rebuilt = _rebuilt_at(rows.path, workspace)
    if rows.at >= rebuilt and (columns == rows.columns or not rows.columns):
        found = [end for end in found if end > rows.offset]
        same_file = [
            run_rows
            for run_rows in same_file
            if run_rows.offset >= rows.offset and (run_rows.at >= rebuilt or not rows.offset)
        ]
    return len(found) > len(same_file)


def count_written(rows: RunRows, workspace: Path, others: Sequence[RunRows]) -> int:
    """Return how many of a run's rows the file has, where a kill amid their write left the first ones alone; else 0.

    Where one of the `others`, which certainly appended, began at the same offset, nothing of this run had been written.
    """
    if any(
        run_rows.path == rows.path and run_rows.offset == rows.offset and run_rows.at >= rows.at for run_rows in others
    ):
        return 0
    with suppress(OSError, csv.Error, RecordError), reading_rows(workspace / rows.path) as (header, there):
        if header is None or rows.at < _rebuilt_at(rows.path, workspace):
            return 0
        wanted = [recorded_row(cells, header.columns) for cells in rows.cells]
        behind = [cells for cells, end in there if end > rows.offset]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, behind, strict=False)))
        return same if same < len(wanted) else 0  # all of them are another run's, which has the same
    return 0


def _rebuilt_at(path: str, workspace: Path) -> str:
    """Return when a results file was last rebuilt from the records, "" if never."""
    times = [
        rebuild_started.at
        for rebuild_started in EventLog.read(workspace / RUNS).of(RebuildStarted)
        if rebuild_started.file == path
    ]
    return times[-1] if times else ""


_EndedRow = tuple[tuple[str, ...], int]


@contextmanager
def reading_rows(path: Path, fd: int | None = None) -> Iterator[tuple[Header | None, Iterator[_EndedRow]]]:
    """Open a results file, or read an open one: its header, and its rows as they are compared, with where each ends."""
    own = open_plain(Path(os.path.realpath(path)), links=False) if fd is None else fd
    try:
        with text_of(own) as text, unlimited_fields():
            header = read_header(path, text)
            text.seek(0)
            rows = _ended_rows(text)
            next(rows, None)  # the header
            yield header, rows
    finally:
        if fd is None:
            os.close(own)


def _ended_rows(text: Iterable[str]) -> Iterator[_EndedRow]:
    end = 0

    def lines() -> Iterator[str]:
        nonlocal end
        for line in text:
            end += len(line.encode("utf-8", "surrogateescape"))
            yield line.replace("\0", "\\x00")  # which Python 3.10 does not read

    for cells in csv.reader(lines()):
        if cells:
            yield comparable(cells), end


def _groups(wanted: Sequence[tuple[str, ...]], rows: Iterator[_EndedRow]) -> Iterator[int]:
    """Yield the end of each place where all wanted rows stand one after the other; no row is counted twice."""
    last: deque[tuple[str, ...]] = deque(maxlen=len(wanted))
    for cells, end in rows if wanted else ():
        last.append(cells)
        if list(last) == wanted:
            yield end
            last.clear()
