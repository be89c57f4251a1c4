"""Links among the files that madlite writes: nothing is made or written over outside of their folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.errors import RecordError
from madlite.files import outside
from madlite.perfcsv.append import RunAppend, append_rows, append_runs, check_appendable
from madlite.store.folder import RunRows
from tests.factories import write_side_files
from tests.perfcsv.golden import make_run, number
from tests.rows import each_row

OBJECT = {"model": "m", "n_gpus": "8", "pipeline": ""}
HEADER = "model,performance,metric,status\n"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    return make_space(tmp_path)


def make_space(folder: Path) -> Path:
    (folder / "outside").mkdir()
    (folder / "space").mkdir()
    return folder / "space"


def lay(space: Path, name: str, content: str | None, to: str = "") -> Path:
    """Lay a link to a file outside, which is there where it has a content, and has the same name if not `to`."""
    target = space.parent / "outside" / (to or name)
    if content is not None:
        target.write_text(content)
    (space / name).symlink_to(target)
    return target


def test_only_a_link_out_of_its_folder_leads_outside(space):
    target = lay(space, "a.json", None)
    (space / "b.json").symlink_to("deeper/b.json")
    (space / "c.json").touch()
    assert outside(space / "a.json") == target
    assert [outside(space / name) for name in ("b.json", "c.json", "none.json")] == [None] * 3
    (space.parent / "other").symlink_to(space)
    assert outside(space.parent / "other/b.json") is None, "the folder may itself be reached by a link"


def test_a_link_to_what_is_not_there_makes_no_file_outside(space):
    target = lay(space, "perf.csv", None)
    for act in (lambda: check_appendable(space / "perf.csv"), lambda: append_rows(space / "perf.csv", [{}])):
        with pytest.raises(RecordError, match="is a link to .* which is not there") as problem:
            act()
        assert f"-o {target}" in problem.value.hint
    assert not target.exists()


@each_row("content", ["", "\n", " \r\n\n"])
def test_a_link_to_an_empty_file_outside_is_refused(tmp_path, content):
    """It may be anything: root's authorized_keys, say."""
    space = make_space(tmp_path)
    target = lay(space, "perf.csv", content)
    for act in (
        lambda: check_appendable(space / "perf.csv"),
        lambda: append_rows(space / "perf.csv", [{"model": "m"}]),
    ):
        with pytest.raises(RecordError, match=f"is a link to {target}, which is empty"):
            act()
    assert target.read_bytes() == content.encode()


def test_rows_do_not_follow_a_link_that_was_laid_since_the_command_began(space):
    append_rows(space / "perf.csv", [{"model": "m"}])
    began = space / "perf.csv"
    other = space.parent / "outside/other.csv"
    other.write_bytes(began.read_bytes())
    began.rename(space / "old.csv")
    began.symlink_to(other)
    late = RunRows(path="perf.csv", cells=({"model": "late"},))
    with pytest.raises(RecordError, match=f"leads to {other} since the command began"):
        append_runs(began, [RunAppend(late, lambda tried: tried)], target=began)
    assert "late" not in other.read_text()


@each_row(
    ("name", "content"),
    [
        ("perf_entry.json", json.dumps(OBJECT)),
        ("perf_super.json", json.dumps([OBJECT])),
        ("perf_entry.csv", HEADER),
        ("perf_super.csv", HEADER),
    ],
)
def test_a_user_s_own_link_to_a_side_file_outside_is_followed(tmp_path, name, content):
    space = make_space(tmp_path)
    target = lay(space, name, content)
    plan, result = make_run(space, metrics=(number("5"),))
    assert write_side_files(plan, result, pipeline="", build_number="0") == ()
    assert (space / name).is_symlink() and target.read_text().strip() not in (content.strip(), "")


@each_row(
    ("name", "content"),
    [
        ("perf_entry.json", None),
        ("perf_entry.csv", None),
        ("perf_super.json", None),
        ("perf_super.csv", None),
        ("perf_entry.json", "export PATH=/bin\n"),
        ("perf_super.json", "[1]"),
        ("perf_super.csv", "root:x:0:0\n"),
    ],
)
def test_a_link_to_anything_else_outside_is_not_written_through_and_costs_its_own_file_alone(tmp_path, name, content):
    space = make_space(tmp_path)
    target = lay(space, name, content) if content is None else lay(space, name, content, ".bashrc")
    plan, result = make_run(space, metrics=(number("5"),))
    (problem,) = write_side_files(plan, result, pipeline="", build_number="0")
    assert f"{name} is a link to {target}" in problem
    assert (target.read_text() if target.exists() else None) == content
    others = {"perf_entry.json", "perf_entry.csv", "perf_super.json", "perf_super.csv"} - {name}
    assert all((space / other).is_file() for other in others)


def test_a_side_file_that_is_a_pipe_outside_is_not_waited_for(space):
    import os

    target = space.parent / "outside/perf_entry.json"
    os.mkfifo(target)
    (space / "perf_entry.json").symlink_to(target)
    plan, result = make_run(space, metrics=(number("5"),))
    (problem,) = write_side_files(plan, result, pipeline="", build_number="0")
    assert "perf_entry.json is no plain file" in problem
