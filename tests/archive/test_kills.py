"""A kill in the middle of an import or a removal: the same command, or `clean`, finishes it, and no row is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.archive.test_verify import SCRIPT, TRAINING, run_of, said
from tests.killing import KILL_AT, run_killed

pytestmark = pytest.mark.host


def folders(place: Path) -> set[str]:
    return {one.name for one in (place / "madlite_runs").iterdir() if one.is_dir()}


def test_an_import_that_was_killed_between_two_runs_is_finished_by_the_next(place, capsys, tmp_path):
    said(capsys, "archive", "2*", "-o", "x.tar.gz")
    other, archive = tmp_path / "other", str(place / "x.tar.gz")
    other.mkdir()
    run_killed(other, (KILL_AT, "madlite.archive.import_._import_run", "before", "2"), "import", archive)
    first, second = sorted(run_of(place, which).name for which in (TRAINING, SCRIPT))
    (here,) = (name for name in folders(other) if not name.startswith("."))
    assert len(folders(other)) == 2
    text = said(capsys, "import", archive, "--dir", str(other))
    assert f"{first}: already here as {here}" in text and f"{second}: taken in" in text
    assert here in folders(other) and len(folders(other)) == 2
    assert said(capsys, "verify", "2*", "--dir", str(other), "--strict").count(" OK ") == 2


def test_rows_of_an_import_that_was_killed_after_one_was_appended_are_there_once(place, capsys, tmp_path):
    said(capsys, "archive", "2*", "-o", "x.tar.gz")
    other, archive = tmp_path / "other", str(place / "x.tar.gz")
    other.mkdir()
    run_killed(other, (KILL_AT, "madlite.batch.collect.append_once", "after", "1"), "import", archive, "--rows")
    said(capsys, "import", archive, "--dir", str(other), "--rows")
    assert (other / "perf.csv").read_bytes() == (place / "perf.csv").read_bytes()
    again = ("--runs", str(other / "madlite_runs"), "--of", str(other / "perf.csv"), "-o", str(other / "again.csv"))
    said(capsys, "report", "rebuild", *again)
    assert (other / "again.csv").read_bytes() == (place / "perf.csv").read_bytes()


def test_a_removal_that_was_killed_is_finished(place, capsys):
    before = (place / "perf.csv").read_bytes()
    at, words = (KILL_AT, "madlite.files.Folder.remove_tree", "before"), ("clean", "--old", "--keep-last", "0", "--yes")
    run_killed(place, at, *words)
    assert call(words) == 0
    capsys.readouterr()
    assert not [*(place / "madlite_runs").glob("*/run.log")]
    run_killed(place, at, *words, "--all")
    assert [name for name in folders(place) if name.startswith(".removed-")]
    said(capsys, "report", "rebuild", "-o", "again.csv", "--of", "perf.csv")  # of the other run
    assert ".removed-" in said(capsys, "clean", "--yes")
    assert len(folders(place)) == 1 and (place / "perf.csv").read_bytes() == before
