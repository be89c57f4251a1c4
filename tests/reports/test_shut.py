"""Folders that other users shut: in a shared working folder one of them costs its own line alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from madlite.batch.collect import recover
from madlite.batch.leftovers import end_orphans, find_leftovers, recovery_report
from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.model import Status
from madlite.perfcsv.recorded import rebuild
from madlite.reports.log import read_log
from madlite.reports.runs import UNREADABLE, find_run, list_runs, open_run, runs_folder
from madlite.store.events import Requested, RequestedRun, append
from madlite.store.folder import PLAN, RECORD, RunRows, claimed_model_dir, lock_name, unfinished
from madlite.store.record import Record, record_json
from tests.factories import make_plan, note_made
from tests.other_users import open_folder

NOBODY = 65534
ROWS = RunRows(path="perf.csv", cells=({"model": "m", "status": "SUCCESS"},), at="2026", appended=True)


@contextmanager
def as_another_user() -> Iterator[None]:
    """Give up what lets root look into everything; others are kept out of their own folders by the mode alone."""
    datetime.strptime("2026", "%Y")  # which imports what that user may not be able to read
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder(0o777) as place:
        for name in ("20260101T000000-mine-000001", "20260102T000000-theirs-000002"):
            folder = place / "madlite_runs" / name
            folder.mkdir(parents=True)
            (folder / PLAN).write_text("{}")
            (folder / RECORD).write_text(record_json(Record(id=name, status=Status.SUCCESS, rows=ROWS)))
        folder.chmod(0)
        yield place
        folder.chmod(0o755)


def test_a_run_that_is_shut_keeps_no_other_from_starting(place):
    cut_off = place / "madlite_runs" / "20260103T000000-cut-000003"
    cut_off.mkdir()
    (note_made(cut_off) / PLAN).write_text("{}")
    with as_another_user():
        assert unfinished(place) == (cut_off,)


def test_a_run_that_is_shut_costs_its_own_line_alone(place):
    with as_another_user():
        runs = runs_folder(place)
        assert {run.folder.name[16:-7]: run.state for run in list_runs(runs)} == {
            "mine": "SUCCESS",
            "theirs": UNREADABLE,
        }
        assert find_run(runs, "mine").name.endswith("000001")
        shut = open_run(find_run(runs, "theirs"))
        assert shut.problem == "record.json: Permission denied"
        with pytest.raises(UsageProblem, match="cannot be read: Permission denied"):
            list(read_log(shut.folder))


def test_perf_csv_is_made_again_without_it_and_it_is_named(place):
    with as_another_user():
        done = rebuild(place / "again.csv", place / "madlite_runs")
    assert done.rows == 1 and done.notes == ("20260102T000000-theirs-000002: record.json: Permission denied",)


@pytest.mark.parametrize("mode", [0o755, 0o744])
def test_a_command_goes_on_past_what_is_shut(place, mode):
    """What `run` and `clean` look at before anything runs: a batch of the other user, and their folder of runs."""
    runs = place / "madlite_runs"
    runs.chmod(0o777)
    asked = [RequestedRun(id="20260102T000000-theirs-000002", card="theirs"), RequestedRun(id="r", card="lost")]
    with Folder.open(runs) as folder:
        append(folder, Requested(batch="b2", runs=(asked[0],)), Requested(batch="b1", runs=tuple(asked)))
    (runs / ".gitignore").write_text("*\n")
    (runs / ".batch-b2.lock").touch(0)  # nobody can say whether that command goes on
    environ = {"DOCKER_HOST": "unix:///nonexistent"}
    find_leftovers(place, environ)  # which imports what that user may not be able to read
    runs.chmod(mode)
    with as_another_user():
        found = find_leftovers(place, environ).leftovers
        told = [*end_orphans(place, environ), *recover(place, place / "perf.csv"), *recovery_report(place)]
    lost = "1 run of an earlier batch never started: lost"
    seen = mode == 0o755 or os.geteuid() != 0
    assert not [one.text for one in found if one.run_id == "-"]
    assert told == ([f"{lost}. madlite run --resume goes on with it"] if seen else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="two users are needed")
def test_a_folder_that_another_user_claimed_is_not_waited_for(place):
    runs = place / "madlite_runs"
    runs.chmod(0o777)
    (runs / lock_name("run_directory")).touch(0o644)
    plan = make_plan(place, id="20260103T000000-mine-000003", model_dir="run_directory")
    with as_another_user(), claimed_model_dir(plan) as name:
        assert name == "run_directory_000003"


def test_a_folder_of_runs_that_cannot_be_listed_is_not_taken_for_an_empty_one(place):
    (place / "madlite_runs").chmod(0o711)
    with as_another_user(), pytest.raises(UsageProblem, match="madlite_runs cannot be read by this user"):
        runs_folder(place)
