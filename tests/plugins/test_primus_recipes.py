"""The recipes of primus: rows of published documents and tables by hand, what is refused, the book as a whole."""

from __future__ import annotations

import itertools
import re

import pytest

from madlite.backends.recipe_book import read_book
from madlite.errors import UsageProblem
from madlite_plugins.primus.backend import Primus
from tests.plugins.primus_plans import findings, machine, plan, plans
from tests.plugins.rendered import run_sh
from tests.rows import each_row

TITAN, MEGATRON = "primus_pyt_train_", "primus_pyt_megatron_lm_train_"
BOOK = read_book(Primus.book)

# Every command of ROCm's document of Primus and PyTorch v25.10: file, GPU → folder and batch per GPU.  Its command for
# Llama 3.1 8B in FP8 on MI355X names the file for BF16; the file for FP8 is the one that was meant.
V25_10 = {
    ("llama-3.1-8b", "BF16", "llama3.1_8B-BF16"): {"MI355X": 6, "MI350X": 6, "MI325X": 6, "MI300X": 4},
    ("llama-3.1-8b", "FP8", "llama3.1_8B-FP8"): {"MI355X": 8, "MI350X": 8, "MI325X": 7, "MI300X": 5},
    ("llama-3.1-70b", "BF16", "llama3.1_70B-BF16"): {"MI355X": 8, "MI350X": 8, "MI325X": 6, "MI300X": 4},
    ("llama-3.1-70b", "FP8", "llama3.1_70B-FP8"): {"MI355X": 6, "MI350X": 6, "MI325X": 5, "MI300X": 3},
    ("deepseek-v2", "BF16", "deepseek_v3_16b"): {"MI355X": 16, "MI350X": 16, "MI325X": 10, "MI300X": 8},
    ("deepseek-v2", "FP8", "deepseek_v3_16b"): {"MI355X": 16, "MI350X": 16, "MI325X": 8, "MI300X": 8},
}
FOLDERS = {"MI355X": "MI355X", "MI350X": "MI355X", "MI325X": "MI300X", "MI300X": "MI300X"}


@each_row(
    ("tag", "precision", "file", "gpu", "batch"),
    [(*key, gpu, batch) for key, batches in V25_10.items() for gpu, batch in batches.items()],
)
def test_the_document_of_v25_10(tag, precision, file, gpu, batch):
    made = plan(TITAN + tag, machine(gpu), precision=precision, release="v25.10")
    assert made.settings["config"] == f"examples/torchtitan/configs/{FOLDERS[gpu]}/{file}-pretrain.yaml"
    assert made.variant.micro_batch == batch
    assert f"--training.local_batch_size {batch}\n" in run_sh(made)
    assert made.variant.seq_len == (4096 if tag == "deepseek-v2" else 8192)
    assert made.variant.steps == (15 if tag == "deepseek-v2" else 50)
    assert made.image.ref == "rocm/primus:v25.10"
    assert made.machine.device == gpu


# tag, GPU, release, precision → file in the framework's configs, micro batch, global batch, steps
ROWS = """
llama-3.1-8b   MI300X v25.9  BF16 llama3.1_8B-BF16 4 - 50
llama-3.1-8b   MI355X v25.9  BF16 llama3.1_8B-BF16 5 - 50
llama-3.1-8b   MI355X v25.9  FP8  llama3.1_8B-FP8 8 - 50
llama-3.1-8b   MI325X v25.11 FP8  MI300X/llama3.1_8B-FP8 7 - 50
llama-3.1-8b   MI300X v26.1  BF16 MI300X/llama3.1_8B-BF16 4 - 50
llama-3.1-8b   MI355X v26.6  FP8  MI355X/llama3.1_8B-FP8 8 - 50
llama-3.1-8b   MI325X v26.2  BF16 MI300X/llama3.1_8B-BF16 4 - 50
llama-3.1-8b   MI325X v26.3  BF16 MI325X/llama3.1_8B-BF16 5 - 50
llama-3.1-8b   MI325X v26.5  FP8  MI325X/llama3.1_8B-FP8 7 - 25
llama-3.1-70b  MI300X v26.1  FP8  MI300X/llama3.1_70B-FP8 3 - 50
llama-3.1-70b  MI300X v26.4  FP8  MI300X/llama3.1_70B-FP8 1 - 50
llama-3.1-70b  MI325X v26.3  BF16 MI325X/llama3.1_70B-BF16 2 32 50
llama-3.1-70b  MI325X v26.6  BF16 MI325X/llama3.1_70B-BF16 3 48 10
llama-3.1-70b  MI355X v26.1  BF16 MI355X/llama3.1_70B-BF16 8 - 10
llama-3.1-70b  MI355X v26.3  FP8  MI355X/llama3.1_70B-FP8 3 96 50
llama-3.1-70b  MI350X v26.4  FP8  MI355X/llama3.1_70B-FP8 6 96 50
llama-3.1-405b MI355X v26.4  FP8  MI355X/llama3.1_405B-FP8 3 192 50
deepseek-v3-16b MI300X v26.4 BF16 MI300X/deepseek_v3_16b-BF16 8 - 15
deepseek-v3-16b MI300X v26.5 BF16 MI300X/deepseek_v3_16b-BF16 6 - 15
deepseek-v3-16b MI355X v26.4 BF16 MI355X/deepseek_v3_16b-BF16 13 - 50
deepseek-v3-16b MI355X v26.5 BF16 MI355X/deepseek_v3_16b-BF16 9 - 50
deepseek-v3-16b MI355X v26.6 FP8 MI355X/deepseek_v3_16b-FP8 11 - 15
deepseek-v3-16b MI325X v26.4 BF16 MI325X/deepseek_v3_16b-BF16 8 - 20
megatron:llama-3.1-8b MI300X v25.8 BF16 llama3.1_8B 2 128 50
megatron:llama-3.1-8b MI300X v25.8 FP8 llama3.1_8B 2 128 50
megatron:llama-3.1-8b MI355X v25.9 FP8 llama3.1_8B 4 512 50
megatron:llama-3.1-8b MI355X v25.10 BF16 MI355X/llama3.1_8B 4 512 50
megatron:llama-3.1-8b MI355X v26.1 FP8 MI355X/llama3.1_8B-FP8 4 256 50
megatron:llama-3.1-8b MI355X v26.5 MXFP8 MI355X/llama3.1_8B-MXFP8 6 384 50
megatron:llama-3.1-8b MI355X v26.6 MXFP4 MI355X/llama3.1_8B-MXFP4 6 384 50
megatron:llama-3.1-8b MI325X v26.4 BF16 MI325X/llama3.1_8B-BF16 4 128 25
megatron:llama-3.1-8b_overlay MI300X v26.5 FP8 MI300X/llama3.1_8B-FP8 2 128 50
megatron:llama-3.1-70b MI300X v26.2 BF16 MI300X/llama3.1_70B-BF16 3 24 50
megatron:llama-3.1-70b MI355X v26.2 BF16 MI355X/llama3.1_70B-BF16 1 128 50
megatron:llama-3.1-70b MI355X v26.4 FP8 MI355X/llama3.1_70B-FP8 4 32 50
megatron:llama-3.1-70b MI355X v26.5 FP8 MI355X/llama3.1_70B-FP8 3 24 50
megatron:llama-3.1-70b MI325X v26.6 BF16 MI325X/llama3.1_70B-BF16 3 96 10
megatron:llama-3.1-70b-proxy MI300X v26.3 FP8 MI300X/llama3.1_70B-FP8 3 24 50
megatron:llama-3.3-70b MI300X v25.8 BF16 llama3_70B 2 16 50
megatron:llama-3.3-70b MI300X v25.10 BF16 MI300X/llama3.3_70B 2 16 50
megatron:llama-3.3-70b MI355X v26.6 BF16 MI355X/llama3.3_70B-BF16 6 48 50
megatron:llama-2-7b MI355X v26.2 FP8 MI355X/llama2_7B-FP8 13 416 50
megatron:llama-2-7b MI355X v26.3 FP8 MI355X/llama2_7B-FP8 12 384 50
megatron:llama-2-70b MI355X v26.4 BF16 MI355X/llama2_70B-BF16 14 224 50
megatron:llama-2-70b MI355X v26.6 BF16 MI355X/llama2_70B-BF16 13 104 50
megatron:deepseek-v2-lite-16b MI300X v25.8 BF16 deepseek_v2_lite 4 256 50
megatron:deepseek-v2-lite-16b MI300X v26.1 BF16 MI300X/deepseek_v2_lite-BF16 4 640 50
megatron:deepseek-v2-lite-16b MI355X v25.10 BF16 MI355X/deepseek_v2_lite 12 768 50
megatron:deepseek-v3-proxy MI300X v25.8 BF16 deepseek_v3 4 256 50
megatron:deepseek-v3-proxy MI300X v26.2 BF16 MI300X/deepseek_v3-BF16 3 192 50
megatron:deepseek-v3-proxy MI355X v26.6 BF16 MI355X/deepseek_v3-BF16 8 64 50
megatron:mixtral-8x7b MI355X v26.2 BF16 MI355X/mixtral_8x7B_v0.1-BF16 4 256 50
megatron:mixtral-8x7b MI325X v26.4 BF16 MI325X/mixtral_8x7B_v0.1-BF16 3 192 25
megatron:mixtral-8x22b-proxy MI300X v26.2 BF16 MI300X/mixtral_8x22B_v0.1-BF16 1 16 50
megatron:mixtral-8x22b-proxy MI350X v26.3 BF16 MI355X/mixtral_8x22B_v0.1-BF16 2 16 50
megatron:qwen2.5-7b MI355X v25.9 FP8 qwen2.5_7B 20 800 50
megatron:qwen2.5-7b MI325X v26.5 BF16 MI325X/qwen2.5_7B-BF16 12 384 20
megatron:qwen2.5-72b MI325X v26.4 BF16 MI325X/qwen2.5_72B-BF16 16 256 10
megatron:gpt-oss-20b MI355X v26.5 FP8 MI355X/gpt_oss_20B-FP8 6 48 50
megatron:qwen-3-30b MI355X v26.4 BF16 MI355X/qwen3_30B_A3B-BF16 8 512 10
megatron:qwen3-30b-a3b MI300X v26.3 FP8 MI300X/qwen3_30B_A3B-FP8 2 256 50
megatron:zebra-llama-1b MI300X v26.6 BF16 MI300X/zebra_llama_1B 8 64 50
megatron:zebra-llama-8b MI355X v26.2 BF16 MI355X/zebra_llama_8B 4 32 100
megatron:mamba-370m MI355X v26.6 BF16 MI300X/mamba_370M 52 416 50
megatron:mamba-370m MI300X v26.2 BF16 MI300X/mamba_370M 4 256 50
megatron:gpt-oss-120b_overlay MI325X v26.5 FP8 MI355X/gpt_oss_120B-FP8 1 2048 10
"""


@each_row("row", ROWS.strip().splitlines())
def test_rows_of_the_releases(row):
    tag, gpu, release, precision, file, micro, whole, steps = row.split()
    framework, _, name = tag.rpartition(":")
    made = plan((MEGATRON if framework else TITAN) + name, machine(gpu), precision=precision, release=release)
    assert made.settings["config"] == f"examples/{framework or 'torchtitan'}/configs/{file}-pretrain.yaml"
    assert (made.variant.micro_batch, made.variant.steps) == (int(micro), int(steps))
    assert made.variant.global_batch == (None if whole == "-" else int(whole))


@each_row(
    ("kind", "gpu", "release", "micro", "whole", "tp"),
    [
        ("lora", "MI300X", "v26.2", 2, 32, 1),
        ("lora", "MI325X", "v26.5", 1, 32, 1),
        ("sft", "MI300X", "v26.2", 2, 8, 2),
        ("sft", "MI355X", "v26.6", 1, 8, 1),
    ],
)
def test_post_training(kind, gpu, release, micro, whole, tp):
    made = plan(f"{MEGATRON}qwen-3-32b", machine(gpu), mode=f"posttrain/{kind}", release=release)
    folder = "MI355X" if gpu == "MI355X" else "MI300X"
    assert made.settings["config"] == f"examples/megatron_bridge/configs/{folder}/qwen3_32b_{kind}_posttrain.yaml"
    assert (made.variant.micro_batch, made.variant.global_batch, made.settings["tp"]) == (micro, whole, tp)
    assert (made.variant.steps, made.variant.seq_len) == (200, 8192)
    assert " -- train posttrain --config " in run_sh(made)


def test_both_post_trainings_are_one_tag_and_each_has_its_own():
    made = plans(f"{MEGATRON}qwen-3-32b")
    assert [one.variant.mode for one in made] == ["posttrain/lora", "posttrain/sft"]
    assert plan(f"{MEGATRON}qwen3-32b-sft").variant.mode == "posttrain/sft"
    # the mode of post training selects both and each keeps its name
    made = plans(f"{MEGATRON}qwen-3-32b", mode="posttrain")
    assert [one.variant.mode for one in made] == ["posttrain/lora", "posttrain/sft"]


def test_what_neither_document_nor_file_has_is_said_to_be_ours():
    def source(precision: str, release: str, gpu: str) -> str:
        made = plan(f"{TITAN}llama-3.1-405b", machine(gpu), precision=precision, release=release)
        (run,) = [
            run
            for run in BOOK.runs
            if run.cards[0] == f"{TITAN}llama-3.1-405b"
            and (run.values.get("precision", "BF16"), gpu, made.variant.micro_batch)
            == (precision, run.devices[0], run.values["micro_batch"])
            and release in run.releases
        ]
        return run.source

    assert "50 and 8192 are ours" in source("BF16", "v26.3", "MI355X")
    assert source("BF16", "v26.6", "MI355X") == "Primus config file"
    assert source("FP8", "v26.4", "MI300X").startswith("ROCm docs primus-pytorch v26.4")
    assert source("FP8", "v26.6", "MI300X").startswith("as in the ROCm docs primus-pytorch v26.4")


def test_a_tag_runs_what_mad_runs_on_that_gpu_in_the_newest_release():
    def runs(tag: str, gpu: str) -> list[str]:
        return [made.variant.precision for made in plans(tag, machine(gpu))]

    assert runs(f"{TITAN}llama-3.1-8b", "MI300X") == ["BF16", "FP8"]
    assert runs(f"{MEGATRON}llama-3.1-8b", "MI355X") == ["BF16", "FP8", "MXFP8", "MXFP4"]
    assert runs(f"{MEGATRON}llama-3.1-70b", "MI300X") == ["BF16"]
    assert runs(f"{MEGATRON}llama-3.1-70b", "MI355X") == ["BF16", "FP8"]
    assert runs(f"{MEGATRON}llama-3.1-70b-proxy", "MI300X") == ["FP8"]
    # without a release it is the newest and a note says so
    made = plans(f"{TITAN}llama-3.1-8b")[0]
    assert made.image.ref == "rocm/primus:v26.6" and made.variant.release == "v26.6"
    assert any("v26.6" in note and "--image-release" in note for note in made.notes)
    # a stand in names both gpus
    made = plan(f"{MEGATRON}llama-2-70b", machine("MI350X"), release="v26.5")
    assert any("MI350X" in note and "MI355X" in note for note in made.notes)
    assert made.machine.device == "MI350X"
    # the 70b proxy is refused where the full model fits
    with pytest.raises(UsageProblem, match="FP8 on MI355X|on MI355X"):
        plans(f"{MEGATRON}llama-3.1-70b-proxy", machine("MI355X"))
    # a documented run in another precision is left out unless asked for
    (made,) = plans(f"{TITAN}deepseek-v2", release="v25.10")
    assert made.variant.precision == "BF16"
    assert any(note.startswith("FP8 is left out") and "trains in BF16" in note for note in made.notes)
    asked = plan(f"{TITAN}deepseek-v2", release="v25.10", precision="FP8")
    assert any("trains in BF16" in found.message for found in findings(asked, fatal=True))


@each_row(
    ("release", "gpu", "image"),
    [
        ("v25.8", "MI300X", "rocm/megatron-lm:v25.8_py310"),
        ("v25.9", "MI300X", "rocm/primus:v25.9_gfx942"),
        ("v25.9", "MI355X", "rocm/primus:v25.9_gfx950"),
        ("v25.11", "MI300X", "rocm/primus:v25.11"),
        ("v26.5", "MI355X", "rocm/primus:v26.5"),
    ],
)
def test_each_release_has_its_image(release, gpu, image):
    assert plan(f"{MEGATRON}llama-2-7b", machine(gpu), precision="BF16", release=release).image.ref == image


@each_row(
    ("tag", "asked", "near"),
    [
        (f"{MEGATRON}llama-3.1-70b", {"precision": "FP8"}, "FP8 on MI355X"),
        (f"{MEGATRON}llama-3.1-8b", {"precision": "MXFP8"}, "MXFP8 on MI355X"),
        (f"{MEGATRON}llama-2-70b", {"release": "v24.1"}, "BF16 on MI300X"),
        (f"{MEGATRON}gpt-oss-20b", {"release": "v25.10"}, "v26.3"),
        (f"{MEGATRON}qwen-3-32b", {"mode": "pretrain"}, "posttrain/lora"),
        (f"{TITAN}llama-3.1-8b", {"release": "v25.8"}, "v25.10"),
    ],
)
def test_what_nobody_published_is_refused_with_what_is_near(tag, asked, near):
    with pytest.raises(UsageProblem, match="no recipe is known") as caught:
        plans(tag, **asked)
    assert near in caught.value.hint


def test_fp8_of_deepseek_is_what_mad_s_flags_make_it_on_mi350x_and_mi355x():
    for gpu, release in itertools.product(("MI350X", "MI355X"), ("v25.10", "v25.11")):
        made = plans(f"{TITAN}deepseek-v2", machine(gpu), release=release)
        assert [(one.variant.precision, one.variant.micro_batch) for one in made] == [("BF16", 16), ("FP8", 16)]
        assert not any(findings(one, fatal=True) for one in made)
        assert "--primus_turbo.use_moe_fp8 true" in made[1].settings["flags"] and made[0].settings["flags"] == ""


@each_row(("gpu", "said"), [("MI300X", "--batch-size 10 --set flags="), ("MI325X", "trains with --set flags=")])
def test_what_mad_trains_in_place_of_the_document_s_deepseek_is_told(gpu, said):
    (made,) = plans(f"{TITAN}deepseek-v2", machine(gpu), release="v25.10")
    (note,) = [note for note in made.notes if "MAD's script trains with" in note]
    assert said in note and "--primus_turbo.use_classic_attention true" in note
    assert made.settings["flags"] == "" and made.variant.micro_batch == {"MI300X": 8, "MI325X": 10}[gpu]
    own = plan(f"{TITAN}deepseek-v2", machine(gpu), release="v25.10", flags="--a b")
    assert not any("MAD's script trains with" in note for note in own.notes)


@each_row("gpu", ["MI300X", "MI355X"])
def test_the_variables_that_mad_sets_and_the_document_s_command_does_not_are_told(gpu):
    def told(**asked) -> list[str]:
        return [note for made in plans(f"{TITAN}llama-3.1-8b", machine(gpu), **asked) for note in made.notes]

    notes = [note for note in told(precision="BF16", release="v25.10") if "Primus takes 0" in note]
    assert len(notes) == 1 and notes[0].startswith("HSA_NO_SCRATCH_RECLAIM")
    assert ("PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32" in notes[0]) is (gpu == "MI300X")
    assert not any("Primus takes 0" in note for note in told(precision="BF16", release="v26.4"))


def test_the_steady_window_never_follows_the_learning_rate():
    for run in BOOK.runs:
        for release in run.releases:
            values = BOOK.run_values(run, release, run.devices[0])
            assert values["warmup_steps"] == (3 if values["steps"] == 10 else 5), run
            assert values["steps"] - values["warmup_steps"] >= 5


def test_no_two_rows_are_the_same_run_and_each_says_where_it_is_from():
    seen = set()
    for run in BOOK.runs:
        values = BOOK.run_values(run, "", "")
        for one in itertools.product(run.cards, run.devices, run.releases, [values["mode"]], [values["precision"]]):
            assert one not in seen, one
            seen.add(one)
        assert run.source and run.releases and run.devices and values["config"]
        for name in ("seq_len", "micro_batch", "steps"):
            assert values[name] > 0
    # A row that takes another GPU's file says whose document does so
    for run in BOOK.runs:
        folder = re.search(r"/(MI\d+X)/", str(run.values["config"]))
        if folder and set(run.devices) != {folder[1]}:
            assert "ROCm docs" in run.source or "MAD's script" in run.source or "takes the file of" in run.source
    # the book stays small enough to read at once
    assert sum(file.stat().st_size for file in Primus.book.glob("*.toml")) < 150_000


RUNS_ON_ONE_NODE = sorted({card for run in BOOK.runs for card in run.cards} - {
    f"{TITAN}llama-3.1-405b", f"{MEGATRON}llama-3.1-405b_overlay", f"{MEGATRON}gpt-oss-120b_overlay",
    f"{MEGATRON}kimi-k2-thinking_overlay", f"{MEGATRON}qwen-3-235b",
})  # fmt: skip


@pytest.mark.host
@each_row("card", RUNS_ON_ONE_NODE)
def test_nothing_speaks_against_a_tag_on_eight_gpus_in_any_release(card):
    for gpu, release in itertools.product(("MI300X", "MI325X", "MI350X", "MI355X"), BOOK.releases):
        try:
            made = plans(card, machine(gpu), release=release)
        except UsageProblem:
            continue
        assert [found.message for one in made for found in findings(one, fatal=True)] == []
