"""A run of a batch costs what the first one did, however many came before it: counted in bytes, not in seconds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from madlite.perfcsv import side_files
from madlite.perfcsv.side_files import make_entries, write_waiting
from madlite.run.result_writer import SideFiles
from madlite.store.folder import RECORD, RunStart
from tests.batch.nothing import batch_of
from tests.csv_rows import csv_rows, perf_rows
from tests.forked import kill_this_process, run_killed
from tests.perfcsv.golden import make_run, number
from tests.rows import each_row
from tests.waiting import wait_until

COUNT, PART = 160, 20


def passed_bytes() -> int:
    """Return the bytes that this process has read and written so far; format: proc(5), io."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


@pytest.mark.host
def test_the_last_runs_of_a_batch_read_and_write_as_much_as_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(side_files, "_EVERY_S", 1e9)  # when the list is written depends on the time
    sizes: list[int] = []
    batch = batch_of(tmp_path, COUNT, lambda: sizes.append(passed_bytes()))
    outcome = batch.run()
    assert outcome.exit_code == 3, "no script was run, so there is no number"
    first, last = sizes[2 * PART] - sizes[PART], sizes[-1] - sizes[-1 - PART]
    assert last < 1.2 * first, f"{first // PART} bytes a run became {last // PART}"
    names = [f"c{n:05d}" for n in range(COUNT)]
    assert [row["model"] for row in perf_rows(tmp_path)] == names
    assert [one["model"] for one in json.loads((tmp_path / "perf_super.json").read_text())] == names
    assert len(list(tmp_path.glob(f"madlite_runs/*/{RECORD}"))) == COUNT


@each_row(("size", "age_s", "due_s"), [(0, 0.1, 0.15), (10_000_000, 1, 4.25), (10_000_000, 6, 0)])
def test_the_longer_the_list_is_the_longer_it_is_left_alone(tmp_path, monkeypatch, size, age_s, due_s):
    (tmp_path / "perf_super.json").write_bytes(b" " * size)
    os.utime(tmp_path / "perf_super.json", (1000, 1000))
    monkeypatch.setattr(side_files.time, "time", lambda: 1000 + age_s)
    assert side_files.due_in_s(tmp_path) == pytest.approx(due_s)


def test_a_list_that_is_not_there_or_is_of_the_future_is_written_at_once(tmp_path):
    assert side_files.due_in_s(tmp_path) == 0
    (tmp_path / "perf_super.json").write_text("[]")
    os.utime(tmp_path / "perf_super.json", (2**33, 2**33))
    assert side_files.due_in_s(tmp_path) == 0


@pytest.mark.host
def test_entries_that_wait_when_madlite_is_killed_are_written_by_the_next_command(tmp_path, monkeypatch):
    ended: list[int] = []

    def count() -> None:
        ended.append(1)
        if len(ended) == 4:
            kill_this_process()

    with monkeypatch.context() as patched:
        patched.setattr(side_files, "_EVERY_S", 1e9)
        run_killed(lambda: batch_of(tmp_path, 6, count).run())
    names = [f"c{n:05d}" for n in range(4)]
    assert [row["model"] for row in perf_rows(tmp_path)] == names
    assert len(json.loads((tmp_path / "perf_super.json").read_text())) == 1
    for _ in range(2):
        assert write_waiting(tmp_path) == ()
        assert [one["model"] for one in json.loads((tmp_path / "perf_super.json").read_text())] == names
        assert [row["model"] for row in csv_rows(tmp_path / "perf_super.csv")] == names


def two_end_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, left_s: float
) -> tuple[SideFiles, Callable[[], list[str]]]:
    """Have two runs end, after the first of which the list is left alone so long; return what is in the list, too."""
    folder.mkdir()
    writer = SideFiles(pytest.fail)
    for name, due_s in (("one", 0.0), ("two", left_s)):
        monkeypatch.setattr("madlite.run.result_writer.due_in_s", lambda folder, due_s=due_s: due_s)
        plan, result = make_run(folder, name, metrics=(number("5"),))
        assert writer.add(folder, make_entries(plan, result, RunStart())) == ()
    return writer, lambda: [one["model"] for one in json.loads((folder / "perf_super.json").read_text())]


@pytest.mark.host
def test_what_waits_is_written_while_the_other_runs_go_on_or_at_the_end(tmp_path, monkeypatch):
    """A batch of long runs may have two that end together."""
    writer, listed = two_end_together(tmp_path / "later", monkeypatch, 3600.0)
    assert listed() == ["one"]
    writer.close()
    assert listed() == ["one", "two"]
    writer, listed = two_end_together(tmp_path / "soon", monkeypatch, 0.01)
    wait_until(lambda: listed() == ["one", "two"])
    writer.close()
    assert listed() == ["one", "two"]
