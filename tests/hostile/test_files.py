"""Files that a workload leaves: links, pipes, devices, files without an end. Nothing of the caller's comes to light."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.batch.leftovers import recovery_report
from madlite.batch.runner import Batch
from madlite.files import LIMIT_BYTES, copy_inside, read_plain
from madlite.model import Chunk, ResultRule, Status
from madlite.platforms.sessions import copy_matching
from madlite.reports.runs import list_runs
from madlite.run.log import RunLog
from madlite.run.state import ResultsFile
from madlite.store.folder import RunFolder, unfinished
from tests.engine.test_batch import Quiet, planned  # noqa: F401 - a fixture
from tests.factories import make_plan, note_made

SECRET = "model,performance,metric\nroot:x:0,1,x\n"
ROWS = "model,performance,metric\na,1,x\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "outside.csv").write_text(SECRET)
    (tmp_path / "space/run_directory").mkdir(parents=True)
    return tmp_path / "space"


def read(place: Path):
    plan = make_plan(place, model_dir="run_directory", result_rule=ResultRule(kind="multiple_results", file="r.csv"))
    results = ResultsFile(plan, {})
    yield results.begin()
    yield results.read()


def leave(place: Path, kind: str) -> None:
    path = place / "run_directory/r.csv"
    if kind == "link":
        path.symlink_to("../../outside.csv")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "process":
        path.symlink_to("/proc/self/environ")
    elif kind == "folder":
        path.mkdir()
    elif kind == "endless":
        with path.open("wb") as file:
            file.truncate(10 << 30)
    elif kind == "moved folder":
        path.parent.rmdir()
        path.parent.symlink_to(place.parent)
        (place.parent / "r.csv").write_text(SECRET)


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "process", "folder", "endless", "moved folder"])
def test_a_results_file_that_is_none_is_no_result_and_is_not_copied(place: Path, kind: str) -> None:
    steps = read(place)
    next(steps)
    leave(place, kind)
    found = next(steps)
    assert found is None or (found.metrics == () and "r.csv cannot be read: " in found.problem)
    assert not (place / "r.csv").exists()


def test_a_link_that_stays_in_the_workspace_is_a_result(place: Path) -> None:
    steps = read(place)
    next(steps)
    (place / "run_directory/out.csv").write_text(ROWS)
    (place / "run_directory/r.csv").symlink_to("out.csv")
    assert next(steps).metrics[0].text == "1"
    assert (place / "r.csv").read_text() == ROWS and not (place / "r.csv").is_symlink()


def test_outputs_are_no_links_that_lead_outside(place: Path, tmp_path: Path) -> None:
    inside = place / "run_directory"
    (inside / "a_output.csv").symlink_to(tmp_path / "outside.csv")
    (inside / "b_output.csv").write_text("own")
    (inside / "c_output.csv").symlink_to("b_output.csv")
    (inside / "d").symlink_to(tmp_path)
    copy_matching(place, ["run_directory/*_output.csv", "run_directory/d/*.csv"], place)
    assert {path.name: path.read_text() for path in place.glob("*.csv")} == {
        "b_output.csv": "own",
        "c_output.csv": "own",
    }


def test_a_copy_is_not_written_through_a_link_that_was_laid_in_its_way(place: Path, tmp_path: Path) -> None:
    (place / "a.csv").write_text("own")
    (place / f".b.csv.{os.getpid()}").symlink_to(tmp_path / "outside.csv")
    (place / "b.csv").symlink_to(tmp_path / "outside.csv")
    copy_inside(place / "a.csv", place, place / "b.csv")
    assert (tmp_path / "outside.csv").read_text() == SECRET
    assert (place / "b.csv").read_text() == "own" and not (place / "b.csv").is_symlink()


def test_no_more_than_the_limit_is_read(place: Path) -> None:
    with (place / "a").open("wb") as file:
        file.truncate(LIMIT_BYTES + 1)
    with pytest.raises(OSError, match="larger than 64 MiB"):
        read_plain(place / "a", place)
    with (place / "a").open("wb") as file:
        file.truncate(10)
    assert read_plain(place / "a", place) == b"\0" * 10


def test_a_run_whose_disk_was_full_from_the_start_is_told_as_unfinished(place: Path) -> None:
    folder = place / "madlite_runs/full"
    folder.mkdir(parents=True)
    note_made(folder)
    assert unfinished(place) == ()
    (folder / "lock").touch()
    assert unfinished(place) == (folder,)
    (folder / "record.json").touch()
    assert unfinished(place) == ()


def test_runs_that_are_links_are_nobodys(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/lock").touch()
    (tmp_path / "elsewhere/plan.json").write_text('{"model_dir": "run_directory"}')
    (place / "madlite_runs").mkdir(exist_ok=True)
    (place / "madlite_runs/link").symlink_to(tmp_path / "elsewhere")
    assert unfinished(place) == ()


def test_links_in_the_way_of_a_run_s_own_files_are_not_written_through(place: Path, tmp_path: Path) -> None:
    outside, mark = tmp_path / "outside.csv", os.getpid()
    plan = make_plan(place)
    plan.folder.rmdir()
    folder = RunFolder.create(plan, [])
    for name in (f".record.json.{mark}", f".steps.jsonl.{mark}"):
        (folder.path / name).symlink_to(outside)
    for name in ("a", "b", "c"):
        (place / f".{name}.log.{mark}").symlink_to(outside)
    log = RunLog(folder.path / "run.log", [], [])
    log.begin_live(place / "a.log")
    log.say("said")
    log.copy_live(place / "c.log")
    log.begin_live(place / "b.log")
    log.feed(Chunk(data=b"more\n"))
    log.close()
    assert folder.write_text("record.json", "{}") == folder.save("steps.jsonl", [b"{}\n"]) == ""
    folder.close()
    assert outside.read_text() == SECRET
    texts = [(place / f"{name}.log").read_text() for name in "abc"]
    assert texts == ["said\nmore\n", "more\n", "said\n"]


def test_nothing_is_written_where_a_run_s_folder_became_a_link(place: Path, tmp_path: Path) -> None:
    plan = make_plan(place)
    plan.folder.rmdir()
    folder = RunFolder.create(plan, [])
    folder.path.rename(place / "moved")
    (tmp_path / "elsewhere").mkdir()
    folder.path.symlink_to(tmp_path / "elsewhere")
    assert folder.write_text("record.json", "{}") == folder.save("steps.jsonl", [b"x"]) == ""
    folder.close()
    assert (place / "moved/record.json").read_text() == "{}", "written to the folder as it was made"
    assert list((tmp_path / "elsewhere").iterdir()) == []


LAID = (
    "cd {workspace}/madlite_runs/$MADLITE_RUN_ID || exit 9\n"
    "for name in record.json journal.jsonl handle steps.jsonl; do {lay}; done\n"
    "cd ../.. && ln -sfn {outside}/made perf_entry.json && ln -sfn {outside}/kept perf_entry.csv\n"
    "echo 'performance: 5 x'\n"
)


@pytest.mark.host
@pytest.mark.parametrize(
    ("lay", "problem"),
    [
        ("ln -sfn /etc/passwd $name", ""),
        ("ln -sfn {outside}/made $name", ""),
        ("rm -f $name; mkdir $name", "directory"),
    ],
)
def test_what_a_workload_lays_in_its_run_s_folder_costs_the_batch_nothing(planned, tmp_path_factory, lay, problem):  # noqa: F811
    plans, options, plugins = planned
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("mine")
    passwd = Path("/etc/passwd").read_bytes()
    text = LAID.replace("{lay}", lay).replace("{outside}", str(outside))
    (options.workspace / "run.sh").write_text(text.replace("{workspace}", str(options.workspace)))
    (one,) = plans
    name = f"{one.plan.id}-2"
    second = replace(one.plan, id=name, folder=one.plan.folder.with_name(name))
    screen = Quiet()
    outcome = Batch([one, replace(one, plan=second)], options, plugins, screen).run()
    assert [result.status for result in outcome.results] == [Status.SUCCESS] * 2 and outcome.exit_code == 0
    assert options.output.read_text().count("SUCCESS") == 2
    findings = [note for result in outcome.results for note in result.findings]
    assert any("record.json could not be written" in note for note in findings) == bool(problem)
    assert Path("/etc/passwd").read_bytes() == passwd
    assert [path.name for path in outside.iterdir()] == ["kept"] and (outside / "kept").read_text() == "mine"
    assert any("is a link to" in text for text in screen.said)
    assert all("its row is in perf.csv" in text for text in recovery_report(options.workspace))
    assert list_runs(options.workspace / "madlite_runs")[0].state == ("UNREADABLE" if problem else "SUCCESS")
