"""Which runs follow warm-ups of which some failed."""

from __future__ import annotations

from pathlib import Path

from madlite.model import Cause, Result, Status, Study
from madlite.plan.submission import PlannedRun
from madlite.study.grid import Grid
from madlite.study.summary import samples_of, warm_up_text
from tests.factories import make_plan
from tests.rows import each_row


def run_of(name: str, folder: Path, series: int, **varied: int) -> PlannedRun:
    is_warm_up = name.startswith("w")
    study = Study(
        id="s", kind="sweep", varied=varied, series=series, index=None if is_warm_up else 1, warm_up=is_warm_up
    )
    return PlannedRun(plan=make_plan(folder, id=name, study=study), backends=(), files=(), runtime=None)  # type: ignore[arg-type]


def ended(name: str, status: Status) -> Result:
    return Result(plan_id=name, status=status, cause=Cause.EXIT_CODE if status is Status.FAILURE else Cause.NONE)


@each_row(
    ("varied", "second", "left"),
    [
        (({"A": 1}, {"A": 2}, {"A": 3}), Status.FAILURE, ["r1", "r3"]),
        (({}, {}, {}), Status.FAILURE, []),
        (({}, {}, {}), Status.SUCCESS, ["r1", "r2", "r3"]),
        (({"A": 1}, {"A": 2}, {"A": 3}), None, ["r1", "r3"]),
    ],
)
def test_a_warm_up_that_fails_or_never_starts_ends_all_but_only_its_own_point_of_a_sweep(
    tmp_path, varied, second, left
):
    runs, warm_ups = (
        [run_of(f"{kind}{number}", tmp_path, number, **one) for number, one in enumerate(varied, 1)] for kind in "rw"
    )
    grid = Grid("s", runs, warm_ups)
    asked = grid.ask(())
    assert asked is not None and (asked.runs, asked.later) == (warm_ups, runs)
    results = [ended(f"w{number}", Status.SUCCESS) for number in (1, 3)]
    results += [ended("w2", second)] if second is not None else []
    samples = [*samples_of(warm_ups, results)]
    following = grid.ask(samples)
    assert [one.plan.id for one in (following.runs if following is not None else ())] == left
    if following is not None:
        assert grid.ask([*samples, *samples_of(following.runs, ())]) is None


@each_row(("known", "asked"), [(("r1", "w1"), ["w2"]), (("r1",), ["w2"]), (("r1", "w1", "w2"), ["r2"])])
def test_only_what_is_left_is_asked_for_and_warmed(tmp_path, known, asked):
    runs, warm_ups = ([run_of(f"{kind}{number}", tmp_path, number) for number in (1, 2)] for kind in "rw")
    made = [run for run in (*runs, *warm_ups) if run.plan.id in known]
    found = Grid("s", runs, warm_ups).ask([*samples_of(made, [ended(name, Status.SUCCESS) for name in known])])
    assert found is not None and [one.plan.id for one in found.runs] == asked


def test_a_point_is_named_with_its_values(tmp_path):
    assert warm_up_text("tiny", run_of("r", tmp_path, 1, A=2, B=3).plan.study) == "tiny (A=2, B=3)"
    assert warm_up_text("tiny", None) == "tiny"
