"""Files that were never whole: ours of dead processes are found, all others are not."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from madlite.batch.leftovers import partial_files, remove_run_files
from madlite.model import to_json
from madlite.store.folder import LOCK, PLAN, lock_name
from tests.factories import make_plan

DEAD = 2**22 + 7  # above every process id of Linux


def found(workspace: Path) -> list[str]:
    return [str(path.relative_to(workspace)) for path in partial_files(workspace)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "madlite_runs/r1"
    folder.mkdir(parents=True)
    (folder / PLAN).write_text("{}")
    (folder / LOCK).touch()
    return folder


def test_what_dead_writers_left_is_found_in_the_workspace_and_among_the_runs(tmp_path, run):
    ours = [
        *(f".perf.csv.{DEAD}", f".build_manifest.json.{DEAD}", f".a.live.log.{DEAD}", ".perf.csv.widening"),
        *(".perf_super.json.new", ".common_info.json.new", f"madlite_runs/.x.json.{DEAD}"),
        *(f"madlite_runs/r1/.record.json.{DEAD}", f"madlite_runs/r1/.steps.jsonl.{os.getpid()}"),
    ]
    for name in ours:
        (tmp_path / name).touch()
    assert sorted(found(tmp_path)) == sorted(ours)


def test_what_is_not_ours_or_may_still_be_written_stays(tmp_path, run):
    theirs = [".bashrc", ".notes.txt.5", ".my.new", f".key.pem.{DEAD}", "perf.csv.1", f"madlite_runs/r1/run.log.{DEAD}"]
    for name in (*theirs, f".perf.csv.{os.getpid()}", "madlite_runs/r1/.git"):
        (tmp_path / name).touch()
    (tmp_path / f".link.csv.{DEAD}").symlink_to("/etc/passwd")
    (tmp_path / f".folder.csv.{DEAD}").mkdir()
    assert found(tmp_path) == []
    (tmp_path / "perf.csv").touch()
    (tmp_path / ".perf.csv.widening").touch()
    (tmp_path / "madlite_runs/.side_files.lock").touch()
    (tmp_path / ".perf_entry.csv.new").touch()
    (run / f".record.json.{DEAD}").touch()
    locks = [(tmp_path / name).open() for name in ("perf.csv", "madlite_runs/.side_files.lock", "madlite_runs/r1/lock")]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert found(tmp_path) == []
    for lock in locks:
        lock.close()
    assert len(found(tmp_path)) == 3


def test_a_number_that_another_process_has_now_does_not_keep_a_file(tmp_path):
    file = tmp_path / f".perf.csv.{os.getpid()}"
    file.touch()
    assert found(tmp_path) == []
    os.utime(file, (time.time(), 1_000_000))
    assert found(tmp_path) == [file.name]


def test_a_hostile_plan_makes_nothing_be_removed(tmp_path, run):
    precious = tmp_path / "precious"
    precious.mkdir()
    for text in (
        "[1]",
        "[" * 100_000,
        '{"model_dir": "../precious"}',
        '{"model_dir": "precious"}',
        "{",
        '{"model_dir": "."}',
    ):
        (run / PLAN).write_text(text)
        remove_run_files(run)
    (run / PLAN).unlink()
    (run / PLAN).symlink_to(tmp_path / "plan")
    (tmp_path / "plan").write_text('{"model_dir": "run_directory"}')
    (tmp_path / "run_directory").mkdir()
    remove_run_files(run)
    assert precious.is_dir() and (tmp_path / "run_directory").is_dir()


def test_no_lock_of_a_folder_that_is_removed_stays(tmp_path, run):
    own = f"run_directory_{run.name[-6:]}"
    for name in (own, "run_directory"):
        (tmp_path / name).mkdir()
        (run.parent / lock_name(name)).touch()
        (run / PLAN).write_text(to_json(make_plan(tmp_path, id=run.name, model_dir=name)))
        remove_run_files(run)
        assert not (tmp_path / name).exists()
        assert not (run.parent / lock_name(name)).exists()
