"""The runs of MAD's tags, against the commands of AMD's documents and of MAD's script as they are written there."""

from __future__ import annotations

import pytest

from madlite.backends.recipe_book import read_book
from madlite.errors import UsageProblem
from madlite_plugins.megatron_lm.backend import MegatronLM
from tests.plugins.megatron_lm_tree import Tree, drafts, machine_of, plan_of
from tests.rows import each_row

LLAMA3, LLAMA2 = "bash examples/llama/train_llama3.sh", "bash examples/llama/train_llama2.sh"
DOCUMENT_V25_4 = [
    (
        "llama-3.1-8b",
        "FP8",
        f"TEE_OUTPUT=1 MBS=2 BS=128 TP=1 TE_FP8=1 SEQ_LENGTH=8192 MODEL_SIZE=8 TOTAL_ITERS=50 {LLAMA3}",
    ),
    (
        "llama-3.1-8b",
        "BF16",
        f"TEE_OUTPUT=1 MBS=2 BS=128 TP=1 TE_FP8=0 SEQ_LENGTH=8192 MODEL_SIZE=8 TOTAL_ITERS=50 {LLAMA3}",
    ),
    (
        "llama-2-7b",
        "FP8",
        f"TEE_OUTPUT=1 MBS=4 BS=256 TP=1 TE_FP8=1 SEQ_LENGTH=4096 MODEL_SIZE=7 TOTAL_ITERS=50 {LLAMA2}",
    ),
    (
        "llama-2-7b",
        "BF16",
        f"TEE_OUTPUT=1 MBS=4 BS=256 TP=1 TE_FP8=0 SEQ_LENGTH=4096 MODEL_SIZE=7 TOTAL_ITERS=50 {LLAMA2}",
    ),
    (
        "llama-3.1-70b",
        "BF16",
        "TEE_OUTPUT=1 MBS=3 BS=24 TP=1 TE_FP8=0 FSDP=1 RECOMPUTE=1 SEQ_LENGTH=8192 MODEL_SIZE=70 TOTAL_ITERS=50 "
        + LLAMA3,
    ),
    (  # with MAD's micro batch: the document's 3 does not divide 56 over 8 GPUs
        "llama-2-70b",
        "BF16",
        "TEE_OUTPUT=1 MBS=7 BS=56 TP=1 TE_FP8=0 FSDP=1 RECOMPUTE=1 SEQ_LENGTH=4096 MODEL_SIZE=70 TOTAL_ITERS=50 "
        + LLAMA2,
    ),
    (
        "deepseek-v2-lite-16b",
        "BF16",
        "GEMM_TUNING=1 PR=bf16 MBS=4 AC=none SEQ_LEN=4096 PAD_LEN=4096 TRAIN_ITERS=50 "
        "bash examples/deepseek_v2/train_deepseekv2.sh",
    ),
]
_8B = "TEE_OUTPUT=1 TP=1 SEQ_LENGTH=8192 MODEL_SIZE=8 FSDP=0 TOTAL_ITERS=50 " + LLAMA3
_70B = "CKPT_FORMAT=torch_dist TEE_OUTPUT=1 RECOMPUTE=1 TP=1 SEQ_LENGTH=8192 MODEL_SIZE=70 FSDP=1 " + LLAMA3
_MIXTRAL = (
    "TOKENIZER_MODEL=/tokenizer/tokenizer.model TEE_OUTPUT=1 MBS=1 GBS=16 TP_SIZE=1 PP_SIZE=1 PR=bf16 "
    "EP_SIZE=8 ETP_SIZE=1 FORCE_BALANCE=true MOCK_DATA=1 RUN_ENV=cluster TRAIN_ITERS=50 "
    "bash examples/mixtral/train_mixtral_moe.sh"
)
_QWEN = "CP=1 PP=1 SEQ_LENGTH=2048 TOTAL_ITERS=50 MOCK_DATA=1 bash examples/qwen/train_qwen2.sh"
MAD_V25_9 = [
    ("llama-3.1-8b", "MI300X", "BF16", f"MBS=2 BS=128 TE_FP8=0 {_8B}"),
    ("llama-3.1-8b", "MI325X", "FP8", f"MBS=2 BS=128 TE_FP8=1 {_8B}"),
    ("llama-3.1-8b", "MI350X", "FP8", f"MBS=4 BS=512 TE_FP8=1 {_8B}"),
    ("llama-3.1-8b", "MI355X", "BF16", f"MBS=4 BS=512 TE_FP8=0 {_8B}"),
    ("llama-3.1-70b", "MI300X", "BF16", f"MBS=3 BS=24 TE_FP8=0 TOTAL_ITERS=50 {_70B}"),
    ("llama-3.1-70b", "MI355X", "BF16", f"MBS=3 BS=24 TE_FP8=0 TOTAL_ITERS=50 {_70B}"),
    ("llama-3.1-70b", "MI355X", "FP8", f"MBS=3 BS=24 TE_FP8=1 TOTAL_ITERS=10 {_70B}"),
    (
        "llama-3.1-70b-proxy",
        "MI300X",
        "FP8",
        f"FP8_WEIGHT_TRANSPOSE_CACHE=0 MBS=3 BS=24 TE_FP8=1 TOTAL_ITERS=10 NUM_LAYERS=40 {_70B}",
    ),
    (
        "llama-3.3-70b",
        "MI325X",
        "BF16",
        f"TOKENIZER_MODEL=meta-llama/Llama-3.3-70B-Instruct MBS=2 BS=16 TE_FP8=0 PP=1 TOTAL_ITERS=50 {_70B}",
    ),
    ("llama-3.3-70b", "MI355X", "BF16", f"MBS=6 BS=48 TE_FP8=0 TOTAL_ITERS=50 {_70B}"),
    (
        "llama-2-7b",
        "MI355X",
        "FP8",
        f"MBS=4 BS=256 TP=1 TE_FP8=1 SEQ_LENGTH=4096 MODEL_SIZE=7 FSDP=0 TOTAL_ITERS=50 {LLAMA2}",
    ),
    (
        "llama-2-70b",
        "MI300X",
        "BF16",
        "CKPT_FORMAT=torch_dist TEE_OUTPUT=1 RECOMPUTE=1 MBS=7 BS=56 TP=1 TE_FP8=0 SEQ_LENGTH=4096 MODEL_SIZE=70 "
        f"FSDP=1 TOTAL_ITERS=50 {LLAMA2}",
    ),
    (
        "deepseek-v3-proxy",
        "MI300X",
        "BF16",
        "NVTE_FUSED_ATTN_CK=0 FORCE_BANLANCE=true RUN_ENV=cluster MODEL_SIZE=671B TRAIN_ITERS=50 SEQ_LEN=4096 "
        "NUM_LAYERS=3 MICRO_BATCH_SIZE=1 GLOBAL_BATCH_SIZE=32 PR=bf16 TP=1 PP=1 ETP=1 EP=8 GEMM_TUNING=1 "
        "NVTE_CK_USES_BWD_V3=1 USE_GROUPED_GEMM=true MOE_USE_LEGACY_GROUPED_GEMM=true GPT_LAYER_IN_TE=true MOCK_DATA=1 "
        "bash examples/deepseek_v3/train_deepseekv3.sh",
    ),
    ("mixtral-8x7b", "MI355X", "BF16", f"RECOMPUTE_NUM_LAYERS=0 AC=none SEQLEN=4096 MODEL_SIZE=8x7B {_MIXTRAL}"),
    (
        "mixtral-8x22b-proxy",
        "MI300X",
        "BF16",
        f"RECOMPUTE_NUM_LAYERS=4 AC=full NUM_LAYERS=4 SEQLEN=8192 MODEL_SIZE=8x22B {_MIXTRAL}",
    ),
    (
        "qwen2.5-7b",
        "MI300X",
        "BF16",
        f"TP=1 MBS=10 BS=640 TE_FP8=0 MODEL_SIZE=7 TOKENIZER_MODEL=Qwen/Qwen2.5-7B {_QWEN}",
    ),
    (
        "qwen2.5-7b",
        "MI350X",
        "FP8",
        f"TP=1 MBS=10 BS=640 TE_FP8=1 MODEL_SIZE=7 TOKENIZER_MODEL=Qwen/Qwen2.5-7B {_QWEN}",
    ),
    (
        "qwen2.5-72b",
        "MI300X",
        "BF16",
        "FSDP=1 MBS=3 BS=24 TE_FP8=0 MODEL_SIZE=72 TOKENIZER_MODEL=Qwen/Qwen2.5-72B RECOMPUTE_ACTIVATIONS=full "
        f"CKPT_FORMAT=torch_dist {_QWEN}",
    ),
]


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
@pytest.mark.parametrize(("card", "precision", "command"), DOCUMENT_V25_4)
def test_the_commands_of_the_v25_4_document_are_one_run_each(tree, card, precision, command):
    asked = {"release": "v25.4", "precision": precision}
    as_documented(tree, plan_of(card, asked=asked), command)
    (draft,) = drafts(card, **asked)
    assert draft.image == "rocm/megatron-lm:v25.4"


@pytest.mark.host
@pytest.mark.parametrize(("card", "device", "precision", "command"), MAD_V25_9)
def test_mad_s_own_commands_of_v25_9(tree, card, device, precision, command):
    asked = {"release": "v25.9", "precision": precision}
    as_documented(tree, plan_of(card, machine_of(device), asked=asked), command)
    (draft,) = drafts(card, machine_of(device), **asked)
    assert draft.image == f"rocm/megatron-lm:v25.9_{machine_of(device).architecture}"


def test_qwen_72b_leaves_the_tensor_degree_to_its_script(tree):
    assert "TP" not in tree.given(plan_of("qwen2.5-72b"))


def test_a_tag_is_bf16_and_fp8_where_mad_runs_both():
    both = [draft.variant.precision for draft in drafts("llama-3.1-8b")]
    assert both == ["BF16", "FP8"]
    assert [draft.variant.precision for draft in drafts("llama-3.1-70b")] == ["BF16"]


def test_the_newest_release_is_taken_and_said():
    draft, _ = drafts("llama-2-7b")
    assert (draft.variant.release, draft.image) == ("v25.9", "rocm/megatron-lm:v25.9_gfx942")
    assert any("v25.9" in note for note in draft.notes)


def test_older_images_run_what_their_documents_say(tree):
    made = plan_of("llama-2-7b", asked={"release": "24.12-dev"})
    as_documented(tree, made, f"TEE_OUTPUT=1 MBS=5 BS=120 TP=8 TE_FP8=0 NO_TORCH_COMPILE=1 SEQ_LENGTH=4096 {LLAMA2}")
    as_documented(
        tree,
        plan_of("llama-3.1-8b", asked={"release": "v25.3"}),
        f"TEE_OUTPUT=1 MBS=2 BS=128 TP=1 TE_FP8=1 SEQ_LENGTH=8192 MODEL_SIZE=8 TOTAL_ITERS=10 {LLAMA3}",
    )
    v2 = plan_of("deepseek-v2-lite-16b", asked={"release": "v25.8"})
    assert (v2.variant.steps, v2.settings["nvte_fused_attn_ck"]) == (20, "0")


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
