"""The runs of MAD's tags, against the commands of AMD's documents and of MAD's script as they are written there."""

from __future__ import annotations

import pytest

from madlite.backends.recipe_book import read_book
from madlite.errors import UsageProblem
from madlite_plugins.megatron_lm.backend import MegatronLM
from tests.plugins.logs import LOGS, machine_of
from tests.plugins.megatron_lm_tree import Tree, drafts, plan_of
from tests.rows import each_row

COMMANDS = [
    line.split("\t")
    for line in (LOGS.parent / "megatron_commands.tsv").read_text().splitlines()
    if not line.startswith("#")
]
IMAGES = {"v25.4": "rocm/megatron-lm:v25.4", "v25.9": "rocm/megatron-lm:v25.9_{}"}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def as_documented(tree, made, command):
    """Hold that the script of the command ran with its variables, and none of them with another value."""
    *words, _, script = command.split()
    wanted = dict(word.split("=", 1) for word in words)
    given = tree.given(made)
    assert {name: given.get(name) for name in wanted} == wanted
    assert tree.told("called") == script
    assert given["MOCK_DATA"] == "1"


@pytest.mark.host
@each_row(("release", "card", "device", "precision", "command"), COMMANDS)
def test_the_commands_of_documents_and_of_mad_are_one_run_each(tree, release, card, device, precision, command):
    asked = {"release": release, **({"precision": precision} if precision else {})}
    as_documented(tree, plan_of(card, machine_of(device), asked=asked), command)
    if release in IMAGES:
        (draft,) = drafts(card, machine_of(device), **asked)
        assert draft.image == IMAGES[release].format(machine_of(device).architecture)


def test_qwen_72b_leaves_the_tensor_degree_to_its_script_and_v25_8_ends_deepseek_s_early(tree):
    assert "TP" not in tree.given(plan_of("qwen2.5-72b"))
    v2 = plan_of("deepseek-v2-lite-16b", asked={"release": "v25.8"})
    assert (v2.variant.steps, v2.settings["nvte_fused_attn_ck"]) == (20, "0")


def test_a_tag_is_bf16_and_fp8_where_mad_runs_both_in_the_newest_release():
    both = [draft.variant.precision for draft in drafts("llama-3.1-8b")]
    assert both == ["BF16", "FP8"]
    assert [draft.variant.precision for draft in drafts("llama-3.1-70b")] == ["BF16"]
    # the newest release is taken and said
    draft, _ = drafts("llama-2-7b")
    assert (draft.variant.release, draft.image) == ("v25.9", "rocm/megatron-lm:v25.9_gfx942")
    assert any("v25.9" in note for note in draft.notes)


@each_row(
    ("card", "device", "asked"),
    [
        ("deepseek-v2-lite-16b", "MI300X", {"release": "v25.9"}),  # MAD refuses it there
        ("deepseek-v2-lite-16b", "MI355X", {}),
        ("llama-3.1-70b", "MI300X", {"precision": "FP8"}),  # needs two nodes
        ("llama-3.3-70b", "MI355X", {"precision": "FP8"}),
        ("llama-3.1-8b", "MI355X", {"release": "v25.8"}),
        ("llama-3.1-8b", "MI300X", {"release": "v26.1"}),
        ("llama-3.1-70b-proxy", "MI300X", {"precision": "BF16"}),
    ],
)
def test_what_nobody_published_is_refused_with_the_nearest(card, device, asked):
    with pytest.raises(UsageProblem) as refused:
        drafts(card, machine_of(device), **asked)
    assert "nearest known: pretrain" in refused.value.hint


def test_every_run_says_where_it_was_published_and_passes_its_own_checks():
    backend = MegatronLM()
    book = read_book(backend.book)
    assert all(run.source for run in book.runs)
    for run in book.runs:
        for release in run.releases:
            for device in run.devices:
                name = run.cards[0].removeprefix("pyt_megatron_lm_train_")
                asked = {"release": release, "precision": str(run.values["precision"])}
                made = plan_of(name, machine_of(device), asked=asked)
                said = [finding.message for finding in backend.check(made)]
                assert all(message.startswith("a proxy of ") and "-proxy" in name for message in said), said


def test_settings_that_a_script_does_not_take_are_not_there():
    (deepseek,), (llama, _) = drafts("deepseek-v2-lite-16b"), drafts("llama-3.1-8b")
    assert {"fsdp", "tp", "nnodes", "dataset"} & set(deepseek.settings) == set()
    assert {"ac", "pad_len", "ep", "pr"} & set(llama.settings) == set()
    (own, _) = drafts("llama-3.1-8b", script="examples/new/train.sh")
    assert own.settings["variables"] == "" and {"fsdp", "ac", "ep"} <= set(own.settings)
