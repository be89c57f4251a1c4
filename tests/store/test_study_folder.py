"""The folder of a study: its caches go at its end, and what a kill left is `clean`'s, whatever lies there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from madlite.batch.leftovers import find_leftovers, remove
from madlite.store.batches import StudyFolder, caches_path, cut_off_studies, studies_of, study_path
from tests.factories import note_requested

ID = "20261124T021500-3fa91c"


def killed(folder: StudyFolder) -> None:
    """Let go of its lock, as the end of a process does."""
    os.close(folder._lock)


def test_the_caches_go_with_the_study_and_its_summary_stays(tmp_path: Path):
    folder = StudyFolder.create(tmp_path, ID)
    folder.make_caches("series-1", ["triton", "tunableop"])
    assert sorted(path.name for path in caches_path(tmp_path, ID, "series-1").iterdir()) == ["triton", "tunableop"]
    assert not list(cut_off_studies(tmp_path)), "its madlite lives"
    assert folder.write("study.json", "{}") == "" and folder.close() == ""
    assert [path.name for path in study_path(tmp_path, ID).iterdir()] == ["study.json"]
    assert not list(cut_off_studies(tmp_path))


def test_a_study_without_a_summary_leaves_nothing(tmp_path: Path):
    folder = StudyFolder.create(tmp_path, ID)
    folder.make_caches("series-1", ["triton"])
    assert folder.close() == "" and not study_path(tmp_path, ID).exists()


def test_what_a_kill_left_is_listed_and_removed(tmp_path: Path):
    folder = StudyFolder.create(tmp_path, ID)
    folder.make_caches("series-1", ["triton"])
    (caches_path(tmp_path, ID, "series-1") / "triton/kernel").touch()
    killed(folder)
    found = find_leftovers(tmp_path, {"DOCKER_HOST": "unix:///none"}).leftovers
    (left,) = [one for one in found if one.kind == "study"]
    assert (left.run_id, left.handle) == (ID, str(study_path(tmp_path, ID)))
    assert remove(left, {}) is None and not study_path(tmp_path, ID).exists()


def test_a_link_in_the_place_of_the_caches_is_not_followed(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kept").touch()
    folder = StudyFolder.create(tmp_path, ID)
    (study_path(tmp_path, ID) / "caches").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        folder.make_caches("series-1", ["triton"])
    assert folder.close() == "" and (tmp_path / "mine/kept").exists()


def test_links_and_other_names_are_no_studies(tmp_path: Path):
    folder = StudyFolder.create(tmp_path, ID)
    killed(folder)
    study_path(tmp_path, ID).rename(tmp_path / "elsewhere")
    study_path(tmp_path, ID).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "madlite_runs/study-mine/caches").mkdir(parents=True)
    assert not list(cut_off_studies(tmp_path))


def test_a_study_of_a_copied_folder_is_not_resumed(tmp_path):
    """Its caches would be mounted, and its runs be taken for this folder's."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    other = "20261128T000000-abcdef"
    StudyFolder.create(there, other, "tune", {"card": "b"}).write("study.json", "{}")
    note_requested(there, other)
    shutil.copytree(there, here)
    StudyFolder.create(here, ID, "tune", {"card": "a"}).close()
    note_requested(here, ID)
    assert [(one.study, one.request) for one in studies_of(here, "tune")] == [(ID, {"card": "a"})]
    with pytest.raises(PermissionError, match="did not begin in this folder"):
        StudyFolder.reopen(here, other)
    StudyFolder.reopen(here, ID).close()
    assert studies_of(here, "bisect") == []


def test_a_study_in_which_nothing_ran_is_none_to_resume(tmp_path):
    StudyFolder.create(tmp_path, ID, "bisect")
    assert studies_of(tmp_path, "bisect") == []
    note_requested(tmp_path, ID)
    assert [one.study for one in studies_of(tmp_path, "bisect")] == [ID]
