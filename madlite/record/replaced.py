"""What stands in a results file that is about to be replaced and would be lost with it."""

from __future__ import annotations

import csv
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

from madlite.csvtext import unlimited_fields
from madlite.errors import RecordError
from madlite.record.header import Header, read_header, text_of
from madlite.record.locked import Held


def keep_foreign(file: Held, coming: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """Keep a file under another name where not all of its rows are among those that are coming, and say so.

    Rows are compared by the columns that the file has.
    """
    try:
        header, rows = _read(file)
    except (RecordError, csv.Error):
        what = "was no table of results"
    else:
        here = Counter(tuple(header.arrange(cells)) for cells in coming) if header else Counter[tuple[str, ...]]()
        lost = sum((rows - here).values())
        if not lost:
            return
        what = "had 1 row that no record has" if lost == 1 else f"had {lost} rows that no record has"
    yield f"{file.target.name} {what}; the old file is kept as {_keep(file)}"


def _read(file: Held) -> tuple[Header | None, Counter[tuple[str, ...]]]:
    with unlimited_fields(), text_of(file.fd) as text:
        header = read_header(file.target, text)
        if header is None:
            return None, Counter()
        width = len(header.columns)
        lines = (line.replace("\0", "?") for line in text)  # which Python 3.10 does not read
        rows = (cells for cells in csv.reader(lines) if cells)
        return header, Counter((*cells, *[""] * (width - len(cells))) for cells in rows)


def _keep(file: Held) -> str:
    kept = file.target.with_name(f"{file.target.name}.before-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}")
    try:
        os.link(file.target, kept)
    except OSError:  # a file system without such links
        shutil.copy2(file.target, kept)
    return kept.name
