"""Which shape a planned model has, and that nothing is taken for known that is not."""

from __future__ import annotations

import msgspec

from madlite.backends.recipe_book import read_book
from madlite.measure.compute import active_weights
from madlite.model import Architecture, Request, RunSpec, Shape, Variant
from madlite.plan.make import make_plan
from madlite.plan.place import find_architecture, load_architectures
from madlite_plugins.hf.backend import HuggingFace
from tests.plan.conftest import rendered_draft
from tests.plugins.logs import gpu_machine
from tests.rows import each_row

TINY = Architecture(name="tiny", layers=2, hidden=8, heads=2, ffn=16, vocab=10, source="a test")


def found(draft: RunSpec, settings=None, **variant):
    changed = msgspec.structs.replace(draft.variant, **variant)
    return find_architecture(draft, changed, {**draft.settings, **(settings or {})})


def test_a_public_model_is_known_by_its_name_in_either_case_and_no_other(given):
    for name in ("Llama-3.1-8B", "llama-3.1-8b"):
        known = found(rendered_draft(variant=Variant(model=name)))
        assert (known.architecture.layers, known.origin) == (32, "meta-llama/Llama-3.1-8B config.json")
    assert found(rendered_draft(variant=Variant(model="Llama-3.3-70B"))).architecture.name == "Llama-3.3-70B"
    # a model that nobody knows has no shape and the plan says why
    plan = make_plan(given())
    assert plan.architecture is None and plan.origins["architecture"] == "no shape is known of a model 'tiny'"
    # a run without a model has no shape
    assert find_architecture(RunSpec(), None, {}).origin == "no model is named"
    assert found(rendered_draft(variant=Variant(model=""))).architecture is None
    # what is said to be unknown is
    draft = rendered_draft(variant=Variant(model="Llama-3.1-8B"), shape=Shape(unknown="it is odd"))
    assert (found(draft).architecture, found(draft).origin) == (None, "it is odd")


def test_the_draft_s_own_shape_goes_before_the_table_s(given):
    # the draft's own shape goes into the plan
    plan = make_plan(given(spec=rendered_draft(architecture=TINY)))
    assert plan.architecture == TINY and plan.origins["architecture"] == "a test"
    assert found(rendered_draft(variant=Variant(model="Llama-3.1-8B"), architecture=TINY)).architecture == TINY
    # a model that is called by another name does not keep the draft's shape
    draft = rendered_draft(architecture=TINY, shape=Shape(unknown="why"))
    assert found(draft, model="Llama-3.1-8B").architecture.layers == 32
    assert found(draft, model="other").origin == "no shape is known of a model 'other'"


def test_a_shape_follows_the_settings_that_have_it(given):
    draft = rendered_draft(architecture=TINY, shape=Shape(fields={"layers": "n"}), settings={"n": 0})
    assert found(draft).architecture == TINY
    known = found(draft, {"n": 3})
    assert (known.architecture.layers, known.architecture.hidden, known.origin) == (3, 8, "a test, settings")
    assert found(draft, {"n": 2}).origin == "a test"
    plan = make_plan(given(spec=draft, overrides=(("n", "5"),)))
    assert plan.architecture.layers == 5
    # settings alone make a shape where they have all of it
    fields = {name: name for name in ("layers", "hidden", "heads", "vocab", "ffn")}
    sizes = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 10, "ffn": 16}
    draft = rendered_draft(variant=Variant(model="own"), shape=Shape(fields=fields), settings=sizes)
    assert active_weights(found(draft).architecture) == active_weights(TINY)
    assert found(draft, {"ffn": 0}).architecture is None
    # a setting that makes another model of it leaves nothing known
    draft = rendered_draft(architecture=TINY, shape=Shape(others=("flavor",)))
    assert found(draft).architecture == TINY
    assert found(draft, {"flavor": "debug"}).architecture == TINY  # as it was
    known = found(draft, {"flavor": "70B"})
    assert (known.architecture, known.origin) == (None, "no shape is known with flavor=70B")


@each_row(("key", "value", "words"), [("n", -2, "layers is -2"), ("heads", 3, "no multiple of 3 heads")])
def test_settings_that_are_no_shape_are_said(key, value, words):
    fields = {"layers": "n", "heads": "heads"}
    draft = rendered_draft(architecture=TINY, shape=Shape(fields=fields), settings={"n": 0, "heads": 0})
    known = found(draft, {key: value})
    assert known.architecture is None and words in known.origin


def test_every_shape_of_the_table_has_a_source():
    assert len(load_architectures()) > 30
    assert all(one.source for one in load_architectures().values())


@each_row("recipe", [name for name in read_book(HuggingFace.book).recipes if "tiny" not in name])
def test_a_recipe_that_states_a_public_model_s_sizes_states_those_of_the_table(recipe, tmp_path):
    """Two sources, a config.json and the recipe, of one model."""
    from madlite.model import Card

    card = Card(name="a card", root=tmp_path, source="a test", backend="hf", recipe=recipe)
    (draft,) = HuggingFace().expand(Request(card=card, tag="t"), gpu_machine(8))
    known = find_architecture(draft, draft.variant, draft.settings)
    assert known.architecture == load_architectures()[draft.variant.model]
