"""Which runs follow warm-ups of which some failed, and what the command comes to without the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.errors import ExitCode
from madlite.model import Cause, Result, Status, Study
from madlite.run.screen import PlannedRun, RunOutcome
from madlite.study.repeat import _startable, _without, warm_up_text
from tests.factories import make_plan

GOOD = RunOutcome(results=(), not_started=(), exit_code=ExitCode.OK)


def run_of(tmp_path: Path, name: str, series: int, **varied: int) -> PlannedRun:
    study = Study(id="s", kind="sweep", varied=varied, series=series, index=1)
    return PlannedRun(plan=make_plan(tmp_path, id=name, study=study), backends=(), files=(), runtime=None)


def ended(name: str, *, failed: bool = False) -> Result:
    if failed:
        return Result(plan_id=name, status=Status.FAILURE, cause=Cause.EXIT_CODE)
    return Result(plan_id=name, status=Status.SUCCESS)


@pytest.mark.parametrize(
    ("varied", "exit_code", "left"),
    [
        (({"A": 1}, {"A": 2}, {"A": 3}), ExitCode.RUN_FAILED, ["r1"]),
        (({}, {}, {}), ExitCode.RUN_FAILED, []),
        (({}, {}, {}), ExitCode.OK, ["r1", "r2", "r3"]),
    ],
)
def test_a_warm_up_that_fails_or_never_starts_ends_all_but_only_its_own_point_of_a_sweep(
    tmp_path, varied, exit_code, left
):
    runs, warm_ups = (
        [run_of(tmp_path, f"{kind}{number}", number, **one) for number, one in enumerate(varied, 1)] for kind in "rw"
    )
    warm = RunOutcome(results=(ended("w1"), ended("w2", failed=True)), not_started=("w3",), exit_code=exit_code)
    assert [one.plan.id for one in _startable(runs, warm_ups, warm)] == left
    assert not [*_startable(runs, warm_ups, RunOutcome((), (), ExitCode.RUN_FAILED, bug=ValueError()))]


def test_runs_that_were_not_started_are_named_and_are_a_failure(tmp_path):
    left_out = [run_of(tmp_path, "r2", 2, A=2)]
    good = RunOutcome(results=(ended("r1"),), not_started=("x",), exit_code=ExitCode.OK)
    assert _without(good, []) is good
    assert (_without(good, left_out).exit_code, _without(good, left_out).not_started) == (
        ExitCode.RUN_FAILED,
        ("x", "tiny"),
    )
    stopped = RunOutcome(results=(ended("r1"),), not_started=(), exit_code=ExitCode.INTERRUPTED)
    assert _without(stopped, left_out).exit_code is ExitCode.INTERRUPTED
    assert _without(GOOD, left_out).exit_code is ExitCode.OK, "nothing ran: the warm-ups' own exit code stands"


def test_a_point_is_named_with_its_values(tmp_path):
    assert warm_up_text("tiny", run_of(tmp_path, "r", 1, A=2, B=3).plan.study) == "tiny (A=2, B=3)"
    assert warm_up_text("tiny", None) == "tiny"
