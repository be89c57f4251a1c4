"""`--summary-output` and `--cleanup-perf`: madengine 2's shapes, filled from plans and results."""

from __future__ import annotations

import json
from itertools import count

import pytest

from madlite.errors import ExitCode, RuntimeProblem
from madlite.model import Card, Cause, Image, ImageUsed, Metric, Quantity, Result, ResultRule, Status, Window
from madlite.plan.submission import PlannedRun
from madlite.run.screen import RunOutcome
from madlite.run.summary import (
    ENTRIES,
    count_rows,
    full_summary,
    remove_entries,
    run_summary,
    suspect_runs,
    write_summary,
)
from tests.factories import make_plan
from tests.rows import each_row

GOOD, BAD = Status.SUCCESS, Status.FAILURE


@pytest.fixture
def planned(tmp_path):
    numbers = count(1)

    def make(name: str, **changes) -> PlannedRun:
        card = Card(name=name, root=tmp_path, source="a test")
        plan = make_plan(tmp_path, id=f"{next(numbers)}", card=card, **changes)
        return PlannedRun(plan=plan, backends=(), files=(), runtime=None)

    return make


def metric(text: str, name: str = "tok") -> Metric:
    return Metric(metric=name, text=text, status=GOOD)


def outcome(*results: Result) -> RunOutcome:
    return RunOutcome(results=results, not_started=(), exit_code=ExitCode.OK)


def test_runs_are_told_apart_as_madengine_does(planned):
    runs = [planned("good"), planned("bad"), planned("skipped"), planned("late")]
    results = (
        Result(plan_id="1", status=GOOD, metrics=(metric("1.5e+03"),), durations_s={"run": 2.5, "total": 9.0}),
        Result(plan_id="2", status=BAD, cause=Cause.EXIT_CODE, reason="exit code 3", image=ImageUsed(ref="ci-bad")),
        Result(plan_id="3", status=Status.SKIPPED, reason="the model was not run (--skip-model-run)"),
    )
    image = "madlite-test/base:latest"
    assert run_summary(runs, outcome(*results), 7, 2) == {
        "successful_runs": [
            {"model": "good", "image": image, "status": "SUCCESS", "performance": "1.5e+03", "duration": 2.5},
            {"model": "skipped", "image": image, "status": "SKIPPED", "performance": "", "duration": 0.0},
        ],
        "failed_runs": [
            {"model": "bad", "image": "ci-bad", "status": "FAILURE", "error": "exit code 3"},
            {"model": "late", "image": image, "status": "NOT_STARTED", "error": "the batch ended before it"},
        ],
        "total_runs": 4,
        "session_start_row": 7,
        "session_row_count": 2,
    }


def test_several_results_are_named_by_their_file_and_steps_by_their_median(planned):
    several = planned("several", result_rule=ResultRule(kind="multiple_results", file="perf_x.csv"))
    steps = planned("steps", result_rule=ResultRule(kind="steps"), image=None)
    window = Window(
        quantity=Quantity.TOKENS_PER_S_PER_GPU,
        n=9, first_step=2, last_step=10, dropped=1, median=5, mean=5, std=0, cv=0, min=5, max=5,
    )  # fmt: skip
    told = run_summary(
        [several, steps],
        outcome(
            Result(plan_id="1", status=GOOD, metrics=(metric("1"), metric("2"))),
            Result(plan_id="2", status=GOOD, metrics=(metric("4.9", "tok_per_s_per_gpu"), metric("5")), window=window),
        ),
        0,
        4,
    )
    assert [run["performance"] for run in told["successful_runs"]] == ["perf_x.csv", "5"]
    assert told["successful_runs"][1]["image"] == ""


def test_a_batch_from_tags_tells_of_its_builds_too(planned, tmp_path):
    dockerfile = tmp_path / "docker/x.ubuntu.amd.Dockerfile"
    image = Image(ref="ci-x", dockerfile=dockerfile, context=tmp_path / "docker", base="rocm/pytorch")
    runs = [planned("good", image=image), planned("broken", image=image)]
    results = (
        Result(
            plan_id="1",
            status=GOOD,
            metrics=(metric("1"),),
            image=ImageUsed(ref="ci-x", digest="sha256:1", build_duration_s=2.0),
        ),
        Result(plan_id="2", status=BAD, cause=Cause.BUILD, reason="step 2/3 failed"),
    )
    told = full_summary(runs, outcome(*results), 0, 2)
    assert list(told) == ["build_phase", "run_phase", "overall_success"] and told["overall_success"] is False
    built = told["build_phase"]
    assert [entry["model"] for entry in built["successful_builds"]] == ["good"]
    assert built["successful_builds"][0]["dockerfile"] == "docker/x.ubuntu.amd.Dockerfile"
    assert built["failed_builds"] == [{"model": "broken", "error": "step 2/3 failed"}]
    assert built["total_build_time"] == 2.0
    assert [run["model"] for run in told["run_phase"]["failed_runs"]] == ["broken"]


def test_a_batch_went_well_if_nothing_failed_and_all_started(planned):
    good = Result(plan_id="1", status=GOOD, metrics=(metric("1"),))
    assert full_summary([planned("a")], outcome(good), 0, 1)["overall_success"] is True
    assert full_summary([planned("a"), planned("b")], outcome(good), 0, 1)["overall_success"] is False


def test_a_summary_is_json_without_secrets(planned, tmp_path):
    failed = Result(plan_id="1", status=BAD, reason='login with "hf_hush" refused')
    write_summary(tmp_path / "s.json", run_summary([planned("a")], outcome(failed), 0, 1), ["hf_hush"])
    text = (tmp_path / "s.json").read_text()
    assert json.loads(text)["failed_runs"][0]["error"] == 'login with "***" refused' and "hush" not in text


def test_a_summary_that_cannot_be_written_is_a_sentence(tmp_path):
    with pytest.raises(RuntimeProblem, match=r"--summary-output .*s\.json cannot be written"):
        write_summary(tmp_path / "absent/s.json", {}, ())


@each_row(
    ("data", "rows"),
    [(b"", 0), (b"a,b\n", 0), (b'a,b\n1,"x\ny"\n\n2,3', 2), (b"a,b\n\xff,\0\n" + b"x" * 200_000 + b",1\n", 2)],
)
def test_rows_of_a_results_file_are_counted(tmp_path, data, rows):
    (tmp_path / "perf.csv").write_bytes(data)
    assert count_rows(tmp_path / "perf.csv") == rows and count_rows(tmp_path / "none.csv") == 0


def test_only_what_tells_of_the_last_run_is_removed(tmp_path):
    others = ("perf.csv", "perf_super.csv", "perf_super.json", "common_info.json", "perf_entry_mine.csv")
    for name in (*ENTRIES, *others):
        (tmp_path / name).touch()
    remove_entries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
    remove_entries(tmp_path)
    (tmp_path / "perf_entry.csv").mkdir()
    with pytest.raises(RuntimeProblem, match=r"perf_entry\.csv stays"):
        remove_entries(tmp_path)


def test_a_suspect_success_says_why_and_only_where_it_is_asked_is_it_no_success(planned):
    doubted = Result(plan_id="1", status=GOOD, metrics=(metric("1"),), suspect=("ranks differ", "too fast"))
    sound = Result(plan_id="2", status=GOOD, metrics=(metric("1"),))
    runs = [planned("a"), planned("b")]
    told = full_summary(runs, outcome(doubted, sound), 0, 2)
    first, second = told["run_phase"]["successful_runs"]
    assert (first["status"], first["suspect"]) == ("SUCCESS", ["ranks differ", "too fast"]) and "suspect" not in second
    assert told["overall_success"] is True
    assert full_summary(runs, outcome(doubted, sound), 0, 2, fail_on_suspect=True)["overall_success"] is False
    assert full_summary(runs[1:], outcome(sound), 0, 1, fail_on_suspect=True)["overall_success"] is True
    assert suspect_runs(runs, outcome(doubted, sound)) == ("a",)
