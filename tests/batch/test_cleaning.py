"""What removes the folder that a script ran in: this process where it may, else the session itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from madlite.files import Folder
from madlite.model import Action, Exit, Traits
from madlite.run.screen import PlannedRun
from madlite.run.session_runner import SessionRunner
from tests.factories import make_plan

NAME = "run_directory"
REMOVES = Action(kind="clean", argv=("rm", "-rf", "--", NAME))
CONTAINER = Traits(local=True, containerised=True, shares_files=True)


def cleaned(tmp_path: Path, action: Action = REMOVES, traits: Traits = CONTAINER, **plan: object) -> list[Action]:
    """Clean after a run; return what its session was asked to do."""
    made = make_plan(tmp_path, **{"model_dir": NAME, **plan}, actions=(action,))
    made = replace(made, traits=traits)
    one = PlannedRun(plan=made, backends=(), files=(), runtime=None)
    stop = SimpleNamespace(reason=None)
    asked: list[Action] = []

    def run(action: Action, out: object) -> Exit:
        asked.append(action)
        return Exit(code=0, duration_s=0.1)

    runner = SessionRunner(one, None, stop, None, None, None, None, None)  # type: ignore[arg-type]
    with Folder.open(made.folder) as home:
        folder = SimpleNamespace(files=home)
        runner._clean(SimpleNamespace(run=run), folder, SimpleNamespace(feed=None))  # type: ignore[arg-type]
    assert list(made.folder.iterdir()) == []
    return asked


def test_root_removes_it_from_here_and_follows_no_link_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    folder = tmp_path / "w" / NAME
    (folder / "deep/deeper").mkdir(parents=True)
    (folder / "deep/link").symlink_to(outside)
    assert cleaned(tmp_path / "w") == [] and not folder.exists()
    assert (outside / "file").read_text() == "mine"


def test_one_that_is_not_here_is_the_session_s(tmp_path: Path) -> None:
    assert cleaned(tmp_path) == [REMOVES], "its engine may be elsewhere"


def test_a_link_in_its_place_is_the_session_s(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("mine")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / NAME).symlink_to(tmp_path / "outside")
    assert cleaned(tmp_path / "w") == [REMOVES] and (tmp_path / "outside/file").exists()


@pytest.mark.parametrize(
    ("action", "traits", "plan"),
    [
        (REMOVES, CONTAINER, {"give_back": (1000, 1000)}),
        (REMOVES, Traits(local=False, containerised=True, shares_files=True), {}),
        (REMOVES, Traits(local=True, containerised=True, shares_files=False), {}),
        (replace(REMOVES, argv=("bash", "-c", "rm -rf run_directory")), CONTAINER, {}),
        (replace(REMOVES, argv=("rm", "-rf", "--", "scripts")), CONTAINER, {}),
        (replace(REMOVES, cwd="scripts"), CONTAINER, {}),
    ],
)
def test_what_is_another_s_or_elsewhere_is_the_session_s(tmp_path: Path, action, traits, plan) -> None:
    (tmp_path / NAME).mkdir()
    assert cleaned(tmp_path, action, traits, **plan) == [action] and (tmp_path / NAME).is_dir()


def test_a_user_s_run_on_the_host_is_the_user_s_own(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    host = Traits(local=True, containerised=False, shares_files=True)
    assert cleaned(tmp_path, traits=host, give_back=(1000, 1000)) == [] and not (tmp_path / NAME).exists()


@pytest.mark.parametrize("name", [".", "..", "scripts/one", ""])
def test_what_is_no_name_is_the_session_s(tmp_path: Path, name) -> None:
    (tmp_path / "scripts/one").mkdir(parents=True)
    action = replace(REMOVES, argv=("rm", "-rf", "--", name))
    assert cleaned(tmp_path, action, model_dir=name) == [action] and (tmp_path / "scripts/one").is_dir()


@pytest.mark.parametrize("kept", [{"keep_model_dir": True}, {"keep_alive": True}])
def test_what_is_to_be_kept_is_kept(tmp_path: Path, kept) -> None:
    (tmp_path / NAME).mkdir()
    assert cleaned(tmp_path, **kept) == [] and (tmp_path / NAME).is_dir()
