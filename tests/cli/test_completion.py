"""Shell completion: what is offered, that nothing of a folder is executed or trusted, and that errors are silent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.cli.imported import calls
from tests.cli.stored_runs import good, store
from tests.rows import each_row

HEAVY = ("docker", "pandas", "jinja2", "rich", "numpy", "pynvml", "psutil", "torch", "madlite_plugins")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL_DIR", "MADLITE_HOME", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def cards(folder: Path, *names: str, tags: tuple[str, ...] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    each = [{"name": name, "scripts": "x.sh", "n_gpus": "1", "args": "", "tags": list(tags)} for name in names]
    (folder / "models.json").write_text(json.dumps(each))


@pytest.fixture
def completed(place, monkeypatch, capfd):
    def complete(*words: str, code: int = 0) -> list[str]:
        """Return what is offered for the last of the words; `file` for names of files."""
        monkeypatch.setenv("_MADLITE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["madlite", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert call([]) == code
        out, err = capfd.readouterr()
        assert err == ""
        offered = [line.partition(",") for line in out.splitlines() if line]
        return [kind if kind == "file" else value for kind, _, value in offered]

    return complete


def test_commands_and_options_are_completed(completed):
    assert completed("re") == ["reproduce", "report"]
    assert completed("report", "to-h") == ["to-html"]
    assert "--fail-on-suspect" in completed("run", "--fail") and "--dry-run" in completed("run", "--tags", "x", "--dry")
    assert "--output" in completed("run", "--no", "--out"), "behind what could be several options"


@each_row(
    "words",
    [
        ["run", "--tags", "my_"],
        ["run", "-t", "my_"],
        ["run", "--live-output", "--tags", "other", "my_"],
        ["run", "--tags", "a", "--tags", "b", "my_"],
        ["run", "--tags", "=", "my_"],  # as bash hands `--tags=my_` over
        ["explain", "my_"],
        ["explain", "--all", "other", "my_"],
        ["build", "--tags", "my_"],
        ["prepare", "--tags", "my_"],
        ["discover", "--tags", "my_"],
    ],
)
def test_cards_and_tags_of_the_folder_are_completed(completed, place, words):
    cards(place, "my_model", "your_model", tags=("my_tag",))
    assert completed(*words) == ["my_model", "my_tag"]


def test_cards_of_madlite_and_of_its_plugins_are_completed_beside_those_of_the_folder(completed, place):
    cards(place / "scripts/mine", "nested")
    offered = completed("run", "--tags", "")
    assert {"demo", "demo_hf_lora_tiny", "torchrun_ddp_tiny", "torchtune_tiny_full", "mine/nested"} <= {*offered}
    assert len(offered) == len({*offered})


def test_the_last_tag_is_completed_and_what_belongs_to_another_option_is_none(completed, place):
    cards(place, "my_model")
    assert completed("run", "--tags", "demo,my_") == ["demo,my_model"]
    assert completed("run", "--tags", "my_model", ":") == []
    assert completed("run", "--tags", "x", "--timeout", "my_") == []
    assert completed("run", "my_") == ["my_model"]


@each_row("name", ["$(touch ran)", "a;touch ran", "a b", "`touch ran`", "a'b", "a|b", "ü"])
def test_a_name_that_a_shell_would_not_put_down_as_it_stands_is_not_offered(completed, place, name):
    cards(place, name, "a_good_one", tags=(name,))
    assert name not in completed("run", "--tags", "") and completed("run", "--tags", "a_g") == ["a_good_one"]


def test_a_program_that_lists_cards_is_not_executed(completed, place):
    cards(place, "my_model")
    (place / "scripts/p").mkdir(parents=True)
    (place / "scripts/p/get_models_json.py").write_text("open('ran', 'w')\ndef list_models(): return []\n")
    assert completed("run", "--tags", "my_") == ["my_model"] and not (place / "ran").exists()


@each_row("text", ["{", "[1, 2]", '[{"name": 3}]', '[{"name": "\\u001b[2J"}]', ""])
def test_a_broken_file_of_cards_completes_nothing_and_says_nothing(completed, place, text):
    (place / "models.json").write_text(text)
    assert completed("run", "--tags", "de", code=1) == []


@each_row("words", ["nope x", "run --nope x", "run --tags", "show --dir x y"])
def test_a_line_that_is_wrong_completes_nothing_and_says_nothing(place, monkeypatch, capfd, words):
    monkeypatch.setenv("_MADLITE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"madlite {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert call([]) in (0, 1) and capfd.readouterr().err == ""


def test_an_instruction_that_no_shell_gives_is_silent(place, monkeypatch, capfd):
    for wrong in ("nope_complete", "bash_nope", "1"):
        monkeypatch.setenv("_MADLITE_COMPLETE", wrong)
        assert call(["discover"]) == 1 and capfd.readouterr() == ("", "")
    monkeypatch.setenv("_MADLITE_COMPLETE", "bash_complete")
    assert call([]) == 1 and capfd.readouterr() == ("", "")  # COMP_WORDS is not there


RUNS = ("20260102T030405-tiny-0000aa", "20260102T030500-llama-0000bb")


@pytest.fixture
def runs(place):
    for name in RUNS:
        store(place, name, good(name))


@each_row("command", ["show", "log", "reproduce"])
def test_ids_of_runs_are_completed_the_newest_first(completed, runs, command):
    assert completed(command, "") == ["last", *reversed(RUNS)]
    assert completed(command, "la") == ["last", RUNS[1]], "the second has it in its name"
    assert completed(command, "20260102T0305") == [RUNS[1]]
    assert completed(command, "0000aa") == [RUNS[0]], "any part of an id names a run"
    assert completed(command, "zzz") == []


def test_runs_of_the_folder_that_is_named_are_completed(completed, runs, place, monkeypatch):
    (place / "other").mkdir()
    monkeypatch.chdir(place / "other")
    assert completed("show", "") == [] and completed("show", "--dir", "..", "2026") == [*reversed(RUNS)]


def test_a_log_is_a_file_or_a_run(completed, runs):
    assert completed("parse", "") == ["file"] and completed("parse", "train") == ["file"]
    assert completed("parse", "2026") == ["file", *reversed(RUNS)] and completed("parse", "las") == ["file", "last"]


@pytest.mark.host
def test_completing_imports_nothing_heavy_and_no_plugin(tmp_path):
    cards(tmp_path, "my_model")
    store(tmp_path, RUNS[0], good("x"))
    lines = ("madlite run --tags my", "madlite show 2026", "madlite runs --sta", "madlite ex")
    asked = [{"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)} for words in lines]
    found = calls([((), {"_MADLITE_COMPLETE": "bash_complete", **one}) for one in asked], tmp_path, HEAVY)
    assert [(one.code, bool(one.output), one.imported) for one in found] == [(0, True, [])] * len(lines)


@pytest.mark.host
def test_bash_completes_what_madlite_offers(tmp_path):
    cards(tmp_path, "my_model", "$(touch ran)")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/madlite"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m madlite "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(_MADLITE_COMPLETE=bash_source madlite)"
        COMP_WORDS=(madlite run --tags my) COMP_CWORD=3
        _madlite_completion madlite my --tags
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    env = {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout == "my_model\n", done.stderr
    assert not (tmp_path / "ran").exists()
