"""The steps around a MAD script, in a real shell with a real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from madlite import Action, Card, Machine, Request
from madlite_plugins.script import Script
from tests.rows import each_row


class Steps:
    """A card's actions, run in a workspace by their kind."""

    def __init__(self, workspace: Path, url: str = "") -> None:
        self.workspace = workspace
        script = workspace / "scripts/toy/run.sh"
        script.parent.mkdir(parents=True)
        script.write_text("echo ran\n")
        card = Card(name="toy", root=workspace, source="models.json", scripts="scripts/toy/run.sh", url=url)
        (draft,) = Script().expand(Request(card=card, tag="toy"), Machine())
        self.actions = draft.actions

    def run(self, model_dir: str, *kinds: str) -> subprocess.CompletedProcess[str]:
        """Run the actions of these kinds until one fails; return how the last one ended."""
        for action in self.actions:
            if action.kind in kinds:
                ended = self._one(action, model_dir)
                if ended.returncode:
                    break
        return ended

    def _one(self, action: Action, model_dir: str) -> subprocess.CompletedProcess[str]:
        filled = [word.replace("{encapsulate}", "").replace("{args}", "") for word in action.argv]
        argv = [model_dir if word == "{model_dir}" else word for word in filled]
        cwd = self.workspace / action.cwd.replace("{model_dir}", model_dir)
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def upstream(tmp_path: Path) -> str:
    """A repository with one file, under the name of a folder that a checkout has."""
    place = tmp_path / "upstream/docker"
    place.mkdir(parents=True)
    (place / "data.txt").write_text("7\n")
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", *command], cwd=place, check=True)
    return str(place)


@pytest.fixture
def steps(tmp_path: Path, upstream: str) -> Steps:
    return Steps(tmp_path / "checkout", upstream)


def test_a_folder_of_the_user_is_neither_replaced_nor_cleaned_away(steps: Steps) -> None:
    own = steps.workspace / "docker/team.ubuntu.amd.Dockerfile"
    own.parent.mkdir()
    own.write_text("FROM x\n")
    refused = steps.run("docker", "prepare", "clone")
    assert refused.returncode != 0
    assert "docker" in refused.stderr and "not made by madlite" in refused.stderr
    assert steps.run("docker", "clean").returncode == 0
    assert own.read_text() == "FROM x\n"


def test_a_link_of_the_user_is_left_alone_too(steps: Steps) -> None:
    link = steps.workspace / "docker"
    link.symlink_to("/nonexistent/elsewhere")
    assert steps.run("docker", "prepare").returncode != 0
    assert link.is_symlink()


@pytest.mark.host
def test_a_clone_of_madlite_is_replaced_and_cleaned_away(steps: Steps) -> None:
    for _ in range(2):
        ended = steps.run("docker", "prepare", "clone", "run")
        assert (ended.returncode, ended.stdout) == (0, "ran\n"), ended.stderr
        assert (steps.workspace / "docker/data.txt").read_text() == "7\n"
        (steps.workspace / "docker/left.txt").touch()
    assert steps.run("docker", "clean").returncode == 0
    assert sorted(path.name for path in steps.workspace.iterdir()) == ["scripts"]


@pytest.mark.host
def test_git_sees_nothing_of_the_mark(steps: Steps) -> None:
    assert steps.run("docker", "clone").returncode == 0
    status = ["git", "status", "--porcelain", "--ignored"]
    assert subprocess.run(status, cwd=steps.workspace / "docker", capture_output=True, check=True).stdout == b""


@pytest.mark.host
def test_a_clone_that_was_cut_off_keeps_nobody_from_the_next_run(steps: Steps) -> None:
    half = steps.workspace / ".docker.cloning/.git/objects"
    half.mkdir(parents=True)
    assert steps.run("docker", "prepare", "clone").returncode == 0
    assert not half.exists() and (steps.workspace / "docker/data.txt").exists()


@pytest.mark.host
@each_row("with_repository", [True, False])
def test_run_directory_is_always_fresh(tmp_path: Path, upstream: str, with_repository: bool) -> None:
    steps = Steps(tmp_path / "checkout", upstream if with_repository else "")
    stale = steps.workspace / "run_directory/stale.txt"
    stale.parent.mkdir()
    stale.touch()
    ended = steps.run("run_directory", "prepare", "clone", "run")
    assert (ended.returncode, ended.stdout) == (0, "ran\n"), ended.stderr
    assert not stale.exists()
    assert steps.run("run_directory", "clean").returncode == 0
    assert not stale.parent.exists()


def test_each_step_is_one_command(steps: Steps) -> None:
    kinds = [action.kind for action in steps.actions]
    assert kinds == ["prepare", "clone", "pre", "prepare", "data", "run", "post", "clean"]
    assert [action.kind for action in steps.actions if not action.argv] == ["pre", "data", "post"]


def test_a_missing_script_is_named_with_the_file_that_was_looked_for(tmp_path: Path) -> None:
    def problem(scripts: str, source: str = "models.json") -> str:
        card = Card(name="toy", root=tmp_path, source=source, scripts=scripts)
        (draft,) = Script().expand(Request(card=card, tag="toy"), Machine())
        return draft.problem

    assert problem("run.sh") == f"its script run.sh is not in this folder: {tmp_path}/run.sh does not exist"
    of_mad = problem("scripts/ncf/run.sh")  # a models.json of MAD without the rest of the checkout
    assert of_mad.endswith(f"{tmp_path}/scripts/ncf/run.sh does not exist; a card of ROCm/MAD runs in a checkout of it")
    (tmp_path / "scripts").mkdir()
    assert problem("scripts/ncf/run.sh").endswith("scripts/ncf/run.sh does not exist")
    assert problem("scripts/ncf/run.sh", "bundled models.json").endswith("run it inside a checkout of ROCm/MAD")
