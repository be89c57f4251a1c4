"""Rows on their way into perf.csv: noted in the run's folder before, so that a kill at any moment can be told truly.

`rows.json` is there from right before the rows are appended until the run has its record.  A run that has it and no
record was killed in between: whether its rows are in perf.csv is asked of the file.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from madlite.errors import RecordError
from madlite.model import Row, Value, to_json
from madlite.plan.inputs import RUNS
from madlite.results.header import comparable, plain_cells, read_header, text_of
from madlite.safe_files import Folder
from madlite.safe_read import open_regular, read_regular
from madlite.text import unlimited_fields
from madlite.workspace.folder import LOCK, NOTE_BYTES, ROWS

LIMIT_BYTES = 256 << 20
REBUILT = ".rebuilt.json"  # in the folder of runs: when a results file was last made again, by its name


class Rows(Value, frozen=True):
    """The rows of one run, cell by cell as they were appended, and to which file.

    `path` is relative to the working folder where the file is below it.  `at` is when, in UTC, `offset` the size that
    the file had and `columns` the header, none of a new file.  Where `appended` is False after the run, `kept` says
    where they are instead.  `strict_header`: they bring no column.
    """

    path: str
    cells: tuple[dict[str, str], ...]
    at: str = ""
    offset: int = 0
    columns: tuple[str, ...] = ()
    appended: bool = False
    kept: str = ""
    strict_header: bool = False

    def without(self, columns: Collection[str]) -> Rows:
        """Return the rows as they are in a file that has no room for some columns."""
        left_out = frozenset(columns)
        cells = tuple({name: text for name, text in one.items() if name not in left_out} for one in self.cells)
        return msgspec.structs.replace(self, cells=cells)


def rows_path(perf_csv: Path, workspace: Path) -> str:
    """Return how a results file is named in the records of a working folder."""
    target, home = (Path(os.path.realpath(path)) for path in (perf_csv, workspace))  # a loop of links raises nothing
    return str(target.relative_to(home)) if target.is_relative_to(home) else str(target)


def read_intent(folder: Path) -> Rows | None:
    """Return the rows that a run was about to append; None where it had come to none, or nobody can read them."""
    for name in (ROWS, LOCK):  # the second where the disk had no inode for the first
        try:
            return msgspec.json.decode(read_regular(folder / name, LIMIT_BYTES), type=Rows)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None


def has_none(folder: Path) -> bool:
    """Say whether a run without such rows is known to have come to none: it had room to note them, and did not."""
    try:
        note = read_regular(folder / LOCK, LIMIT_BYTES)
    except OSError:
        return False
    return len(note) >= NOTE_BYTES and not note.strip()


def are_there(rows: Rows, workspace: Path, others: Sequence[Rows]) -> bool | None:
    """Say whether a run's rows are in their file; None where it cannot be read.

    `others` are the rows that runs are known to have appended.  Two runs can have rows alike to the last cell (both
    failed before they began, say), so those alike are counted: there have to be more than the others account for.
    Where no column has joined since and the file was not made again, only what stands behind the noted size counts.
    """
    try:
        found, columns = _find(rows, workspace / rows.path)
    except FileNotFoundError:
        return False
    except (OSError, csv.Error, RecordError):
        return None
    same_file = [one for one in others if one.path == rows.path and one.cells == rows.cells]
    rebuilt = _rebuilt(workspace / RUNS).get(rows.path, "")
    if rows.at >= rebuilt and (columns == rows.columns or not rows.columns):
        found = [end for end in found if end > rows.offset]
        same_file = [one for one in same_file if one.offset >= rows.offset and (one.at >= rebuilt or not rows.offset)]
    return len(found) > len(same_file)


def note_rebuilt(path: str, runs: Path) -> None:
    """Note that a results file is about to be made again: sizes noted before tell nothing of the new one.

    Raises:
        OSError: it cannot be noted.
    """
    with Folder.open(runs) as folder:
        folder.write(REBUILT, to_json({**_rebuilt(runs), path: now()}).encode())


def now() -> str:
    """Return the time as rows have it."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def _rebuilt(runs: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(read_regular(runs / REBUILT, LIMIT_BYTES), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _find(rows: Rows, path: Path) -> tuple[list[int], tuple[str, ...]]:
    """Return where in the file rows alike end, all of them together, in bytes, and the file's columns."""
    fd = open_regular(Path(os.path.realpath(path)))
    try:
        with text_of(fd) as text, unlimited_fields():
            header = read_header(path, text)
            if header is None:
                return [], ()
            text.seek(0)
            wanted = [comparable(header.arrange(plain_cells(Row(cells=cells)))) for cells in rows.cells]
            return list(_groups(wanted, _ended(text))), header.columns
    finally:
        os.close(fd)


def _ended(text: Iterable[str]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the header and the rows as they are compared, each with the place where it ends."""
    end = 0

    def lines() -> Iterator[str]:
        nonlocal end
        for line in text:
            end += len(line.encode("utf-8", "surrogateescape"))
            yield line.replace("\0", "\\x00")  # which Python 3.10 does not read

    for cells in csv.reader(lines()):
        if cells:
            yield comparable(cells), end


def _groups(wanted: Sequence[tuple[str, ...]], rows: Iterator[tuple[tuple[str, ...], int]]) -> Iterator[int]:
    """Yield the end of each place where all wanted rows stand one after the other.

    The search of Knuth, Morris and Pratt: how many of the wanted rows came last is kept, and no row is looked at again.
    """
    shorter, count = _borders(wanted), 0
    for cells, end in rows if wanted else ():
        while count and cells != wanted[count]:
            count = shorter[count - 1]
        count += cells == wanted[count]
        if count == len(wanted):
            yield end
            count = 0


def _borders(wanted: Sequence[tuple[str, ...]]) -> list[int]:
    """Return for each beginning of the wanted rows how many rows it both begins and ends with, itself left out."""
    found, count = [0] * len(wanted), 0
    for place in range(1, len(wanted)):
        while count and wanted[place] != wanted[count]:
            count = found[count - 1]
        count += wanted[place] == wanted[count]
        found[place] = count
    return found
