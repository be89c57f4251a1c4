"""Which source decides a value, and what happens to one that does not fit."""

from __future__ import annotations

import pytest

from madlite.errors import UsageProblem
from madlite.model import Card, Variant
from madlite.plan.context import Options
from madlite.plan.fields import Layer, resolve
from madlite.plan.make import make_plan
from tests.plan.conftest import rendered_draft
from tests.rows import each_row

VARIANT = Variant(model="m", steps=50, micro_batch=2)
SETTINGS = {"lr": 0.001, "compile": False, "flavor": "debug", "tp": 1}


def over(*values: dict[str, object]):
    layers = [Layer(origin=f"source {n}", values=one) for n, one in enumerate(values)]
    return resolve(VARIANT, SETTINGS, layers, "recipe x")


def test_a_later_source_wins_and_frameworks_own_words_are_understood():
    # a later source wins and is the origin
    resolved = over({"steps": 60, "lr": 0.1}, {"steps": "70"})
    assert resolved.variant.steps == 70
    assert resolved.origins["variant.steps"] == "source 1"
    assert resolved.origins["settings.lr"] == "source 0"
    assert resolved.origins["variant.micro_batch"] == "recipe x"
    # frameworks own words for a key are understood
    assert over({"batch_size": 8, "global-batch-size": 64}).variant.global_batch == 64
    assert over({"batch_size": 8}).variant.micro_batch == 8
    # a mistyped key gets a suggestion
    with pytest.raises(UsageProblem) as caught:
        over({"micro_bach": "4"})
    assert "micro_bach" in caught.value.message
    assert "did you mean micro_batch" in caught.value.hint


@each_row(
    ("key", "text", "value"),
    [("compile", "true", True), ("compile", "off", False), ("lr", "3e-4", 3e-4), ("tp", "8", 8), ("flavor", "8", "8")],
)
def test_text_becomes_the_type_of_its_key(key, text, value):
    found = over({key: text}).settings[key]
    assert found == value and type(found) is type(value)


@each_row(
    ("values", "said"),
    [
        ({"steps": "many"}, "steps=many: steps takes a whole number"),
        ({"steps": "0"}, "at least 1"),
        ({"steps": "-3"}, "at least 1"),
        ({"timeout_s": "-1"}, "at least 0"),
        ({"n_gpus": "-5"}, "at least -1"),
        ({"n_gpus": "9" * 5000}, "n_gpus takes a whole number"),
        ({"env.A=B": "1"}, "environment variable"),
        ({"env.A": "x\0y"}, "environment variable"),
        ({"lr": "fast"}, "lr takes a number"),
        ({"lr": "nan"}, "lr takes a number"),
        ({"compile": "maybe"}, "compile takes true or false"),
    ],
)
def test_a_value_that_does_not_fit_names_key_value_and_source(values, said):
    with pytest.raises(UsageProblem, match=said) as caught:
        over(values)
    assert "source 0" in caught.value.message


def test_the_order_of_sources_is_recipe_card_context_tag_set(given, tmp_path):
    from madlite.plan.context import read_context

    file = tmp_path / "context.json"
    file.write_text('{"settings": {"steps": 30, "lr": 0.3, "flavor": "file", "seq_len": 256}}')
    context = read_context(file, '{"settings": {"lr": 0.4, "flavor": "option"}}')
    card = Card(
        name="tiny", root=tmp_path, source="models.json", recipe={"steps": 20, "micro_batch": 16, "flavor": "card"}
    )
    options = Options(workspace=tmp_path, output=tmp_path / "perf.csv", sets=(("flavor", "set"),))
    plan = make_plan(given(card=card, context=context, options=options, overrides=(("flavor", "tag"), ("lr", "0.5"))))
    assert (plan.variant.micro_batch, plan.origins["variant.micro_batch"]) == (16, "card")
    assert (plan.variant.steps, plan.origins["variant.steps"]) == (30, f"context file {file}")
    assert (plan.variant.seq_len, plan.origins["variant.seq_len"]) == (256, f"context file {file}")
    assert (plan.settings["lr"], plan.origins["settings.lr"]) == (0.5, "tag")
    assert (plan.settings["flavor"], plan.origins["settings.flavor"]) == ("set", "--set")
    assert plan.origins["settings.compile"] == "recipe tiny"


def test_a_tags_addition_to_a_script_card_is_no_setting(given, tmp_path):
    from madlite.model import Action

    draft = rendered_draft(templates=(), actions=(Action(kind="run", argv=("bash", "-c", "run {args}")),), variant=None)
    plan = make_plan(given(spec=draft, overrides=(("value", "7"),), args="--base 1 --value 7"))
    assert plan.actions[0].argv == ("bash", "-c", "run --base 1 --value 7")
    assert plan.args == "--base 1 --value 7"
