"""The event log of a folder of runs: torn lines, several writers and users, a folder that was copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from madlite.files import Folder
from madlite.perfcsv.append import append_rows
from madlite.store import events
from madlite.store.events import (
    EVENTS,
    BatchEnded,
    Ended,
    EventLog,
    JobEnded,
    JobEvent,
    LogBegan,
    Requested,
    RunImported,
    Started,
    Submitted,
    append,
    is_own,
)
from madlite.store.folder import open_runs
from tests.other_users import open_folder
from tests.perfcsv.limits import in_child


def lines(runs: Path) -> list[str]:
    return (runs / EVENTS).read_text().splitlines()


def add(runs: Path, *some: events.Event) -> None:
    with Folder.open(runs) as folder:
        append(folder, *some)


def test_the_events_about_one_run_are_those_that_name_it(tmp_path: Path):
    names = ["r1", "r10", 'odd "name" é', "r1"]
    add(tmp_path, *(Started(run=name) for name in names), RunImported(run="r2", archived_id="r1"))
    log = EventLog.read(tmp_path)
    assert [one.run for one in log.of(Started)] == names
    assert [type(one) for one in log.about("r1")] == [Started, Started, RunImported]
    assert not list(log.about("r")) and not list(log.about("none"))
    assert is_own(tmp_path / "r10") and is_own(tmp_path / "r2") and not is_own(tmp_path / "r")
    assert log.own_runs() == {*names, "r2"}
    assert not EventLog.read(tmp_path / "nowhere")


def test_the_runs_of_a_submission_and_their_attempts_are_runs_of_the_folder(tmp_path: Path):
    add(tmp_path, Submitted(submission="s", runs=("r1", "r2")), JobEvent(submission="s", script=1, attempt="r3"))
    add(tmp_path, JobEvent(submission="s", script=2))
    assert EventLog.read(tmp_path).own_runs() == {"r1", "r2", "r3"}
    assert all(is_own(tmp_path / name) for name in ("r1", "r2", "r3")) and not is_own(tmp_path / "s")


def test_a_line_that_was_cut_off_is_skipped_and_told(tmp_path: Path, caplog):
    add(tmp_path, Started(run="r1"))
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b'{"event":"started","at":"2026","run":"r2"')
    assert EventLog.read(tmp_path).own_runs() == {"r1"}
    add(tmp_path, Started(run="r3"))
    assert [one.run for one in EventLog.read(tmp_path).of(Started)] == ["r1", "r3"]
    assert "its last line was cut off" in caplog.text and len(lines(tmp_path)) == 4


def test_lines_of_a_newer_madlite_are_skipped(tmp_path: Path):
    add(tmp_path, Started(run="r1"))
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b'{"event":"teleported","at":"2026","run":"r1"}\n[]\n\n{\n')
    assert [type(one) for one in EventLog.read(tmp_path).about("r1")] == [Started]


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch):
    add(tmp_path, Started(run="r1"))
    before, real = (tmp_path / EVENTS).read_bytes(), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:20]))
        with pytest.raises(OSError, match="No space left"):
            add(tmp_path, Started(run="r2"))
    assert (tmp_path / EVENTS).read_bytes() == before


def test_a_copied_folder_knows_what_was_and_continues_nothing_of_it(tmp_path: Path):
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    add(there, Requested(batch="b1"), Started(run="r1"), RunImported(run="r2"))
    shutil.copytree(there, here)
    assert EventLog.read(there).made(["b1"]) == {"b1"} and EventLog.read(there).own_runs() == {"r1", "r2"}
    assert EventLog.read(here).made(["b1"]) == frozenset() == EventLog.read(here).own_runs()
    assert [one.run for one in EventLog.read(here).of(RunImported)] == ["r2"], "what is known stays known"
    add(here, Started(run="r3"), BatchEnded(batch="b1"))
    add(here, Started(run="r4"))
    assert EventLog.read(here).own_runs() == {"r3", "r4"} and not is_own(here / "r1")
    assert len(list(EventLog.read(here).of(LogBegan))) == 2, "it says once where it is now"


def test_runs_with_their_rows_and_record_are_settled(tmp_path: Path):
    add(tmp_path, Started(run="r1", file="perf.csv"), Started(run="r2", file="perf.csv"), Started(run="r3"))
    add(tmp_path, Ended(run="r1", batch="b"), *(Ended(run=name, batch="b", unrecorded=True) for name in ("r2", "r3")))
    add(tmp_path, JobEnded(submission="s", run="r4", how="SUCCESS"))
    assert EventLog.read(tmp_path).settled_runs() == {"r1", "r4"}, "r3's result is to be collected"


@pytest.fixture
def open_space() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")
@pytest.mark.parametrize(
    ("owner", "mode", "users"),
    [((0, 777), 0o2775, (12345, 12346, 0, 12345)), ((12345, 12345), 0o755, (12345, 0, 12345))],
    ids=["a folder of a group", "a user's own, and root in it"],
)
def test_users_of_one_folder_do_not_shut_each_other_out(open_space: Path, owner, mode, users):
    os.chown(open_space, *owner)
    open_space.chmod(mode)

    def append_as(uid: int) -> None:
        os.setgroups([777])
        os.setgid(uid)
        os.setuid(uid)
        os.umask(0o002)
        with open_runs(open_space, make=True) as runs:
            append(runs, Started(run=f"of-{uid}"))
        append_rows(open_space / "perf.csv", [{"model": "m", "performance": "5", "status": "SUCCESS"}])

    for uid in users:
        assert in_child(lambda uid=uid: append_as(uid)) == ""
    assert (open_space / "perf.csv").read_text().count("SUCCESS") == len(users)
    assert len(EventLog.read(open_space / "madlite_runs").ids(Started)) == len(users)
