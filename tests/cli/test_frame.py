"""The command line's frame: what is imported, how errors are worded, which exit code they have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from madlite.cli import main as frame
from madlite.cli.options import spread_tags

HEAVY = ["docker", "pandas", "jinja2", "rich", "pynvml", "psutil"]


def madlite(*args: str, cwd, env=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "madlite", *args], cwd=cwd, capture_output=True, text=True, env=env, **options
    )


@pytest.mark.parametrize("args", [["--help"], ["discover"], ["run", "--help"], ["--version"]])
def test_quick_commands_load_nothing_heavy(tmp_path, args):
    code = (
        "import sys; from madlite.cli.main import call; code = call(sys.argv[1:]);"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout
    assert done.stderr.strip() == "[]"


def test_the_list_of_commands_tells_what_the_commands_say():
    import importlib

    for name, (module, line) in frame.COMMANDS.items():
        command = importlib.import_module(module).command
        assert command.name == name
        assert command.get_short_help_str(200).rstrip(".") == line.rstrip(".")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["runn"], "Did you mean 'run'?"),
        (["run", "--tag", "x"], "--tags"),
        (["run", "--timeout", "soon"], "--timeout"),
        (["run", "--tags", "demo", "--timeout", "-2"], "less than -1"),
        (["run", "--tags", "demo", "--set", "steps"], "--set key=value"),
        (["run", "--tags", "demo", "--set", "stepps=3"], "did you mean steps"),
        (["run", "--tags", "demo_hf_lora_tiny:stepps=3"], "did you mean steps"),
        (["run", "--tags", "demo", "--backend", "torchtitann"], "did you mean torchtitan?"),
        (["run", "--tags", "demo", "--runtime", "hosst"], "hosst"),
        (["run", "--tags", "demo", "--machine", "8xMI300X"], "--dry-run"),
        (["run", "--tags", "demo", "--machine", "lots", "--dry-run"], "8xMI300X"),
        (["run"], "no model is named"),
        (["run", "--tags", "demo,nope,nada"], "'nope', 'nada'"),
        (["run", "--tags", "demo", "-c", "{"], "neither JSON nor a Python literal"),
        (["run", "--tags", "demo", "-f", "none.json"], "none.json"),
        (["explain", "pyt_train_llama-2-70b"], "checkout of ROCm/MAD"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_4(tmp_path, args, said):
    done = madlite(*args, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_tags_are_read_in_every_spelling():
    assert spread_tags(["--tags", "a", "b", "--timeout", "3"]) == ["--tags", "a", "--tags", "b", "--timeout", "3"]
    assert spread_tags(["-t", "a", "b"]) == ["-t", "a", "--tags", "b"]
    assert spread_tags(["--tags", "a", "--tags", "b", "c"]) == ["--tags", "a", "--tags", "b", "--tags", "c"]
    assert spread_tags(["--tags=a", "b"]) == ["--tags=a", "--tags", "b"]
    assert spread_tags(["--tags", "-l"]) == ["--tags", "-l"]


def test_a_bug_is_a_report_not_a_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_hush_hush")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def broken(*args, **kwargs):
        raise KeyError("hf_hush_hush")

    monkeypatch.setattr(frame.main, "main", broken)
    assert frame.call(["discover"]) == 1
    said = capsys.readouterr().err
    assert "internal error: KeyError" in said and "Traceback" not in said
    (report,) = tmp_path.glob("madlite-*.txt")
    assert "Traceback" in report.read_text() and "hush" not in report.read_text() + said


def test_output_into_a_closed_pipe_is_no_error(tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m madlite discover | head -1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == "" and done.stdout.startswith("NAME")
