"""What stands in a results file that is about to be replaced and would be lost with it."""

from __future__ import annotations

import csv
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from madlite.csvtext import unlimited_fields
from madlite.errors import RecordError
from madlite.record.header import Header, read_header, text_of
from madlite.record.locked import Held


def foreign(file: Held, coming: Iterable[Mapping[str, str]]) -> str:
    """Return in words that not all of a file's rows are among those that are coming; "" where they are.

    Rows are compared by the columns that the file has.
    """
    if file.is_new:
        return ""
    try:
        header, rows = _read(file)
    except (RecordError, csv.Error):
        return "was no table of results"
    here = Counter(tuple(header.arrange(cells)) for cells in coming) if header else Counter[tuple[str, ...]]()
    lost = sum((rows - here).values())
    if not lost:
        return ""
    return "had 1 row that no record has" if lost == 1 else f"had {lost} rows that no record has"


def _read(file: Held) -> tuple[Header | None, Counter[tuple[str, ...]]]:
    with unlimited_fields(), text_of(file.fd) as text:
        header = read_header(file.target, text)
        if header is None:
            return None, Counter()
        width = len(header.columns)
        lines = (line.replace("\0", "?") for line in text)  # which Python 3.10 does not read
        rows = (cells for cells in csv.reader(lines) if cells)
        return header, Counter((*cells, *[""] * (width - len(cells))) for cells in rows)


def kept_copy(file: Held) -> Path:
    """Copy the file to another name beside it: a link would change with the file if a kill left both.

    Raises:
        OSError: there is no room; nothing of it is left.
    """
    kept = file.target.with_name(f"{file.target.name}.before-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}")
    beside = kept.with_name(f".{kept.name}.csv.{os.getpid()}")  # a name of which `clean` knows that it is half a file
    try:
        shutil.copy2(file.target, beside)
        with beside.open("rb") as copied:
            os.fsync(copied.fileno())
        return beside.rename(kept)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
