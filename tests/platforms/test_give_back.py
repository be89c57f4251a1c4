"""Files that a container's root wrote become the caller's, unless that root is the caller already."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from madlite.platforms.docker import container as docker_give_back
from madlite.platforms.docker.container import STAMP, Container, restore_ownership


class Here:
    """An engine whose containers are this machine."""

    def exec_create(self, container: str, command: list[str], user: str) -> dict[str, str]:
        self._command = command
        return {"Id": "e"}

    def exec_start(self, exec_id: str) -> bytes:
        self._done = subprocess.run(self._command, capture_output=True, check=False)
        return self._done.stdout + self._done.stderr

    def exec_inspect(self, exec_id: str) -> dict[str, int]:
        return {"ExitCode": self._done.returncode}


@pytest.fixture
def owner_of_new(tmp_path: Path, caplog):
    """Give back what was written after the start, and return whose it is and what was logged."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")

    def give() -> tuple[int, str]:
        folder = tmp_path / "madlite_runs/r"
        folder.mkdir(parents=True)
        (folder / STAMP).touch()
        os.utime(folder / STAMP, (0, 0))
        (tmp_path / "new").touch()
        box = Container(
            id="c", image="i", workspace=tmp_path, inside=str(tmp_path), folder=folder, give_back=(1234, 1235)
        )
        restore_ownership(Here(), box)
        return (tmp_path / "new").stat().st_uid, caplog.text

    return give


def test_what_root_wrote_becomes_the_callers(owner_of_new):
    assert owner_of_new() == (1234, "")


def test_what_root_wrote_into_the_caches_of_a_study_does_too(owner_of_new, tmp_path_factory, tmp_path):
    caches = tmp_path_factory.mktemp("caches")
    (caches / "kernel").touch()
    owner_of_new()
    folder = tmp_path / "madlite_runs/r"
    box = Container(
        id="c",
        image="i",
        workspace=tmp_path,
        inside=str(tmp_path),
        folder=folder,
        give_back=(1234, 1235),
        caches=str(caches),
    )
    restore_ownership(Here(), box)
    assert (caches / "kernel").stat().st_uid == 1234


def test_where_root_inside_is_somebody_else_outside_nothing_is_changed(owner_of_new, monkeypatch):
    monkeypatch.setattr(docker_give_back, "_uid_map", lambda: "0 1000 1")
    assert owner_of_new() == (0, "")


def test_files_that_find_cannot_look_at_are_a_warning_with_its_words(tmp_path, caplog):
    box = Container(
        id="c", image="i", workspace=tmp_path, inside=str(tmp_path), folder=tmp_path / "r", give_back=(0, 0)
    )
    restore_ownership(Here(), box)  # there is no stamp to compare with
    assert "some files of the run may still belong to root: " in caplog.text and STAMP in caplog.text
