"""What runs of one folder share."""

from __future__ import annotations

import fcntl
import threading

from msgspec.structs import replace

from madlite.run.executor import claimed
from madlite.store.folder import claimed_model_dir, lock_name, locked_name
from tests.factories import make_plan


def test_a_rendered_run_needs_nothing_for_itself_and_waits_for_nobody(tmp_path):
    plan = make_plan(tmp_path, model_dir="")
    before = sorted(tmp_path.rglob("*"))
    with claimed(plan, lambda: False) as held:
        assert held is plan and sorted(tmp_path.rglob("*")) == before


def test_a_second_run_has_a_folder_of_its_own_name_and_leaves_no_lock_of_it(tmp_path):
    first, second = (make_plan(tmp_path, id=f"run-{n}-00000{n}", model_dir="run_directory") for n in (1, 2))
    with claimed(first, lambda: False) as one:
        with claimed(second, lambda: False) as other:
            assert (one.model_dir, other.model_dir) == ("run_directory", "run_directory_000002")
        assert [path.name for path in (tmp_path / "madlite_runs").glob(".*.lock")] == [lock_name("run_directory")]
    with claimed(replace(second), lambda: False) as again:
        assert again.model_dir == "run_directory"


def test_who_asks_for_a_folder_takes_it_from_nobody_and_who_removes_it_keeps_others_out(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, id="run-3-000003", model_dir="run_directory")
    runs, ends = tmp_path / "madlite_runs", threading.Event()
    lock = (runs / lock_name("run_directory")).open("w")

    def ask():
        while not ends.wait(0.0005):
            fcntl.flock(lock, fcntl.LOCK_SH)
            fcntl.flock(lock, fcntl.LOCK_UN)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        with monkeypatch.context() as patched:
            patched.setattr("madlite.store.folder._QUERY_S", 60.0)  # who asks may be kept from its processor meanwhile
            for _ in range(300):
                with claimed(plan, lambda: False) as held:
                    assert held.model_dir == "run_directory"
    finally:
        ends.set()
        asker.join()
        lock.close()
    name = lock_name("run_directory")
    with locked_name(tmp_path, name) as is_free, claimed_model_dir(plan) as other:
        assert is_free and other == "run_directory_000003"
        with locked_name(tmp_path, name) as again:
            assert not again
    assert not (runs / name).exists()
