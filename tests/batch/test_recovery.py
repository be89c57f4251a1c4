"""Runs that were cut off or have pending rows: resumed and acknowledged, also where a file cannot be written."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import closing
from pathlib import Path

from madlite.batch.collect import recover
from madlite.batch.leftovers import Leftover, find_incomplete, recovery_report, remove
from madlite.files import Folder
from madlite.model import Status
from madlite.perfcsv.append import RunAppend, append_runs
from madlite.perfcsv.recorded import rebuild
from madlite.store.events import Started, append
from madlite.store.folder import (
    LOCK,
    PLAN,
    RUN_JOURNAL,
    RunEntry,
    RunFolder,
    RunRows,
    add_entry,
    is_uncollected,
    open_runs,
)
from madlite.store.record import Record, record_json
from tests.factories import write_journal
from tests.rows import each_row

ROW = {"model": "m", "performance": "1", "metric": "x", "status": "SUCCESS"}
ROWS = RunRows(path="perf.csv", cells=(ROW,), at="t")


def run_folder(workspace: Path, name: str = "20260101T000000-a-000001") -> Path:
    """Return the folder of a run without an end, as madlite makes it, without a journal of its own."""
    with open_runs(workspace, make=True) as runs, runs.below(name, new=True) as home:
        append(runs, Started(run=name))
    (home.path / PLAN).write_text("{}")
    (home.path / LOCK).touch()
    return home.path


def replace_by_link(path: Path, beside: Path) -> None:
    """Make a file one that is not written to."""
    path.replace(beside / "backup")
    path.symlink_to(beside / "backup")


def listed(folder: Path) -> Leftover:
    return Leftover(kind="run", run_id=folder.name, text="", handle=str(folder), row="no row")


def test_a_row_whose_line_was_refused_is_not_certainly_missing(tmp_path):
    folder = write_journal(run_folder(tmp_path))
    replace_by_link(folder / RUN_JOURNAL, tmp_path)
    with Folder.open(folder) as home:

        def note(tried: RunRows) -> RunRows:
            assert_refused(add_entry(home, RunEntry(at="t", rows=ROWS)))
            return tried

        append_runs(tmp_path / "perf.csv", [RunAppend(ROWS, note)])
    (one,) = find_incomplete(tmp_path)
    assert one.row == "whether its row is in perf.csv cannot be seen"


def assert_refused(message: str) -> None:
    assert message == "journal.jsonl could not be written: it is a link"


@each_row("name", [LOCK, RUN_JOURNAL])
def test_clean_names_the_file_that_keeps_a_run_from_being_acknowledged(tmp_path, monkeypatch, name):
    folder = write_journal(run_folder(tmp_path))
    replace_by_link(folder / name, tmp_path)
    removed: list[Path] = []
    monkeypatch.setattr("madlite.batch.leftovers.remove_run_files", removed.append)
    assert remove(listed(folder), {}) == f"{folder / name}: it is a link"
    assert removed == [] and recovery_report(tmp_path) != []
    (tmp_path / "backup").replace(folder / name)
    assert remove(listed(folder), {}) is None and removed == [folder] and recovery_report(tmp_path) == []


def test_clean_removes_nothing_of_a_run_that_another_madlite_has_locked(tmp_path, monkeypatch):
    folder = write_journal(run_folder(tmp_path))
    monkeypatch.setattr("madlite.store.folder.open_locked.__defaults__", (0.0,))
    removed: list[Path] = []
    monkeypatch.setattr("madlite.batch.leftovers.remove_run_files", removed.append)
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove(listed(folder), {}) == "a madlite process has locked the run by now"
    assert removed == []


def test_a_run_of_a_copied_folder_is_named_and_gets_no_row_there(tmp_path):
    """It may go on in the original."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    folder = write_journal(run_folder(there))
    shutil.copytree(there, here)
    assert [one.folder for one in find_incomplete(there)] == [folder] and find_incomplete(here) == ()
    assert recover(here, here / "perf.csv") == [] and not (here / "perf.csv").exists()
    (text,) = recovery_report(here)
    assert f"{folder.name} looks like a run that madlite did not make" in text


def test_a_workload_s_file_of_that_name_hides_no_run_that_has_a_journal(tmp_path):
    folder = write_journal(run_folder(tmp_path))
    (folder / "cleaned").write_text("by the training")
    assert [one.folder for one in find_incomplete(tmp_path)] == [folder]


def test_rebuild_does_not_call_a_run_without_a_row_after_clean_could_not_see_it(tmp_path):
    folder = run_folder(tmp_path)
    write_record_of_another(tmp_path)
    with closing(RunFolder.reopen(folder)) as opened:
        assert opened.note(RunEntry(at="t", cleaned="whether its row is in perf.csv cannot be seen")) == ""
    done = rebuild(tmp_path / "again.csv", tmp_path / "madlite_runs")
    assert done.notes == (f"{folder.name}: no record, and a row that it may have is left out: it was cut off",)
    assert not is_uncollected(folder)


def write_record_of_another(workspace: Path) -> None:
    folder = run_folder(workspace, "20260101T000000-b-000009")
    rows = RunRows(path="perf.csv", cells=(ROW,), at="t", appended=True)
    with closing(RunFolder.reopen(folder)) as opened:
        record = Record(id=folder.name, card="m", status=Status.SUCCESS, rows=rows)
        assert opened.write_record(record_json(record)) == ""
