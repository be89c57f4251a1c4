"""Which rows of a results file are of a success that is suspect: MAD's columns do not say it, its runs' records do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.model import Row, Status
from madlite.plan.make import RUNS
from madlite.reports.table import Table
from madlite.results.intent import rows_path
from madlite.results.lines import comparable, plain_cells
from madlite.results.stored import Noted, read_record
from madlite.workspace.folder import real_folders

COLUMN = "suspect"  # as `--add-column suspect` calls it


def with_doubts(source: Path, table: Table) -> Table:
    """Return the table of a results file with a column of why rows are suspect, where any is and it has none yet.

    The runs are those of the folder in which the file lies, links followed.
    """
    if COLUMN in table.columns or "status" not in table.columns:
        return table
    known = _known(Path(os.path.realpath(source)), table.columns)
    doubts = [known.get(comparable(row), "") for row in table.rows] if known else []
    if not any(doubts):
        return table
    rows = tuple((*row, doubt) for row, doubt in zip(table.rows, doubts, strict=True))
    return replace(table, columns=(*table.columns, COLUMN), rows=rows)


def doubted(table: Table, row: Sequence[str]) -> bool:
    """Say whether a row is of a success that is suspect."""
    if COLUMN not in table.columns or "status" not in table.columns:
        return False
    said = row[table.columns.index(COLUMN)].strip()
    return bool(said) and row[table.columns.index("status")] == Status.SUCCESS.value


def _known(source: Path, columns: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Return why rows are suspect, each as the file has it."""
    runs = source.parent / RUNS
    return {
        comparable(_arranged(cells, columns)): why
        for why, rows in _suspect_rows(runs, rows_path(source, source.parent))
        for cells in rows
        if cells.get("status") == Status.SUCCESS.value
    }


def _suspect_rows(runs: Path, path: str) -> Iterator[tuple[str, Sequence[Mapping[str, str]]]]:
    """Yield for each run whose success is suspect why, and the rows that it appended to a file."""
    noted = Noted(runs)
    for folder in real_folders(runs):
        record = None if noted.is_foreign(folder) else read_record(folder)
        if record is not None and record.suspect and record.rows is not None and record.rows.path == path:
            yield "; ".join(record.suspect), record.rows.cells


def _arranged(cells: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    """Return a row's cells in the order of a file's columns; of two columns of one name the first is filled."""
    left = plain_cells(Row(cells=dict(cells)))
    return [left.pop(name, "") for name in columns]
