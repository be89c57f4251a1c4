"""What a live log is told of a run beside what the workload prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.model import Action
from madlite.run import probe_inside
from madlite.run.log import MadLog
from tests.factories import make_plan

COMMIT = "4f2a9c1b" * 5


def commit_told(folder: Path) -> str:
    plan = make_plan(folder)
    told: list[str] = []
    plan = replace(plan, card=replace(plan.card, scripts="scripts/m/run.sh"))
    log = MadLog(plan, None, told.append, lambda line: None)
    for kind in ("pre", "data", "run"):
        log.before(Action(kind=kind, argv=("true",)))
    (line,) = told
    return line


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "scripts/m").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text(f"{COMMIT}\n")
    return tmp_path


def test_the_commit_is_that_of_the_scripts_repository_and_told_once(repository, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # of a hook that starts madlite, about another repository
    assert commit_told(repository) == f"MODEL REPO COMMIT:  {COMMIT}"


def test_a_pipe_that_a_workload_laid_for_git_is_not_waited_for(repository, monkeypatch):
    monkeypatch.setattr(probe_inside, "GIT_S", 0.2)  # for git, which waits
    (repository / ".git/HEAD").unlink()
    os.mkfifo(repository / ".git/HEAD")
    assert commit_told(repository) == "MODEL REPO COMMIT:  "
