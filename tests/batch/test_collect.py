"""What a run left in the workspace is copied beside its log."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from madlite.platforms.sessions import copy_matching


def test_files_that_match_are_copied_and_folders_are_not(tmp_path):
    into = tmp_path / "madlite_runs/r"
    (tmp_path / "out/trace.json").mkdir(parents=True)
    (tmp_path / "out/b.json").write_text("b")
    (tmp_path / "a.json").write_text("a")
    copy_matching(tmp_path, ["*.json", "out/*.json", "madlite_runs/r/*"], into)
    assert {path.name: path.read_text() for path in into.iterdir()} == {"a.json": "a", "b.json": "b"}


def test_nothing_is_made_where_nothing_matches(tmp_path):
    copy_matching(tmp_path, ["*.csv"], tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_full_disk_is_a_warning_and_leaves_no_half_of_a_file(tmp_path, monkeypatch, caplog):
    def full(*_: object) -> Iterator[bytes]:
        yield b"hal"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("madlite.files._pieces", full)
    (tmp_path / "a.csv").write_text("half")
    copy_matching(tmp_path, ["*.csv"], tmp_path / "r")
    assert f"{tmp_path}/a.csv was not copied to {tmp_path}/r/a.csv: No space left on device" in caplog.text
    assert list((tmp_path / "r").iterdir()) == []
