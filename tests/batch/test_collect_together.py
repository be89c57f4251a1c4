"""Rows of many runs are written at once: a kill amid the write leaves each row once, and costs no other run's."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from madlite.batch import collect
from madlite.batch.collect import collect_all
from madlite.model import Metric, Result, Status
from madlite.perfcsv import append
from madlite.perfcsv.side_files import make_result
from madlite.store.folder import RunFolder, RunStart
from madlite.store.record import result_text
from tests.csv_rows import csv_rows
from tests.factories import HOST, make_plan

RUNS = (("1",), ("2", "22"), ("2", "23"), ("1",), ("4",))  # what each run measured: equal rows, and several of one run


class Killed(BaseException):
    pass


def ended(workspace: Path) -> list[Path]:
    """Return the folders of runs with a result that is not collected."""
    folders = []
    for n, values in enumerate(RUNS):
        plan = make_plan(workspace, id=f"20260101T000000-a-{n:06x}", traits=HOST)
        plan.folder.rmdir()
        metrics = tuple(Metric(metric=f"tok{v}", text=v, status=Status.SUCCESS, value=float(v)) for v in values)
        result = Result(plan_id=plan.id, status=Status.SUCCESS, metrics=metrics)
        with closing(RunFolder.create(plan, (), ())) as folder:
            assert not folder.write_result(result_text(make_result(plan, result, RunStart(), str)))
        folders.append(plan.folder)
    return folders


def values(perf: Path) -> list[str]:
    return sorted(row["performance"] for row in csv_rows(perf))


EXPECTED = sorted(value for run in RUNS for value in run)


def killed_at(size: int, monkeypatch: pytest.MonkeyPatch, folders: list[Path], perf: Path) -> int:
    """Collect runs and die when so many bytes of their rows are written; return how many there are."""
    whole: list[int] = []

    def die(file: append.LockedFile, cut: int, data: bytes) -> None:
        whole.append(len(data))
        os.write(file.fd, data[:size])
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(append, "_append", die)
        with pytest.raises(Killed):
            collect_all(folders, perf.parent, perf)
    return whole[0]


@pytest.mark.parametrize("earlier", [True, False])
def test_a_kill_at_any_byte_of_the_rows_of_many_runs_leaves_each_once(tmp_path, monkeypatch, earlier):
    size, whole = 0, 1
    while size <= whole:
        workspace = tmp_path / f"{size}"
        perf = workspace / "perf.csv"
        folders = ended(workspace)
        if earlier:
            append.append_rows(perf, [{"model": "earlier", "performance": "0"}])
        whole = killed_at(size, monkeypatch, folders, perf)
        done = collect_all([*reversed(folders)], workspace, perf)  # in whatever order
        assert all(collected.result is not None for collected in done), [one.message for one in done]
        assert values(perf) == ["0"] * earlier + EXPECTED, size
        assert all("collected already" in one.message for one in collect_all(folders, workspace, perf))
        size += 41


def test_the_rows_of_many_runs_are_one_write_and_one_sync(tmp_path, monkeypatch):
    folders, synced = ended(tmp_path), []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    collect_all(folders, tmp_path, tmp_path / "perf.csv")
    assert synced.count(str(tmp_path / "perf.csv")) == 1 and values(tmp_path / "perf.csv") == EXPECTED


def test_few_open_files_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "getrlimit", lambda kind: (8, 8))
    done = collect_all(ended(tmp_path), tmp_path, tmp_path / "perf.csv")
    assert not any(one.failed for one in done) and values(tmp_path / "perf.csv") == EXPECTED


def test_a_run_whose_journal_takes_nothing_costs_no_other_its_row(tmp_path, monkeypatch):
    folders, real = ended(tmp_path), RunFolder.note
    monkeypatch.setattr(
        RunFolder, "note", lambda self, entry: "no room" if self.path == folders[1] else real(self, entry)
    )
    done = collect_all(folders, tmp_path, tmp_path / "perf.csv")
    assert [one.failed for one in done] == [False, True, False, False, False] and "no room" in done[1].message
    monkeypatch.undo()
    assert not any(one.failed for one in collect_all(folders, tmp_path, tmp_path / "perf.csv"))
    assert values(tmp_path / "perf.csv") == EXPECTED


@pytest.mark.parametrize("is_cut", [False, True])
def test_columns_that_a_file_does_not_take_cost_no_other_run_its_row(tmp_path, monkeypatch, is_cut):
    folders, perf = ended(tmp_path), tmp_path / "perf.csv"
    append.append_rows(perf, [{"model": "earlier", "performance": "0"}])
    with perf.open("a") as file:
        file.write("cut" * is_cut)  # repaired by a write of its own: then the others wait for the next look
    result = folders[1] / "result.json"
    result.write_text(re.sub(r'("performance": ?"2",)', r'\1"novel":"7",', result.read_text(), count=1))
    assert "novel" in result.read_text()
    (tmp_path / ".perf.csv.widening").mkdir()  # as a disk without room for a second file
    for looks in range(1 + is_cut):
        done = collect_all(folders, tmp_path, perf)
        assert [one.failed for one in done] == [is_cut > looks, True, *[is_cut > looks] * 3]
    assert "cannot be rewritten for new columns (novel)" in done[1].message
    (tmp_path / ".perf.csv.widening").rmdir()
    assert "its rows were added" in collect_all(folders, tmp_path, perf)[1].message
    assert values(perf) == sorted(["0", *[""] * is_cut, *EXPECTED])


def test_what_a_failed_write_may_have_left_in_the_file_is_written_by_no_other_try(tmp_path, monkeypatch):
    folders, perf, tries = ended(tmp_path), tmp_path / "perf.csv", []

    def fail(file: append.LockedFile, cut: int, data: bytes) -> None:
        tries.append(os.write(file.fd, data))
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(append, "_append", fail)
        assert all(one.failed for one in collect_all(folders, tmp_path, perf)) and len(tries) == 1
    assert not any(one.failed for one in collect_all(folders, tmp_path, perf)) and values(perf) == EXPECTED


def test_of_equal_rows_each_run_has_its_own_whichever_kill_came_before(tmp_path, monkeypatch):
    folders, perf = ended(tmp_path), tmp_path / "perf.csv"  # 0 and 3 have equal rows
    append.append_rows(perf, [{"model": "earlier", "performance": "0"}])
    killed_at(0, monkeypatch, folders[:3], perf)  # 0 has noted where its row was to be
    killed_at(9999, monkeypatch, folders[3:], perf)  # that of 3 is there, and nothing says so yet
    assert not collect_all(folders[:1], tmp_path, perf)[0].failed and values(perf) == ["0", "1", "1", "4"]
    assert not any(one.failed for one in collect_all(folders, tmp_path, perf)) and values(perf) == ["0", *EXPECTED]


def test_a_row_whose_own_column_never_joined_is_not_taken_for_another_one_without(tmp_path, monkeypatch):
    folders, perf = ended(tmp_path), tmp_path / "perf.csv"
    result = folders[0] / "result.json"
    result.write_text(re.sub(r'("performance": ?"1",)', r'\1"novel":"7",', result.read_text(), count=1))
    append.append_rows(perf, [{"model": "earlier", "performance": "0"}])

    def die(*given: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(append, "add_columns", die)
        with pytest.raises(Killed):
            collect_all(folders[:1], tmp_path, perf)
    for some in (folders[1:], folders):
        assert not any(one.failed for one in collect_all(some, tmp_path, perf))
    assert values(perf) == ["0", *EXPECTED]
