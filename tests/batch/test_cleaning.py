"""The folder that a script ran in is removed by its session, unless the plan keeps it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from madlite.model import Action, Exit
from madlite.run.screen import PlannedRun
from madlite.run.session_runner import SessionRunner
from tests.factories import make_plan

NAME = "run_directory"
REMOVES = Action(kind="clean", argv=("rm", "-rf", "--", NAME))


def cleaned(tmp_path: Path, **plan: object) -> list[Action]:
    """Clean after a run; return what its session was asked to do."""
    made = make_plan(tmp_path, **{"model_dir": NAME, **plan}, actions=(REMOVES,))
    run = PlannedRun(plan=made, backends=(), files=(), runtime=None)
    asked: list[Action] = []

    def act(action: Action, out: object) -> Exit:
        asked.append(action)
        return Exit(code=0, duration_s=0.1)

    runner = SessionRunner(run, None, SimpleNamespace(reason=None), None, None, None, None, None)  # type: ignore[arg-type]
    runner._clean(SimpleNamespace(run=act), SimpleNamespace(feed=None))  # type: ignore[arg-type]
    return asked


def test_its_session_removes_it(tmp_path: Path) -> None:
    assert cleaned(tmp_path) == [REMOVES]


@pytest.mark.parametrize("kept", [{"keep_model_dir": True}, {"keep_alive": True}])
def test_what_is_to_be_kept_is_kept(tmp_path: Path, kept) -> None:
    assert cleaned(tmp_path, **kept) == []
