"""The command line's frame: what is imported, how errors are worded, which exit code they have."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from madlite.cli import main as frame
from tests.cli.imported import calls
from tests.rows import each_row

HEAVY = ["docker", "pymongo", "pandas", "jinja2", "rich", "pynvml", "psutil"]


def madlite(*args: str, cwd, env=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "madlite", *args], cwd=cwd, capture_output=True, text=True, env=env, **options
    )


@pytest.mark.host
def test_quick_commands_load_nothing_heavy(tmp_path):
    quick = (["--help"], ["discover"], ["run", "--help"], ["report", "--help"], ["--version"])
    found = calls([(words, {}) for words in quick], tmp_path, HEAVY)
    assert [(one.code, bool(one.output), one.imported) for one in found] == [(0, True, [])] * len(quick)


def test_the_list_of_commands_tells_what_the_commands_say():
    import importlib

    for name, (place, line) in frame.COMMANDS.items():
        module, _, variable = place.partition(":")
        command = getattr(importlib.import_module(f"madlite.cli.{module}"), variable)
        assert command.name == name
        assert command.get_short_help_str(200).rstrip(".") == line.rstrip(".")
    assert len(frame.COMMANDS) <= 27 and list(frame.COMMANDS)[0] == "run"


@each_row("old", frame.ALIASES)
def test_an_older_spelling_is_the_command_of_today(capsys, old):
    assert frame.call([*frame.ALIASES[old].split(), "--help"]) == 0
    now = capsys.readouterr().out
    assert frame.call([old, "--help"]) == 0 and capsys.readouterr().out == now
    assert now.startswith(f"Usage: madlite {frame.ALIASES[old]} [")
    assert frame.call(["--help"]) == 0 and f"\n  {old} " not in capsys.readouterr().out


@each_row(
    ("words", "usage"),
    [
        (["clean", "--dir", "x", "--old"], "clean --old"),
        (["export", "--to=mongodb"], "export --to mongodb"),
        (["compare", "--list", "published"], "compare published --list"),
        (["runs", "--status", "failure"], "runs"),
        (["export", "--to", "csv"], "export"),
        (["compare", "published"], "compare"),
    ],
)
def test_words_behind_a_command_s_name_select_another_one(capsys, words, usage):
    assert frame.call([*words, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: madlite {usage} [")


def test_an_option_that_selects_a_command_is_listed_and_not_abbreviated(capsys):
    assert frame.call(["clean", "--help"]) == 0 and "  --old  " in capsys.readouterr().out
    assert frame.call(["clean", "--ol"]) == 4 and "madlite clean --old --help" in capsys.readouterr().err


@each_row(
    ("args", "said"),
    [
        (["runn"], "Did you mean 'run'?"),
        (["run", "--tagz", "x"], "--tags"),
        (["run", "--keep", "--tags", "demo"], "--keep-alive or --keep-going or --keep-model-dir"),
        (["run", "--tags"], "option '--tags' requires an argument"),
        (["run", "--tags", "", "--dry-run"], "no model is named"),
        (["discover", "--tags", "nope"], "'nope'"),
        (["report"], "no command of report is named"),
        (["runs", "colect"], "madlite runs has no command 'colect'"),
        (["report", "to-htm"], "Did you mean 'to-html'?"),
        (["validate"], "no such command 'validate'"),
        (["run", "--timeout", "soon"], "--timeout"),
        (["run", "--tags", "demo", "--timeout", "-2"], "-2 is not in the range"),
        (["run", "--tags", "demo", "--set", "steps"], "--set key=value"),
        (["run", "--tags", "demo", "--set", "stepps=3"], "did you mean steps"),
        (["run", "--tags", "demo_hf_lora_tiny:stepps=3"], "did you mean steps"),
        (["run", "--tags", "demo", "--backend", "torchtitann"], "did you mean torchtitan?"),
        (["run", "--tags", "demo", "--runtime", "hosst"], "hosst"),
        (["run", "--tags", "demo", "--machine", "8xMI300X"], "--dry-run"),
        (["run", "--tags", "demo", "--machine", "lots", "--dry-run"], "8xMI300X"),
        (["run"], "no model is named"),
        (["run", "--tags", "demo", "--data-config", "none.json"], "--data-config none.json: there is no such file"),
        (["run", "--tags", "demo", "--tools-config", "none.json"], "--tools-config none.json: there is no such file"),
        (["explain", "demo", "--tools-config", "x" * 300], "File name too long"),
        (["run", "--tags", "demo", "--data-config", "x" * 300], "File name too long"),
        (["run", "--tags", "demo", "-c", '{"multi_node_args": {"NNODES": "two"}}'], "NNODES"),
        (["run", "--tags", "demo,nope,nada"], "'nope', 'nada'"),
        (["run", "--tags", "demo", "-c", "{"], "neither JSON nor a Python literal"),
        (["run", "--tags", "demo", "-f", "none.json"], "none.json"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_4(tmp_path, monkeypatch, capsys, args, said):
    monkeypatch.chdir(tmp_path)
    assert frame.call(args) == 4
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("error: ") and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_bug_is_a_report_not_a_traceback_and_shows_no_secret(tmp_path, monkeypatch, capsys):
    words = ["--set", "env.HF_TOKEN=hf_one_hush", "-c", '{"docker_build_arg": {"WANDB_API_KEY": "two_hush"}}', "\udcff"]
    monkeypatch.setattr("sys.argv", ["madlite", "run", "--tags", "demo", *words])
    monkeypatch.setenv("HF_TOKEN", "hf_hush_hush")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def broken(*args, **kwargs):
        raise KeyError("hf_hush_hush hf_one_hush")

    monkeypatch.setattr(frame.main, "main", broken)
    assert frame.call(["discover"]) == 1
    said = capsys.readouterr().err
    assert "internal error: KeyError" in said and "Traceback" not in said
    (report,) = tmp_path.glob("madlite-*.txt")
    text = report.read_text()
    assert "Traceback" in text and "env.HF_TOKEN=***" in text and "hush" not in text + said


@pytest.mark.host
def test_output_into_a_closed_pipe_is_no_error(tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m madlite discover | head -1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == "" and done.stdout.startswith("NAME") and done.returncode == 0


@each_row(
    ("args", "env"),
    [
        (["run", "--tags", "x"], {b"HF_TOKEN": b"\xff\xfeabcd"}),
        (["run", "--tags", "x"], {b"HF_TOKEN": b"hf_\xff\n\xfe"}),
        (["run", "--tags", "demo", "-c", b'{"a": "\xff"}'], {}),
        (["run", "--tags", b"nope\xff"], {}),
        (["run", "--tags", "demo", "-c", '{"docker_env_vars": {"HF_TOKEN": "hf_hush"'], {}),
        (["run", "--tags", "demo", "-c", "[" * 5000], {}),
    ],
)
def test_odd_bytes_and_texts_are_one_sentence(tmp_path, monkeypatch, capsys, args, env):
    monkeypatch.chdir(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(os.fsdecode(name), os.fsdecode(value))
    assert typed(monkeypatch, *args) == 4
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "Traceback" not in err and "internal" not in err
    assert "hush" not in err and "abcd" not in err


def typed(monkeypatch, *args) -> int:
    """Run a command line as Python has it where some of its words are no UTF-8."""
    words = [os.fsdecode(word) for word in args]
    monkeypatch.setattr(sys, "argv", ["madlite", *words])
    return frame.call(words)


@pytest.mark.host
@each_row("more", [[], ["--json"]])
def test_a_setting_with_odd_bytes_can_be_explained(tmp_path, more):
    done = madlite("explain", "demo", "--set", b"env.X=\xff", *more, cwd=tmp_path)
    assert done.returncode == 0 and "udcff" in done.stdout and done.stderr == ""


@pytest.mark.host
def test_a_word_of_odd_bytes_reaches_the_program_as_it_was_typed(tmp_path):
    done = madlite("run", "--tags", b"nope\xff", cwd=tmp_path)
    assert done.returncode == 4 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_a_report_that_cannot_be_written_is_no_traceback(tmp_path, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise KeyError("x")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    monkeypatch.setattr(frame.main, "main", broken)
    assert frame.call([]) == 1
    assert "internal error: KeyError" in capsys.readouterr().err


@pytest.mark.host
def test_verbose_lines_are_ours_alone_and_without_secrets(tmp_path):
    code = (
        "import logging, sys; from madlite.cli.main import call\n"
        "call(['plugins', '--no-plugins', '-v'])\n"
        "logging.getLogger('urllib3.connectionpool').debug('POST /build?buildargs=hf_hush')\n"
        "logging.getLogger('madlite.run').debug('ours hf_hush')\n"
        "logging.getLogger('other').warning('theirs %s', 'hf_hush')\n"
    )
    env = {**os.environ, "HF_TOKEN": "hf_hush"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if "***" in line or "hush" in line or "build" in line]
    assert lines == ["DEBUG: ours ***", "warning: theirs ***"]


@each_row("refused", ["EACCES", "ENAMETOOLONG", "ELOOP", "EROFS"])
@each_row("name", ["some/file", b"some/file"])
def test_what_the_system_refuses_of_a_path_is_one_sentence(monkeypatch, capsys, refused, name):
    number = getattr(errno, refused)

    def broken(*args, **kwargs):
        raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr(frame.main, "main", broken)
    assert frame.call(["discover"]) == 4
    assert capsys.readouterr().err == f"error: some/file: {os.strerror(number)}\n"


@each_row("name", ["x" * 300, "loop"])
def test_a_model_dir_that_the_system_refuses_is_one_sentence(tmp_path, monkeypatch, capsys, name):
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL_DIR", name)
    assert frame.call(["discover"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "internal" not in err
