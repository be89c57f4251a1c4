"""What a live log is told of a run beside what the workload prints."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.model import Action, Image, Secret, Traits
from madlite.run import probe_inside
from madlite.run.log import MadLog, docker_exec
from madlite.secrets import Redactor
from tests.factories import make_plan
from tests.rows import each_row

COMMIT = "4f2a9c1b" * 5


def commit_told(folder: Path) -> str:
    plan = make_plan(folder)
    told: list[str] = []
    plan = replace(plan, card=replace(plan.card, scripts="scripts/m/run.sh"))
    log = MadLog(plan, None, told.append, lambda line: None, str)
    for kind in ("pre", "data", "run"):
        log.before(Action(kind=kind, argv=("true",)))
    (line,) = (line for line in told if line.startswith("MODEL"))
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


def told_of(folder: Path, local: bool, *actions: Action) -> list[str]:
    """Return the lines of a run in a container that has a secret."""
    traits = Traits(containerised=True, local=local)
    plan = make_plan(folder, image=Image(ref="rocm/a:1"), name="container_a", traits=traits)
    told: list[str] = []
    log = MadLog(
        replace(plan, timeout_s=60.0, env={"HF_TOKEN": Secret("hf_0123456789")}),
        None,
        told.append,
        lambda line: None,
        Redactor(("it's-my-secret-42",)).text,
    )
    log.opening()
    for action in actions:
        log.before(action)
    return told


def test_the_commands_of_docker_and_the_models_own_step_are_told_as_madengine_does(tmp_path):
    clone, run = (
        Action(kind="clone", argv=("git", "clone", "a b")),
        Action(kind="run", argv=("bash", "-c", "bash run.sh ")),
    )
    told = told_of(tmp_path, True, clone, replace(run, cwd="run_directory"))
    limit, start, *steps = told
    assert "Setting timeout" in limit and start.startswith("> docker run -t -d --network host -u root")
    assert start.endswith(f"-v {tmp_path}:/myworkspace/ --workdir /myworkspace/ --name container_a rocm/a:1 cat")
    assert "--env HF_TOKEN=***" in start
    assert steps == [
        "> docker exec container_a bash -c 'git clone '\"'\"'a b'\"'\"''",
        "Running model...",
        "> docker exec container_a bash -c 'cd run_directory && bash run.sh '",
    ]
    assert [line for line in told_of(tmp_path, False, run) if "docker" in line] == [], "nodes start their own"


def test_a_command_of_several_lines_is_told_on_one(tmp_path):
    plan = make_plan(tmp_path, image=Image(ref="a:1"), name="c")
    assert "\n" in docker_exec(plan, Action(kind="pre", argv=("bash", "-c", "a\nb")), str)
    (line,) = [one for one in told_of(tmp_path, True, Action(kind="pre", argv=("bash", "-c", "a\nb"))) if "exec" in one]
    assert line.endswith("'a\\nb'")


@each_row(
    "argv",
    [
        ("bash", "run.sh", "--key", "it's-my-secret-42"),
        ("bash", "-c", shlex.join(("bash", "run.sh", "--key", "it's-my-secret-42"))),
    ],
)
def test_a_secret_with_a_quote_is_masked_before_its_command_is_quoted_once_more(tmp_path, argv):
    *_, told = told_of(tmp_path, True, Action(kind="run", argv=argv))
    assert "my-secret" not in told and "run.sh --key " in told and "***" in told
