"""`madlite run` from the command line to its last word, on this machine."""

from __future__ import annotations

import csv
import json
import shutil

import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.plan.context import Options
from madlite.plan.submission import PlannedRun
from madlite.run.planning import check_start
from madlite.testing import MACHINES
from tests.csv_rows import perf_rows
from tests.engine.checkout import UNPROBED
from tests.factories import make_plan

pytestmark = pytest.mark.host
SCRIPT = "echo performance: 12.5 tok\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in ("MODEL_DIR", "MAD_SECRETS_X"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts/a").mkdir(parents=True)
    (tmp_path / "scripts/a/run.sh").write_text(SCRIPT)
    card = {"name": "a", "scripts": "scripts/a/run.sh", "n_gpus": "-1", "args": "", "tags": ["t"], "runtimes": ["host"]}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    return tmp_path


def run(*args: str) -> int:
    return call(["run", "--tags", "a", "--runtime", "host", *UNPROBED, *args])


def test_a_run_leaves_its_row_and_on_request_no_files_of_the_last_run_alone(checkout, capfd):
    assert run("--cleanup-perf", "--summary-output", "summary.json") == 0, capfd.readouterr()
    ((row,), names) = perf_rows(checkout), {path.name for path in checkout.iterdir()}
    assert (row["performance"], row["metric"], row["status"]) == ("12.5", "tok", "SUCCESS")
    assert not {name for name in names if name.startswith("perf_entry")}
    told = json.loads((checkout / "summary.json").read_text())
    assert told["overall_success"] and [one["model"] for one in told["run_phase"]["successful_runs"]] == ["a"]


def test_a_summary_that_cannot_be_written_at_the_end_is_told_and_the_row_stays(checkout, capfd):
    (checkout / "out").mkdir()
    (checkout / "scripts/a/run.sh").write_text(f"rm -r {checkout}/out\n{SCRIPT}")
    assert run("--summary-output", "out/summary.json") == 3
    said = capfd.readouterr()
    assert "out/summary.json" in said.out + said.err and "Traceback" not in said.out + said.err
    assert [row["status"] for row in perf_rows(checkout)] == ["SUCCESS"]


def test_a_manifest_that_cannot_be_written_is_a_warning_where_nobody_named_it(checkout, capfd):
    (checkout / "scripts/a/run.sh").write_text(f"mkdir -p {checkout}/$1\n{SCRIPT}")
    cards = json.loads((checkout / "models.json").read_text())
    (checkout / "models.json").write_text(json.dumps([{**cards[0], "args": "build_manifest.json"}]))
    assert run() == 0
    said = capfd.readouterr()
    assert "warning: " in said.out and "build_manifest.json cannot be written" in said.out
    (checkout / "models.json").write_text(json.dumps([{**cards[0], "args": "own.json"}]))
    assert run("--manifest-output", "own.json") == 3
    assert "own.json cannot be written" in capfd.readouterr().out
    assert [row["status"] for row in perf_rows(checkout)] == ["SUCCESS"] * 2


def test_a_manifest_is_not_written_through_a_link_that_a_workload_laid(checkout, capfd, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("mine")
    for name in ("made", "kept"):
        (checkout / "scripts/a/run.sh").write_text(f"ln -sfn {outside}/{name} {checkout}/build_manifest.json\n{SCRIPT}")
        assert run() == 0
        assert "by a link, which is not followed" in capfd.readouterr().out
    assert [path.name for path in outside.iterdir()] == ["kept"] and (outside / "kept").read_text() == "mine"
    (outside / "kept").write_text("")
    assert run() == 0 and (outside / "kept").read_text() == "", "an empty file may be anything"


def test_rows_that_the_results_file_did_not_take_are_not_claimed_and_come_with_the_next_run(checkout, capfd):
    (checkout / "scripts/a/run.sh").write_text(f"mkdir {checkout}/perf.csv\n{SCRIPT}")
    assert run() == 3
    said = capfd.readouterr().out
    assert "no results in " in said and "perf.csv: a\n" in said and "results: " not in said
    (checkout / "perf.csv").rmdir()
    (checkout / "scripts/a/run.sh").write_text(SCRIPT)
    assert run("--summary-output", "s.json") == 0
    said = capfd.readouterr().out
    assert "its row was added to perf.csv" in said and "results: " in said
    assert [row["status"] for row in perf_rows(checkout)] == ["SUCCESS"] * 2
    told = json.loads((checkout / "s.json").read_text())["run_phase"]
    assert (told["session_start_row"], told["session_row_count"]) == (1, 1)


def test_a_log_is_named_where_there_is_one(checkout, capfd):
    assert run() == 0
    (named,) = [line.split("log: ")[1] for line in capfd.readouterr().out.splitlines() if " log: " in line]
    assert (checkout / named).is_file()
    for run_folder in (checkout / "madlite_runs").iterdir():
        if run_folder.is_dir():
            shutil.rmtree(run_folder)
        else:
            run_folder.unlink()
    (checkout / "madlite_runs").rmdir()
    (checkout / "madlite_runs").write_text("a file")
    assert run() == 4
    told = capfd.readouterr()
    assert " log: " not in told.out and "madlite_runs is no folder" in told.err


def test_a_check_takes_a_machine_that_was_named_for_this_one_and_one_of_the_context_not(tmp_path):
    plan = make_plan(tmp_path, machine=replace(MACHINES[0], device="MI300X"))
    options = Options(workspace=tmp_path, output=tmp_path / "perf.csv")
    planned = [PlannedRun(plan=plan, backends=(), files=(), runtime=None)]
    check_start(planned, options, pretended=True)
    with pytest.raises(UsageProblem, match="the context describes 8 x MI300X, which are not here") as problem:
        check_start(planned, options)
    assert "--dry-run" in problem.value.hint


def test_a_suspect_success_fails_the_command_where_that_is_asked_for_and_its_row_stays(checkout, capfd):
    cards = json.loads((checkout / "models.json").read_text())
    (checkout / "models.json").write_text(json.dumps([{**cards[0], "n_gpus": "8"}]))
    assert run() == 0
    assert run("--fail-on-suspect", "--summary-output", "s.json", "--add-column", "suspect", "-o", "own.csv") == 3
    said = capfd.readouterr().out
    assert "SUCCESS (suspect) a" in said and "suspect: a (--fail-on-suspect: exit code 3)" in said
    assert [row["status"] for row in perf_rows(checkout)] == ["SUCCESS"] and "suspect" not in perf_rows(checkout)[0]
    (own,) = csv.DictReader((checkout / "own.csv").open())
    told = json.loads((checkout / "s.json").read_text())
    (one,) = told["run_phase"]["successful_runs"]
    assert own["status"] == one["status"] == "SUCCESS" and own["suspect"] == "; ".join(one["suspect"]) != ""
    assert told["overall_success"] is False
    assert call(["report", "to-html", "perf.csv"]) == 0 and "SUCCESS (suspect)" in (checkout / "perf.html").read_text()
