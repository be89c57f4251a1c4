"""`madlite discover`, in a checkout and without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from madlite.cli.main import call

MINIMAD = Path(__file__).parents[1] / "data" / "minimad"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    shutil.copytree(MINIMAD, tmp_path / "mad")
    monkeypatch.chdir(tmp_path / "mad")
    return tmp_path / "mad"


def names(capsys, *args):
    assert call(["discover", "--json", *args]) == 0
    return [card["name"] for card in json.loads(capsys.readouterr().out)]


def test_a_checkouts_cards_come_first_and_the_demo_is_still_there(checkout, capsys):
    found = names(capsys)
    assert found[0] == "mini_single" and "demo_hf_lora_tiny" in found
    assert any(name.startswith("team/") for name in found) and any(name.startswith("dyn/") for name in found)


def test_all_in_a_checkout_is_the_checkouts(checkout, capsys):
    assert not [name for name in names(capsys, "--tags", "all") if name.startswith("demo")]


def test_json_is_mads_schema(checkout, capsys):
    assert call(["discover", "--json", "--tags", "mini_opts:note=x:flag"]) == 0
    (card,) = json.loads(capsys.readouterr().out)
    assert card["args"] == "--shm --note x --flag"
    assert card["additional_docker_run_options"] == "--shm-size=2g"
    assert card["tags"] == ["mini", "mini_ok"] and card["n_gpus"] == "1" and card["timeout"] == -1


def test_what_discover_prints_can_be_read_back(checkout, capsys, tmp_path, monkeypatch):
    call(["discover", "--json", "--tags", "mini"])
    cards = json.loads(capsys.readouterr().out)
    again = tmp_path / "again"
    again.mkdir()
    (again / "models.json").write_text(json.dumps(cards))
    monkeypatch.chdir(again)
    call(["discover", "--json", "--tags", "mini"])
    assert json.loads(capsys.readouterr().out) == cards


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{", "models.json"),
        ('{"name": "x"}', "models.json"),
        ('[{"tags": ["x"]}]', "$[0]"),
        ('[{"name": "a", "n_gpus": [8]}]', "$[0].n_gpus"),
        ('[{"name": "a"}, {"name": "a"}]', "'a'"),
    ],
)
def test_a_broken_models_json_is_one_sentence(tmp_path, monkeypatch, capsys, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.json").write_text(text)
    assert call(["discover"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and "Traceback" not in err


def test_a_raising_program_is_named_and_the_rest_is_listed(checkout, capsys):
    (checkout / "scripts/bad").mkdir()
    (checkout / "scripts/bad/get_models_json.py").write_text("raise RuntimeError('oops')\n")
    assert call(["discover", "--json"]) == 0
    out = capsys.readouterr()
    assert "mini_single" in out.out and "scripts/bad/get_models_json.py" in out.err and "oops" in out.err
