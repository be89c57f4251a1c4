"""perf.csv from the records: byte for byte what madlite alone wrote, and nothing that it should not take."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from madlite.errors import RecordError, UsageProblem
from madlite.model import Status
from madlite.perfcsv.append import RunAppend, append_runs
from madlite.perfcsv.recorded import rebuild
from madlite.perfcsv.rows import STANDARD_COLUMNS, plain_cells
from madlite.store.folder import LOCK, PLAN, RECORD, RunRows
from madlite.store.record import Record, record_json
from tests.factories import write_journal
from tests.tiers import examples

CELLS = {"model": "m", "performance": "0012", "metric": "tps", "status": "SUCCESS"}


class Place:
    """A working folder whose runs have records, as the engine leaves them."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.perf = folder / "madlite_runs", folder / "perf.csv"
        self.runs.mkdir()
        self.count = 0

    def run(self, *cells: dict[str, str], path: str = "perf.csv", append: bool = True, intent: bool = False) -> Path:
        """Append rows and leave a run's folder that tells of them."""
        self.count += 1
        folder = self.runs / f"20260101T000000-m-{self.count:06d}"
        folder.mkdir()
        (folder / PLAN).write_text("{}")
        told = RunRows(path=path, cells=tuple(map(plain_cells, cells)))
        if append:
            ((told, _),) = append_runs(self.runs.parent / path, [RunAppend(told, lambda tried: tried)])
        told = replace(told, at=f"2026-01-01T00:00:00.{self.count:06d}+00:00", columns=())
        if intent:
            write_journal(folder, told)
        else:
            (folder / RECORD).write_text(record_json(Record(id=folder.name, status=Status.SUCCESS, rows=told)))
        return folder


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_rows_of_every_kind_come_back_byte_for_byte(place, tmp_path):
    place.run(CELLS)
    place.run({**CELLS, "args": 'a "b", c\nd\re', "heat": "=1+1"}, {**CELLS, "model": "é\udcff\0", "heat": ""})
    place.run({**CELLS, "mode": "pretrain", " heat ": "7"})
    done = rebuild(tmp_path / "again.csv", place.runs)
    assert (tmp_path / "again.csv").read_bytes() == place.perf.read_bytes()
    assert (done.rows, done.runs, done.notes) == (4, 3, ())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.csv", "madlite_runs", "perf.csv"]


NAMES = st.sampled_from(["heat", "mode", "note, of mine", 'q"', *STANDARD_COLUMNS[:6]])
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=examples(30), deadline=None)
@given(
    runs=st.lists(st.lists(st.dictionaries(NAMES, TEXT, max_size=4), min_size=1, max_size=3), min_size=1, max_size=5)
)
def test_any_sequence_of_appends_comes_back(tmp_path_factory, runs):
    folder = tmp_path_factory.mktemp("any")
    place = Place(folder)
    for cells in runs:
        place.run(*({**CELLS, **one} for one in cells))
    rebuild(folder / "again.csv", place.runs)
    assert (folder / "again.csv").read_bytes() == place.perf.read_bytes()


def test_the_order_is_that_of_the_appends(place, tmp_path):
    first, second = place.run(CELLS), place.run({**CELLS, "model": "second"})
    swap = place.runs / "swap"
    first.rename(swap)
    second.rename(first)
    swap.rename(second)
    rebuild(tmp_path / "again.csv", place.runs)
    assert (tmp_path / "again.csv").read_bytes() == place.perf.read_bytes()


def test_a_file_that_is_there_is_replaced_with_force_alone(place):
    place.run(CELLS)
    whole = place.perf.read_bytes()
    place.perf.write_text("broken")
    os.chmod(place.perf, 0o640)
    with pytest.raises(UsageProblem, match="is there already"):
        rebuild(place.perf, place.runs)
    assert place.perf.read_text() == "broken"
    (note,) = rebuild(place.perf, place.runs, force=True).notes
    assert place.perf.read_bytes() == whole and place.perf.stat().st_mode & 0o777 == 0o640
    (kept,) = place.perf.parent.glob("perf.csv.before-*")
    assert note == f"the old perf.csv was saved as {kept.name}" and kept.read_text() == "broken"
    place.perf.write_text("")
    assert rebuild(place.perf, place.runs).notes == ()


def test_only_rows_of_one_file_are_taken_and_the_rest_is_named(place, tmp_path):
    place.run(CELLS)
    place.run({**CELLS, "model": "other"}, path="other.csv")
    place.perf.unlink()
    assert rebuild(place.perf, place.runs).notes == ("left out: rows of runs that appended to other.csv",)
    assert "other" not in place.perf.read_text()
    with pytest.raises(UsageProblem, match=r"perf\.csv, other\.csv"):
        rebuild(tmp_path / "new.csv", place.runs)
    assert not (tmp_path / "new.csv").exists()


def test_runs_without_a_record_are_named_and_rows_that_were_on_their_way_are_taken_in(place, tmp_path):
    place.run(CELLS)
    cut = place.run({**CELLS, "model": "cut"}, intent=True)
    never = place.run({**CELLS, "model": "never"}, append=False, intent=True)
    write_journal(never, cleaned="no row")
    bare = place.runs / "bare"
    bare.mkdir()
    (bare / PLAN).touch()
    broken = place.runs / "broken"
    broken.mkdir()
    (broken / RECORD).write_text("{")
    (place.runs / "link").symlink_to(cut)
    (place.runs / "empty").mkdir()
    done = rebuild(tmp_path / "again.csv", place.runs)
    assert (tmp_path / "again.csv").read_bytes() == place.perf.read_bytes()
    assert [note.split(":")[0] for note in done.notes] == [cut.name, never.name, "bare", "broken"]


def test_a_run_that_goes_on_has_no_row_yet(place, tmp_path):
    import fcntl

    place.run(CELLS)
    live = place.runs / "live"
    live.mkdir()
    (live / PLAN).touch()
    with (live / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "it is still running" in rebuild(tmp_path / "again.csv", place.runs).notes[0]


def test_nothing_to_make_a_file_of_is_one_sentence(place, tmp_path):
    with pytest.raises(UsageProblem, match="no run has a record with rows"):
        rebuild(place.perf, place.runs)
    assert not place.perf.exists()
    with pytest.raises(UsageProblem, match="there are no runs"):
        rebuild(place.perf, tmp_path / "none")
    (place.runs / "old").mkdir()
    (place.runs / "old" / RECORD).write_text('{"plan_id": "old", "status": "SUCCESS"}')
    place.run(CELLS)
    assert "old: record.json: " in rebuild(tmp_path / "again.csv", place.runs).notes[0]


def test_a_file_that_another_program_replaced_meanwhile_stays(place, monkeypatch):
    place.run(CELLS)
    calls = iter([True, False])
    monkeypatch.setattr("madlite.perfcsv.append.LockedFile.is_current", lambda self: next(calls))
    before = place.perf.read_bytes()
    with pytest.raises(RecordError, match="replaced by another program"):
        rebuild(place.perf, place.runs, force=True)
    assert place.perf.read_bytes() == before and not list(place.perf.parent.glob(".perf*"))


def test_columns_for_which_a_header_has_no_room_are_left_out_and_named_and_the_rows_are_taken_in(place, tmp_path):
    place.run(CELLS)
    place.run({**CELLS, "model": "wide", **{f"k{n}": "1" for n in range(2000)}}, append=False)
    place.run({**CELLS, "heat": "7"})
    (note,) = rebuild(tmp_path / "again.csv", place.runs).notes
    assert note.startswith("wide of 2026-01-01T00:00:00.000002") and "k0, k1, k2, k3, k4 and 1995 more" in note
    lines = (tmp_path / "again.csv").read_text().splitlines()
    assert [lines[0], lines[1], lines[3]] == place.perf.read_text().splitlines() and lines[2].startswith("wide,")


def columns(letter: str, count: int) -> dict[str, str]:
    return {f"{letter}{n}": "1" for n in range(count)}


def test_rows_that_were_appended_have_their_columns_before_those_that_were_not(place, tmp_path):
    for batch in range(10):
        place.run({**CELLS, "model": f"kept{batch}", **columns(f"a{batch}_", 100)}, append=False)
        place.run({**CELLS, "model": f"in{batch}", **columns(f"b{batch}_", 90)})
    done = rebuild(tmp_path / "again.csv", place.runs)
    with (tmp_path / "again.csv").open(newline="") as file:
        found = {cells["model"]: cells for cells in csv.DictReader(file)}
    assert len(found) == done.rows == 20
    assert all(found[f"in{n}"][f"b{n}_89"] == "1" for n in range(10)), "as they stand in perf.csv"
    assert len(done.notes) == 10 and len(found["in0"]) <= 1000


def test_rows_that_were_appended_without_new_columns_bring_none(place, tmp_path):
    folder = place.run(CELLS)
    record = json.loads((folder / RECORD).read_text())
    record["rows"]["strict_header"] = True
    record["rows"]["cells"][0]["cause"] = "asked for by --add-column"
    (folder / RECORD).write_text(json.dumps(record))
    rebuild(tmp_path / "again.csv", place.runs)
    assert (tmp_path / "again.csv").read_bytes() == place.perf.read_bytes()
