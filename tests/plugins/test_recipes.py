"""Recipes: chosen by name, fitted to a device, and checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite import Card, Machine, PluginError, RecipeBackend, Request, UsageProblem
from madlite.recipes import read_book

BOOK = """
[defaults]
model = "tiny"
steps = 50
lr = 0.1
[env.all]
A = "1"
[env.AMD]
A = "2"
[recipe.small]
[recipe.large]
steps = 9
[recipe.large.on.MI300X]
lr = 0.2
"""


@pytest.fixture
def backend(tmp_path):
    class Tiny(RecipeBackend):
        name = "tiny"
        template = "tiny/run.sh.j2"
        book = tmp_path / "recipes.toml"

        def result_rule(self):
            from madlite import ResultRule

            return ResultRule()

    Tiny.book.write_text(BOOK)
    return Tiny()


def draft(backend, recipe="", machine=None, settings=None):
    card = Card(name="a card", root=Path(), source="a test", recipe=recipe)
    (made,) = backend.expand(Request(card=card, tag="a card", settings=settings or {}), machine or Machine())
    return made


def test_values_go_to_the_variant_or_to_the_settings(backend):
    made = draft(backend, "large")
    assert (made.variant.model, made.variant.steps) == ("tiny", 9)
    assert made.settings == {"recipe": "large", "lr": 0.1} and made.origin == "recipe large"


def test_a_device_has_its_own_values_and_variables(backend):
    made = draft(backend, "large", Machine(vendor="AMD", device="MI300X"))
    assert made.settings["lr"] == 0.2 and made.env == {"A": "2"}


def test_what_is_set_chooses_before_the_card(backend):
    assert draft(backend, "large", settings={"recipe": "small"}).variant.steps == 50
    assert draft(backend, {"name": "large", "lr": 3.0}).origin == "recipe large"


def test_an_unknown_recipe_names_those_there_are(backend):
    with pytest.raises(UsageProblem, match="no recipe 'huge'") as caught:
        draft(backend, "huge")
    assert "small, large" in caught.value.hint
    with pytest.raises(UsageProblem, match="card 'a card' names no recipe"):
        draft(backend)


@pytest.mark.parametrize(
    "text",
    [
        "[defaults]\n[recipe.a]\nstep = 5",
        "[defaults]\n[recipe.a.on.cpu]\nlr = 5",
        "[defaults]",
        "[defaults]\nx = [1]\n[recipe.a]",
        "[defaults",
        "[defaults]\n[recipe]\na = 1",
    ],
)
def test_a_broken_book_is_named(tmp_path, text):
    file = tmp_path / "recipes.toml"
    file.write_text(text)
    with pytest.raises(PluginError, match="recipes.toml"):
        read_book(file)
