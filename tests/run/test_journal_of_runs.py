"""The journal of a folder of runs, read for one run alone."""

from __future__ import annotations

from pathlib import Path

from madlite.safe_files import Folder
from madlite.workspace import journal


def test_the_entries_of_one_run_are_those_that_all_of_them_have(tmp_path: Path):
    names = ["r1", "r10", 'odd "name" é', "r1"]
    with Folder.open(tmp_path) as runs:
        for name in names:
            with runs.below(name.replace("/", "_"), make=True) as home:
                journal.add(runs, journal.folder_entry(home, name))
        journal.add(runs, journal.Entry(at="now", run="r2", origin="r1", result="abc"))
    with (tmp_path / journal.JOURNAL).open("ab") as file:
        file.write(b'{"run": "r1", torn')
    every = journal.read(tmp_path)
    assert len(every) == 5
    for name in {*names, "r2", "none"}:
        assert journal.read_of(tmp_path, name) == tuple(one for one in every if one.run == name)
        assert journal.is_own(tmp_path / name) is (name in journal.own_folders(tmp_path))
    assert journal.is_own(tmp_path / "r10") and not journal.is_own(tmp_path / "r2")
    assert journal.read_of(tmp_path / "nowhere", "r1") == ()
