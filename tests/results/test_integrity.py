"""The journal tells what something else did to a results file, and never takes madlite's own writes for that."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from madlite.model import Row
from madlite.plan.inputs import RUNS
from madlite.results import append_rows
from madlite.results.integrity import Integrity, changed_files
from madlite.workspace.folder import open_runs
from madlite.workspace.journal import JOURNAL

from .limits import in_child, with_files_of_at_most

ONE = Row(cells={"model": "m", "performance": "5", "metric": "x", "status": "SUCCESS"})


@pytest.fixture
def space(tmp_path: Path) -> Path:
    (tmp_path / RUNS).mkdir()
    return tmp_path


def append(space: Path, path: Path, rows: list[Row] | None = None) -> list[str]:
    integrity = Integrity(path, space)
    append_rows(path, rows or [ONE], integrity=integrity)
    return integrity.reports


@pytest.mark.parametrize("room", [0, 1, 60, 200, 300])
def test_a_row_whose_note_does_not_fit_is_not_written_and_nobody_is_blamed_later(space: Path, room: int) -> None:
    perf, journal = space / "perf.csv", space / RUNS / JOURNAL
    append(space, perf)
    for _ in range(6):  # the journal is the larger of both: its limit is hit, perf.csv's is not
        append(space, perf)
    before = perf.read_bytes()
    assert journal.stat().st_size > len(before) + 400
    said = with_files_of_at_most(journal.stat().st_size + room, lambda: append(space, perf))
    assert ("no space left for" in said) == (perf.read_bytes() == before), "written, or said that it is not"
    assert append(space, perf) == [] and changed_files(space) == []


def test_what_comes_between_a_write_and_its_note_is_told(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perf = space / "perf.csv"
    append(space, perf)
    done = Integrity.note_written

    def late(self: Integrity, fd: int, size: int = -1) -> None:
        with perf.open("a") as file:  # a program that does not ask for the lock
            file.write("other,1\n")
        done(self, fd, size)

    monkeypatch.setattr(Integrity, "note_written", late)
    append(space, perf)
    monkeypatch.undo()
    ((_, words),) = changed_files(space)
    assert "8 bytes were added at its end" in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda perf: perf.write_text(perf.read_text().replace(",5,", ",6,")), "changed or gone"),
        (lambda perf: perf.write_text(perf.read_text() + "a,b\n"), "4 bytes were added"),
        (lambda perf: perf.unlink(), "it was removed"),
        (lambda perf: perf.write_text(""), "changed or gone"),
    ],
)
def test_a_change_is_told_until_it_is_acknowledged(space: Path, change, words) -> None:
    perf = space / "perf.csv"
    append(space, perf)
    change(perf)
    for _ in range(2):
        ((file, told),) = changed_files(space)
        assert told.startswith("perf.csv was changed by another program between ") and words in told
    left = perf.read_bytes() if perf.exists() else None
    file.acknowledge()
    assert changed_files(space) == [] and (perf.read_bytes() if perf.exists() else None) == left
    assert append(space, perf) == [] and changed_files(space) == []
    perf.write_text(perf.read_text() + "c,d\n")
    ((_, told),) = changed_files(space)
    assert "4 bytes were added" in told and "times before" not in told


def test_a_file_of_another_working_folder_is_noted_there(space: Path) -> None:
    other = space / "other"
    (other / RUNS).mkdir(parents=True)
    perf = space / "perf.csv"
    append(space, perf)
    assert append(other, other / "../perf.csv") == []
    assert changed_files(space) == [] and append(space, perf) == []
    assert not (other / RUNS / JOURNAL).exists()
    perf.write_text(perf.read_text() + "c,d\n")
    (told,) = append(other, other / "../perf.csv")
    assert "perf.csv was changed by another program" in told


def test_a_journal_beside_a_results_file_in_the_workspace_counts_for_nothing(space: Path) -> None:
    """A workload can write there: what it notes is not believed."""
    below = space / "below"
    (below / RUNS).mkdir(parents=True)
    perf = below / "perf.csv"
    append(space, perf)
    append(below, perf)  # as a workload would, by a journal of its own
    ((_, told),) = changed_files(space)
    assert "below/perf.csv was changed by another program" in told


@pytest.fixture
def open_space() -> Iterator[Path]:
    """Yield a folder that other users reach, which pytest's own they do not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def append_as(uid: int, space: Path) -> None:
    def append_there() -> None:
        os.setgroups([777])
        os.setgid(uid)
        os.setuid(uid)
        os.umask(0o002)
        with open_runs(space, make=True):
            assert append(space, space / "perf.csv") == []

    assert in_child(append_there) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")
@pytest.mark.parametrize(
    ("owner", "mode", "users"),
    [((0, 777), 0o2775, (12345, 12346, 0, 12345)), ((12345, 12345), 0o755, (12345, 0, 12345))],
    ids=["a folder of a group", "a user's own, and root in it"],
)
def test_users_of_one_folder_do_not_shut_each_other_out(open_space: Path, owner, mode, users) -> None:
    os.chown(open_space, *owner)
    open_space.chmod(mode)
    for uid in users:
        append_as(uid, open_space)
    assert (open_space / "perf.csv").read_text().count("SUCCESS") == len(users)
    assert changed_files(open_space) == []
