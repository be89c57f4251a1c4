"""Shapes of models in recipe books, and how the built-in backends count attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite import PluginError, RecipeBackend, Request
from madlite.backends.recipe_book import read_book
from madlite.model import Architecture, Card, Machine
from madlite.plan.place import find_architecture, load_architectures
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.megatron_lm.backend import MegatronLM
from madlite_plugins.primus.backend import Primus
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from madlite_plugins.torchtitan.backend import Torchtitan
from madlite_plugins.torchtune.backend import Torchtune
from tests.plugins.logs import gpu_machine
from tests.rows import each_row

BOOK = """
[defaults]
model = ""
steps = 50
num_layers = 0
flavor = ""
[recipe.a]
model = "Tiny"
[recipe.b]
model = "Odd"
"""
TINY = """
[architecture.Tiny]
also = ["Small"]
layers = 2
hidden = 8
heads = 2
ffn = 16
vocab = 10
source = "a test"
[architecture.Odd]
unknown = "its layers differ"
[shape]
layers = "num_layers"
others = ["flavor"]
"""


def book(folder: Path, text: str) -> Path:
    path = folder / "recipes.toml"
    path.write_text(BOOK + text)
    return path


def draft(backend: RecipeBackend, recipe: str, machine: Machine | None = None, **settings: str):
    card = Card(name="a card", root=Path(), source="a test", backend=backend.name, recipe=recipe)
    (one,) = backend.expand(Request(card=card, tag="t", settings=settings), machine or gpu_machine(8))
    return one


def test_a_book_of_a_third_party_brings_its_models_shapes(tmp_path):
    class Own(RecipeBackend):
        name = "own"
        template = "own/run.sh.j2"
        step = Torchtitan.step
        book = tmp_path / "recipes.toml"

    book(tmp_path, TINY)
    tiny, odd = draft(Own(), "a"), draft(Own(), "b")
    assert tiny.architecture == Architecture(
        name="Tiny", layers=2, hidden=8, heads=2, ffn=16, vocab=10, source="a test"
    )
    assert (tiny.shape.fields, tiny.shape.others, tiny.shape.unknown) == ({"layers": "num_layers"}, ("flavor",), "")
    assert (odd.architecture, odd.shape.unknown) == (None, "its layers differ")
    assert read_book(Own.book).architectures["Small"].layers == 2


@each_row(
    ("text", "words"),
    [
        ("[architecture.A]\nlayers = 2\nhidden = 8\nheads = 2\nffn = 4\nvocab = 9\ndepth = 3", "unknown field `depth`"),
        ("[architecture.A]\nlayers = 2", "missing required field"),
        ("[architecture.A]\nlayers = 0\nhidden = 8\nheads = 2\nffn = 4\nvocab = 9", "layers is 0"),
        ("[architecture.A]\nlayers = 2\nhidden = 9\nheads = 2\nffn = 4\nvocab = 9", "head_dim is needed"),
        ("[architecture.A]\nlayers = 2\nhidden = 8\nheads = 2\nffn = 0\nvocab = 9", "ffn is 0"),
        ("[architecture.A]\nlayers = 2\nhidden = 8\nheads = 2\nffn = 4\nvocab = 9\nexperts = 4", "0 of 4 experts"),
        (
            "[architecture.A]\nlayers = 1\nhidden = 8\nheads = 2\nffn = 4\nvocab = 9\ndense_layers = 2",
            "2 of 1 layers are dense",
        ),
        (
            "[architecture.A]\nlayers = 1\nhidden = 8\nheads = 2\nffn = 4\nvocab = 9\nkv_lora_rank = 2",
            "latent attention needs",
        ),
        ('[architecture.A]\nunknown = "why"\nlayers = 2', "has keys beside that"),
        ("[architecture.A]\nunknown = 5", "has keys beside that"),
        ("[architecture]\nA = 5", "recipes.toml"),
        ("[architecture.A]\nlayers = 2\nhidden = 8\nheads = 2\nffn = 4\nvocab = 9\nalso = 5", "recipes.toml"),
        ('[shape]\ndepth = "num_layers"', "shape contains unknown field `depth`"),
    ],
)
def test_a_table_that_is_no_shape_is_an_error_of_the_book(tmp_path, text, words):
    with pytest.raises(PluginError, match=r"recipes\.toml") as error:
        read_book(book(tmp_path, text))
    assert words in error.value.message


def test_a_book_of_several_files_has_the_shapes_of_all(tmp_path):
    book(tmp_path, TINY)
    (tmp_path / "z.toml").write_text(
        '[recipe.c]\n[architecture.More]\nunknown = "x"\n[shape]\nothers = ["num_layers"]\n'
    )
    whole = read_book(tmp_path)
    assert {"Tiny", "Odd", "More"} <= set(whole.architectures)
    assert whole.shape.others == ("flavor", "num_layers")


CARD_RUNS = [
    (Primus(), "primus_pyt_train_llama-3.1-8b", {"release": "v26.5"}, "full"),
    (Primus(), "primus_pyt_megatron_lm_train_llama-3.1-8b", {"release": "v25.10"}, "causal"),
    (Primus(), "primus_pyt_megatron_lm_train_llama-3.1-8b", {"release": "v26.5"}, "causal"),
    (Primus(), "primus_pyt_megatron_lm_train_deepseek-v2-lite-16b", {"release": "v25.11"}, "full"),
    (Primus(), "primus_pyt_megatron_lm_train_deepseek-v2-lite-16b", {"release": "v26.1"}, "causal"),
    (MegatronLM(), "pyt_megatron_lm_train_llama-3.1-8b", {}, "full"),
    (Torchtitan(), "pyt_train_llama-3.1-8b", {}, "full"),
    (PytorchFsdp(), "pyt_train_fsdp_llama-3.1-8b", {}, "full"),
]


@each_row(("backend", "card", "settings", "attention"), CARD_RUNS)
def test_attention_is_counted_as_the_framework_of_the_release_counts_it(backend, card, settings, attention):
    machine = Machine(vendor="AMD", architecture="gfx942", device="MI300X")
    request = Request(card=Card(name=card, root=Path(), source="a test"), tag=card, settings=settings)
    drafts = backend.expand(request, machine)
    assert drafts and {one.result_rule.attention for one in drafts} == {attention}


@each_row(
    ("backend", "recipe", "weights"),
    [
        (Torchtitan(), "debug", (6, 256)),
        (HuggingFace(), "tiny_pretrain", (4, 256)),
        (Torchtune(), "tiny_full", (2, 256)),
    ]
    + [(HuggingFace(), "tiny_gpt_oss", (2, 128)), (Torchtune(), "llama3.1_8B_full", (32, 4096))],
)
def test_the_shape_of_a_recipe_is_that_of_its_settings(backend, recipe, weights):
    one = draft(backend, recipe)
    known = find_architecture(one, one.variant, one.settings)
    assert (known.architecture.layers, known.architecture.hidden) == weights


def test_recipes_of_several_backends_have_the_sizes_of_their_models():
    # a tiny gpt oss has the sizes of its recipe twice
    one = draft(HuggingFace(), "tiny_gpt_oss")
    assert find_architecture(one, one.variant, one.settings).architecture == one.architecture
    # the sizes of torchtune's tiny llama are its recipe's
    one = draft(Torchtune(), "tiny_full")
    shape, settings = one.architecture, one.settings
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn, shape.vocab) == tuple(
        settings[key] for key in ("layers", "embed_dim", "heads", "kv_heads", "intermediate_dim", "vocab_size")
    )
    # a proxy has as many layers as its script is told
    one = draft(MegatronLM(), "llama3.1_70B_proxy")
    assert find_architecture(one, one.variant, one.settings).architecture == load_architectures()["Llama-3.1-70B-proxy"]
    fewer = find_architecture(one, one.variant, {**one.settings, "num_layers": 8}).architecture
    assert fewer.layers == 8
    # texts of any length leave nothing known
    one = draft(Torchtune(), "llama3.1_70B_wikitext")
    assert one.shape.unknown == "the texts are not packed: their lengths vary"


def test_a_model_that_another_repository_or_flavor_makes_is_not_known():
    for backend, recipe, key in (
        (Torchtitan(), "llama3.1_8B", "flavor"),
        (HuggingFace(), "llama3.1_8B_lora", "model_id"),
        (Torchtune(), "llama3.1_8B", "packed"),
        (PytorchFsdp(), "mistral-7b", "config"),
    ):
        one = draft(backend, recipe)
        assert find_architecture(one, one.variant, one.settings).architecture is not None
        changed = {**one.settings, key: "other"}
        assert find_architecture(one, one.variant, changed).architecture is None, key
