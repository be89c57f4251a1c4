"""Runs as rows: what their records add, and that a row of perf.csv and its run are one result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.model import Result, Status
from tests.cli.stored_runs import good, store

FIRST, SECOND = "20260102T030405-tiny-aaaaaa", "20260103T030405-tiny-bbbbbb"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store(tmp_path, FIRST, good(FIRST, suspect=("it drifts",)))
    store(tmp_path, SECOND, Result(plan_id=SECOND, status=Status.FAILURE, started="2026-01-03T03:04:05+00:00"))
    return tmp_path


def rows(*words: str) -> list[dict]:
    assert call(["export", *words, "--to", "jsonl", "-o", "out.jsonl"]) == 0
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


def test_a_run_has_its_id_time_doubt_and_facts():
    first, second = rows()
    assert (first["run"], first["value"], first["suspect"]) == (FIRST, 12.5, "it drifts")
    assert first["started"] == "2026-01-02T03:04:05Z" and first["source"].endswith(FIRST)
    assert (second["run"], second["value"], second["status"]) == (SECOND, None, "FAILURE")
    assert first["facts"]["madlite"]
    assert [row["run"] for row in rows("last")] == [SECOND]
    assert [row["run"] for row in rows("last~1", "last", SECOND)] == [FIRST, SECOND], "each result once"


def test_a_row_that_names_its_run_is_that_run_s_result(folder):
    (first, _) = rows()
    name, metric = first["model"], first["metric"]
    (folder / "sub").mkdir()
    (folder / "sub/perf.csv").write_text(f"model,performance,metric,status,run\n{name},12.5,{metric},SUCCESS,{FIRST}\n")
    (row,) = rows("sub/perf.csv")
    assert row["key"] == first["key"]
    assert row["started"] == first["started"], "a run's id begins with its time"


def test_a_baseline_is_exported_with_what_it_keeps(folder):
    from madlite.reports.baselines import save_baseline
    from madlite.reports.index import open_index
    from madlite.reports.selectors import read_side

    with open_index(folder / "madlite_runs") as index:
        side = read_side(".", index, {})
    save_baseline(folder / "madlite_runs", "v1", ".", side.series, side.runs)
    (row,) = rows("v1")
    assert (row["run"], row["value"], row["key"]) == (FIRST, 12.5, rows(FIRST)[0]["key"])
