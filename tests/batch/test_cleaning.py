"""What removes the folder that a script ran in: the session itself, by the plan's own action."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from madlite.errors import RuntimeProblem
from madlite.model import Action, Cause, Exit
from madlite.run.screen import PlannedRun
from madlite.run.session_runner import SessionRunner
from madlite.run.watchdog import StopReason
from tests.factories import make_plan

NAME = "run_directory"
REMOVES = Action(kind="clean", argv=("rm", "-rf", "--", NAME))


def cleaned(
    tmp_path: Path, reason: StopReason | None = None, problem: RuntimeProblem | None = None, **plan: object
) -> list[Action]:
    """Clean after a run; return what its session was asked to do."""
    made = make_plan(tmp_path, **{"model_dir": NAME, **plan}, actions=(Action(kind="run", argv=("x",)), REMOVES))
    one = PlannedRun(plan=made, backends=(), files=(), runtime=None)
    asked: list[Action] = []

    def run(action: Action, out: object) -> Exit:
        asked.append(action)
        if problem is not None:
            raise problem
        return Exit(code=0, duration_s=0.1)

    runner = SessionRunner(one, None, SimpleNamespace(reason=reason), None, None, None, None, None)  # type: ignore[arg-type]
    runner._clean(SimpleNamespace(run=run), SimpleNamespace(feed=None))  # type: ignore[arg-type]
    return asked


def test_the_session_removes_it(tmp_path: Path) -> None:
    assert cleaned(tmp_path) == [REMOVES]
    assert cleaned(tmp_path, StopReason(cause=Cause.NONE, text="its steps are enough")) == [REMOVES]


def test_a_session_that_cannot_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cleaned(tmp_path, problem=RuntimeProblem("it is gone")) == [REMOVES]
    assert "run_directory was not cleaned: it is gone" in caplog.text


def test_a_run_that_was_ended_leaves_it(tmp_path: Path) -> None:
    assert cleaned(tmp_path, StopReason(cause=Cause.TIMEOUT, text="timed out")) == []


@pytest.mark.parametrize("kept", [{"keep_model_dir": True}, {"keep_alive": True}])
def test_what_is_to_be_kept_is_kept(tmp_path: Path, kept) -> None:
    assert cleaned(tmp_path, **kept) == []
