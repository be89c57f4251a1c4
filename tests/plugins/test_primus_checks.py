"""What primus refuses before the start, and what it warns of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from madlite.types import Place
from madlite_plugins.primus.checks import ranks_needed
from madlite_plugins.primus.precision import trained_precision
from tests.plugins.primus_plans import findings, machine, mad_card, plan, plans

TITAN, MEGATRON = "primus_pyt_train_", "primus_pyt_megatron_lm_train_"
CONFIGS = "examples/torchtitan/configs"


def said(made, fatal: bool) -> list[str]:
    return [f"{found.message} | {found.hint}" for found in findings(made, fatal)]


@pytest.mark.parametrize(
    ("tag", "asked", "word"),
    [
        # the document's command for FP8 on MI355X names the file for BF16
        (
            f"{TITAN}llama-3.1-8b",
            {"precision": "FP8", "config": f"{CONFIGS}/MI355X/llama3.1_8B-BF16-pretrain.yaml"},
            "trains in BF16, and the row would say FP8",
        ),
        (f"{TITAN}deepseek-v2", {"precision": "FP8", "release": "v25.10"}, "trains in BF16"),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "flags": "--fp8 hybrid"}, "trains in FP8"),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "global_batch": 100}, "global batch 100 is no multiple"),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "micro_batch": 7}, "micro batch 7 × 8 data ranks = 56"),
        (f"{TITAN}llama-3.1-8b", {"precision": "BF16", "global_batch": 33}, "micro batch 4 × 8 data ranks = 32"),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "tp": 3}, "must be a multiple of 3; 8 GPUs are here"),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "pp": 0}, "pp=0"),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "pp": 2, "tp": 8}, "(2 nodes of 8 GPUs would do)"),
        (f"{MEGATRON}deepseek-v3-proxy", {"pp": 2}, "multiple of 16"),
        (f"{MEGATRON}qwen3-32b-lora", {"starter": "run_pretrain.sh"}, "knows pretraining alone"),
        (f"{TITAN}llama-3.1-8b", {"precision": "BF16", "starter": "torchrun"}, "starter 'torchrun'"),
        (f"{TITAN}llama-3.1-8b", {"precision": "BF16", "activation_checkpoint": "some"}, "'some' is unknown"),
        (f"{TITAN}llama-3.1-8b", {"precision": "BF16", "exports": "A=1 2=b"}, "'2=b'"),
        (f"{TITAN}llama-3.1-8b", {"precision": "BF16", "config": ""}, "no config file is named"),
        (f"{TITAN}llama-3.1-8b", {"precision": "BF16", "steps": 5}, "5 steps are over before 5 of warm-up"),
        (
            f"{TITAN}llama-3.1-8b",
            {"precision": "BF16", "config": f"{CONFIGS}/MI350X/llama3.1_8B-BF16-pretrain.yaml"},
            f"--set config={CONFIGS}/MI355X/llama3.1_8B-BF16-pretrain.yaml",
        ),
        (
            f"{TITAN}llama-3.1-8b",
            {
                "precision": "BF16",
                "release": "v26.2",
                "config": f"{CONFIGS}/MI325X/llama3.1_8B-BF16-pretrain.yaml",
            },
            f"it came with v26.3 | --set config={CONFIGS}/MI300X/llama3.1_8B-BF16-pretrain.yaml",
        ),
        (
            f"{TITAN}llama-3.1-8b",
            {
                "precision": "BF16",
                "release": "v25.9",
                "config": f"{CONFIGS}/MI300X/llama3.1_8B-BF16-pretrain.yaml",
            },
            f"it came with v25.10 | --set config={CONFIGS}/llama3.1_8B-BF16-pretrain.yaml",
        ),
    ],
)
def test_what_would_fail_or_mislead_is_refused(tag, asked, word):
    (message,) = said(plan(tag, **asked), fatal=True)
    assert word in message


@pytest.mark.parametrize(
    ("tag", "gpu", "needed", "nodes"),
    [
        ("llama-3.1-405b_overlay", "MI300X", 64, 8),
        ("gpt-oss-120b_overlay", "MI355X", 16, 2),
        ("qwen-3-235b", "MI355X", 32, 4),
        ("kimi-k2-thinking_overlay", "MI300X", 192, 24),
    ],
)
def test_a_model_for_several_nodes_says_how_many(tag, gpu, needed, nodes):
    for made in plans(MEGATRON + tag, machine(gpu)):
        (message,) = said(made, fatal=True)
        assert f"multiple of {needed}; 8 GPUs are here ({nodes} nodes of 8 GPUs would do)" in message


def test_a_documented_count_of_nodes_counts_where_the_arithmetic_would_allow_one():
    made = plans(f"{TITAN}llama-3.1-405b", release="v26.4")[0]
    assert any("documented for 8 nodes, this run has 1" in message for message in said(made, fatal=True))
    there = replace(made, place=Place(nodes=8, gpus_per_node=8, gpu_ids=tuple(range(8))))
    assert said(there, fatal=True) == []


def test_fewer_gpus_than_the_experts_are_spread_over_are_refused():
    (message,) = said(plan(f"{MEGATRON}mixtral-8x7b", machine("MI300X", 4)), fatal=True)
    assert "ep 8" in message and "4 GPUs are here" in message and "nodes" not in message


@pytest.mark.parametrize(
    ("framework", "degrees", "needed"),
    [
        ("megatron", {"tp": 8, "pp": 8, "cp": 1, "ep": 1}, 64),
        ("megatron", {"tp": 1, "pp": 16, "cp": 1, "ep": 8}, 128),
        ("megatron", {"tp": 2, "pp": 1, "cp": 1, "ep": 8}, 16),
        ("megatron", {"tp": 1, "pp": 1, "cp": 8, "ep": 8}, 8),
        ("torchtitan", {"tp": 2, "pp": 1, "cp": 1, "ep": 8}, 8),
        ("torchtitan", {"tp": 1, "pp": 2, "cp": 1, "ep": 4}, 8),
    ],
)
def test_experts_lie_across_data_ranks(framework, degrees, needed):
    assert ranks_needed(framework, **degrees) == needed


@pytest.mark.parametrize(
    ("tag", "asked", "word"),
    [
        (f"{TITAN}deepseek-v2", {"release": "v25.10"}, "the tag says deepseek-v2, and deepseek_v3_16b"),
        (f"{MEGATRON}llama-3.3-70b", {"release": "v25.8"}, "llama3_70B-pretrain.yaml is what is trained"),
        (f"{MEGATRON}mixtral-8x22b-proxy", {}, "a proxy of 4 layers"),
        (f"{MEGATRON}mamba-370m", {}, "the learning rate rises for 50000 steps"),
        (f"{MEGATRON}qwen3-32b-lora", {"mock_data": "true"}, "knows no made-up data"),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "steps": 9}, "9 steps leave few or none"),
    ],
)
def test_what_a_reader_of_the_number_should_know_is_a_warning(tag, asked, word):
    made = plan(tag, **asked)
    assert said(made, fatal=True) == []
    assert any(word in message for message in said(made, fatal=False))


def test_another_model_s_file_under_a_tag_is_told():
    made = plan(f"{TITAN}llama-3.1-8b", precision="BF16", config=f"{CONFIGS}/MI300X/llama3.1_70B-BF16-pretrain.yaml")
    assert any("the tag says llama-3.1-8b" in message for message in said(made, fatal=False))


def test_an_overlay_without_its_dockerfile_is_told():
    made = plans(f"{MEGATRON}llama-3.1-8b_overlay")[0]
    assert any("RCCL" in message for message in said(made, fatal=False))


def test_args_that_the_row_does_not_show_are_told():
    own = mad_card(f"{TITAN}llama-3.1-8b", scripts="", args="--training.local_batch_size=9 --training.steps 7")
    messages = said(plans(own)[0], fatal=False)
    assert any("--training.local_batch_size, --training.steps" in message for message in messages)


@pytest.mark.parametrize(
    ("config", "words", "precision"),
    [
        ("a/llama3.1_8B-FP8-pretrain.yaml", [], "FP8"),
        ("a/llama3.1_8B-MXFP8-pretrain.yaml", [], "MXFP8"),
        ("a/llama3.1_8B-BF16-pretrain.yaml", ["--fp8", "hybrid"], "FP8"),
        ("a/llama3.1_8B-BF16-pretrain.yaml", ["--fp8=e4m3"], "FP8"),
        ("a/llama3.1_8B-BF16-pretrain.yaml", ["--fp8", "null"], "BF16"),
        ("a/llama3.1_8B-pretrain.yaml", [], "BF16"),
        ("a/llama3.1_8B-pretrain.yaml", ["--fp8"], "BF16"),
    ],
)
def test_a_file_s_name_and_the_options_say_its_precision(config, words, precision):
    assert trained_precision(config, words) == precision
