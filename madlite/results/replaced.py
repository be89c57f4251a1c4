"""What stands in a results file that is about to be replaced and would be lost with it."""

from __future__ import annotations

import csv
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone

from madlite.errors import RecordError
from madlite.results.header import Header, read_header, text_of
from madlite.results.lines import comparable
from madlite.results.locked import Held
from madlite.results.whole import keep_owner_and_mode
from madlite.safe_files import Folder, half_made
from madlite.text import unlimited_fields


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
    here = Counter(comparable(header.arrange(cells)) for cells in coming) if header else Counter[tuple[str, ...]]()
    lost = sum((rows - here).values())
    if not lost:
        return ""
    return "had 1 row that no record has" if lost == 1 else f"had {lost} rows that no record has"


def _read(file: Held) -> tuple[Header | None, Counter[tuple[str, ...]]]:
    with unlimited_fields(), text_of(file.fd) as text:
        header = read_header(file.target, text)
        if header is None:
            return None, Counter()
        lines = (line.replace("\0", "\\x00") for line in text)  # which Python 3.10 does not read
        return header, Counter(comparable(cells) for cells in csv.reader(lines) if cells)


def kept_copy(folder: Folder, file: Held) -> str:
    """Copy the file to another name beside it, and return that: a link would change with the file if a kill left both.

    Raises:
        OSError: there is no room; nothing of it is left.
    """
    kept = f"{file.target.name}.before-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}"
    beside = half_made(f"{kept}.csv")  # a name of which `clean` knows that it is half a file
    try:
        with os.fdopen(folder.create(beside), "wb") as copied:
            keep_owner_and_mode(folder, file.target.name, copied.fileno())
            with os.fdopen(os.dup(file.fd), "rb") as old:
                old.seek(0)
                shutil.copyfileobj(old, copied)
            copied.flush()
            os.fsync(copied.fileno())
        folder.rename(beside, kept)
    except BaseException:
        folder.remove(beside)
        raise
    return kept
