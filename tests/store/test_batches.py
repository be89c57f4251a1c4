"""Batches in the event log: what never started is known after a kill, and nothing is reported after an orderly end."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from madlite.batch.leftovers import find_leftovers, recovery_report, remove
from madlite.cli.batches import unfinished
from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.store import batches
from madlite.store.batches import (
    BatchLog,
    dead_locks,
    interrupted_batches,
    is_batch_running,
    open_unfinished,
    reported_batches,
    study_to_resume,
)
from madlite.store.events import EVENTS, BatchEnded, Ended, EventLog, RequestedRun, Started, Submitted, append
from madlite.store.folder import PLAN
from tests.forked import kill_this_process, run_killed

THREE = [RequestedRun(id="r1", card="m1"), RequestedRun(id="r2", card="m2"), RequestedRun(id="r3", card="m3")]


def kill(workspace: Path) -> None:
    """Begin a batch whose madlite is killed in its second run."""

    def begin() -> None:
        batch = BatchLog(workspace, ("run", "--tags", "t"))
        batch.request(THREE)
        batch.begin("r1"), batch.end("r1"), batch.begin("r2")
        kill_this_process()

    run_killed(begin)


def start(workspace: Path, *names: str) -> None:
    """Record runs as their folders are made."""
    with Folder.open(workspace / "madlite_runs") as runs:
        append(runs, *(Started(run=name) for name in names))


def words(workspace: Path) -> list[str]:
    return [batch.message for batch in interrupted_batches(workspace) if batch.message]


def locks(workspace: Path) -> list[Path]:
    return list((workspace / "madlite_runs").glob(".batch-*.lock"))


def test_a_killed_batch_names_what_never_started_and_what_has_no_folder(tmp_path):
    kill(tmp_path)
    start(tmp_path, "r1", "r2")
    assert words(tmp_path) == ["2 runs of an earlier batch never started: m2, m3"]
    (tmp_path / "madlite_runs/r2").mkdir()
    (tmp_path / "madlite_runs/r2" / PLAN).touch()
    assert words(tmp_path) == ["1 run of an earlier batch never started: m3"], "its folder tells of the other"


def test_a_batch_that_goes_on_or_ended_leaves_nothing_to_tell(tmp_path):
    with BatchLog(tmp_path, ("run",)) as batch:
        assert list(tmp_path.iterdir()) == [], "what is wrong with a command is found before its runs are requested"
        batch.request(THREE)
        assert words(tmp_path) == [] and is_batch_running(tmp_path / "madlite_runs") and len(locks(tmp_path)) == 1
        batch.close()
        batch.close()
    assert not is_batch_running(tmp_path / "madlite_runs") and locks(tmp_path) == [] and words(tmp_path) == []
    found = open_unfinished(tmp_path)
    assert found is None


def test_no_event_is_lost_where_runs_begin_and_end_in_many_threads(tmp_path):
    ids = [f"r{n}" for n in range(800)]
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(RequestedRun(id=one, card="a") for one in ids)

        def run(some):
            for one in some:
                batch.begin(one)
                start(tmp_path, one)
                batch.end(one)

        threads = [threading.Thread(target=run, args=(ids[n::8],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        batch.close()
    log = EventLog.read(tmp_path / "madlite_runs")
    assert sorted(log.ids(Started)) == sorted(log.ids(Ended)) == sorted(ids)


def test_a_bug_in_the_middle_leaves_the_batch_open_and_one_before_the_runs_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), BatchLog(tmp_path, ()) as batch:
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), BatchLog(tmp_path, ()) as batch:
        batch.request(THREE)
        batch.end("r1")
        raise ZeroDivisionError
    assert words(tmp_path) == ["2 runs of an earlier batch never started: m2, m3"]


def test_a_folder_that_cannot_be_written_to_costs_nothing(tmp_path):
    (tmp_path / "madlite_runs").write_text("a file")
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        batch.begin("r1")
        batch.end("r1")
    with BatchLog() as batch:
        batch.request(THREE)
    assert (tmp_path / "madlite_runs").read_text() == "a file"


def test_a_full_disk_costs_events_alone(tmp_path, monkeypatch):
    real = os.write
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        size = (tmp_path / "madlite_runs" / EVENTS).stat().st_size
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        batch.begin("r1")
        batch.end("r1")
        monkeypatch.setattr(os, "write", real)
    assert (tmp_path / "madlite_runs" / EVENTS).stat().st_size == size
    assert words(tmp_path) == ["3 runs of an earlier batch never started: m1, m2, m3"]


def test_words_that_are_no_text_are_spelled_out(tmp_path):
    with BatchLog(tmp_path, ("run", "\udcff")) as batch:
        batch.request([RequestedRun(id="r", card="\udcff")])
        assert "udcff" in (tmp_path / "madlite_runs" / EVENTS).read_text()


def test_a_run_that_the_disk_took_nothing_of_is_told_after_an_orderly_end_too(tmp_path):
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        for run in THREE[:2]:
            batch.begin(run.id)
        batch.end("r1")
        batch.close()
    assert words(tmp_path) == ["2 runs of an earlier batch never started: m2, m3"]
    found = open_unfinished(tmp_path)
    assert found is not None, "it can be resumed"
    found.close()


def test_the_batch_is_locked_before_anybody_can_read_of_it(tmp_path, monkeypatch):
    seen = []
    real = batches.open_locked
    monkeypatch.setattr(batches, "open_locked", lambda *args: (seen.append(words(tmp_path)), real(*args))[1])
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        assert seen == [[]] and words(tmp_path) == [] and dead_locks(tmp_path) == ()
        batch.close()


def test_a_lock_that_clean_took_away_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    real, taken = Folder.open_file, []

    def open_file(folder: Folder, name: str, *args, **named) -> int:
        fd = real(folder, name, *args, **named)
        if name.endswith(".lock") and not taken:
            taken.append(name)
            locks(tmp_path)[0].unlink()
        return fd

    monkeypatch.setattr(Folder, "open_file", open_file)
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        assert taken and is_batch_running(tmp_path / "madlite_runs")


def test_the_lock_that_a_kill_left_is_removed_by_clean_and_the_batch_can_be_resumed(tmp_path):
    kill(tmp_path)
    assert dead_locks(tmp_path) == tuple(locks(tmp_path)) != ()
    for one in find_leftovers(tmp_path, {"DOCKER_HOST": "unix:///nonexistent"}).leftovers:
        assert remove(one, {}) is None
    assert locks(tmp_path) == [] and words(tmp_path) != []
    found = open_unfinished(tmp_path)
    assert found is not None and len(locks(tmp_path)) == 1
    found.close()
    assert locks(tmp_path) == [], "nobody went on with it"


def test_clean_leaves_the_lock_of_a_batch_that_is_resumed_by_now(tmp_path):
    kill(tmp_path)
    listed = find_leftovers(tmp_path, {"DOCKER_HOST": "unix:///nonexistent"}).leftovers
    found = open_unfinished(tmp_path)
    assert [remove(one, {}) for one in listed] == ["a madlite process has locked the batch by now"]
    assert found is not None and len(locks(tmp_path)) == 1 and is_batch_running(tmp_path / "madlite_runs")
    found.close()


def test_a_batch_of_a_copied_folder_is_neither_told_nor_resumed(tmp_path):
    """Its command would be run, and its runs may go on in the original."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    interrupt(there, "run", "--tags", "demo")
    shutil.copytree(there, here)
    assert open_unfinished(here) is None and recovery_report(here) == [] != recovery_report(there)
    with pytest.raises(UsageProblem, match="no batch of this folder was killed or interrupted"):
        unfinished(here)
    interrupt(here, "run", "--tags", "own")
    found = unfinished(here)
    assert found.command[-1] == "own"
    found.close()


def interrupt(workspace: Path, *command: str) -> bool:
    with BatchLog(workspace, command) as batch:
        batch.request(THREE)
        batch.begin("r1")
        batch.end("r1")
        return batch.close(interrupted=True)


def test_the_interrupted_batch_of_run_outlives_searches(tmp_path):
    assert interrupt(tmp_path, "run", "--tags", "demo")
    assert not interrupt(tmp_path, "bisect", "demo")
    with BatchLog(tmp_path, ("tune", "demo")) as tune:
        tune.request(THREE)  # and is killed: it has no end, and nobody has its lock
    found = open_unfinished(tmp_path)
    assert found is not None and found.command == ("run", "--tags", "demo")
    found.close()
    again = open_unfinished(tmp_path)
    assert again is not None, "the locks of those that are not resumed are released"
    again.close()


def test_only_the_study_that_is_resumed_next_is_said_to_be(tmp_path):
    for study in ("first", "second"):
        with BatchLog(tmp_path, ("run", "--repeat", "3")) as batch:
            batch.note(study=study, series=(), inputs={})
            batch.request(THREE)
            batch.close(interrupted=True)
        assert study_to_resume(tmp_path) == study
    found = open_unfinished(tmp_path)
    assert found is not None and found.study == "second"
    found.close()
    with Folder.open(tmp_path / "madlite_runs") as runs:
        append(runs, BatchEnded(batch=found.id))
    assert study_to_resume(tmp_path) == "first"


def test_a_batch_that_is_resumed_is_in_the_log_of_the_one_that_resumes_it(tmp_path):
    kill(tmp_path)
    found = open_unfinished(tmp_path)
    assert found is not None and found.ended == {"r1"} and found.is_left
    assert open_unfinished(tmp_path) is None, "one command at a time resumes it"
    with BatchLog(tmp_path, ("run", "--resume")) as batch:
        batch.carry(found, THREE[:1])
        batch.request(THREE[1:])
        assert locks(tmp_path) == [tmp_path / f"madlite_runs/.batch-{batch.id}.lock"]
        batch.close(interrupted=True)
    again = open_unfinished(tmp_path)
    assert again is not None and again.command == ("run", "--resume")
    assert [one.id for one in again.requested] == ["r1", "r2", "r3"] and again.ended == {"r1"}
    again.close()


def test_a_full_disk_costs_a_batch_that_is_resumed_neither_its_runs_nor_its_next_resumption(tmp_path, monkeypatch):
    kill(tmp_path)
    found = open_unfinished(tmp_path)
    assert found is not None
    real = os.write
    with BatchLog(tmp_path, ("run", "--resume")) as batch, monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        batch.carry(found, THREE[:1])
        batch.request(THREE[1:])
    found.close()
    again = open_unfinished(tmp_path)
    assert again is not None and again.command == ("run", "--tags", "t") and again.ended == {"r1"}
    again.close()


def test_a_batch_that_begins_with_no_run_has_its_command_all_the_same(tmp_path):
    with BatchLog(tmp_path, ("run", "--tags", "t")) as batch:
        batch.request(())
        batch.request(THREE)
    (left,) = interrupted_batches(tmp_path)
    assert left.command == ("run", "--tags", "t")


def test_a_line_of_a_batch_that_was_edited_by_hand_is_no_batch(tmp_path):
    kill(tmp_path)
    log = tmp_path / "madlite_runs" / EVENTS
    log.write_text(log.read_text().replace('"runs":[', '"runs":7,"x":[', 1))
    assert open_unfinished(tmp_path) is None and words(tmp_path) == []


def test_the_last_batch_is_resumed_first(tmp_path):
    interrupt(tmp_path, "run", "--tags", "first")
    interrupt(tmp_path, "run", "--tags", "second")
    found = open_unfinished(tmp_path)
    assert found is not None and found.command[-1] == "second"
    with BatchLog(tmp_path, ("run", "--resume")) as batch:
        batch.carry(found, ())
        batch.request(THREE)
        for run in THREE:
            batch.end(run.id)
        batch.close()
    older = open_unfinished(tmp_path)
    assert older is not None and older.command[-1] == "first"
    older.close()


def test_a_study_of_another_command_is_not_resumed_and_named(tmp_path):
    with BatchLog(tmp_path, ("tune", "demo")) as tune:
        tune.request(THREE)
    with pytest.raises(UsageProblem, match="only madlite tune demo") as refused:
        unfinished(tmp_path)
    assert "madlite tune --help" in refused.value.hint
    (text,) = recovery_report(tmp_path)
    assert "3 runs of an earlier batch never started" in text and "run --resume" not in text
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        for run in THREE:
            batch.end(run.id)
        batch.close()
    with pytest.raises(UsageProblem, match="no batch of this folder was killed or interrupted$"):
        unfinished(tmp_path)


def reported(workspace: Path) -> list[str]:
    return [batch.command[-1] for batch in reported_batches(workspace)]


def test_a_batch_is_reported_until_a_later_one_begins(tmp_path):
    with BatchLog(tmp_path, ("run", "--tags", "beside")) as beside:
        beside.request(THREE)
        kill(tmp_path)
        assert reported(tmp_path) == ["t"]
        beside.end("r1")
        beside.close(interrupted=True)
    assert reported(tmp_path) == ["beside", "t"], "this one went on while the other one began"
    kill(tmp_path)
    assert reported(tmp_path) == ["t"] and len(interrupted_batches(tmp_path)) == 3
    (text,) = recovery_report(tmp_path)
    assert text.endswith("madlite run --resume goes on with it")
    found = open_unfinished(tmp_path)
    assert found is not None and found.command == ("run", "--tags", "t")
    found.close()


def test_the_batch_of_a_job_is_not_in_the_log_that_the_submitting_side_writes(tmp_path):
    with BatchLog(tmp_path, ("run", "--plan", "x")) as batch, Folder.open(tmp_path) as here:
        with here.below("madlite_runs", make=True) as runs:
            append(runs, Submitted(submission="s", runs=("r1", "r2")))
        before = (tmp_path / "madlite_runs" / EVENTS).read_bytes()
        batch.request(THREE[:1])
        batch.begin("r1")
        batch.end("r1")
        batch.close()
    assert (tmp_path / "madlite_runs" / EVENTS).read_bytes() == before
    with BatchLog(tmp_path, ("run",)) as batch:
        batch.request(THREE)
        batch.close()
    assert (tmp_path / "madlite_runs" / EVENTS).read_bytes() != before
