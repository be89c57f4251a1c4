"""`madlite bisect`: a list that cannot be bisected is refused before anything runs, and leaves nothing."""

from __future__ import annotations

import json

import pytest

from madlite.cli.main import call
from tests.rows import each_row

LIST = ["--between", "reg/a:1,reg/a:2,reg/a:3"]
DOCKER = ["--runtime", "docker"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    script = tmp_path / "run.sh"
    script.write_text("echo performance: 1 x\n")
    cards = [{"name": name, "scripts": "run.sh", "n_gpus": "0", "tags": ["t"], "args": ""} for name in ("one", "two")]
    (tmp_path / "models.json").write_text(json.dumps(cards))
    return tmp_path


@each_row(
    ("words", "said"),
    [
        (["one"], "there is no list to bisect"),
        (["one", "--between", "reg/a:1"], "only 'reg/a:1'"),
        (["one", "--between", " , "], "--between has nothing"),
        (["one", "--between", "a,b,a"], "'a' twice"),
        (["one", *LIST, "--good", "reg/a:4"], "--good reg/a:4 is not in the list"),
        (["one", *LIST, "--bad", "reg/b:1"], "hint: did you mean reg/a:1?"),
        (["one", *LIST, "--good", "reg/a:3"], "--good and --bad are both reg/a:3"),
        (["one", "--between", "a.toml,reg/a:1"], "'reg/a:1', which is none"),
        (["one", "--between", "a.toml,b.toml"], "a.toml cannot be read"),
        (["one", *LIST, "--repository", "/x"], "one list at a time"),
        (["one", *LIST, "--clone", "x"], "--clone without --repository"),
        (["one", *LIST, "--image", "reg/b"], "--image reg/b beside"),
        (["one", *LIST, "--fail-on", "missing"], "'missing' is no change"),
        (["one", *LIST, "--fail-on", "regresion>3%"], "did you mean regression?"),
        (["one", *LIST, "--max-repeats", "3"], "3 is not in the range x>=4"),
        (["one", *LIST, "--keep-alive"], "no such option '--keep-alive'"),
        (["one", *LIST, "--oom-fallback"], "no such option '--oom-fallback'"),
        (["one", *LIST, "--runtime", "host"], "an image means nothing to a run on the host"),
        (["one", "--runtime", "host", "--repository", "."], "--repository needs --good"),
        (["one", "--runtime", "host", "--repository", "nope", "--good", "a", "--bad", "b"], "there is no such folder"),
        (["one", "--runtime", "host", "--repository", ".", "--good", "a", "--bad", "b"], "is no git repository"),
        (["t", "--runtime", "host", "--repository", ".", "--good", "a", "--bad", "b"], "select 2 runs"),
        (["three", *LIST], "no model matches tag 'three'"),
    ],
)
def test_what_cannot_be_bisected_is_refused(capsys, folder, words, said):
    assert call(["bisect", *words]) == 4
    assert said in capsys.readouterr().err and not (folder / "madlite_runs").exists()


def test_a_resume_without_a_bisect_is_refused(capsys, folder):
    (folder / "a.toml").write_text('[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.A = "1"\n')
    (folder / "b.toml").write_text('[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.A = "2"\n')
    assert call(["bisect", "--between", "a.toml,b.toml", "--runtime", "host", "--resume"]) == 4
    assert "no bisect to resume" in capsys.readouterr().err and not (folder / "madlite_runs").exists()
    for words in (["bisect", "--resume"], ["bisect", "--resume=2026"], ["bisect", "--resume", "--dry-run"]):
        assert call(words) == 4 and not (folder / "madlite_runs").exists()


def test_a_dry_run_shows_the_list_from_good_to_bad(capsys, folder):
    for number in (1, 2, 3):
        text = f'[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.A = "{number}"\n'
        (folder / f"{number}.toml").write_text(text)
    (folder / "list").write_text("# the oldest first\n1.toml\n2.toml\n\n3.toml\n")
    words = ["--between", "list", "--good", "3.toml", "--bad", "1.toml", "--runtime", "host", "-n"]
    assert call(["bisect", "one", *words]) == 0
    out = capsys.readouterr().out
    assert out.endswith("1/3  3.toml\n2/3  2.toml\n3/3  1.toml\n") and not (folder / "madlite_runs").exists()
