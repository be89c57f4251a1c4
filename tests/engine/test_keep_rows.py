"""Rows and what becomes of them: of a file made again, of a header that is full, each row is there once and so told."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from madlite.batch.collect import recover
from madlite.batch.leftovers import find_incomplete, recovery_report
from madlite.batch.runner import Batch
from madlite.perfcsv.recorded import rebuild
from madlite.perfcsv.rows import STANDARD_COLUMNS, Header
from madlite.reports.runs import list_runs
from tests.engine.test_batch import Quiet, planned  # noqa: F401 - a fixture
from tests.engine.test_unfinished import Killed, kill_at, rows_of

pytestmark = pytest.mark.host  # whole runs


FOREIGN = Header(columns=STANDARD_COLUMNS).line + f"foreign{',' * 20}SUCCESS{',' * 8}\n" * 50


def test_of_a_run_that_was_cut_off_and_taken_in_by_a_rebuild_nobody_says_that_it_has_no_row(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    options.output.write_text(FOREIGN)
    with monkeypatch.context() as patch:
        kill_at(patch, "madlite.perfcsv.append._append")
        with pytest.raises(Killed):
            Batch(plans, options, plugins, Quiet()).run()
    assert find_incomplete(options.workspace)[0].row == "no row"
    rebuild(options.output, options.workspace / "madlite_runs", force=True)
    assert rows_of(options.output) == ["m"] and find_incomplete(options.workspace)[0].row == "its row is in perf.csv"


@pytest.mark.host
def test_after_a_rebuild_rows_alike_are_told_apart_by_the_new_file(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    options.output.write_text(FOREIGN)
    monkeypatch.setattr("madlite.perfcsv.rows._test_duration", lambda result: "alike")
    Batch(plans, options, plugins, Quiet()).run()
    rebuild(options.output, options.workspace / "madlite_runs", force=True)
    (plan,) = plans
    for n, after in enumerate((False, True)):
        second = f"id-{n}-{os.getpid()}"
        again = replace(plan, plan=replace(plan.plan, id=second, folder=plan.plan.folder.with_name(second)))
        with monkeypatch.context() as patch:
            kill_at(patch, "madlite.perfcsv.append._append", after=after)
            with pytest.raises(Killed):
                Batch([again], options, plugins, Quiet()).run()
    told = {one.folder.name: one.row for one in find_incomplete(options.workspace)}
    assert told == {f"id-0-{os.getpid()}": "no row", f"id-1-{os.getpid()}": "its row is in perf.csv"}


def test_after_a_rebuild_a_row_like_an_earlier_one_is_added_still(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    monkeypatch.setattr("madlite.perfcsv.rows._test_duration", lambda result: "alike")
    Batch(plans, options, plugins, Quiet()).run()
    rebuild(options.output, options.workspace / "madlite_runs", force=True)
    away = options.output.rename(options.output.with_name("away.csv"))
    options.output.mkdir()
    (plan,) = plans
    second = f"id-2-{os.getpid()}"
    again = replace(plan, plan=replace(plan.plan, id=second, folder=plan.plan.folder.with_name(second)))
    assert Batch([again], options, plugins, Quiet()).run().pending == ("m",)
    options.output.rmdir()
    away.rename(options.output)
    assert recover(options.workspace, options.output) == [f"{second}: SUCCESS, its row was added to perf.csv"]
    assert rows_of(options.output) == ["m", "m"]


def test_a_kept_row_whose_columns_have_no_room_is_added_without_them_and_they_are_named(planned):  # noqa: F811
    plans, options, plugins = planned
    wide = "model,performance,metric,status," + ",".join(f"c{n}" for n in range(1200))
    options = replace(options, columns=("run",))
    options.output.mkdir()
    Batch(plans, options, plugins, Quiet()).run()
    options.output.rmdir()
    options.output.write_text(f"{wide}\n")
    (told, *_) = recover(options.workspace, options.output)
    assert "its row was added to perf.csv" in told and "left out of a row" in told and told.endswith(": run")
    assert rows_of(options.output) == ["m"] and recovery_report(options.workspace) == []
    (run,) = list_runs(options.workspace / "madlite_runs")
    assert "run" not in run.record.rows.cells[0], "as they were appended"
    assert recover(options.workspace, options.output) == []


def test_columns_that_have_no_room_cost_no_row_of_a_run_and_are_named_on_the_screen(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    options = replace(options, columns=("run",))
    options.output.write_text("model,performance,metric,status," + ",".join(f"c{n}" for n in range(1200)) + "\n")
    said: list[str] = []
    monkeypatch.setattr(Quiet, "warn", lambda screen, text: said.append(text))
    outcome = Batch(plans, options, plugins, Quiet()).run()
    assert outcome.exit_code == 0 and rows_of(options.output) == ["m"] and outcome.pending == ()
    assert [text for text in said if "left out of a row" in text and text.endswith(": run; record.json has them")]
    (run,) = list_runs(options.workspace / "madlite_runs")
    assert run.record.rows.appended and "run" not in run.record.rows.cells[0]
