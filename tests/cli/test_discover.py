"""`madlite discover`, in a checkout and without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.rows import each_row

MINIMAD = Path(__file__).parents[1] / "data" / "minimad"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    shutil.copytree(MINIMAD, tmp_path / "mad")
    monkeypatch.chdir(tmp_path / "mad")
    return tmp_path / "mad"


def names(capsys, *args):
    assert call(["discover", "--json", *args]) == 0
    return [card["name"] for card in json.loads(capsys.readouterr().out)]


def test_a_checkout_shows_its_own_cards_and_with_all_the_others_behind_them(checkout, capsys):
    own, found = names(capsys), names(capsys, "--all")
    assert found[0] == "mini_single" and "demo_hf_lora_tiny" in found
    assert own == found[: len(own)] and "demo_hf_lora_tiny" not in own
    assert not [name for name in names(capsys, "--tags", "all") if name.startswith("demo")]
    assert call(["discover"]) == 0
    assert capsys.readouterr().out.endswith(
        f"\n{len(own)} models of this checkout; {len(found) - len(own)} more with --all\n"
    )
    assert any(name.startswith("team/") for name in found) and any(name.startswith("dyn/") for name in found)


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


@each_row(
    ("text", "said"),
    [
        ("[{", "models.json"),
        ('{"name": "x"}', "models.json"),
        ('[{"tags": ["x"]}]', "entry 1 has no name"),
        ('[{"name": "a", "n_gpus": [8]}]', "card 'a' (entry 1): n_gpus"),
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


def rows(capsys, *args):
    assert call(["discover", *args]) == 0
    head, *lines, _ = capsys.readouterr().out.splitlines()
    starts = [head.index(title) for title in ("NAME", "GPUS", "PRECISION", "RUNS BY", "FROM", "TAGS")]
    ends = [*starts[1:], None]
    return {line.split()[0]: [line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines}


def test_the_table_tells_who_would_run_a_card_here_and_where_it_is_from(checkout, capsys):
    found = rows(capsys, "--all")
    assert found["mini_single"][3:5] == ["scripts/mini/run.sh", "models.json"]
    assert found["team/sub"][4] == "scripts/team/models.json"
    assert found["demo_hf_lora_tiny"][3:5] == ["hf", "bundled models.json"]
    assert found["pyt_ncf_training"] == [
        *("pyt_ncf_training", "1", "fp32", "a MAD checkout", "bundled models.json"),
        "pyt,training,recommendation,ncf",
    ]


CONFIG = """\
modules:
  pre_trainer:
    framework: megatron
    model: ${PRIMUS_MODEL:small}.yaml
    overrides: {train_iters: 31, micro_batch_size: 2, global_batch_size: 32, seq_length: "${SEQ:1024}"}
"""
NAME = "primus_train/megatron_MI300X_small-BF16-pretrain"


@pytest.fixture
def primus(tmp_path, monkeypatch):
    """A Primus tree with one good config and a broken one, seen from a folder without cards."""
    folder = tmp_path / "Primus"
    (folder / "primus").mkdir(parents=True)
    configs = folder / "examples/megatron/configs/MI300X"
    configs.mkdir(parents=True)
    (configs / "small-BF16-pretrain.yaml").write_text(CONFIG)
    (configs / "broken.yaml").write_text("modules: [\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.delenv("MADLITE_CARDS_FROM", raising=False)
    return folder


def test_cards_are_made_of_a_folder_only_where_it_is_named(primus, capsys, monkeypatch):
    assert NAME not in names(capsys)
    assert NAME in names(capsys, "--cards-from", str(primus))
    monkeypatch.setenv("MADLITE_CARDS_FROM", str(primus))
    assert NAME in names(capsys)


@each_row("tag", [NAME, NAME.partition("/")[2], "primus_train/MI300X", "small-BF16-pretrain"])
def test_a_folders_card_in_json_and_what_is_broken_in_it(primus, capsys, tag):
    assert call(["discover", "--json", "--cards-from", "../Primus", "--tags", tag]) == 0
    out = capsys.readouterr()
    (card,) = json.loads(out.out)
    assert (card["name"], card["args"]) == (
        NAME,
        "--config_path examples/megatron/configs/MI300X/small-BF16-pretrain.yaml",
    )
    assert (card["n_gpus"], card["timeout"], card["backend"]) == ("8", 86400, "primus")
    (warning,) = out.err.splitlines()
    assert warning.startswith("warning: ../Primus/examples/megatron/configs/MI300X/broken.yaml: it is no YAML")


def test_a_folders_card_can_be_explained_and_planned(primus, capsys):
    given = ["--cards-from", str(primus), "--machine", "8xMI300X"]
    assert call(["explain", "--json", NAME, *given]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["backend"] == "primus" and plan["card"]["source"] == str(primus)
    sizes = ("model", "precision", "seq_len", "micro_batch", "global_batch", "steps")
    assert [plan["variant"][name] for name in sizes] == ["small", "BF16", 1024, 2, 32, 31]
    assert call(["run", "--dry-run", "--tags", NAME, "--set", "steps=40", *given]) == 0
    assert "examples/megatron/configs/MI300X/small-BF16-pretrain.yaml" in capsys.readouterr().out


def test_a_mistyped_tag_finds_its_neighbour_among_a_folders_cards(primus, capsys):
    assert call(["discover", "--cards-from", str(primus), "--tags", NAME.replace("small", "smal")]) == 4
    assert f"did you mean {NAME}?" in capsys.readouterr().err


def test_the_checkouts_card_comes_before_a_folders(primus, capsys):
    Path("scripts/primus_train").mkdir(parents=True)
    own = {"name": NAME.partition("/")[2], "scripts": "run.sh", "args": "own"}
    Path("scripts/primus_train/models.json").write_text(json.dumps([own]))
    assert call(["discover", "--json", "--cards-from", str(primus), "--tags", NAME]) == 0
    (card,) = json.loads(capsys.readouterr().out)
    assert len(names(capsys, "--cards-from", str(primus))) == len(names(capsys)) == 1, "the folder's card is hidden"
    assert (card["args"], card["scripts"]) == ("own", "scripts/primus_train/run.sh")


@each_row(
    ("folder", "said"),
    [
        ("../Primus/examples", "no plugin makes cards of this folder"),
        (".", "no plugin makes cards of this folder"),
        ("../gone", "there is no such folder"),
        ("../Primus/examples/megatron/configs/MI300X/broken.yaml", "there is no such folder"),
        ("x" * 300, "File name too long"),
        ("", "no plugin makes cards of this folder"),
    ],
)
def test_a_folder_that_nobody_knows_is_one_sentence(primus, capsys, folder, said):
    assert call(["discover", "--cards-from", str(primus), "--cards-from", folder]) == 4
    out = capsys.readouterr()
    assert out.out == "" and said in out.err and out.err.startswith("error: ") and len(out.err.splitlines()) <= 2


def test_without_the_plugin_nobody_knows_the_folder(primus, capsys, monkeypatch):
    monkeypatch.setenv("MADLITE_DISABLE_PLUGINS", "primus")
    assert call(["discover", "--cards-from", str(primus)]) == 4
    assert "no plugin makes cards" in capsys.readouterr().err


def test_a_plugin_that_fails_on_a_folder_is_named_in_the_error(primus, capsys, monkeypatch):
    def fail(tree):
        raise OSError("no such disk")

    monkeypatch.setattr("madlite_plugins.primus.tree.cards_of_tree", fail)
    assert call(["discover", "--cards-from", str(primus)]) == 4
    assert "no such disk" in capsys.readouterr().err
    assert call(["discover"]) == 0
