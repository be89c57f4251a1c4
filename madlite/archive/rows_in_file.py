"""The rows of results files, each file read once: whether it has those of a run."""

from __future__ import annotations

import csv
import os
from collections import Counter
from functools import cache
from pathlib import Path

from madlite.errors import RecordError
from madlite.files import open_regular
from madlite.model import Row
from madlite.perfcsv.header import Header, comparable, plain_cells
from madlite.perfcsv.rebuild import read_rows
from madlite.store.journal import RunRows


class RowsInFile:
    """The results files of a working folder."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._read = cache(_read)

    def has(self, rows: RunRows) -> bool:
        """Return whether a file has all of the rows.

        Raises:
            RecordError: it cannot be read, or has become shorter.
        """
        header, counts, size = self._read(self._workspace / rows.path)
        if header is None or size <= rows.offset:
            raise RecordError("another file has its name by now, it is shorter than the one that had the row")
        return all(counts[comparable(header.arrange(plain_cells(Row(cells=cells))))] for cells in rows.cells)


def _read(path: Path) -> tuple[Header | None, Counter[tuple[str, ...]], int]:
    try:
        fd = open_regular(Path(os.path.realpath(path)))
        try:
            return *read_rows(path, fd), os.fstat(fd).st_size
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise RecordError("there is no such file") from None
    except (OSError, csv.Error) as error:
        raise RecordError(getattr(error, "strerror", "") or str(error)) from None
