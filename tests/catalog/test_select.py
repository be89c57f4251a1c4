from __future__ import annotations

from pathlib import Path

import pytest

from madlite.catalog.cards import Catalog, args_of, select, split_tags
from madlite.catalog.sources import load_catalog
from madlite.errors import CatalogError, UsageProblem
from madlite.model import Problem, TreeCards
from tests.rows import each_row

from .checkout import MINIMAD, card, write_cards, write_program


def selected(catalog: Catalog, *tags: str) -> list[str]:
    return [request.card.name for request in select(catalog, tags)]


@pytest.fixture(scope="module")
def minimad() -> Catalog:
    return load_catalog(MINIMAD, None)


@each_row(
    ("tag", "expected"),
    [
        ("mini_single", ["mini_single"]),
        ("mini_multi", ["mini_multi", "mini_multi_gap", "mini_multi_missing"]),  # a name, and a tag of three
        ("pretrain", ["mini_single"]),
        ("team/sub", ["team/sub"]),
        ("sub", ["team/sub"]),
        ("team_tag", ["team/sub"]),
        ("team/team_tag", ["team/sub"]),
        ("team/all", ["team/sub"]),
        ("dyn_tag", ["dyn/gen1", "dyn/gen2"]),
        ("dyn/dyn_tag", ["dyn/gen1", "dyn/gen2"]),
        ("dyn/all", ["dyn/gen1", "dyn/gen2"]),
        ("dyn/gen2", ["dyn/gen2"]),
        ("gen2", ["dyn/gen2"]),
    ],
)
def test_each_form_of_a_tag(minimad: Catalog, tag: str, expected: list[str]) -> None:
    assert selected(minimad, tag) == expected


def test_tags_keep_their_order_and_a_card_matched_twice_is_there_twice(minimad: Catalog) -> None:
    # all is every card
    assert selected(minimad, "all") == [card.name for card in minimad.cards]
    # another folders tag does not match
    for tag in ("team/dyn_tag", "mini/mini_ok", "team/gen1"):
        with pytest.raises(CatalogError):
            select(minimad, [tag])
    assert selected(minimad, "team/sub", "pretrain", "mini_single") == ["team/sub", "mini_single", "mini_single"]
    # a sub folders card takes additions too
    assert [args_of(request) for request in select(minimad, ["team/team_tag:a=1"])] == ["--value 42 --a 1"]
    # a comma separates after a colon too
    assert split_tags(["x:a=1,2"]) == ("x:a=1", "2")


def test_a_bare_name_counts_only_where_nothing_else_matches(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("sub"))
    write_cards(tmp_path / "scripts" / "team" / "models.json", card("sub"))
    assert selected(load_catalog(tmp_path, None), "sub") == ["sub"]


@each_row(
    ("tag", "overrides", "args"),
    [
        ("x", (), "--base 1"),
        ("x:foo=3:bar", (("foo", "3"), ("bar", None)), "--base 1 --foo 3 --bar"),
        ("t:foo=3", (("foo", "3"),), "--base 1 --foo 3"),
        (" x : foo=3 :: bar ", (("foo", "3"), ("bar", None)), "--base 1 --foo 3 --bar"),
        ("x:env=A=1", (("env", "A=1"),), "--base 1 --env A 1"),
        ("x:note=two words", (("note", "two words"),), "--base 1 --note two words"),
        ("all:a=1", (("a", "1"),), "--base 1 --a 1"),
    ],
)
def test_what_follows_the_colon_is_appended_to_the_args(
    tmp_path: Path, tag: str, overrides: tuple[object, ...], args: str
) -> None:
    write_cards(tmp_path / "models.json", card("x", "t", args="--base 1"))
    (request,) = select(load_catalog(tmp_path, None), [tag])
    assert (request.tag, request.overrides, args_of(request)) == (tag, overrides, args)


@each_row("values", [["a", "b"], ["a,b"], ["a, b,"], ["a", "", " b "]])
def test_tags_may_be_given_apart_or_with_commas(values: list[str]) -> None:
    assert split_tags(values) == ("a", "b")


@pytest.fixture
def layered(tmp_path: Path) -> Catalog:
    write_cards(tmp_path / "models.json", card("near", "pyt"))
    bundled = write_cards(tmp_path / "home" / "models.json", card("far", "pyt", "demo"), card("near", "pyt"))
    return load_catalog(tmp_path, bundled, [("tiny", tmp_path, [card("shipped", "pyt", "demo")])])


def test_the_installed_layer_is_asked_only_for_what_the_checkout_lacks(layered: Catalog) -> None:
    assert selected(layered, "pyt") == ["near"]
    assert selected(layered, "all") == ["near"]
    assert selected(layered, "demo") == ["shipped", "far"]
    assert selected(layered, "far", "pyt") == ["far", "near"]


def test_all_without_a_checkout_is_every_installed_card(tmp_path: Path) -> None:
    bundled = write_cards(tmp_path / "home" / "models.json", card("a"), card("b"))
    assert selected(load_catalog(tmp_path / "empty", bundled), "all") == ["a", "b"]


@each_row(
    ("tag", "expected"),
    [
        ("suite/a_MI300X", ["suite/a_MI300X"]),
        ("a_MI300X", ["suite/a_MI300X"]),
        ("MI300X", ["suite/a_MI300X", "suite/b_MI300X"]),
        ("suite/MI300X", ["suite/a_MI300X", "suite/b_MI300X"]),
        ("suite/all", ["suite/a_MI300X", "suite/b_MI300X", "suite/b_MI355X"]),
        ("b_MI355X:steps=3", ["suite/b_MI355X"]),
    ],
)
def test_a_folders_cards_answer_to_all_names_of_a_directory_card(tmp_path: Path, tag: str, expected: list[str]) -> None:
    found = (card("suite/a_MI300X", "MI300X"), card("suite/b_MI300X", "MI300X"), card("suite/b_MI355X", "MI355X"))
    tree = TreeCards(tree=tmp_path / "tree", found=found)
    assert selected(load_catalog(tmp_path, None, [("tiny", tmp_path, [tree, card("other", "x")])]), tag) == expected


def test_what_comes_close_may_be_of_a_folder_and_many_broken_files_are_counted(tmp_path: Path) -> None:
    broken = [Problem(where=f"tree/{n}.yaml", what="broken") for n in range(5)]
    tree = TreeCards(tree=tmp_path / "tree", found=(card("suite/llama3.1_8B-BF16", "MI300X"), *broken))
    with pytest.raises(CatalogError) as caught:
        select(load_catalog(tmp_path, None, [("tiny", tmp_path, [tree])]), ["suite/llama3.1-8B-BF16"])
    assert caught.value.hint.startswith("did you mean suite/llama3.1_8B-BF16?")
    left_out = "; left out: tree/0.yaml; left out: tree/1.yaml; left out: tree/2.yaml and 2 more"
    assert caught.value.message.endswith(f"(1 card in {tmp_path / 'tree'}{left_out})")


def test_an_unknown_tag_is_told_with_what_comes_close_and_how_many_cards_there_are(tmp_path: Path) -> None:
    write_cards(
        tmp_path / "models.json",
        card("primus_pyt_train_llama-3.1-8b", "primus", "llama"),
        card("jax_maxtext_train_mixtral-8x7b", "jax"),
    )
    bundled = write_cards(tmp_path / "home" / "models.json", card("own"))
    with pytest.raises(CatalogError) as caught:
        select(load_catalog(tmp_path, bundled), ["primus_pyt_train_llama3.1-8b"])
    assert caught.value.message == (
        "no model matches tag 'primus_pyt_train_llama3.1-8b' (2 cards in models.json, 1 in bundled models.json)"
    )
    assert caught.value.hint == "did you mean primus_pyt_train_llama-3.1-8b?   madlite discover | grep primus"


def test_every_unknown_tag_is_named_once_and_no_more_than_three_come_close(minimad: Catalog) -> None:
    with pytest.raises(CatalogError) as caught:
        select(minimad, ["mini_single", "qqq:a=1", "Mini_Multy:b", "qqq:a=1"])
    assert caught.value.message.startswith("no model matches tags 'qqq:a=1', 'Mini_Multy:b' (23 cards in models.json, ")
    assert caught.value.hint == (
        "did you mean mini_multi or mini_multi_gap for 'Mini_Multy:b'?   madlite discover | grep mini"
    )
    # a tag that nothing comes close to points at the list
    with pytest.raises(CatalogError) as caught:
        select(minimad, ["qqq"])
    assert caught.value.hint == "madlite discover"
    # no tag is a usage problem
    with pytest.raises(UsageProblem):
        select(minimad, [])


def test_the_list_of_the_hint_has_the_suggested_card(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("pyt_train_Llama-3", "llama", "pyt"), card("hf_llama_tiny", "hf"))
    bundled = write_cards(tmp_path / "home" / "models.json", card("megatron_llama-3.1-8b", "megatron"))
    hints = {}
    for tag in ("hf_llama_tni", "megatron_llama-3.1-8bb"):
        with pytest.raises(CatalogError) as caught:
            select(load_catalog(tmp_path, bundled), [tag])
        hints[tag] = caught.value.hint
    assert hints["hf_llama_tni"] == "did you mean hf_llama_tiny?   madlite discover | grep llama"
    assert hints["megatron_llama-3.1-8bb"].endswith("   madlite discover --all | grep megatron")


def test_an_unknown_tag_tells_which_files_were_left_out(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("m"))
    write_program(tmp_path, "bad", "raise OSError\n")
    with pytest.raises(CatalogError, match=r"\(1 card in models\.json; left out: scripts/bad/get_models_json\.py\)$"):
        select(load_catalog(tmp_path, None), ["bad/x"])


@each_row("tag", ["", ":", ":: "])
def test_a_tag_without_a_name_matches_nothing(minimad: Catalog, tag: str) -> None:
    with pytest.raises(CatalogError, match=r"^no model matches tag "):
        select(minimad, [tag])


def test_only_selected_models_are_updated_and_each_once(tmp_path: Path) -> None:
    code = """
        from madengine.tools.discover_models import CustomModel
        class Counting(CustomModel):
            def update_model(self):
                self.args += " --updated"
                with open("updated.txt", "a") as file:
                    file.write(self.name + " ")
        def list_models():
            return [Counting(name=name, scripts="run.sh", tags=["t"]) for name in ("one", "two")]
    """
    write_program(tmp_path, "dyn", code)
    requests = select(load_catalog(tmp_path, None), ["dyn/two", "two:a=1"])
    assert [(request.card.scripts, args_of(request)) for request in requests] == [
        ("scripts/dyn/run.sh", " --updated"),
        ("scripts/dyn/run.sh", " --updated --a 1"),
    ]
    assert (tmp_path / "updated.txt").read_text() == "dyn/two "
