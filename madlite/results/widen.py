"""Result columns join the header of perf.csv: the one case in which the file is written anew."""

from __future__ import annotations

import csv
import glob
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from madlite.errors import RecordError
from madlite.results.header import Header, read_header, text_of
from madlite.results.integrity import Integrity
from madlite.results.lines import csv_line
from madlite.results.locked import Held
from madlite.results.whole import replacing, sync_folder
from madlite.safe_files import resolved
from madlite.text import unlimited_fields

_SUFFIX = ".widening"
_RANDOM = "[a-z0-9_]" * 8  # what stands between the name and the suffix


def widen(
    file: Held, joining: Sequence[str], rows: Iterable[Mapping[str, str]], integrity: Integrity | None = None
) -> None:
    """Replace the file by one with `joining` at the end of its header and `rows` at its end.

    A kill leaves the old file or the new one, whole; mode, owner and the text of every field are kept.

    Raises:
        RecordError: the new file cannot be written beside the old one, an earlier row cannot be read as CSV, or another
            program replaced the file meanwhile.
    """
    try:
        _replace(file, joining, rows, integrity)
    except OSError as error:
        raise RecordError(
            f"{file.target} cannot be rewritten for new columns ({', '.join(joining)}): {error.strerror or error}",
            "append without them: madlite run --strict-header",
        ) from error
    sync_folder(file.target.parent)


def _replace(
    file: Held, joining: Sequence[str], rows: Iterable[Mapping[str, str]], integrity: Integrity | None
) -> None:
    _clear_leftovers(file.target)
    with resolved(file.target) as (folder, name):
        beside = f".{name}.{secrets.token_hex(4)}{_SUFFIX}"
        with replacing(folder, name, beside, integrity.done if integrity else lambda fd: None) as fd:
            with open(fd, "w", newline="", encoding="utf-8", errors="surrogateescape", closefd=False) as new:
                new.writelines(_lines(file, joining, rows))
            if integrity is not None:
                integrity.intend_whole(fd)
            os.fsync(fd)
            if not file.is_current():
                raise RecordError(f"{file.target} was replaced by another program; no row was added", "run it again")


def _lines(file: Held, joining: Sequence[str], rows: Iterable[Mapping[str, str]]) -> Iterator[str]:
    with unlimited_fields(), text_of(file.fd) as text:
        header = read_header(file.target, text) or Header(columns=())
        wide = msgspec.structs.replace(header, columns=(*header.columns, *joining))
        yield wide.line
        records = csv.reader(text)
        try:
            for cells in records:
                yield csv_line(_wider(cells, len(header.columns), len(joining)), wide.newline)
        except csv.Error as error:
            raise _unreadable(file.target, records.line_num, error) from error
        for row in rows:
            yield csv_line(wide.arrange(row), wide.newline)


def _wider(cells: list[str], width: int, more: int) -> list[str]:
    """Put blanks under the new columns; what stood beyond the header stays beyond it."""
    if not cells:
        return cells  # a blank line is no row
    missing = max(0, width - len(cells))
    return [*cells[:width], *[""] * (missing + more), *cells[width:]]


def _unreadable(path: Path, line: int, error: csv.Error) -> RecordError:
    return RecordError(
        f"{path}: no column can join it, for line {line} after its header is no CSV: {error}",
        "mend the line, or append without new columns: madlite run --strict-header",
    )


def _clear_leftovers(target: Path) -> None:
    """Remove what killed writers left; whoever holds the lock is the only one who may be writing such a file."""
    for stale in target.parent.glob(f".{glob.escape(target.name)}.{_RANDOM}{_SUFFIX}"):
        stale.unlink(missing_ok=True)
