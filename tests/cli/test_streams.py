"""The border of the command line: what the caller closed, filled or took away, and what nobody expected."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from madlite.__main__ import entry
from madlite.cli import main as frame
from tests.rows import each_row

ROOT = Path(frame.__file__).parents[2]


@each_row(
    ("raised", "code", "said"),
    [
        (click.ClickException("no good"), 4, "error: no good\n"),
        (click.FileError("x.json", "no such file"), 4, "error: could not open file 'x.json': no such file\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (click.Abort(), 130, "error: interrupted\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0, ""),
        (OSError(errno.ENOSPC, "x"), 3, "error: the output cannot be written: no space left on device\n"),
        (OSError(errno.ENOENT, "x"), 4, "error: the working folder is gone\n hint: cd to a folder that is there\n"),
    ],
)
def test_what_ends_a_command_from_outside_is_one_sentence(monkeypatch, capfd, raised, code, said):
    def broken(*args, **kwargs):
        raise raised

    monkeypatch.setattr(frame.main, "main", broken)
    assert frame.call(["discover"]) == code
    assert capfd.readouterr().err.lower() == said.lower()


def test_an_error_of_the_system_that_nobody_expects_is_reported_as_a_bug(monkeypatch, capsys, tmp_path):
    def broken(*args, **kwargs):
        raise OSError(errno.EIO, "Input/output error", "perf.csv")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(frame.main, "main", broken)
    assert frame.call(["discover"]) == 1
    assert "internal error: OSError" in capsys.readouterr().err and len(list(tmp_path.iterdir())) == 1


def test_output_that_is_no_file_is_written_to_all_the_same(monkeypatch):
    taken = io.StringIO()
    monkeypatch.setattr(sys, "stdout", taken)
    monkeypatch.setattr(sys, "argv", ["madlite", "--version"])
    with pytest.raises(SystemExit) as end:
        frame.entry()
    assert end.value.code == 0 and taken.getvalue().startswith("madlite ")


def test_a_last_word_that_nobody_reads_ends_with_the_command_s_own_code(monkeypatch, capfd):
    class Gone(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(sys, "argv", ["madlite", "nope"])
    with pytest.raises(SystemExit) as end:
        frame.entry()
    assert end.value.code == 4 and "no such command 'nope'" in capfd.readouterr().err


def test_importing_the_program_loads_no_command_line():
    code = "import sys, madlite.__main__; print('madlite.cli.main' in sys.modules, 'typing' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.host
@each_row(
    ("line", "code", "said"),
    [
        ("discover > /dev/full", 3, "error: the output cannot be written: no space left on device\n"),
        ("discover <&- >&-", 0, ""),
        ("explain demo <&- >&-", 0, ""),
        ("discover <&- >&- 2>&-", 0, ""),
        ("--version 0<&-", 0, ""),
        ("run --tags nope <&- >&-", 4, "error: no model matches tag 'nope'"),
    ],
)
def test_streams_that_are_closed_or_full_are_no_traceback(tmp_path, line, code, said):
    words = ["bash", "-c", f'"{sys.executable}" -m madlite {line}']
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code and done.stderr.startswith(said) and "Traceback" not in done.stderr
    assert said or done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.host
def test_a_working_folder_that_is_gone_is_one_sentence(tmp_path):
    line = f'mkdir gone && cd gone && rmdir ../gone && "{sys.executable}" -m madlite discover'
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 4 and done.stderr.startswith("error: the working folder is gone")


def test_ctrl_c_while_the_command_line_is_loaded_is_no_traceback(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name, path=None, target=None):
            if name == "madlite.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "madlite.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == 130 and capsys.readouterr().err == "error: interrupted\n"
