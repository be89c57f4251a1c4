"""Fields of cards that nothing reads are named once, and those of MAD's own cards never."""

from __future__ import annotations

import json
from pathlib import Path

from madlite.catalog.cards import odd_fields, read_cards
from madlite.cli.main import call
from tests.rows import each_row

MAD = Path(__file__).parents[1] / "data/cards.json"


def cards(*entries: dict) -> tuple:
    return read_cards(json.dumps(entries).encode(), "models.json", Path("/nowhere"))


@each_row(
    ("field", "meant"),
    [("timout", "timeout"), ("n_gpu", "n_gpus"), ("tag", "tags"), ("runtime", "runtimes"), ("recipes", "recipe")],
)
def test_a_misspelt_field_is_named_with_the_one_that_was_meant(field, meant):
    (told,) = odd_fields(cards({"name": "a", field: 3}))
    assert told == f"models.json: field '{field}' of card 'a' has no effect: did you mean {meant}?"


def test_a_field_of_many_cards_is_named_once():
    found = odd_fields(cards({"name": "a", "colour": 1}, {"name": "b", "colour": 2}, {"name": "c"}))
    assert found == ["models.json: field 'colour' of card 'a' and 1 more has no effect"]
    # what mad and madengine have fields for is none
    assert odd_fields(read_cards(MAD.read_bytes(), "models.json", Path("/nowhere"))) == []
    theirs = {"distributed": {"launcher": "torchrun"}, "slurm": {}, "env_vars": {}, "log_error_patterns": [], "_x": 1}
    assert odd_fields(cards({"name": "a", **theirs})) == []


def test_the_command_names_it_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.json").write_text(json.dumps([{"name": "m", "scripts": "run.sh", "timout": 5}]))
    (tmp_path / "run.sh").write_text("echo performance: 1 x\n")
    assert call(["run", "m", "--tags", "m", "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert told.count("field 'timout' of card 'm' has no effect: did you mean timeout?") == 1
    assert "m is selected 2 times (--tags m), and runs once" in told
