"""The rows of results files, each file read once: whether it has those of a run."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

from madlite.errors import RecordError
from madlite.files import open_regular
from madlite.model import Row
from madlite.perfcsv.header import Header, comparable, plain_cells
from madlite.perfcsv.rebuild import read_rows
from madlite.store.journal import RunRows


class _Table:
    """A results file: its header, how often it has each row, its size, and why it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.header: Header | None = None
        self.rows: Counter[tuple[str, ...]] = Counter()
        self.size, self.problem = 0, ""
        try:
            self._read(path)
        except FileNotFoundError:
            self.problem = "there is no such file"
        except (OSError, RecordError, csv.Error) as error:
            self.problem = getattr(error, "strerror", "") or getattr(error, "message", "") or str(error)

    def _read(self, path: Path) -> None:
        fd = open_regular(Path(os.path.realpath(path)))
        try:
            self.size = os.fstat(fd).st_size
            self.header, self.rows = read_rows(path, fd)
        finally:
            os.close(fd)


class RowsInFile:
    """Answers for the results files of a working folder."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._tables: dict[str, _Table] = {}

    def _table(self, path: str) -> _Table:
        if path not in self._tables:
            self._tables[path] = _Table(self._workspace / path)
        return self._tables[path]

    def why_unknown(self, rows: RunRows) -> str:
        """Return why it cannot be seen whether a file has the rows; "" where it can."""
        table = self._table(rows.path)
        if table.problem:
            return table.problem
        if table.header is None or table.size <= rows.offset:
            return "another file has its name by now, it is shorter than the one that had the row"
        return ""

    def has(self, rows: RunRows) -> bool:
        """Return whether a file that can be read has all of the rows."""
        table = self._table(rows.path)
        if table.header is None:
            return False
        wanted = (comparable(table.header.arrange(plain_cells(Row(cells=cells)))) for cells in rows.cells)
        return all(table.rows[one] for one in wanted)
