"""`madlite verify` of stored runs: a script's number against its line, and its row against perf.csv."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.model import Action, Cause, ResultRule
from madlite.store.folder import LOG, RECORD, RunRows
from madlite.store.record import Record, record_json
from tests.cli.stored_runs import good, store
from tests.rows import each_row

ONE = "20260102T030405-a-000001"
LINE = b"performance: 12.5 tps\n"
HEADER = "model,n_gpus,performance,metric,status"
CELLS = {"model": "tiny", "performance": "12.5", "metric": "tps", "status": "SUCCESS"}


def stored(place: Path, log: bytes = LINE, run: str = ONE, **changes: object) -> Record:
    """Leave a success of a script with the row of its number, and perf.csv with that row."""
    record = store(place, run, replace(good(run), exit_code=0), log=log, **changes)
    rows = RunRows(path="perf.csv", cells=(CELLS,), appended=True)
    record = replace(record, rows=rows)
    (place / "madlite_runs" / run / RECORD).write_text(record_json(record))
    (place / "perf.csv").write_text(f"{HEADER}\ntiny,,12.5,tps,SUCCESS\n")
    return record


def checks(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> dict[str, tuple[str, str, str, str]]:
    assert call(["verify", ONE, "--json", *args]) == code
    (run,) = json.loads(capsys.readouterr().out)
    return {
        item["what"]: (item["outcome"], item["recorded"], item["found"], item["why"])
        for item in run["checks"]
        if item["outcome"] != "ok"
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_number_of_its_log_is_ok(place, capsys):
    stored(place)
    assert checks(capsys, 0, "--strict") == {}
    assert call(["verify", "last"]) == 0 and f"{ONE}  tiny  OK  (" in capsys.readouterr().out


def test_a_number_that_the_log_does_not_have_differs(place, capsys):
    stored(place, b"performance: 11.5 tps\n")
    assert checks(capsys, 5)["number tps"][:3] == ("differs", "12.5", "11.5")
    call(["verify", ONE])
    assert "  number tps differs: recorded 12.5, the log gives 11.5\n" in capsys.readouterr().out


@each_row(
    "perf, what",
    [
        (f"{HEADER}\ntiny,,99,tps,SUCCESS\n", ("differs", "12.5 tps SUCCESS", "no row with these cells", "")),
        (None, ("unchecked", "", "", "there is no such file")),
        ("", ("unchecked", "", "", None)),
        ("no table\n", ("unchecked", "", "", None)),
    ],
)
def test_the_row_of_perf_csv_is_the_one_that_was_appended(place, capsys, perf, what):
    stored(place)
    (place / "perf.csv").unlink()
    if perf is not None:
        (place / "perf.csv").write_text(perf)
    found = checks(capsys, 5 if what[0] == "differs" else 0)["perf.csv"]
    assert found == what or (what[3] is None and found[0] == "unchecked")


def test_an_error_in_what_another_step_printed_makes_no_difference(place, capsys):
    from madlite.model import ErrorScan

    log = b"CRITICAL: pip\n" + LINE
    scan = ErrorScan(patterns=("CRITICAL",))
    stored(place, log, error_scan=scan)
    assert checks(capsys, 5)["status"][0] == "differs"
    stored(place, log, error_scan=scan, actions=(Action(kind="pre", argv=("true",)),))
    assert "output of other steps (pre)" in checks(capsys, 0)["status"][3]


def test_results_of_a_file_are_confirmed_where_it_is_still_theirs(place, capsys):
    rule = ResultRule(kind="multiple_results", file="r.csv")
    record = stored(place, b"", result_rule=rule)
    metric = replace(record.metrics[0], metric="tps", label="x")
    cells = {**CELLS, "model": "tiny_x"}
    (place / "madlite_runs" / ONE / RECORD).write_text(
        record_json(replace(record, metrics=(metric,), rows=RunRows(path="perf.csv", cells=(cells,), appended=False)))
    )
    assert checks(capsys, 0)["number"][3] == "its results are of r.csv, which the log does not have"
    (place / "r.csv").write_text("model,performance,metric\nx,12.5,tps\n")
    assert checks(capsys, 0) == {}


def test_a_failure_that_its_log_does_not_show_is_not_denied(place, capsys):
    record = stored(place)
    failed = replace(record, status="FAILURE", ended_by=Cause.TIMEOUT, metrics=(), exit_code=None, rows=None)
    (place / "madlite_runs" / ONE / RECORD).write_text(record_json(failed))
    assert checks(capsys, 0)["status"][0] == "unchecked"


def test_a_run_without_a_record_or_its_backend_cannot_be_checked(place, capsys):
    stored(place, backend="gone", readers=("gone",))
    assert "backend 'gone' is not installed" in checks(capsys, 0)["number"][3]
    (place / "madlite_runs" / ONE / RECORD).unlink()
    assert checks(capsys, 0)["record"][3] == "it was cut off: it has no record"
    stored(place)
    (place / "madlite_runs" / ONE / "plan.json").write_text("{")
    assert "plan.json" in checks(capsys, 0)["plan"][3]
    (place / "madlite_runs" / ONE / LOG).unlink()
