"""Cards that several backends share: which of them runs what."""

from __future__ import annotations

import types

import pytest

from madlite.backends.recipe_book import RefusedRun
from madlite.backends.recipes import UnknownRun
from madlite.errors import PluginError, UsageProblem
from madlite.model import RunSpec, Variant
from madlite.run.backend_choice import expand_shared
from tests.rows import each_row

PRETRAIN = ("titan", [Variant(model="m", mode="pretrain", release="v26.1")])
TUNE = ("tune", [Variant(model="m", mode="lora", release="v26.1"), Variant(model="m", mode="full", release="v26.1")])
OLD = ("old", [Variant(model="m", mode="old", release="v25.6")])
NONE = ("none", UnknownRun("no recipe is known for m on X", {}, {}, [(3.0, "b"), (1.0, "a")]))
NEITHER = ("neither", UnknownRun("no recipe is known for m on X", {}, {}, [(2.0, "c")]))


def shared(*owners, **asked):
    answers = dict(owners)

    def expand(backend, plugin):
        answer = answers[backend.name]
        if isinstance(answer, Exception):
            raise answer
        return [RunSpec(variant=variant, notes=("its own",)) for variant in answer]

    made = [(types.SimpleNamespace(name=name), None) for name in answers]
    return [(owner[0].name, draft) for owner, draft in expand_shared("m", made, asked, expand)]


def modes(found):
    return [(name, draft.variant.mode) for name, draft in found]


def test_a_card_stands_for_the_runs_of_all_that_share_it():
    assert modes(shared(PRETRAIN, TUNE)) == [("titan", "pretrain"), ("tune", "lora"), ("tune", "full")]


def test_what_one_refuses_another_has_and_nothing_is_said_of_it_where_it_was_chosen():
    found = shared(NONE, TUNE, mode="lora")
    assert modes(found) == [("tune", "lora"), ("tune", "full")]
    assert found[0][1].notes == ("its own",)


def test_who_has_nothing_for_this_machine_is_told_once():
    first, second = (draft.notes for _, draft in shared(NONE, TUNE))
    assert first == ("its own", "left out: backend none (no recipe is known for m on X)")
    assert second == ("its own",)


def test_one_tag_is_one_release_and_the_others_are_told():
    found = shared(OLD, PRETRAIN)
    assert modes(found) == [("titan", "pretrain")]
    assert found[0][1].notes[-1] == "old is known in v25.6 only, and left out"
    assert shared(OLD, PRETRAIN, mode="pretrain")[0][1].notes == ("its own",), "who chooses leaves out on purpose"
    assert modes(shared(OLD, mode="old")) == [("old", "old")]
    assert modes(shared(OLD, PRETRAIN, release="v25.6")) == [("old", "old"), ("titan", "pretrain")]


def test_releases_are_ordered_by_their_numbers_and_one_without_an_image_is_the_oldest():
    nine = ("nine", [Variant(model="m", mode="a", release="v25.9")])
    eleven = ("eleven", [Variant(model="m", mode="b", release="v25.11")])
    upstream = ("upstream", [Variant(model="m", mode="c", release="upstream")])
    assert modes(shared(nine, eleven, upstream)) == [("eleven", "b")]
    assert modes(shared(upstream, ("more", [Variant(model="m", mode="d")]))) == [("upstream", "c"), ("more", "d")]


def test_a_refusal_of_all_is_one_sentence_with_what_each_of_them_knows():
    with pytest.raises(UsageProblem) as caught:
        shared(NONE, NEITHER)
    assert caught.value.message == "no recipe is known for m on X"
    assert caught.value.hint == "nearest known: a; c; b"
    assert not caught.value.more


@each_row("turn", [1, -1])
def test_a_reason_that_one_of_them_knows_is_told_for_all(turn):
    why = RefusedRun(cards=("m",), why="no unit has it", way="--precision BF16")
    asked = "no recipe is known for m on X", {}, {}
    knows, other = UnknownRun(*asked, [(0.0, "a")], why), UnknownRun(*asked, [(0.0, "b")])
    with pytest.raises(UsageProblem) as caught:
        shared(*(("knows", knows), ("other", other))[::turn])
    assert (caught.value.message, caught.value.hint) == (f"{asked[0]}: no unit has it", "--precision BF16")


def test_a_single_refusal_is_told_in_its_own_words():
    with pytest.raises(UsageProblem) as caught:
        shared(("only", UsageProblem("extra has 'a'", "key=value; more: words")))
    assert (caught.value.message, caught.value.hint) == ("extra has 'a'", "key=value; more: words")


def test_refusals_in_the_same_words_without_known_runs_keep_their_hint():
    same = UsageProblem("steps is 0", "--steps N: a whole number")
    with pytest.raises(UsageProblem) as caught:
        shared(("a", same), ("b", same))
    assert caught.value.hint == "--steps N: a whole number"


def test_refusals_in_different_words_are_all_told():
    with pytest.raises(UsageProblem) as caught:
        shared(NONE, ("other", UsageProblem("seq_len is no number", "--seq-len N")))
    assert caught.value.more == (("seq_len is no number", "--seq-len N"),)


def test_two_that_run_the_same_mode_are_an_error():
    with pytest.raises(PluginError, match="backends titan and twin both claim mode pretrain of card 'm'") as caught:
        shared(PRETRAIN, ("twin", PRETRAIN[1]))
    assert caught.value.hint.startswith("--backend ")
    with pytest.raises(PluginError, match="both claim card 'm'"):
        shared(("a", [None]), ("b", [None]))


def test_what_another_release_has_is_told_in_one_note_unless_a_sharer_runs_it_in_this_one():
    book = {"pretrain BF16": "v25.2", "pretrain FP8": "v25.3", "old BF16": "v25.2"}

    def expand(backend, plugin):
        variant = Variant(model="m", mode=backend.name, precision="BF16", release="v26.1")
        return [RunSpec(variant=variant, left_out=book if backend.name == "tune" else {})]

    made = [(types.SimpleNamespace(name=name), None) for name in ("pretrain", "tune")]
    ((_, first), (_, second)) = expand_shared("m", made, {}, expand)
    told = "pretrain FP8 is known in v25.3 only, old BF16 is known in v25.2 only, and left out"
    assert first.notes == (told,)
    assert second.notes == ()


def test_a_recipe_s_name_that_two_have_is_the_user_s_choice():
    with pytest.raises(UsageProblem, match="backends titan and twin both have a recipe 'r'") as caught:
        shared(PRETRAIN, ("twin", PRETRAIN[1]), recipe="r")
    assert caught.value.hint == "--backend titan, or --backend twin"
