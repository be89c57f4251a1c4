"""The folder that a killed run's script ran in: ours is removed, all others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.batch.leftovers import remove_run_files
from madlite.model import to_json
from madlite.store.folder import LOCK, PLAN, lock_name
from tests.factories import make_plan


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "madlite_runs/r1"
    folder.mkdir(parents=True)
    (folder / PLAN).write_text("{}")
    (folder / LOCK).touch()
    return folder


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
