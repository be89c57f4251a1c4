"""Recipe files: what is written is read back, and what is wrong is one sentence with the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.plan.recipe_file import read_recipe_file, recipe_text
from tests.rows import each_row

GOOD = '[recipe]\ntag = "demo"\nbackend = "torchtitan"\n[recipe.set]\n'


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return file


def test_what_is_written_is_read_back(tmp_path) -> None:
    values = {"micro_batch": 3, "compile": True, "lr": 0.5, "env.A B": 'x "y" \\ \u20ac\x7f', "mode": "pretrain"}
    text = recipe_text("demo", "torchtitan", values, {"found": "by hand"}, comment="first\n\nsecond")
    read = read_recipe_file(written(tmp_path, text))
    assert (read.tag, read.backend, read.values) == ("demo", "torchtitan", values)
    assert text.startswith("# first\n#\n# second\n[recipe]\n")
    assert read.origin == f"--recipe-file {tmp_path / 'mine.toml'}"
    # a file that is not there is told with what writes one
    with pytest.raises(UsageProblem) as refused:
        read_recipe_file(tmp_path / "none.toml")
    assert "none.toml cannot be read: No such file" in refused.value.message and "madlite tune" in refused.value.hint


def test_a_table_of_variables_is_read_as_set_takes_them(tmp_path) -> None:
    assert read_recipe_file(written(tmp_path, GOOD + 'env.NCCL_DEBUG = "INFO"\n')).values == {"env.NCCL_DEBUG": "INFO"}


@each_row(
    ("text", "words"),
    [
        ("recipe = [", "is not TOML"),
        ("", "recipe"),
        (GOOD.replace("backend", "backnd"), "unknown field `backnd`"),
        (GOOD.replace('"demo"', "3"), "tag"),
        ("micro_batch = 3\n" + GOOD, "unknown field `micro_batch`"),
        (GOOD + "lr = [1, 2]\n", "recipe.set.lr is [1, 2]: a setting is"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_file(tmp_path, text, words) -> None:
    with pytest.raises(UsageProblem) as refused:
        read_recipe_file(written(tmp_path, text))
    assert words in refused.value.message and "mine.toml" in refused.value.message
    assert "\n" not in refused.value.message


def explained(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert call(["explain", *words]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_its_tag_is_run_and_its_values_have_the_file_as_origin(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = '[recipe]\ntag = "demo_hf_lora_tiny"\nbackend = "hf"\n[recipe.set]\nmicro_batch = 3\nsteps = 7\n'
    file = written(tmp_path, text)
    out = explained(capsys, "--recipe-file", "mine.toml", "--all")
    assert "--recipe-file mine.toml" in out and "demo_hf_lora_tiny" in out
    out = explained(capsys, "--recipe-file", "mine.toml", "--all", "--set", "micro_batch=5")
    assert [line for line in out.splitlines() if "micro" in line and " 5 " in line and "--set" in line]
    out = explained(capsys, "--recipe-file", "mine.toml", "--tags", "demo_torchtitan_llama_debug", code=4)
    assert "is for tag 'demo_hf_lora_tiny'" in out
    file.write_text(text.replace("micro_batch", "micro_bach"))
    assert "micro_bach" in explained(capsys, "--recipe-file", "mine.toml", code=4)
    assert "absent.toml" in explained(capsys, "--recipe-file", "absent.toml", code=4)


@each_row("setting", ["tp=2", "mock_data=true", "env.NCCL_DEBUG=INFO"])
def test_its_values_reach_the_trainer_as_those_of_set_do(tmp_path, capsys, monkeypatch, setting) -> None:
    monkeypatch.chdir(tmp_path)
    key, _, value = setting.partition("=")
    tag, machine = "primus_pyt_train_llama-3.1-8b", ("--machine", "8xMI300X", "-n")
    (tmp_path / "mine.toml").write_text(recipe_text(tag, "primus", {key: value}))
    other = "tp=1" if key == "tp" else "env.OTHER=1"

    def shown(*words: str) -> list[str]:
        assert call(["run", *words, *machine]) == 0
        named = ("--parallelism.tensor", "--training.mock_data", "NCCL_DEBUG")
        return [line.strip() for line in capsys.readouterr().out.splitlines() if any(one in line for one in named)]

    of_file, of_set = shown("--recipe-file", "mine.toml"), shown("--tags", tag, "--backend", "primus", "--set", setting)
    assert of_file == of_set
    assert of_file != shown("--tags", tag, "--backend", "primus", "--set", other)


def test_a_value_that_is_nothing_to_the_run_is_named_with_its_key(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(recipe_text("demo_hf_lora_tiny", "hf", {"micro_bach": 3}))
    assert "--recipe-file mine.toml has no key 'micro_bach' to set" in explained(
        capsys, "--recipe-file", "mine.toml", code=4
    )


def test_a_wrong_value_of_an_option_of_its_own_is_told_as_it_was_typed(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = explained(capsys, "demo_hf_lora_tiny", "--until", "50%", code=4)
    assert "error: --until 50%: until takes a percentage from 0.001% to 20%" in out


def test_another_backend_in_the_command_is_refused(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(recipe_text("demo_hf_lora_tiny", "hf", {"micro_batch": 3}))
    out = explained(capsys, "--recipe-file", "mine.toml", "--backend", "torchtitan", code=4)
    assert "is for backend 'hf', not --backend torchtitan" in out
