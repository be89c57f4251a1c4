"""perf_super.json and perf_super.csv: they grow, and nothing that is in them gets lost."""

from __future__ import annotations

import csv
import json
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from madlite.model import Cause
from madlite.perfcsv import side_files
from madlite.perfcsv.side_files import make_entries
from madlite.store.folder import RunStart
from tests.factories import write_side_files
from tests.rows import each_row

from .golden import BLANK, GOLDEN, SIDE_FILES, failed, make_run, number, strict_json, written
from .reading import table

FORK = multiprocessing.get_context("fork")
WRITERS, EACH = 16, 5


def add(workspace: Path, name: str, **changes: Any) -> None:
    written(*make_run(workspace, name, **{"metrics": (number("5"),), **changes}))


def listed(workspace: Path) -> list[str]:
    return [entry["model"] for entry in strict_json(workspace / "perf_super.json")]


def tabled(workspace: Path) -> list[str]:
    return [row["model"] for row in table(workspace / "perf_super.csv")]


def in_a_process(function: Callable[..., None], *args: Any) -> int | None:
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join(240)
    return process.exitcode


def test_every_run_adds_its_results(tmp_path: Path) -> None:
    add(tmp_path, "one")
    add(tmp_path, "two", **failed(Cause.EXIT_CODE))
    add(tmp_path, "three", csv=BLANK)
    assert listed(tmp_path) == tabled(tmp_path) == ["one", "two", "three_a", "three_b"]
    assert [entry["model"] for entry in strict_json(tmp_path / "perf_entry_super.json")] == ["three_a", "three_b"]
    rows = table(tmp_path / "perf_super.csv")
    assert list(rows[0])[0] == "model" and list(rows[0])[-2:] == ["configs", "multi_results"]
    assert [row["multi_results"] for row in rows] == ["", "", '{"extra": "e1"}', '{"extra": "e2"}']


def test_lists_of_madengine_go_on_and_its_nan_becomes_null(tmp_path: Path) -> None:
    """Its NaN keeps JSON readers other than Python's from the whole file; its numbers keep their spelling."""
    before = (GOLDEN / "x_multi_blank/perf_entry_super.json").read_text().replace("10.5", "1.050e+01")
    assert "NaN" in before
    (tmp_path / "perf_super.json").write_text(before)
    table_before = (GOLDEN / "x_multi_blank/perf_super.csv").read_text()
    (tmp_path / "perf_super.csv").write_text(table_before)
    add(tmp_path, "ours")
    first, second, _ = strict_json(tmp_path / "perf_super.json")
    assert (first["performance"], second["performance"]) == (10.5, None)
    assert '"performance": 1.050e+01,' in (tmp_path / "perf_super.json").read_text()
    assert listed(tmp_path) == tabled(tmp_path) == ["x_multi_blank_a", "x_multi_blank_b", "ours"]
    assert (tmp_path / "perf_super.csv").read_text().startswith(table_before)


@each_row(
    "broken",
    ['[\n  {"model": "old", "perfor', '{"model": "old"}', '["old"]', "null", "\xff", "[" * 100_000],
    ids=["cut off", "an object", "a list of texts", "null", "no UTF-8", "endless"],
)
def test_list_that_cannot_be_read_is_moved_aside(tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    data = broken.encode("latin-1")
    for name in ("one", "two"):  # twice within a second: neither may overwrite the other
        (tmp_path / "perf_super.json").write_bytes(data)
        with caplog.at_level(logging.WARNING):
            add(tmp_path, name)
        assert listed(tmp_path) == [name]
    kept = sorted(tmp_path.glob("perf_super.json.broken-*"))
    assert [path.read_bytes() for path in kept] == [data, data]
    assert all(path.name in caplog.text for path in kept)
    assert tabled(tmp_path) == ["one", "two"]


@each_row("nothing", [b"", b"\n", b"[]", b"\xef\xbb\xbf[]"])
def test_empty_list_is_begun(tmp_path: Path, nothing: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "perf_super.json").write_bytes(nothing)
    add(tmp_path, "one")
    assert listed(tmp_path) == ["one"] and caplog.text == ""
    assert list(tmp_path.glob("*.broken-*")) == []


def test_table_that_is_gone_is_written_anew_from_the_list(tmp_path: Path) -> None:
    add(tmp_path, "one", csv=BLANK)
    before = (tmp_path / "perf_super.csv").read_bytes()
    add(tmp_path, "two")
    whole = (tmp_path / "perf_super.csv").read_bytes()
    assert whole.startswith(before)
    (tmp_path / "perf_super.csv").unlink()
    add(tmp_path, "three")
    assert (tmp_path / "perf_super.csv").read_bytes().startswith(whole)
    assert tabled(tmp_path) == ["one_a", "one_b", "two", "three"]


def test_table_with_columns_of_the_user_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "perf_super.csv").write_text("note,model,performance,metric,status\nmind this,old,1,x,SUCCESS\n")
    add(tmp_path, "new", csv=BLANK)
    rows = table(tmp_path / "perf_super.csv")
    assert [(row["note"], row["model"]) for row in rows] == [("mind this", "old"), ("", "new_a"), ("", "new_b")]
    assert rows[1]["multi_results"] == '{"extra": "e1"}'


@each_row("key", ["pipeline", "\udce9"])
def test_text_that_is_no_utf_8_in_the_list_costs_nothing(tmp_path: Path, key: str) -> None:
    """Python's own writer of JSON escapes such a character, and no other reader takes it."""
    old = [{"model": "old", key: "nightly \udce9", "deep": [{"emoji": "\U0001f600"}]}]
    (tmp_path / "perf_super.json").write_text(json.dumps(old))
    for name in ("one", "two"):
        add(tmp_path, name)
    spelled = key.replace("\udce9", "\\udce9")
    assert strict_json(tmp_path / "perf_super.json")[0] == {
        "model": "old", spelled: "nightly \\udce9", "deep": [{"emoji": "\U0001f600"}],
    }  # fmt: skip
    assert listed(tmp_path) == tabled(tmp_path) == ["old", "one", "two"]
    assert strict_json(tmp_path / "perf_entry.json")["model"] == "two"


def test_a_fault_of_ours_costs_its_own_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes) -> None:
        raise TypeError("of ours")

    monkeypatch.setattr(side_files, "_entries", fail)
    (tmp_path / "perf_super.json").write_text("[]")
    plan, result = make_run(tmp_path, metrics=(number("5"),))
    (problem,) = write_side_files(plan, result, pipeline="", build_number="0")
    assert "internal error in" in problem and "perf_super.json: TypeError: of ours" in problem
    assert strict_json(tmp_path / "perf_entry.json")["model"] == "x"
    assert (tmp_path / "perf_super.json").read_text() == "[]" and tabled(tmp_path) == ["x"]


def test_pipes_and_devices_stay_what_they_are_and_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "perf_super.json")
    (tmp_path / "perf_super.csv").write_text("no table\n")
    device = tmp_path / "device"
    os.mkfifo(device)
    (tmp_path / "perf_entry.json").symlink_to(device)
    plan, result = make_run(tmp_path, metrics=(number("5"),))
    problems = write_side_files(plan, result, pipeline="", build_number="0")
    assert [Path(problem.split()[0].rstrip(":")).name for problem in problems] == [
        *("perf_super.json", "perf_super.csv", "perf_entry.json")
    ]
    assert (tmp_path / "perf_super.json").is_fifo() and device.is_fifo()
    assert strict_json(tmp_path / "perf_entry_super.json")[0]["model"] == "x"


def _add_several(workspace: Path, writer: int) -> None:
    for n in range(EACH):
        changes = {"csv": BLANK, "multiple_results": f"{writer}.csv"} if n % 2 else {}
        add(workspace, f"w{writer}n{n}", **changes)


@pytest.mark.host
def test_processes_at_once_lose_nothing_and_mix_nothing(tmp_path: Path) -> None:
    processes = [FORK.Process(target=_add_several, args=(tmp_path, writer)) for writer in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    expected = {
        f"w{writer}n{n}{label}"
        for writer in range(WRITERS)
        for n in range(EACH)
        for label in (("_a", "_b") if n % 2 else ("",))
    }
    assert len(listed(tmp_path)) == len(expected) and set(listed(tmp_path)) == expected
    assert listed(tmp_path) == tabled(tmp_path)
    # the files of the last run tell of one run
    entry = strict_json(tmp_path / "perf_entry.json")
    names = [one["model"] for one in (entry if isinstance(entry, list) else [entry])]
    assert names == [row["model"] for row in table(tmp_path / "perf_entry.csv")]
    assert names == [one["model"] for one in strict_json(tmp_path / "perf_entry_super.json")]
    assert names == listed(tmp_path)[-len(names) :]


def die_at(at: int) -> None:
    """Be killed at the `at`th step from now on that other processes can see: a file made, written, synced, renamed."""
    left = at

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*args, **named)

        return call

    os.fsync, os.write, os.open = deadly(os.fsync), deadly(os.write), deadly(os.open)
    Path.replace, Path.unlink, Path.open = deadly(Path.replace), deadly(Path.unlink), deadly(Path.open)  # type: ignore[method-assign]


def _add_and_die(workspace: Path, at: int) -> None:
    die_at(at)
    add(workspace, "killed", csv=BLANK)


@pytest.mark.host
def test_a_kill_at_any_step_leaves_files_that_parse_and_loses_no_earlier_entry(tmp_path: Path) -> None:
    add(tmp_path, "before")
    killed = 0
    while in_a_process(_add_and_die, tmp_path, killed) == -signal.SIGKILL:
        for name in SIDE_FILES:
            if name.endswith(".json"):
                strict_json(tmp_path / name)
            else:
                with (tmp_path / name).open(newline="") as text:
                    assert all(row["model"] for row in csv.DictReader(text, strict=True))
        assert listed(tmp_path)[0] == tabled(tmp_path)[0] == "before"
        killed += 1
    assert killed > 20  # seven files, each opened, synced and renamed
    add(tmp_path, "after")
    assert listed(tmp_path)[-1] == tabled(tmp_path)[-1] == "after"
    assert list(tmp_path.glob(".perf_*.new")) == []


def leave(workspace: Path, name: str, **changes: Any) -> None:
    plan, result = make_run(workspace, name, **{"metrics": (number("5"),), **changes})
    assert side_files.leave_entries(workspace, make_entries(plan, result, RunStart())) == ()


def test_entries_that_wait_come_before_those_that_are_written(tmp_path: Path) -> None:
    add(tmp_path, "one")
    leave(tmp_path, "two", csv=BLANK)
    leave(tmp_path, "three")
    assert listed(tmp_path) == tabled(tmp_path) == ["one"]
    add(tmp_path, "four")
    assert listed(tmp_path) == tabled(tmp_path) == ["one", "two_a", "two_b", "three", "four"]
    assert "two" in (tmp_path / "common_info.json").read_text()
    leave(tmp_path, "five")
    assert side_files.write_waiting(tmp_path) == side_files.write_waiting(tmp_path) == ()
    assert listed(tmp_path)[-1] == tabled(tmp_path)[-1] == strict_json(tmp_path / "perf_entry.json")["model"] == "five"


def test_entries_that_wait_are_not_added_a_second_time(tmp_path: Path) -> None:
    """What a killed run left waiting is in the journal of its run, too."""
    leave(tmp_path, "one")
    plan, result = make_run(tmp_path, "one", metrics=(number("5"),))
    entries = make_entries(plan, result, RunStart())
    assert side_files.write_entries(tmp_path, entries, again=True) == ()
    assert listed(tmp_path) == tabled(tmp_path) == ["one"]


@each_row("torn", [b'{"entry": [{"mo', b"[1]", b"\xff", b'{"entry": [1]}'])
def test_a_torn_line_of_what_waits_costs_no_other_entry(tmp_path: Path, torn: bytes) -> None:
    leave(tmp_path, "one")
    with (tmp_path / "madlite_runs/.side_files.jsonl").open("ab") as journal:
        journal.write(torn)
    leave(tmp_path, "two")
    assert side_files.write_waiting(tmp_path) == () and listed(tmp_path) == tabled(tmp_path) == ["one", "two"]


def _write_and_die(workspace: Path, at: int) -> None:
    die_at(at)
    side_files.write_waiting(workspace)


@pytest.mark.host
def test_a_kill_while_what_waits_is_written_leaves_each_entry_once(tmp_path: Path) -> None:
    killed = 0
    while True:
        folder = tmp_path / str(killed)
        folder.mkdir()
        add(folder, "before")
        for name in ("one", "two"):
            leave(folder, name, csv=BLANK)
        code = in_a_process(_write_and_die, folder, killed)
        strict_json(folder / "perf_super.json")
        assert side_files.write_waiting(folder) == ()
        assert listed(folder) == tabled(folder) == ["before", "one_a", "one_b", "two_a", "two_b"]
        if code != -signal.SIGKILL:
            break
        killed += 1
    assert killed > 20
