"""The journal of a folder of runs: read for one run alone, and written by several users."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from madlite.files import Folder
from madlite.model import Row
from madlite.perfcsv import append_rows
from madlite.store import journal
from madlite.store.folder import open_runs
from tests.perfcsv.limits import in_child


def test_the_entries_of_one_run_are_those_that_all_of_them_have(tmp_path: Path):
    names = ["r1", "r10", 'odd "name" é', "r1"]
    with Folder.open(tmp_path) as runs:
        for name in names:
            with runs.below(name.replace("/", "_"), make=True) as home:
                journal.add(runs, journal.folder_entry(home, name))
        journal.add(runs, journal.Entry(at="now", run="r2", origin="r1"))
    with (tmp_path / journal.JOURNAL).open("ab") as file:
        file.write(b'{"run": "r1", torn')
    every = journal.read(tmp_path)
    assert len(every) == 5
    for name in {*names, "r2", "none"}:
        assert journal.read_of(tmp_path, name) == tuple(one for one in every if one.run == name)
        assert journal.is_own(tmp_path / name) is (name in journal.own_folders(tmp_path))
    assert journal.is_own(tmp_path / "r10") and not journal.is_own(tmp_path / "r2")
    assert journal.read_of(tmp_path / "nowhere", "r1") == ()


@pytest.fixture
def open_space() -> Iterator[Path]:
    """Yield a folder that other users reach, which pytest's own they do not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


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
            journal.add(runs, journal.Entry(at=journal.now(), run=f"of {uid}"))
        append_rows(open_space / "perf.csv", [Row(cells={"model": "m", "performance": "5", "status": "SUCCESS"})])

    for uid in users:
        assert in_child(lambda uid=uid: append_as(uid)) == ""
    assert (open_space / "perf.csv").read_text().count("SUCCESS") == len(users)
    assert len(journal.read(open_space / "madlite_runs")) == len(users)
