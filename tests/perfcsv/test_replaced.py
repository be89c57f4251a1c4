"""The old file that a rebuild keeps beside the new one: a whole copy, and none of a rebuild that came to nothing."""

from __future__ import annotations

import pytest

from madlite.batch.leftovers import partial_files
from madlite.errors import RecordError
from madlite.files import Folder
from madlite.perfcsv.append import append_rows
from madlite.perfcsv.recorded import rebuild

from .test_rebuild import CELLS, place  # noqa: F401 - a fixture


def test_a_rebuild_that_fails_leaves_no_file_beside(place, tmp_path, monkeypatch):  # noqa: F811
    place.run(CELLS)
    with place.perf.open("a") as file:
        file.write("foreign\n")
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(*args):
        raise OSError(28, "No space left on device")

    for target in ("files.Folder.copy_owner_and_mode", "perfcsv.recorded.save_copy", "perfcsv.recorded.os.fsync"):
        with monkeypatch.context() as patch, pytest.raises(RecordError, match="no space"):
            patch.setattr(f"madlite.{target}", full)
            rebuild(place.perf, place.runs, force=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    real = Folder.rename

    def shut(folder, name, to):
        if to == place.perf.name:
            full()
        return real(folder, name, to)

    with monkeypatch.context() as patch, pytest.raises(RecordError, match="no space"):
        patch.setattr(Folder, "rename", shut)
        rebuild(place.perf, place.runs, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before and "foreign" in place.perf.read_text()


def test_what_is_kept_of_a_file_is_a_file_of_its_own_after_a_kill_too(place, tmp_path, monkeypatch):  # noqa: F811
    place.run(CELLS)
    with place.perf.open("a") as file:
        file.write("foreign\n")
    real = Folder.rename

    class Killed(BaseException):
        pass

    def killed(folder, name, to):
        if to == place.perf.name:
            raise Killed
        return real(folder, name, to)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Folder, "rename", killed)
        patch.setattr(Folder, "remove", lambda folder, name: None)
        rebuild(place.perf, place.runs, force=True)
    (kept,) = tmp_path.glob("perf.csv.before-*")
    append_rows(place.perf, [{**CELLS, "model": "later"}])
    assert "later" not in kept.read_text() and "foreign" in kept.read_text()


def test_what_a_kill_left_half_copied_is_cleaned_away(place, tmp_path, monkeypatch):  # noqa: F811
    place.run(CELLS)
    with place.perf.open("a") as file:
        file.write("foreign\n")

    class Killed(BaseException):
        pass

    def killed(*args, **named):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("madlite.files.threading.get_native_id", lambda: 2**22 + 1)  # of no process that lives
        patch.setattr(Folder, "rename", killed)
        patch.setattr(Folder, "remove", lambda folder, name: None)
        rebuild(place.perf, place.runs, force=True)
    left = sorted(path.name for path in tmp_path.glob(".perf*"))
    assert len(left) == 2 and sorted(path.name for path in partial_files(tmp_path)) == left
