"""Recipes: chosen by name, fitted to a device, and checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite import Card, Machine, PluginError, RecipeBackend, Request, UsageProblem, Variant
from madlite.backends.recipes import read_book
from tests.factories import make_plan
from tests.rows import each_row

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


def test_a_recipe_s_values_go_to_variant_settings_and_device(backend):
    made = draft(backend, "large")
    assert (made.variant.model, made.variant.steps) == ("tiny", 9)
    assert made.settings == {"recipe": "large", "lr": 0.1} and made.origin == "recipe large"
    # a device has its own values and variables
    made = draft(backend, "large", Machine(vendor="AMD", device="MI300X"))
    assert made.settings["lr"] == 0.2 and made.env == {"A": "2"}
    # what is set chooses before the card
    assert draft(backend, "large", settings={"recipe": "small"}).variant.steps == 50
    assert draft(backend, {"name": "large", "lr": 3.0}).origin == "recipe large"


def test_what_no_recipe_has_is_refused_with_those_there_are(backend):
    # an unknown recipe names those there are
    with pytest.raises(UsageProblem, match="no recipe 'huge'") as caught:
        draft(backend, "huge")
    assert "small, large" in caught.value.hint
    with pytest.raises(UsageProblem, match="card 'a card' names no recipe"):
        draft(backend)
    with pytest.raises(UsageProblem, match="image release 'v99' is not known") as caught:
        draft(backend, "small", settings={"release": "v99"})
    assert caught.value.hint == "leave --image-release out; --image names an image"
    backend.book.write_text(f'{BOOK}[release."v25.4"]\nimage = "rocm/x:v25.4"\n')
    read_book.cache_clear()
    with pytest.raises(UsageProblem) as caught:
        draft(backend, "small", settings={"release": "v99"})
    assert caught.value.hint == "releases: v25.4"


@each_row(
    ("steps", "warmup", "fatal", "word"),
    [
        (5, 5, True, "5 steps are over before 5 of warm-up are"),
        (1, 10, True, "1 steps are over"),
        (6, 5, False, "6 steps leave few after 5 of warm-up"),
        (9, 5, False, "9 steps leave few"),
    ],
)
def test_too_few_steps_after_the_warm_up_are_told_with_enough(backend, tmp_path, steps, warmup, fatal, word):
    (finding,) = backend.check(plan_of(tmp_path, steps, warmup))
    assert finding.fatal is fatal and finding.message.startswith(word)
    enough = int(finding.hint.removeprefix("--steps "))
    assert list(backend.check(plan_of(tmp_path, enough, warmup))) == []


@each_row(("steps", "warmup"), [(10, 5), (5, 0), (50, 10)])
def test_five_steps_after_the_warm_up_are_enough(backend, tmp_path, steps, warmup):
    assert list(backend.check(plan_of(tmp_path, steps, warmup))) == []


def test_sizes_that_are_none_or_not_there_have_no_steps_told(backend, tmp_path):
    # of a size that is none its steps are not told as well
    messages = [finding.message for finding in backend.check(plan_of(tmp_path, 0, 5))]
    assert messages == ["steps is 0, not a whole number above 0"]
    # a plan without sizes has none that could be wrong
    assert tuple(backend.check(make_plan(tmp_path))) == ()


def plan_of(folder, steps, warmup):
    sizes = Variant(model="tiny", seq_len=8, micro_batch=1, steps=steps, warmup_steps=warmup)
    return make_plan(folder, variant=sizes)


@each_row(
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
