"""After a kill at any instant the next command says the truth: what is unfinished, and whether its row is there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from pkgutil import resolve_name

import pytest
from msgspec.structs import replace

from madlite.batch.collect import recover
from madlite.batch.leftovers import Leftover, find_incomplete, find_leftovers, recovery_report, remove
from madlite.batch.runner import Batch
from madlite.perfcsv.recorded import rebuild
from madlite.perfcsv.rows import new_columns
from madlite.reports.runs import list_runs
from madlite.store import folder
from madlite.store.batches import BatchLog
from madlite.store.folder import LOCK, RECORD, RUN_JOURNAL, RunEntry, RunFolder, read_run
from tests.csv_rows import csv_rows
from tests.engine.test_batch import Quiet, planned  # noqa: F401 - a fixture
from tests.factories import note_made, write_journal
from tests.tiers import first_of

pytestmark = pytest.mark.host  # whole runs

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "PATH": os.environ["PATH"]}


class Killed(BaseException):
    """Stands for the process's end: nothing of ours catches it."""


def kill_at(monkeypatch, target: str, *, after: bool = False) -> None:
    """End the process when this function of ours is called, or right after it."""
    real = resolve_name(target)

    def killed(*args, **named):
        if after:
            real(*args, **named)
        raise Killed

    monkeypatch.setattr(target, killed)


def rows_of(perf: Path) -> list[str]:
    return [row["model"] for row in csv_rows(perf)]


def left_in(workspace: Path) -> list[Leftover]:
    """What this folder's runs left: other tests at work on this machine leave processes of their own."""
    return [one for one in find_leftovers(workspace, NO_ENGINE).leftovers if not one.elsewhere]


@pytest.mark.host
@pytest.mark.parametrize(
    ("target", "after", "rows", "row"),
    [
        ("madlite.run.result_writer.step_lines", False, 0, "no row"),
        ("madlite.run.result_writer.append_runs", False, 0, "no row"),
        ("madlite.perfcsv.append._append", False, 0, "no row"),
        ("madlite.perfcsv.append._append", True, 1, "its row is in perf.csv"),
        ("madlite.run.result_writer.append_runs", True, 1, "its row is in perf.csv"),
        ("madlite.run.result_writer.write_entries", False, 1, "its row is in perf.csv"),
        ("madlite.run.result_writer.make_record", False, 1, "its row is in perf.csv"),
    ],
)
def test_a_kill_at_any_instant_leaves_the_row_or_is_told(planned, monkeypatch, target, after, rows, row):  # noqa: F811
    plans, options, plugins = planned
    options.output.write_text("model,performance,metric,status\n")
    if "step_lines" in target:
        monkeypatch.setattr("madlite.measure.steps.Steps.__len__", lambda self: 1)
    with monkeypatch.context() as patch:
        kill_at(patch, target, after=after)
        with pytest.raises(Killed):
            Batch(plans, options, plugins, Quiet()).run()
    assert len(rows_of(options.output)) == rows
    (folder,) = (options.workspace / "madlite_runs").glob("id-*")
    cut_off = f"1 earlier run was cut off: {folder.name} ({row}). madlite clean lists what is left"
    assert recovery_report(options.workspace) == [cut_off]
    (listed,) = left_in(options.workspace)
    assert listed.kind == "run" and row in listed.text
    assert remove(listed, NO_ENGINE) is None
    assert recovery_report(options.workspace) == [] and read_run(folder).cleaned == row
    assert [run.state for run in list_runs(options.workspace / "madlite_runs")] == ["CUT OFF"]


def test_a_kill_between_the_record_and_the_end_of_the_note_is_an_ended_run(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    with monkeypatch.context() as patch:
        kill_at(patch, "madlite.store.folder.RunFolder.end_journal")
        with pytest.raises(Killed):
            Batch(plans, options, plugins, Quiet()).run()
    (folder,) = (options.workspace / "madlite_runs").glob("id-*")
    assert (folder / RUN_JOURNAL).exists() and (folder / RECORD).exists()
    assert recovery_report(options.workspace) == [] and len(rows_of(options.output)) == 1


def test_a_disk_without_inodes_still_has_the_note(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    options.output.write_text("model,performance,metric,status\n")
    full_disk(monkeypatch, also_journal=False)
    Batch(plans, options, plugins, Quiet()).run()
    (one,) = find_incomplete(options.workspace)
    assert one.row == "its row is in perf.csv"


def test_of_many_the_first_are_named(planned):  # noqa: F811
    _, options, _ = planned
    for n in range(7):
        folder = options.workspace / f"madlite_runs/r{n}"
        folder.mkdir(parents=True)
        (note_made(folder) / "plan.json").write_text("{}")
        (folder / LOCK).touch()
        write_journal(folder)
    (said,) = recovery_report(options.workspace)
    assert said.startswith("7 earlier runs were cut off: r0 (no row)") and ", and 2 more" in said


def test_where_the_file_cannot_be_read_nobody_says_that_there_is_no_row(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    with monkeypatch.context() as patch:
        kill_at(patch, "madlite.run.result_writer.write_entries")
        with pytest.raises(Killed):
            Batch(plans, options, plugins, Quiet()).run()
    options.output.write_text("nonsense\n")
    assert "whether its row is in perf.csv cannot be seen" in recovery_report(options.workspace)[0]


def test_a_bug_while_the_record_is_made_writes_no_second_row(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned

    def broken(*args, **named):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("madlite.run.result_writer.make_record", broken)
    outcome = Batch(plans, options, plugins, Quiet()).run()
    assert outcome.bug is None and rows_of(options.output) == ["m"]
    assert outcome.results[0].findings[-1] == "internal error in record.json: ZeroDivisionError: ours"


def test_a_run_that_is_kept_from_starting_has_a_record_too(planned):  # noqa: F811
    from madlite.model import Blocked, Cause, Status

    plans, options, plugins = planned
    why = Blocked(status=Status.SKIPPED, cause=Cause.DEPRECATED, reason="old")
    (one,) = plans
    Batch([replace(one, plan=replace(one.plan, blocked=why))], options, plugins, Quiet()).run()
    (run,) = list_runs(options.workspace / "madlite_runs")
    assert (run.state, run.record.cause, run.record.rows.appended) == ("SKIPPED", "deprecated", True)


@pytest.mark.parametrize(("contract", "columns"), first_of([(0, 29), pytest.param(1, 25), pytest.param(2, 29)], 1))
def test_a_row_that_perf_csv_did_not_take_is_added_once_by_the_next_run(planned, contract, columns):  # noqa: F811
    plans, options, plugins = planned
    options = replace(options, contract=contract)
    begin = new_columns(contract)
    options.output.mkdir()
    outcome = Batch(plans, options, plugins, Quiet()).run()
    assert outcome.pending == ("m",)
    workspace = options.workspace
    (run,) = list_runs(workspace / "madlite_runs")
    name = run.folder.name
    assert not run.collected and run.record.metrics and left_in(workspace) == []
    told = f"1 run is not collected: {name}. madlite runs collect adds its row"
    assert recovery_report(workspace) == [told]
    (not_added,) = recover(workspace, options.output, begin)
    assert not_added.startswith(f"{name}: not collected: ") and recovery_report(workspace) == [told]
    options.output.rmdir()
    assert recover(workspace, options.output, begin) == [f"{name}: SUCCESS, its row was added to perf.csv"]
    assert options.output.read_text().splitlines()[0].split(",") == [*begin] and len(begin) == columns
    assert rows_of(options.output) == ["m"] and recovery_report(workspace) == []
    assert recover(workspace, options.output) == []
    (run,) = list_runs(workspace / "madlite_runs")
    assert run.record.rows.appended and run.collected and not (run.folder / RUN_JOURNAL).exists()
    assert rebuild(workspace / "again.csv", workspace / "madlite_runs", contract=contract).notes == ()
    assert (workspace / "again.csv").read_text() == options.output.read_text()


def test_a_kill_while_a_row_is_collected_does_not_add_it_twice(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    options.output.mkdir()
    Batch(plans, options, plugins, Quiet()).run()
    options.output.rmdir()
    with monkeypatch.context() as patch:
        kill_at(patch, "madlite.store.folder.RunFolder.write_record")
        with pytest.raises(Killed):
            recover(options.workspace, options.output)
    assert rows_of(options.output) == ["m"]
    assert len(recover(options.workspace, options.output)) == 1 and rows_of(options.output) == ["m"]
    assert recovery_report(options.workspace) == []


def test_a_row_that_cannot_be_noted_or_whose_file_cannot_be_read_stays_uncollected(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    options.output.mkdir()
    Batch(plans, options, plugins, Quiet()).run()
    options.output.rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "note", lambda folder, entry: "the disk is full")
        (not_added,) = recover(options.workspace, options.output)
    assert "not collected: madlite_runs/" in not_added and ": the disk is full (df -h madlite_runs/" in not_added
    options.output.write_text("nonsense\n")
    (not_added,) = recover(options.workspace, options.output)
    assert "not collected: " in not_added and "perf.csv" in not_added
    assert options.output.read_text() == "nonsense\n"
    options.output.write_text("model,performance,metric,status\n")
    (added,) = recover(options.workspace, options.output)
    assert "row was added" in added
    assert rows_of(options.output) == ["m"]


def test_a_result_that_neither_file_takes_is_on_the_screen(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    options.output.mkdir()
    said: list[str] = []
    monkeypatch.setattr(Quiet, "warn", lambda screen, text: said.append(text))
    monkeypatch.setattr(RunFolder, "write_result", lambda folder, text: "No space left on device")
    assert Batch(plans, options, plugins, Quiet()).run().pending == ("m",)
    (text,) = (text for text in said if "no row in" in text)
    assert "it cannot be saved either (No space left on device): [{" in text
    options.output.rmdir()
    recover(options.workspace, options.output)
    assert rows_of(options.output) == ["m"], "the journal has it"


def full_disk(monkeypatch, *, also_journal: bool) -> None:
    """Take what is new from the disk: files of run folders, and with `also_journal` another line of the journal."""
    real = RunFolder.write

    def write(folder: RunFolder, name: str, data: bytes) -> None:
        if name == RECORD:
            raise OSError(28, "No space left on device")
        real(folder, name, data)

    def refuse(line: RunEntry) -> bytes:
        if line.rows:
            raise OSError(28, "No space left on device")
        return real_line(line)

    real_line = folder.json_line
    monkeypatch.setattr(RunFolder, "write", write)
    if also_journal:
        monkeypatch.setattr(folder, "json_line", refuse)


def test_a_log_that_the_disk_does_not_take_costs_no_verdict(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    real = os.open

    def full(path, *args, **named):
        if str(path).endswith("run.log"):
            raise OSError(28, "No space left on device")
        return real(path, *args, **named)

    monkeypatch.setattr(os, "open", full)
    outcome = Batch(plans, options, plugins, Quiet()).run()
    assert outcome.bug is None and outcome.exit_code == 0 and rows_of(options.output) == ["m"]
    assert outcome.results[0].findings == ("no run.log: No space left on device",)


@pytest.mark.parametrize(("also_journal", "row"), [(False, "its row is in perf.csv"), (True, "cannot be seen")])
def test_on_a_disk_that_is_full_nobody_says_that_there_is_no_row_where_there_is_one(
    planned,  # noqa: F811
    monkeypatch,
    also_journal,
    row,
):
    plans, options, plugins = planned
    with monkeypatch.context() as patch:
        full_disk(patch, also_journal=also_journal)
        outcome = Batch(plans, options, plugins, Quiet()).run()
    assert outcome.exit_code == 0 and rows_of(options.output) == ["m"]
    (one,) = find_incomplete(options.workspace)
    assert row in one.row
    done = rebuild(options.workspace / "again.csv", options.workspace / "madlite_runs") if not also_journal else None
    assert done is None or done.rows == 1
    (listed,) = left_in(options.workspace)
    remove(listed, NO_ENGINE)
    assert row in read_run(one.folder).cleaned


def test_rebuild_names_a_run_of_which_nobody_knows_whether_it_has_a_row(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    Batch(plans, options, plugins, Quiet()).run()
    (plan,) = plans
    second = f"id-2-{os.getpid()}"
    again = replace(plan, plan=replace(plan.plan, id=second, folder=plan.plan.folder.with_name(second)))
    with monkeypatch.context() as patch:
        full_disk(patch, also_journal=True)
        Batch([again], options, plugins, Quiet()).run()
    done = rebuild(options.workspace / "again.csv", options.workspace / "madlite_runs")
    note = f"{second}: no record, and a row that it may have is left out: it was cut off"
    assert done.rows == 1 and done.notes == (note,)


def test_a_kill_before_the_plan_is_told_once(planned, monkeypatch):  # noqa: F811
    plans, options, plugins = planned
    workspace = options.workspace
    taken = folder.open_locked
    locks: list[int] = []

    def held(home: folder.Folder, name: str, *limit: float) -> int:
        if name != f".{LOCK}":  # others than that of the run's folder are released by the run itself
            return taken(home, name, *limit)
        if at_lock:
            raise Killed
        locks.append(taken(home, name, *limit))
        return locks[-1]

    for at_lock in (False, True):
        with BatchLog(workspace, ("run",)) as batch, monkeypatch.context() as patch:
            patch.setattr(folder, "open_locked", held)
            if not at_lock:
                kill_at(patch, "madlite.store.folder.masked_json")
            with pytest.raises(Killed):
                Batch(plans, options, plugins, Quiet(), journal=batch).run()
        while locks:
            os.close(locks.pop())  # as the process's end does
        assert len(recovery_report(workspace)) == 1
        for left in left_in(workspace):
            assert remove(left, NO_ENGINE) is None
        shutil.rmtree(workspace / "madlite_runs")
