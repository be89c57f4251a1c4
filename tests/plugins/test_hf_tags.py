"""MAD's tags of hf: modes, sizes by release and GPU as published, images, commits, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.model import Request, RunSpec
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import machine_of
from tests.plugins.test_torchtitan_tags import card_of
from tests.rows import each_row

EIGHT, OSS20, OSS120 = "pyt_train_llama-3.1-8b", "pyt_train_gpt_oss_20b", "pyt_train_gpt_oss_120b"
LLAMA2, LLAMA31 = "pyt_train_llama-2-70b", "pyt_train_llama-3.1-70b"
OLD_IMAGE, NEW_IMAGE = "rocm/pytorch-training", "rocm/primus"
LORA = "HF_finetune_lora"
# card, GPU, release (the newest where empty) → image, and its runs: mode, precision, sequences, tokens, steps
PUBLISHED = [
    (EIGHT, "MI300X", "v25.3", f"{OLD_IMAGE}:v25.3", {("pretrain", "FP8", 3, 8192, 128)}),
    (EIGHT, "MI325X", "v25.6", f"{OLD_IMAGE}:v25.6", {("HF_pretrain", "FP8", 3, 8192, 120)}),
    (EIGHT, "MI355X", "v25.8", f"{OLD_IMAGE}:v25.8", {("HF_pretrain", "FP8", 3, 8192, 120)}),
    (EIGHT, "MI350X", "v25.11", f"{NEW_IMAGE}:v25.11", {("HF_pretrain", "FP8", 3, 8192, 120)}),
    (EIGHT, "MI300X", "", f"{NEW_IMAGE}:v26.1", {("HF_pretrain", "FP8", 3, 8192, 120)}),
    (EIGHT, "MI300X", "upstream", "", {("HF_pretrain", "BF16", 3, 8192, 40), ("HF_pretrain", "FP8", 2, 8192, 40)}),
    (EIGHT, "H200", "", "", {("HF_pretrain", "BF16", 1, 8192, 40), ("HF_pretrain", "FP8", 1, 8192, 40)}),
    (EIGHT, "H100", "", "", {("HF_pretrain", "BF16", 1, 8192, 40)}),
    (OSS20, "MI300X", "v25.7", f"{OLD_IMAGE}:v25.7", {(LORA, "BF16", 8, 8192, 10)}),
    (OSS20, "MI355X", "", f"{NEW_IMAGE}:v26.1", {(LORA, "BF16", 8, 8192, 10)}),
    (OSS120, "MI325X", "v25.8", f"{OLD_IMAGE}:v25.8", {(LORA, "BF16", 8, 8192, 10)}),
    (OSS20, "H200", "", "", {(LORA, "BF16", 2, 8192, 10)}),
    (OSS120, "H200", "upstream", "", {(LORA, "BF16", 1, 8192, 10)}),
    (LLAMA2, "MI300X", "", f"{OLD_IMAGE}:v25.6", {(LORA, "BF16", 8, 3072, 5)}),
    (LLAMA31, "MI325X", "v25.5", f"{OLD_IMAGE}:v25.5", {(LORA, "BF16", 8, 3072, 5)}),
    (LLAMA31, "H100", "", "", {(LORA, "BF16", 1, 3072, 5)}),
]


def drafts_of(name: str, device: str, **settings: str) -> list[RunSpec]:
    return list(HuggingFace().expand(Request(card=card_of(name), tag=name, settings=settings), machine_of(device)))


@each_row(("card", "device", "release", "image", "runs"), PUBLISHED)
def test_runs_are_those_that_are_published(card, device, release, image, runs):
    drafts = drafts_of(card, device, **({"release": release} if release else {}))
    variants = [draft.variant for draft in drafts]
    assert {(one.mode, one.precision, one.micro_batch, one.seq_len, one.steps) for one in variants} == runs
    assert {draft.image for draft in drafts} == {image}


@each_row("card", [OSS20, OSS120, LLAMA2, LLAMA31])
@each_row("device", ["MI300X", "H200"])
def test_fine_tuning_is_mad_s(card, device):
    (draft,) = drafts_of(card, device)
    settings = draft.settings
    assert int(settings["accumulation"]) * int(draft.variant.micro_batch or 0) == 8 * 4, "per step and GPU"
    lora = ("lora_r", "lora_alpha", "lora_dropout", "lr", "lr_schedule", "weight_decay", "seed", "lr_warmup_steps")
    assert [settings[key] for key in lora] == [8, 16, 0.1, 1e-4, "cosine", 1e-4, 100, 0]
    targets = {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"}
    assert set(str(settings["lora_targets"]).split(",")) == targets
    assert (settings["method"], settings["strategy"], settings["gradient_checkpointing"]) == ("lora", "fsdp", True)
    assert draft.launcher == "accelerate"


@each_row(
    ("card", "device", "asked"),
    [
        (EIGHT, "MI300X", {"mode": "HF_pretrain", "precision": "BF16", "release": "v26.1"}),
        (EIGHT, "MI300X", {"mode": "HF_pretrain", "release": "v25.2"}),
        (EIGHT, "MI355X", {"release": "v25.6"}),
        (EIGHT, "MI300X", {"mode": "finetune_lora"}),
        (OSS20, "MI300X", {"precision": "FP8"}),
        (OSS20, "MI300X", {"release": "v25.6"}),
        (OSS120, "H100", {}),
        (LLAMA31, "MI300X", {"release": "v25.8"}),
        (LLAMA31, "MI300X", {"mode": "HF_finetune_qlora"}),
        (LLAMA2, "MI355X", {}),
    ],
)
def test_what_nobody_published_is_refused_with_the_nearest(card, device, asked):
    with pytest.raises(UsageProblem) as caught:
        drafts_of(card, device, **asked)
    assert "no recipe is known for" in caught.value.message and "nearest known: " in caught.value.hint


def test_bf16_is_our_own_script_s_and_mad_s_is_fp8_s():
    (mine,) = drafts_of(EIGHT, "MI300X", mode="HF_pretrain", precision="BF16")
    assert mine.variant.release == "upstream" and "script" not in mine.settings and mine.settings["strategy"] == "fsdp"
    (mads,) = drafts_of(EIGHT, "MI300X", mode="HF_pretrain")
    assert mads.settings["script"] == "train_llama" and mads.variant.precision == "FP8"

    # the first launcher is that of the strategy
    def launcher(**asked: str) -> str:
        request = Request(card=card_of(EIGHT), tag=EIGHT, settings={"release": "upstream", **asked})
        return HuggingFace().expand(request, machine_of("H200"))[0].launcher

    assert launcher(precision="BF16") == "accelerate"
    assert launcher(precision="BF16", strategy="ddp") == "torchrun"
    assert launcher(precision="FP8", strategy="ddp") == "accelerate"
    # a run says what it reads and runs in
    (draft,) = drafts_of(OSS20, "H200")
    told = " ".join(draft.notes)
    assert "reads openai/gpt-oss-20b and smangrul/ultrachat-10k-chatml from the hub" in told
    assert "release upstream names no image" in told
    assert "from the hub" not in " ".join(drafts_of(OSS20, "H200", model_id="", dataset="")[0].notes)
    assert "names no image" not in " ".join(drafts_of(OSS20, "MI300X")[0].notes)


@each_row(
    ("release", "commit"),
    [("v25.3", "ccdb8da2"), ("v25.6", "151b30f6"), ("v25.7", "f0186e91"), ("v25.8", "6e5e86d9"), ("v26.1", "a1899e90")],
)
def test_mad_s_script_is_that_of_the_release(release, commit):
    (draft,) = drafts_of(EIGHT, "MI300X", release=release)
    assert str(draft.settings["mad_commit"]).startswith(commit) and len(str(draft.settings["mad_commit"])) == 40
    assert draft.launcher == "accelerate" and "lora_r" not in draft.settings


def test_mad_s_figures_and_variables_come_with_its_tags():
    # mad's figures are those of its modes
    def names(draft: RunSpec) -> list[str]:
        return [metric.metric for metric in draft.result_rule.mad]

    (mads,) = drafts_of(EIGHT, "MI300X")
    assert names(mads) == ["tok_per_s_per_gpu", "TFLOPS_per_gpu"] and not mads.result_rule.loss_expected
    (own,) = drafts_of(EIGHT, "MI300X", release="upstream", precision="BF16")
    assert names(own) == ["tok_per_s_per_gpu"] and own.result_rule.mad[0].second_half
    assert own.result_rule.loss_expected
    (lora,) = drafts_of(OSS20, "MI300X")
    assert names(lora) == ["train_samples_per_s"]
    assert (lora.result_rule.mad[0].rule, lora.result_rule.mad[0].key) == ("summary", "train_samples_per_second")

    def env(card: str, device: str = "MI300X", **asked: str) -> dict[str, str]:
        return dict(drafts_of(card, device, **asked)[0].env)

    assert env(EIGHT)["GPU_MAX_HW_QUEUES"] == "8" and "HSA_NO_SCRATCH_RECLAIM" not in env(EIGHT)
    assert "PYTORCH_ALLOC_CONF" not in env(EIGHT), "MAD's script has what MAD exports, and no more"
    assert env(OSS20)["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert "HSA_NO_SCRATCH_RECLAIM" not in env(LLAMA2, release="v25.6")
    assert "HSA_NO_SCRATCH_RECLAIM" not in env(LLAMA31, release="v25.5")
    assert "GPU_MAX_HW_QUEUES" not in env(OSS20, "H200")
    # mad's script has weights and biases off on any gpu
    request = Request(card=card_of(OSS20), tag=OSS20, settings={"recipe": "llama-3.1-8b-accelerate"})
    for device in ("MI300X", "H200"):
        (draft,) = HuggingFace().expand(request, machine_of(device))
        assert draft.env == {"WANDB_DISABLED": "true"}


@each_row("card", [EIGHT, OSS20, OSS120, LLAMA2, LLAMA31])
def test_a_run_of_mad_s_has_weights_and_biases_off_as_mad_does(card):
    assert {draft.env["WANDB_DISABLED"] for draft in drafts_of(card, "MI300X")} == {"true"}


def named(recipe: str, **asked: str) -> RunSpec:
    request = Request(card=card_of(OSS20), tag=OSS20, settings={"recipe": recipe, **asked})
    (draft,) = HuggingFace().expand(request, machine_of("H200"))
    return draft


@each_row(
    ("recipe", "asked", "mode"),
    [
        ("tiny_lora", {}, "finetune_lora"),
        ("tiny_lora", {"method": "full"}, "pretrain"),
        ("tiny_lora", {"method": "qlora"}, "finetune_qlora"),
        ("tiny_lora", {"method": "full", "model_id": "a/b"}, "finetune_fw"),
        ("tiny_qlora", {"method": "lora"}, "finetune_lora"),
        ("tiny_pretrain", {}, "pretrain"),
        ("llama3.1_8B_pretrain", {"model_id": "meta-llama/Llama-3.1-8B"}, "finetune_fw"),
        ("gpt_oss_20B_lora", {"model_id": "", "dataset": ""}, "HF_finetune_lora"),
        ("gpt_oss_20B_lora", {"method": "full"}, "finetune_fw"),
        ("llama3.1_70B_lora", {"method": "qlora"}, "finetune_qlora"),
        ("llama-3.1-8b-accelerate", {}, "HF_pretrain"),
        ("tiny_lora", {"method": "dora"}, "finetune_lora"),
    ],
)
def test_the_mode_is_that_of_what_trains(recipe, asked, mode):
    draft = named(recipe, **asked)
    assert draft.variant.mode == mode
    own = {"tiny_qlora": "finetune_qlora"}.get(recipe)
    assert any(f"mode {mode}, not the recipe's" in note for note in draft.notes) == (
        mode != (own or named(recipe).variant.mode)
    )
    assert named(recipe, **asked, mode=mode.upper()).variant.mode == mode, "asked for, it is the same"


def test_a_tag_s_mode_is_mad_s_only_where_mad_s_settings_run():
    (draft,) = drafts_of(OSS20, "H200", method="full")
    assert draft.variant.mode == "finetune_fw"
    (draft,) = drafts_of(EIGHT, "H200", precision="BF16", model_id="a/b")
    assert draft.variant.mode == "finetune_fw"
    assert [one.metric for one in draft.result_rule.mad] == ["train_samples_per_s"]
    (draft,) = drafts_of(OSS20, "MI300X", method="qlora")
    assert "HSA_NO_SCRATCH_RECLAIM" not in draft.env
    # a card's own method decides the mode too
    card = replace(card_of(OSS20), backend="hf", recipe={"name": "tiny_lora", "method": "qlora"})
    (draft,) = HuggingFace().expand(Request(card=card, tag="x", settings={}), machine_of("H200"))
    assert draft.variant.mode == "finetune_qlora"
    # what a release is said of is no setting
    for card, release in ((LLAMA2, "v25.6"), (OSS20, "v26.1"), (EIGHT, "v26.1")):
        assert "scratch_reclaim" not in drafts_of(card, "MI300X", release=release)[0].settings


@each_row(
    ("recipe", "asked"),
    [
        ("tiny_lora", {"mode": "pretrain"}),
        ("tiny_lora", {"mode": "finetune_lora", "method": "full"}),
        ("llama3.1_8B_pretrain", {"mode": "pretrain", "model_id": "a/b"}),
        ("llama-3.1-8b-accelerate", {"mode": "pretrain"}),
    ],
)
def test_a_mode_that_the_settings_do_not_train_is_refused(recipe, asked):
    with pytest.raises(UsageProblem, match=f"runs mode .* not {asked['mode']}"):
        named(recipe, **asked)
    with pytest.raises(UsageProblem, match="runs mode finetune_fw"):
        drafts_of(OSS20, "H200", mode=LORA, method="full")


def test_the_tag_s_backends_share_it(tmp_path):
    card = card_of(EIGHT)
    assert HuggingFace().claim(card, tmp_path) == Torchtitan().claim(card, tmp_path) == 30
    assert HuggingFace().claim(card_of("pyt_train_llama-3.1-405b"), tmp_path) == 0


@each_row(
    ("words", "code", "told"),
    [
        (["--mode", "HF_pretrain"], 0, "rocm/primus:v26.1"),
        (["--mode", "hf_pretrain", "--precision", "BF16", "--image-release", "v25.8"], 4, "no recipe is known"),
        (["--mode", "pretrain", "--image-release", "v25.3"], 0, "rocm/pytorch-training:v25.3"),
        (["--mode", "HF_pretrain", "--set", "strategy=fsdp"], 4, "strategy"),
    ],
)
def test_the_whole_command_chooses(capsys, tmp_path, monkeypatch, words, code, told):
    monkeypatch.chdir(tmp_path)
    assert call(["explain", EIGHT, "--machine", "8xMI300X", *words]) == code
    assert told in "".join(capsys.readouterr())
