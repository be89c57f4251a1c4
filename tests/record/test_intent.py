"""Rows on their way: whether a killed run's are in perf.csv is told truly, also among rows that look alike."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.model import Row, to_json
from madlite.results.intent import Rows, are_there, read_intent, rows_path
from madlite.results.perfcsv import append_rows
from madlite.workspace.folder import LOCK, ROWS

CELLS = {"model": "m", "performance": "", "metric": "", "status": "FAILURE"}


def appended(folder: Path, *cells: dict[str, str], really: bool = True) -> Rows:
    """Return the rows as they are noted, appended or killed right before."""
    noted: list[tuple[int, tuple[str, ...]]] = []

    class Killed(BaseException):
        pass

    def intend(size: int, columns: tuple[str, ...]) -> None:
        noted.append((size, columns))
        if not really:
            raise Killed

    with suppress(Killed):
        append_rows(folder / "perf.csv", [Row(cells=one) for one in cells], sync=False, intend=intend)
    return Rows(path="perf.csv", cells=tuple(cells), offset=noted[0][0], columns=noted[0][1], appended=really)


def test_a_row_is_found_or_not(tmp_path):
    assert are_there(appended(tmp_path, CELLS), tmp_path, [])
    gone = appended(tmp_path, {**CELLS, "model": "gone"}, really=False)
    assert are_there(gone, tmp_path, []) is False
    several = appended(tmp_path, {**CELLS, "heat": "1"}, {**CELLS, "heat": "2"})
    assert are_there(several, tmp_path, [])
    assert are_there(replace(several, cells=several.cells[::-1]), tmp_path, []) is False


def test_an_earlier_row_that_looks_alike_is_not_taken_for_it(tmp_path):
    first = appended(tmp_path, CELLS)
    killed = appended(tmp_path, CELLS, really=False)
    assert are_there(killed, tmp_path, [first]) is False
    later = appended(tmp_path, CELLS)
    assert are_there(killed, tmp_path, [first, later]) is False
    assert are_there(later, tmp_path, [first])


def test_rows_alike_are_counted_where_a_column_joined_since(tmp_path):
    first = appended(tmp_path, CELLS)
    killed = appended(tmp_path, CELLS, really=False)
    appended(tmp_path, {**CELLS, "model": "wide", "heat": "7"})
    assert are_there(killed, tmp_path, [first]) is False
    assert are_there(first, tmp_path, [])
    second = appended(tmp_path, CELLS)
    assert are_there(second, tmp_path, [first])


def test_a_row_behind_a_torn_one_is_found(tmp_path):
    append_rows(tmp_path / "perf.csv", [Row(cells={**CELLS, "args": 'a "b'})])
    with (tmp_path / "perf.csv").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 20)
    assert are_there(appended(tmp_path, {**CELLS, "model": "after"}), tmp_path, [])


def test_a_file_that_is_gone_has_no_row_and_of_one_that_cannot_be_read_nobody_knows(tmp_path):
    rows = appended(tmp_path, CELLS)
    perf = tmp_path / "perf.csv"
    perf.write_text("no header at all\n")
    assert are_there(rows, tmp_path, []) is None
    perf.write_text("")
    assert are_there(rows, tmp_path, []) is False
    perf.unlink()
    assert are_there(rows, tmp_path, []) is False
    os.mkfifo(perf)
    assert are_there(rows, tmp_path, []) is None


def test_the_note_is_read_from_its_file_or_the_locks(tmp_path):
    rows = appended(tmp_path, CELLS)
    assert read_intent(tmp_path) is None
    (tmp_path / LOCK).write_text(to_json(rows))
    assert read_intent(tmp_path) == rows
    (tmp_path / ROWS).write_text("{")
    assert read_intent(tmp_path) == rows
    (tmp_path / LOCK).write_text("")
    assert read_intent(tmp_path) is None


@pytest.mark.parametrize(("file", "said"), [("perf.csv", "perf.csv"), ("deep/p.csv", "deep/p.csv"), ("../p.csv", None)])
def test_a_file_below_the_working_folder_is_named_from_there(tmp_path, file, said):
    assert rows_path(tmp_path / "w" / file, tmp_path / "w") == (said or str(tmp_path.resolve() / "p.csv"))
