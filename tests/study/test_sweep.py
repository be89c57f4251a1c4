"""Sweeps: the points of the options, their runs, and the table at the end."""

from __future__ import annotations

from statistics import fmean

import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Blocked, Cause, Status
from madlite.plan.submission import PlannedRun
from madlite.study.grid import plan_sweep, sweep_points
from madlite.study.summary import MetricSummary, SeriesSummary, StudySummary, point_text, sweep_lines
from tests.factories import make_plan
from tests.rows import each_row


@each_row(
    ("texts", "zipped", "points"),
    [
        (["bs=1, 2", "mode=a,b"], False, [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")]),  # the last changes first
        (["micro_batch=1,2", "env.X=a,b"], True, [("1", "a"), ("2", "b")]),
        (["micro_batch=1,1,2", "ac=none,full,full"], True, [("1", "none"), ("1", "full"), ("2", "full")]),
        (['env.X="0,1", a=b'], False, [("0,1",), ("a=b",)]),
    ],
)
def test_the_points_of_a_sweep(texts, zipped, points) -> None:
    assert [tuple(point.values()) for point in sweep_points(texts, zipped=zipped)] == points
    assert [*sweep_points(["bs=1"])[0]] == ["global_batch"], "by the name that a plan has for it"


def test_points_that_are_the_same_run_are_refused(tmp_path) -> None:
    def plan(values, refused_as):
        made = make_plan(tmp_path, env={"STEPS": str(int(values["steps"]))})
        return [PlannedRun(plan=made, backends=(), files=(), runtime=None)]

    assert len(plan_sweep(sweep_points(["steps=10,11"]), plan)) == 2
    with pytest.raises(UsageProblem, match="steps=010 is the same run as steps=10"):
        plan_sweep(sweep_points(["steps=10,010"]), plan)


def test_points_that_would_not_start_are_not_taken_for_the_same_run(tmp_path) -> None:
    def plan(values, refused_as):
        blocked = Blocked(status=Status.FAILURE, cause=Cause.PREPARE, reason="no recipe is known for it on cpu")
        return [PlannedRun(plan=make_plan(tmp_path, blocked=blocked), backends=(), files=(), runtime=None)]

    assert [one.plan.study.varied for one in plan_sweep(sweep_points(["steps=10,11"]), plan)] == [
        {"steps": "10"}, {"steps": "11"},
    ]  # fmt: skip


def test_secrets_of_points_are_masked_and_told_apart(tmp_path) -> None:
    def plan(values, refused_as):
        return [PlannedRun(plan=make_plan(tmp_path), backends=(), files=(), runtime=None)]

    points = sweep_points(["env.HF_TOKEN=hf_secretone1,hf_secrettwo2"])
    assert point_text(points[0]) == "env.HF_TOKEN=***" and point_text({"env.X": "1"}) == "env.X=1"
    assert len(plan_sweep(points, plan)) == 2, "a plan's digest has no secrets"
    for text in ("env.HF_TOKEN=hf_secretone1,hf_secretone1", 'env.HF_TOKEN="hf_secretone1'):
        with pytest.raises(UsageProblem) as refused:
            sweep_points([text])
        assert "secretone" not in refused.value.message


@each_row(
    ("texts", "zipped", "words"),
    [
        (["micro_batch"], False, "'micro_batch' is not KEY=A,B"),
        (["=1,2"], False, "is not KEY=A,B"),
        (["micro_batch=1,,2"], False, "has an empty value"),
        (["micro_batch="], False, "has an empty value"),
        (["micro_batch=1,2,1"], False, "makes the point micro_batch=1 twice"),
        (['env.X="0,1'], False, "a quote is not closed"),
        (["micro_batch=1", "batch_size=2"], False, "names micro_batch twice"),
        (["micro_batch=1,2", "steps=1"], True, "micro_batch has 2, steps has 1"),
        (["micro_batch=1,1", "steps=5,5"], True, "makes the point micro_batch=1, steps=5 twice"),
        ([f"steps={','.join(map(str, range(1, 102)))}", "seq_len=1,2,3,4,5,6,7,8,9,10"], False, "makes 1010 points"),
    ],
)
def test_what_is_no_sweep_is_one_sentence(texts, zipped, words) -> None:
    with pytest.raises(UsageProblem) as refused:
        sweep_points(texts, zipped=zipped)
    assert words in refused.value.message and refused.value.hint


def series(number: int, value: float | None, *, less: bool = False, **varied: str) -> SeriesSummary:
    metric = MetricSummary("tps", "", "", less, (value or 0,), 1, value or 0, value or 0, 0, 0, None, None)
    return SeriesSummary(
        series=number,
        card="card",
        mode="pretrain",
        precision="BF16",
        image="",
        varied=dict(varied),
        caches="",
        runs=("r",),
        requested=1,
        succeeded=int(value is not None),
        suspect=0,
        failed={} if value is not None else {"gpu_memory": 1},
        skipped=0,
        not_started=0,
        start_c=None,
        images=(),
        metrics=(metric,) if value is not None else (),
    )


ONE = " (by one run; --repeat tells it from noise)"


def repeated(number: int, *values: float, suspect: int = 0) -> SeriesSummary:
    one = series(number, fmean(values), b=str(number))
    metric = replace(one.metrics[0], values=values, n=len(values))
    return replace(one, metrics=(metric,), succeeded=len(values), suspect=suspect)


@each_row(("values", "how"), [((100, 101, 100.5), "<- best (not told from noise)"), ((103, 104, 103.5), "<- best")])
def test_the_best_of_repeated_points_is_told_from_noise_or_not(values, how) -> None:
    summary = StudySummary(id="i", kind="sweep", series=(repeated(1, 100, 101, 100.1), repeated(2, *values)))
    assert next(line for line in sweep_lines(summary) if "best" in line).endswith(how)


def test_a_suspect_number_is_named_and_never_the_best() -> None:
    wrong, others = repeated(3, 900, suspect=1), (repeated(1, 100), repeated(2, 90))
    lines = list(sweep_lines(StudySummary(id="i", kind="sweep", series=(*others, wrong))))
    assert lines[1].endswith(f"<- best{ONE}") and lines[3].endswith("900  tps, 1 suspect")


def test_the_table_has_a_line_per_point_and_marks_the_best() -> None:
    summary = StudySummary(
        id="i",
        kind="sweep",
        series=(series(1, 90, b="1"), series(2, 110, b="2"), series(3, 100, b="4"), series(4, None, b="8")),
    )
    assert list(sweep_lines(summary)) == [
        "card · pretrain · BF16",
        "  b=1   90  tps",
        f"  b=2  110  tps  <- best{ONE}",
        "  b=4  100  tps",
        "  b=8    -  FAILURE gpu_memory",
    ]


def test_where_less_is_better_the_least_is_best() -> None:
    summary = StudySummary(
        id="i", kind="sweep", series=(series(1, 9, less=True, b="1"), series(2, 8, less=True, b="2"))
    )
    assert [line for line in sweep_lines(summary) if "best" in line] == [f"  b=2  8  tps  <- best{ONE}"]


def test_a_point_that_could_not_be_planned_stands_beside_those_of_its_card() -> None:
    """It has neither a variant nor an image."""
    blocked = replace(series(2, None, b="x"), mode="", precision="", image="")
    other = replace(series(3, None, b="x"), card="other", mode="", precision="", image="")
    lines = list(sweep_lines(StudySummary(id="i", kind="sweep", series=(blocked, series(1, 9, b="1"), other))))
    assert [line.split(" ")[0] for line in lines if not line.startswith(" ")] == ["card", "other"]
    assert [line.split()[0] for line in lines if line.startswith(" ")] == ["b=x", "b=1", "b=x"]
