"""Setuid and setgid files and device nodes in a working folder are found, within limits and behind no link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.store import special_files as module
from madlite.store.special_files import left_text, special_files
from tests.rows import each_row


def special(path: Path, mode: int = 0o4755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(mode)
    return path


def names(folder: Path, *args: object) -> list[tuple[str, str]]:
    return sorted((one.kind, one.name) for one in special_files(folder, *args))


def test_they_are_named_by_kind_and_ordinary_files_folders_and_links_are_not(tmp_path):
    folder = tmp_path / "mad"
    special(folder / "a/su")
    special(folder / "group", 0o2755)
    special(folder / "plain", 0o755)
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o2775)
    special(tmp_path / "outside/su")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "to_file").symlink_to(tmp_path / "outside/su")
    assert names(folder) == [("setgid", "group"), ("setuid", "a/su")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_node_is_one_of_them(tmp_path):
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert names(tmp_path) == [("device", "null")]


def test_of_a_run_counts_what_changed_since_it_began_and_of_other_runs_nothing(tmp_path):
    special(tmp_path / "earlier")
    since = (tmp_path / "earlier").lstat().st_ctime_ns + 1
    probe = tmp_path / "probe"
    while not probe.exists() or probe.lstat().st_ctime_ns < since:  # files of one tick of the kernel have one time
        probe.write_bytes(b"")
    run = tmp_path / "madlite_runs/r"
    for name in ("now", "madlite_runs/r/work/now", "madlite_runs/other/work/now"):
        special(tmp_path / name)
    changed = special(tmp_path / "again", 0o755)
    changed.chmod(0o4755)
    os.utime(changed, (0, 0))  # the time of its content is the workload's to set
    assert [name for _, name in names(tmp_path, since, run)] == ["again", "madlite_runs/r/work/now", "now"]


@each_row("limit", ["_MOST_ENTRIES", "_LIMIT_S"])
def test_a_look_ends_at_its_limit_and_begins_with_what_is_near(tmp_path, monkeypatch, limit):
    special(tmp_path / "near")
    special(tmp_path / "a/b/c/far")
    monkeypatch.setattr(module, limit, 2 if limit == "_MOST_ENTRIES" else -1.0)
    assert [one.name for one in special_files(tmp_path)] == (["near"] if limit == "_MOST_ENTRIES" else [])


def test_a_note_names_a_few_and_counts_the_rest(tmp_path):
    assert left_text(special_files(tmp_path)) == ""
    for n in range(5):
        special(tmp_path / f"f{n}")
    assert left_text(special_files(tmp_path)).endswith(" (setuid) and 2 more; madlite clean lists them")


def test_clean_lists_them_and_leaves_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    files = [special(tmp_path / f"d/f{n:02}") for n in range(22)]
    assert call(["clean", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "setuid    d/f" in out and f"(of user {os.geteuid()}; it stays: " in out
    assert "and 2 more of such files" in out and "nothing is left behind" not in out
    assert all(file.exists() for file in files)
