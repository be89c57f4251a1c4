"""Files that the user named: replaced whole, through links, and nothing else becomes a file."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.files import check_writable, write_named
from tests.rows import each_row


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_plain_file_is_made_and_replaced_and_keeps_its_mode(tmp_path):
    file = tmp_path / "s.json"
    check_writable(file)
    write_named(file, "one")
    file.chmod(0o640)
    write_named(file, "two \udcff")
    assert file.read_text() == "two \\udcff" and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert names(tmp_path) == ["s.json"]


@each_row("there", [True, False])
def test_a_link_stays_and_what_it_names_is_written(tmp_path, there):
    (tmp_path / "kept").mkdir()
    if there:
        (tmp_path / "kept/real.json").write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to("kept/real.json")
    check_writable(link)
    write_named(link, "new")
    assert link.is_symlink() and (tmp_path / "kept/real.json").read_text() == "new"
    assert names(tmp_path / "kept") == ["real.json"]


@each_row("there", [True, False])
@each_row("name", ["link.json", "sub/link.json", "swapped/s.json"])
def test_a_link_that_leads_out_of_the_working_folder_is_not_followed(tmp_path, monkeypatch, name, there):
    space, outside = tmp_path / "space", tmp_path / "outside"
    (space / "sub").mkdir(parents=True)
    outside.mkdir()
    monkeypatch.chdir(space)
    (space / "swapped").symlink_to(outside)
    for link in ("link.json", "sub/link.json"):
        (space / link).symlink_to(outside / "s.json")
    if there:
        (outside / "s.json").write_text("mine")
    for path in (Path(name), space / name):
        for work in (lambda path=path: check_writable(path), lambda path=path: write_named(path, "x")):
            with pytest.raises(
                UsageProblem, match="leads to .*outside/s.json by a link, which is not followed"
            ) as told:
                work()
            assert told.value.hint == f"name {outside}/s.json itself, or rm {path}"
    assert [path.read_text() for path in outside.iterdir()] == ["mine"] * there
    write_named(outside / "s.json", "named")
    assert (outside / "s.json").read_text() == "named"


@each_row("there", [True, False])
@each_row("name", ["../s.json", "../beside/s.json", "sub/../../s.json"])
def test_a_path_that_leaves_the_working_folder_as_it_is_written_is_no_link(tmp_path, monkeypatch, name, there):
    space = tmp_path / "space"
    for folder in (space / "sub", tmp_path / "beside"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(space)
    for path in (Path(name), space / name):
        if there:
            path.write_text("old")
        check_writable(path)
        write_named(path, "new")
        assert path.read_text() == "new"
        path.unlink()


@each_row("name", ["../link.json", "swapped/../s.json", "../space/link.json"])
def test_no_link_is_followed_on_the_way_out_of_the_working_folder(tmp_path, monkeypatch, name):
    space, away = tmp_path / "space", tmp_path / "away/far/deep"
    space.mkdir()
    away.mkdir(parents=True)
    monkeypatch.chdir(space)
    (space / "swapped").symlink_to(away)
    for link in (space / "link.json", tmp_path / "link.json"):
        link.symlink_to("/nowhere/s.json")
    for path in (Path(name), space / name):
        with pytest.raises(UsageProblem, match="by a link, which is not followed"):
            write_named(path, "x")
    assert not [path for path in tmp_path.rglob("s.json")]


def test_a_device_in_the_working_folder_is_not_written_to(tmp_path, monkeypatch, device):
    null = device("null", 3)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageProblem, match="it is no plain file"):
        write_named(Path(null.name), "x")
    assert null.is_char_device()


def test_a_link_into_a_folder_that_is_not_there_is_found_out_early(tmp_path):
    (tmp_path / "link.json").symlink_to("absent/real.json")
    with pytest.raises(UsageProblem, match="absent is no folder"):
        check_writable(tmp_path / "link.json")


def test_a_pipe_stays_a_pipe_and_its_reader_gets_all(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    with pytest.raises(UsageProblem, match="no process reads it"):
        write_named(pipe, "lost")
    text, got = "long " * 40_000, []  # more than a pipe holds
    reading = threading.Thread(target=lambda: got.append(pipe.read_text()))
    both_ends = os.open(pipe, os.O_RDWR)  # so that the reader waits for the writer, and the writer for the reader
    reading.start()
    write_named(pipe, text)
    os.close(both_ends)
    reading.join(240)
    assert got == [text] and pipe.is_fifo() and names(tmp_path) == ["pipe"]


@pytest.fixture
def device(tmp_path):
    """Return a maker of device nodes of the test's own: the machine's are never written to by name."""

    def make(name: str, minor: int) -> Path:
        path = tmp_path / name
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            os.close(os.open(path, os.O_WRONLY))
        except OSError:
            pytest.skip("this user may not make device nodes here")
        return path

    return make


def test_a_device_stays_a_device(tmp_path, device):
    null = device("null", 3)
    check_writable(null)
    write_named(null, "gone")
    assert null.is_char_device() and names(tmp_path) == ["null"]
    full = device("full", 7)
    with pytest.raises(UsageProblem, match="full cannot be written: No space left"):
        write_named(full, "x")
    assert full.is_char_device()


def test_our_own_output_gets_the_text_where_it_is(tmp_path):
    file, link = tmp_path / "out.txt", tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    with file.open("w") as out:
        saved = os.dup(1)
        try:
            os.dup2(out.fileno(), 1)
            os.write(1, b"before\n")
            check_writable(link)
            write_named(link, "{}\n")
            os.write(1, b"after\n")
        finally:
            os.dup2(saved, 1)
            os.close(saved)
    assert file.read_text() == "before\n{}\nafter\n" and link.is_symlink()


def test_what_is_neither_is_refused(tmp_path):
    place = tmp_path / "s.sock"
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "plain").touch()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        for file in (tmp_path, place, tmp_path / "loop", tmp_path / "plain/x", Path("/proc/self/comm")):
            with pytest.raises(UsageProblem, match=f"{file} cannot be written"):
                check_writable(file)
            with pytest.raises(UsageProblem, match=f"{file} cannot be written"):
                write_named(file, "x")
    assert place.is_socket()


def test_what_cannot_be_written_leaves_the_old_text(tmp_path, monkeypatch):
    file = tmp_path / "s.json"
    file.write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageProblem, match="No space left on device"):
        write_named(file, "new")
    assert file.read_text() == "old" and names(tmp_path) == ["s.json"]
