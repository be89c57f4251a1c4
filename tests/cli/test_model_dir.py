"""$MODEL_DIR: a checkout elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.cli.model_dir import bring_model_dir, find_model_dir
from madlite.errors import UsageProblem


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "mad"
    (folder / "scripts/toy/configs").mkdir(parents=True)
    (folder / "scripts/toy/run.sh").write_text("echo new\n")
    (folder / "scripts/toy/run.sh").chmod(0o755)
    (folder / "scripts/toy/configs/a.csv").write_text("a\n1\n")
    (folder / "models.json").write_text(json.dumps([{"name": "toy"}]))
    (folder / "dataset").mkdir()
    (folder / "dataset/huge.bin").touch()
    return folder


def test_cards_scripts_and_settings_are_brought(elsewhere: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    assert bring_model_dir(elsewhere, here, "runs") == 3
    assert (here / "scripts/toy/run.sh").stat().st_mode & 0o111
    assert (here / "scripts/toy/configs/a.csv").read_text() == "a\n1\n"
    assert not (here / "dataset").exists()
    assert bring_model_dir(elsewhere, here, "runs") == 0, "the second time nothing is left to do"


def test_a_file_that_differs_is_kept(elsewhere: Path, tmp_path: Path) -> None:
    own = tmp_path / "here/scripts/toy/run.sh"
    own.parent.mkdir(parents=True)
    own.write_text("echo mine\n")
    bring_model_dir(elsewhere, tmp_path / "here", "runs")
    assert own.read_text() == "echo new\n"
    (kept,) = (tmp_path / "here/runs").glob("replaced-*/scripts/toy/run.sh")
    assert kept.read_text() == "echo mine\n"


def test_which_folder_is_meant(elsewhere: Path, tmp_path: Path) -> None:
    assert find_model_dir({"MODEL_DIR": "mad"}, tmp_path) == elsewhere
    assert find_model_dir({"MODEL_DIR": str(elsewhere)}, elsewhere) is None
    assert find_model_dir({"MODEL_DIR": "./"}, tmp_path) is None
    assert find_model_dir({}, tmp_path) is None
    with pytest.raises(UsageProblem, match="MODEL_DIR=nowhere"):
        find_model_dir({"MODEL_DIR": "nowhere"}, tmp_path)
