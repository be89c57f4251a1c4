"""What a path names and the JSON in it, told in sentences; files that others name: plain ones alone, and in a limit."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from madlite import output_lines, read_output
from madlite.errors import UsageProblem
from madlite.files import (
    LONGEST_LINE,
    NotJson,
    copy_inside,
    decode_json,
    digest_of,
    exists,
    is_file,
    is_folder,
    open_given,
    read_as_spelled,
    read_given,
    read_json,
    read_plain,
    read_text,
    texts,
    way_out,
    wrong_key,
)
from tests.rows import each_row


def test_a_path_names_a_file_a_folder_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    paths = (tmp_path, tmp_path / "f", tmp_path / "nothing", tmp_path / "f/below", tmp_path / "dangling")
    assert [(is_file(path), is_folder(path), exists(path)) for path in paths] == [
        (False, True, True),
        (True, False, True),
        *[(False, False, False)] * 3,
    ]


@each_row(("name", "why"), [("x" * 300, "too long"), ("a\0b", "null"), ("loop/x", "symbolic links")])
@each_row("ask", [is_file, is_folder, exists, read_text, read_json])
def test_a_path_the_system_refuses_is_one_sentence(tmp_path: Path, name: str, why: str, ask) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageProblem, match=why) as refused:
        ask(tmp_path / name)
    assert refused.value.message.isprintable() and len(refused.value.message) < 300


def test_a_shut_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(self: Path, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", shut)
    with pytest.raises(UsageProblem, match="cannot be inspected: Permission denied"):
        is_file(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf[1]")
    assert (read_text(tmp_path / "f"), read_json(tmp_path / "f")) == ("[1]", [1])


def test_bytes_that_are_no_utf8_are_refused_unless_they_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\nb\xff")
    with pytest.raises(UsageProblem, match="here: line 2, column 2 is not UTF-8"):
        read_text(tmp_path / "f", "here")
    assert read_text(tmp_path / "f", errors="replace") == "a\nb\ufffd"


@each_row(
    ("data", "said"),
    [
        (b"{", "line 1, column 2 is not JSON"),
        (b'["hush", \n]', "line 2, column 1 is not JSON"),
        (b'"\xff"', "line 1, column 2 is not UTF-8"),
        (b"[" * 5000, "nested too deep"),
        (b"[" * 5000 + b"]" * 5000, "nested too deep"),
        (b'"\\ud800"', "is not JSON"),
    ],
)
def test_what_is_no_json_is_told_with_the_place_and_without_its_text(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(NotJson, match=said):
        decode_json(data)
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(UsageProblem, match=f"the file: .*{said}") as refused:
        read_json(tmp_path / "f", "the file")
    assert "hush" not in refused.value.message


def test_a_text_that_nothing_can_be_given_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(r'{"a": [{"b": "hush\u0000"}]}')
    with pytest.raises(UsageProblem, match=r"\$\.a\[0\]\.b holds a NUL") as refused:
        read_json(tmp_path / "f")
    assert "hush" not in refused.value.message


def test_every_text_has_its_place() -> None:
    assert set(texts({"a": ["x", {"b": "y"}], "c": 1}, "$")) == {
        ("$ key", "a"),
        ("$ key", "c"),
        ("$.a[0]", "x"),
        ("$.a[1] key", "b"),
        ("$.a[1].b", "y"),
    }


class Shape(msgspec.Struct):
    table: dict[str, int] = {}
    rows: list[int] = []


@each_row(
    ("value", "key", "said"),
    [
        ({"table": 3}, "table", "key 'table' is wrong: expected `object`, got `int`"),
        ({"table": {"x": "y"}}, "table[...]", "key 'table[...]' is wrong: expected `int`, got `str`"),
        ({"table": {1: 2}}, "table", "key 'table' is wrong: expected `str`, got `int`"),
        ({"rows": ["x"]}, "rows[0]", "key 'rows[0]' is wrong: expected `int`, got `str`"),
        (3, "", "expected `object`, got `int`"),
    ],
)
def test_a_wrong_type_is_told_with_its_key(value: object, key: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.convert(value, Shape)
    assert wrong_key(wrong.value) == (key, said)


@each_row("name", ["plan.josn", "no/plan.json"])
def test_a_given_file_that_is_not_there_is_told_with_where_to_look(name, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageProblem, match="cannot be read: No such file") as refused:
        read_json(tmp_path / name, given=True)
    near = "did you mean plan.json?   " if "/" not in name else ""
    assert refused.value.hint == f"{near}ls {tmp_path}"


READERS = {
    "named": read_plain,
    "regular": lambda path: read_plain(path, links=False, limit_bytes=1 << 20),
    "inside": lambda path: read_plain(path, path.parent),
    "spelled": lambda path: read_as_spelled(path, path.parent),
    "given": read_given,
}


def plant(path: Path, kind: str) -> None:
    """Put at a path what is no plain file, or one without an end."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "node":  # of the same device; root alone makes one, in a container every workload is
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "folder":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path.name)


@each_row("kind", ["pipe", "zero", "node", "sparse", "folder", "circle", "gone"])
@each_row("reader", READERS)
def test_what_is_no_plain_file_is_refused_at_once(tmp_path, monkeypatch, kind, reader):
    monkeypatch.setattr("madlite.files._WRITER_S", 0.01)
    if kind == "node" and os.geteuid() != 0:
        pytest.skip("root alone makes devices")
    plant(tmp_path / "f", kind)
    with pytest.raises(OSError) as refused:
        READERS[reader](tmp_path / "f")
    assert refused.value.strerror and str(tmp_path / "f") in str(refused.value.filename)


@each_row("reader", READERS)
def test_a_plain_file_is_read_and_the_null_device_is_an_empty_one(tmp_path, reader):
    (tmp_path / "f").write_bytes(b"text\0")
    assert READERS[reader](tmp_path / "f") == b"text\0"
    if reader in ("named", "given"):
        assert READERS[reader](Path("/dev/null")) == b""


def test_files_of_the_kernel_are_read_within_the_limit():
    assert b"Pid:" in read_plain(Path("/proc/self/status"))
    with pytest.raises(OSError, match="larger than 16 bytes"):
        read_plain(Path("/proc/self/status"), limit_bytes=16)


@each_row("link", ["f", "sub"])
def test_a_link_that_leads_out_is_named_with_its_target(tmp_path, link):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/f").write_text("of the host")
    root = tmp_path / "in"
    root.mkdir()
    (root / link).symlink_to(tmp_path / "out/f" if link == "f" else tmp_path / "out")
    path = root / link if link == "f" else root / "sub/f"
    for read in (read_plain, read_as_spelled):
        with pytest.raises(OSError, match=rf"link.* to {tmp_path}/out/f, outside of {root}") as refused:
            read(path, root)
        assert str(root / link) in str(refused.value)
    with pytest.raises(OSError, match="it lies outside of"):
        read_plain(root / "../out/f", root)
    assert read_as_spelled(root / "../out/f", root) == b"of the host"
    assert read_plain(path, root, tmp_path / "out") == b"of the host"  # several folders are one each
    assert way_out(path, root) and not way_out(root, root)


def test_a_link_that_stays_inside_is_followed(tmp_path):
    (tmp_path / "real").write_text("x")
    (tmp_path / "a").symlink_to("real")
    (tmp_path / "other").symlink_to(tmp_path)  # the folder itself may be called by a link
    assert read_plain(tmp_path / "a", tmp_path) == read_plain(tmp_path / "other/a", tmp_path) == b"x"
    assert read_plain(tmp_path / "a", tmp_path / "other") == b"x"
    with pytest.raises(OSError, match="it is a link"):
        read_plain(tmp_path / "a", links=False, limit_bytes=10)


def test_a_file_that_is_exchanged_while_it_is_opened_is_not_the_other(tmp_path, monkeypatch):
    """Between the look at a file and its opening a container puts a link in its place."""
    root, secret = tmp_path / "in", tmp_path / "secret"
    root.mkdir()
    secret.write_text("of the host")
    (root / "f").write_text("own")
    real = os.fstat

    def exchange(fd: int) -> os.stat_result:
        facts = real(fd)
        if not (root / "f").is_symlink():
            (root / "f").unlink()
            (root / "f").symlink_to(secret)
        return facts

    monkeypatch.setattr(os, "fstat", exchange)
    assert read_plain(root / "f", root) == b"own"


class TestGiven:
    """What the user himself named on the command line."""

    def test_a_pipe_of_the_shell_is_read_to_its_end(self):
        code = "import sys; from pathlib import Path; from madlite.files import read_given\n"
        code += "sys.stdout.buffer.write(read_given(Path(sys.argv[1])))"
        script = f'{sys.executable} -c "$1" <(sleep 0.2; printf late; sleep 0.2; printf r)'
        done = subprocess.run(["bash", "-c", script, "-", code], capture_output=True, check=True, timeout=60)
        assert done.stdout == b"later"
        done = subprocess.run(
            [sys.executable, "-c", code, "/dev/stdin"], input=b"typed", capture_output=True, check=True
        )
        assert done.stdout == b"typed"

    def test_a_pipe_with_a_name_is_read_where_somebody_writes(self, tmp_path):
        os.mkfifo(tmp_path / "p")
        writer = threading.Thread(target=lambda: (tmp_path / "p").write_text("x" * (1 << 17)))
        writer.start()
        assert len(read_given(tmp_path / "p")) == 1 << 17
        writer.join()

    def test_a_pipe_that_nobody_writes_into_is_given_up(self, tmp_path, monkeypatch):
        monkeypatch.setattr("madlite.files._WRITER_S", 0.05)
        os.mkfifo(tmp_path / "p")
        with pytest.raises(OSError, match="nothing was written to it"):
            open_given(tmp_path / "p")

    def test_a_pipe_without_an_end_is_not_taken_into_memory(self, tmp_path):
        os.mkfifo(tmp_path / "p")
        with subprocess.Popen(["sh", "-c", f"yes > {tmp_path}/p"], stderr=subprocess.DEVNULL) as endless:
            with pytest.raises(OSError, match="larger than 4 MiB"):
                read_given(tmp_path / "p", 4 << 20)
            assert endless.wait(60)


@each_row("kind", ["pipe", "zero", "sparse", "folder", "link"])
def test_what_is_no_file_of_the_run_is_empty_and_a_warning(tmp_path, caplog, kind):
    """Of what a workload left for a framework's reader."""
    caplog.clear()
    outputs = tmp_path / "work"
    (outputs / "a").mkdir(parents=True)
    if kind == "link":
        (outputs / "a/f").symlink_to("/etc/passwd")
    plant(outputs / "a/f", kind)
    assert read_output(outputs / "a/f", outputs) == b"" == read_output(outputs / "none", outputs)
    assert list(output_lines(outputs / "a/f", outputs)) == [] == list(output_lines(outputs / "none", outputs))
    assert len(caplog.records) == 2 and caplog.records[0].levelno == logging.WARNING, "of what is not there nothing"
    assert caplog.messages[0].startswith("a/f, which the run left, is not read: it is ")


class TestOutputs:
    def test_lines_come_without_their_ends_and_long_ones_in_pieces(self, tmp_path):
        (tmp_path / "f").write_bytes(b"a\r\n\nb\n" + b"x" * (5 << 20) + b"\nlast")
        lines = list(output_lines(tmp_path / "f", tmp_path))
        assert lines[:3] == [b"a\r", b"", b"b"] and lines[-1] == b"last"
        assert b"".join(lines[3:-1]) == b"x" * (5 << 20) and max(map(len, lines)) < 3 * LONGEST_LINE


class TestCopies:
    def test_rights_and_time_come_along_and_nothing_that_raises_rights(self, tmp_path):
        (tmp_path / "a").write_text("x")
        (tmp_path / "a").chmod(0o4755)
        os.utime(tmp_path / "a", ns=(1, 10**18))
        copy_inside(tmp_path / "a", tmp_path, tmp_path / "b")
        made = (tmp_path / "b").stat()
        assert (stat.S_IMODE(made.st_mode), made.st_mtime_ns) == (0o755, 10**18)

    def test_a_giant_is_not_copied(self, tmp_path):
        plant(tmp_path / "a", "sparse")
        with pytest.raises(OSError, match="larger than 1024 MiB"):
            copy_inside(tmp_path / "a", tmp_path, tmp_path / "b")
        assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_digest_of_what_cannot_be_read_is_empty(tmp_path):
    os.mkfifo(tmp_path / "p")
    (tmp_path / "f").write_text("x")
    assert digest_of(tmp_path / "p") == digest_of(tmp_path / "gone") == digest_of(Path("a\0b")) == ""
    assert digest_of(tmp_path / "f").startswith("2d711642b726b044")
