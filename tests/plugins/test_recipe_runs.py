"""Runs of a recipe book: which a card stands for, by precision, GPU and image release; what is unknown is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite import Card, Machine, PluginError, RecipeBackend, Request, ResultRule, UsageProblem
from madlite.backends.recipes import read_book
from tests.rows import each_row

BOOK = """
[defaults]
model = ""
mode = "pretrain"
precision = "BF16"
seq_len = 8192
micro_batch = 1
steps = 50
flag = "-"
[release."v25.9"]
image = "lab/image:v25.9_{architecture}"
[release."v25.10"]
image = "lab/image:v25.10"
flag = "new"
[release."v26.1"]
image = "lab/image:v26.1"
flag = "new"
[stand_in]
MI350X = "MI355X"
MI325X = "MI300X"
[recipe.llama]
model = "Llama"
[recipe.llama.on.MI355X]
seq_len = 4096

[[run]]
card = ["train_llama", "train_llama_overlay"]
recipe = "llama"
device = ["MI300X", "MI355X"]
release = ["v25.9", "v25.10"]
micro_batch = 3
source = "a table"
[[run]]
card = ["train_llama"]
recipe = "llama"
precision = "FP8"
device = ["MI300X"]
release = ["v25.10"]
micro_batch = 5
[[run]]
card = ["train_llama"]
recipe = "llama"
device = ["MI325X"]
release = ["v26.1"]
micro_batch = 7
[[run]]
card = ["train_llama"]
recipe = "llama"
mode = "finetune"
device = ["MI300X"]
release = ["v25.9"]
seq_len = 2048
[[run]]
card = ["anywhere"]
model = "Any"
"""


def lab(tmp_path, text):
    """Return a backend with a book of its own."""

    class Lab(RecipeBackend):
        name = "lab"
        template = "lab/run.sh.j2"
        book = tmp_path / "recipes.toml"

        def result_rule(self):
            return ResultRule()

    Lab.book.write_text(text)
    return Lab()


@pytest.fixture
def backend(tmp_path):
    return lab(tmp_path, BOOK)


def machine(device, architecture="gfx942"):
    return Machine(vendor="AMD", device=device, architecture=architecture)


def expand(backend, device="MI300X", card="train_llama", scope="", **settings):
    name = f"{scope}/{card}" if scope else card
    request = Request(card=Card(name=name, root=Path(), source="a test", scope=scope), tag=card, settings=settings)
    return backend.expand(request, machine(device))


def sizes(drafts):
    return [(one.variant.mode, one.variant.precision, one.variant.micro_batch) for one in drafts]


def test_a_card_stands_for_every_run_of_the_newest_release(backend):
    drafts = expand(backend)
    assert sizes(drafts) == [("pretrain", "BF16", 3), ("pretrain", "FP8", 5)]
    assert {one.variant.release for one in drafts} == {"v25.10"} and {one.image for one in drafts} == {
        "lab/image:v25.10"
    }
    assert drafts[0].settings == {"recipe": "llama", "flag": "new", "recipe_device": "MI300X"}
    assert drafts[0].origin == "recipe llama (v25.10, MI300X; a table)"
    # what only another release has is said
    (first, *_) = expand(backend)
    assert first.notes == ("image release v25.10: the newest with a recipe (--image-release chooses another)",)
    assert first.left_out == {"finetune BF16": "v25.9"}
    # a release that is asked for decides image and values
    drafts = expand(backend, release="v25.9")
    assert sizes(drafts) == [("pretrain", "BF16", 3), ("finetune", "BF16", 1)]
    assert drafts[0].image == "lab/image:v25.9_gfx942" and drafts[0].settings["flag"] == "-"
    assert not any("newest" in note for note in drafts[0].notes)


def test_mode_precision_and_sequence_length_choose(backend):
    assert sizes(expand(backend, precision="fp8")) == [("pretrain", "FP8", 5)]
    (finetune,) = expand(backend, mode="finetune")
    assert (finetune.variant.release, finetune.variant.seq_len) == ("v25.9", 2048)
    # a sequence length chooses only where a run has it
    assert sizes(expand(backend, release="v25.9", seq_len="2048")) == [("finetune", "BF16", 1)]
    assert len(expand(backend, release="v25.9", seq_len="1024")) == 2
    # a directory cards bare name finds its runs
    assert backend.claim(Card(name="train/train_llama", scope="train", root=Path(), source=""), Path()) == 30
    assert sizes(expand(backend, scope="train", card="train_llama_overlay")) == [("pretrain", "BF16", 3)]
    assert backend.claim(Card(name="other", root=Path(), source=""), Path()) == 0
    # a run without releases and devices fits everywhere
    (draft,) = expand(backend, "H100", card="anywhere")
    assert draft.variant.model == "Any" and draft.variant.release == "v26.1"


def test_a_gpu_without_runs_takes_its_stand_ins_and_says_both_names(backend):
    (draft,) = expand(backend, "MI350X")
    assert draft.settings["recipe_device"] == "MI355X" and draft.variant.seq_len == 4096
    assert "MI350X runs with the recipe of MI355X: it has none of its own here" in draft.notes
    # a stand in fills only releases that the gpu has none for
    assert sizes(expand(backend, "MI325X")) == [("pretrain", "BF16", 7)]
    older = expand(backend, "MI325X", release="v25.10")
    assert sizes(older) == [("pretrain", "BF16", 3), ("pretrain", "FP8", 5)]
    assert "MI325X runs with the recipe of MI300X: it has none of its own here" in older[0].notes
    # another gpus recipe can be asked for
    (draft,) = expand(backend, "H100", precision="FP8", recipe_device="MI300X")
    assert draft.settings["recipe_device"] == "MI300X"
    assert any("H100 runs with the recipe of MI300X" in note for note in draft.notes)


@each_row(
    ("device", "settings", "what", "near"),
    [
        ("MI300X", {"precision": "MXFP4"}, "in MXFP4 on MI300X", "pretrain BF16 on MI300X/MI355X in v25.9, v25.10"),
        ("MI300X", {"mode": "finetune", "precision": "FP8"}, "in finetune FP8 on MI300X", "pretrain FP8 on MI300X"),
        ("MI250X", {}, "on MI250X", "pretrain BF16 on MI325X in v26.1"),
        ("MI355X", {"precision": "FP8"}, "in FP8 on MI355X", "pretrain FP8 on MI300X in v25.10"),
        ("MI300X", {"release": "v26.1"}, "on MI300X in release v26.1", "pretrain BF16 on MI325X in v26.1"),
        ("MI300X", {"release": "v25.11"}, "on MI300X in release v25.11", "pretrain FP8 on MI300X in v25.10"),
    ],
)
def test_an_unknown_combination_is_refused_with_the_nearest_known(backend, device, settings, what, near):
    with pytest.raises(UsageProblem) as caught:
        expand(backend, device, **settings)
    assert caught.value.message == f"no recipe is known for train_llama {what}"
    assert near in caught.value.hint


REFUSED = """
[[refused]]
card = "train_llama"
mode = "pretrain"
precision = "MXFP4"
release = "v25.10"
why = "its units have none"
way = "--precision FP8"
"""


@each_row(
    ("device", "settings", "known"),
    [
        ("MI300X", {"precision": "mxfp4", "release": "v25.10"}, True),
        ("MI300X", {"precision": "MXFP4", "mode": "pretrain", "release": "25.10"}, True),
        ("MI300X", {"precision": "MXFP4", "mode": "finetune", "release": "v25.10"}, False),
        ("MI300X", {"precision": "MXFP4", "release": "v25.9"}, False),
        ("MI300X", {"precision": "MXFP4"}, False),
        ("MI300X", {"precision": "MXFP6", "release": "v25.10"}, False),
        ("MI250X", {"precision": "MXFP4", "release": "v25.10"}, False),  # which has no other run either
    ],
)
def test_what_documents_have_wrong_is_refused_with_its_reason_and_the_way(tmp_path, device, settings, known):
    with pytest.raises(UsageProblem) as caught:
        expand(lab(tmp_path, BOOK + REFUSED), device, **settings)
    assert caught.value.message.endswith(": its units have none") == known
    assert (caught.value.hint == "--precision FP8") == known


@each_row("slip", [("why", "wy"), ('"v25.10"', '"v25.99"'), ("way", "weigh")])
def test_a_slip_in_what_is_refused_is_named(tmp_path, slip):
    file = tmp_path / "recipes.toml"
    file.write_text(BOOK + REFUSED.replace(*slip))
    with pytest.raises(PluginError, match="recipes.toml"):
        read_book(file)


@each_row(
    "change",
    [
        ("micro_batch = 3", "micro_bach = 3"),
        ('recipe = "llama"', 'recipe = "lama"'),
        ('release = ["v25.9"]', 'release = ["v25.99"]'),
        ('flag = "new"', 'flog = "new"'),
        ('card = ["train_llama"]', "cards = []"),
    ],
)
def test_a_slip_in_a_book_is_named(tmp_path, change):
    file = tmp_path / "recipes.toml"
    file.write_text(BOOK.replace(*change, 1))
    with pytest.raises(PluginError, match="recipes.toml"):
        read_book(file)


def test_a_folder_of_files_is_one_book(tmp_path):
    head, _, rest = BOOK.partition("[[run]]")
    (tmp_path / "a.toml").write_text(head)
    (tmp_path / "b.toml").write_text("[[run]]" + rest)
    book = read_book(tmp_path)
    assert {card for run in book.runs for card in run.cards} == {
        "train_llama",
        "train_llama_overlay",
        "anywhere",
    } and list(book.releases)[-1] == "v26.1"


def test_a_hint_lists_the_releases_of_a_run(tmp_path):
    releases = "".join(f'[release.r{n}]\nimage = "i"\n' for n in range(1, 7))
    runs = "".join(
        f'[[run]]\ncard = "c"\nprecision = "{name}"\ndevice = "MI300X"\nrelease = {list(which)}\n'
        for name, which in {"FP8": ("r1", "r2", "r3", "r6"), "FP4": ("r2",), "BF16": ("r6",)}.items()
    ).replace("'", '"')
    more = '[[run]]\ncard = "c"\nprecision = "FP4"\ndevice = "MI300X"\nrelease = ["r4"]\n'
    head = '[defaults]\nmodel = "m"\nmode = "pretrain"\nprecision = ""\n'

    backend = lab(tmp_path, head + releases + runs + more)
    assert expand(backend, card="c")[0].left_out["pretrain FP4"] == "r2, r4"
    with pytest.raises(UsageProblem) as caught:
        expand(backend, card="c", precision="INT8")
    assert "pretrain FP8 on MI300X in r1, r2, r3, r6" in caught.value.hint


@each_row("release", ["v25.9", "V25.9", "25.9"])
def test_a_release_is_known_in_any_spelling(backend, release):
    assert {one.variant.release for one in expand(backend, release=release)} == {"v25.9"}


def test_the_first_word_of_a_mode_chooses_all_of_it(tmp_path):
    text = BOOK.replace('mode = "finetune"', 'mode = "posttrain/lora"', 1)

    backend = lab(tmp_path, text)
    (draft,) = expand(backend, mode="posttrain")
    assert draft.variant.mode == "posttrain/lora" and "mode" in draft.chosen


def test_a_length_that_no_run_has_is_put_over_one_run_of_each_kind(tmp_path):
    rows = "".join(
        f'[[run]]\ncard = "c"\nseq_len = {n}\nprecision = "{p}"\n' for p in ("BF16", "FP8") for n in (4096, 8192)
    )

    backend = lab(tmp_path, '[defaults]\nmodel = "m"\n' + rows)
    assert [one.variant.seq_len for one in expand(backend, card="c", seq_len="8192")] == [8192, 8192]
    kinds = [(one.variant.precision, one.variant.seq_len) for one in expand(backend, card="c", seq_len="2048")]
    assert kinds == [("BF16", 4096), ("FP8", 4096)]


@each_row(
    ("line", "said"),
    [
        ('micro_batch = "3"', "micro_batch = '3', which is no int"),
        ("micro_batch = true", "micro_batch = True, which is no int"),
    ],
)
def test_a_value_of_another_kind_is_named(tmp_path, line, said):
    file = tmp_path / "recipes.toml"
    file.write_text(BOOK.replace("micro_batch = 3", line, 1))
    with pytest.raises(PluginError) as caught:
        read_book(file)
    assert said in str(caught.value)


def test_a_release_says_nothing_of_what_runs_are_chosen_by(tmp_path):
    file = tmp_path / "recipes.toml"
    file.write_text(BOOK.replace('[release."v26.1"]', '[release."v26.1"]\nprecision = "FP8"', 1))
    with pytest.raises(PluginError, match="release 'v26.1' sets precision"):
        read_book(file)
