"""What a plan of primus passes on: options of each framework and era, variables; results, assets, cards of a tree."""

from __future__ import annotations

import pytest
import tomli

from madlite.types import Card, Machine, Quantity
from madlite_plugins.primus.backend import Primus
from tests.plugins.primus_plans import SPACE, findings, machine, mad_card, options, plan, plans, script

TITAN, MEGATRON = "primus_pyt_train_", "primus_pyt_megatron_lm_train_"


def tree_card(**values: object) -> Card:
    """Return a card as one of a Primus tree is: its config file's values, not those of Primus's presets."""
    config = "examples/megatron/configs/MI300X/deepseek_v2_lite-BF16-pretrain.yaml"
    recipe = {"name": "tree", "config": config, "framework": "megatron", "suite": "pretrain", **values}
    return Card(
        name="primus_train/megatron_MI300X_deepseek_v2_lite-BF16-pretrain",
        root=SPACE,
        source="a test",
        scope="primus_train",
        scripts="scripts/primus_train/run.sh",
        args=f"--config_path {config}",
        n_gpus="8",
        backend="primus",
        recipe=recipe,
    )


def test_torchtitan_is_told_its_sizes_and_to_print_every_step():
    made = plan(f"{TITAN}llama-3.1-70b", machine("MI325X"), precision="BF16", release="v26.6")
    assert options(made) == [
        "--training.local_batch_size 3",
        "--training.global_batch_size 48",
        "--training.seq_len 8192",
        "--training.steps 10",
        "--metrics.log_freq 1",
    ]


def test_options_of_v25_9_have_that_release_s_names():
    made = plan(f"{TITAN}llama-3.1-8b", precision="BF16", release="v25.9", compile="false")
    assert "--training.batch_size 4" in options(made) and "--training.compile false" in options(made)
    assert "local_batch_size" not in " ".join(options(made))


def test_megatron_is_told_its_sizes_and_from_v26_where_its_numbers_go():
    new = options(plan(f"{MEGATRON}llama-2-7b", precision="BF16", release="v26.5"))
    assert new == [
        "--micro_batch_size 4",
        "--global_batch_size 256",
        "--seq_length 4096",
        "--train_iters 50",
        "--log_interval 1",
        "--stderr_sink_level DEBUG",
    ]
    old = options(plan(f"{MEGATRON}llama-2-7b", precision="BF16", release="v25.10"))
    assert old == new[:-1]


def test_fp8_is_another_file_since_v26_and_an_option_before():
    old = script(plan(f"{MEGATRON}llama-2-7b", precision="FP8", release="v25.10"))
    new = script(plan(f"{MEGATRON}llama-2-7b", precision="FP8", release="v26.1"))
    assert " --fp8 hybrid\n" in old and "llama2_7B-pretrain.yaml" in old
    assert "--fp8" not in new and "llama2_7B-FP8-pretrain.yaml" in new


def test_a_proxy_s_flags_are_mad_s():
    text = script(plan(f"{MEGATRON}llama-3.1-70b-proxy", release="v26.3"))
    assert " --num_layers 40 --fp8 hybrid --no_fp8_weight_transpose_cache true\n" in text
    assert "  --micro_batch_size 3\n" in text and "  --global_batch_size 24\n" in text


@pytest.mark.parametrize(
    ("tag", "asked", "option"),
    [
        (f"{TITAN}llama-3.1-8b", {"mock_data": "true"}, "--training.mock_data true"),
        (f"{TITAN}llama-3.1-8b", {"mock_data": "false"}, "--training.mock_data false"),
        (f"{TITAN}llama-3.1-8b", {"tp": 2}, "--parallelism.tensor_parallel_degree 2"),
        (f"{TITAN}llama-3.1-8b", {"activation_checkpoint": "full"}, "--activation_checkpoint.mode full"),
        (f"{TITAN}llama-3.1-8b", {"compile": "false"}, "--compile.enable false"),
        (f"{TITAN}llama-3.1-8b", {"lr_warmup_steps": 3}, "--lr_scheduler.warmup_steps 3"),
        (f"{TITAN}llama-3.1-8b", {"tokenizer": "a b"}, "--model.hf_assets_path 'a b'"),
        (f"{TITAN}llama-3.1-8b", {"steps": 20}, "--training.steps 20"),
        (f"{TITAN}llama-3.1-8b", {"log_freq": 5}, "--metrics.log_freq 5"),
        (f"{MEGATRON}llama-3.1-8b", {"mock_data": "false"}, "--mock_data false"),
        (f"{MEGATRON}llama-3.1-8b", {"seq_len": 16384}, "--max_position_embeddings 16384"),
        (f"{MEGATRON}llama-3.1-8b", {"micro_batch": 4}, "--micro_batch_size 4"),
        (f"{MEGATRON}llama-3.1-8b", {"pp": 2}, "--pipeline_model_parallel_size 2"),
        (
            f"{MEGATRON}llama-3.1-70b",
            {"recompute_layers": 40},
            "--recompute_granularity full --recompute_method block --recompute_num_layers 40",
        ),
        (f"{MEGATRON}qwen3-32b-lora", {"lr_warmup_steps": 9}, "--lr_warmup_iters 9"),
    ],
)
def test_what_is_changed_is_passed_on_and_else_left_to_the_file(tag, asked, option):
    changed, left = plans(tag, **asked)[0], plans(tag)[0]
    assert option in options(changed)
    assert option not in options(left)


def test_a_card_s_args_are_its_script_s_and_not_primus_s():
    assert "--model_repo" not in script(plans(f"{TITAN}llama-3.1-8b")[0])
    own = mad_card(f"{TITAN}llama-3.1-8b", scripts="", args="--training.seed 'a b'")
    assert "  --training.seed\n  'a b'\n)" in script(plans(own)[0])


def test_variables_follow_the_architecture():
    def variables(gpu: str) -> dict:
        return plans(f"{MEGATRON}llama-2-70b", machine(gpu))[0].env

    for gpu in ("MI300X", "MI325X"):
        assert variables(gpu)["NVTE_CK_IS_V3_ATOMIC_FP32"] == "1"
        assert variables(gpu)["PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32"] == "1"
    assert "NVTE_CK_IS_V3_ATOMIC_FP32" not in variables("MI355X")
    assert variables("MI355X")["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert "NVTE_CK_IS_V3_ATOMIC_FP32" not in script(plans(f"{MEGATRON}llama-2-70b", machine("MI350X"))[0])


def test_a_row_s_own_variables_are_set():
    text = script(plan(f"{MEGATRON}zebra-llama-1b"))
    assert "export PRIMUS_TRAIN_RUNTIME=legacy\n" in text
    mxfp4 = plan(f"{MEGATRON}llama-3.1-8b", machine("MI355X"), precision="MXFP4")
    assert "export NVTE_USE_CAST_TRANSPOSE_TRITON=0\n" in script(mxfp4)


@pytest.mark.parametrize(
    ("tag", "asked", "headline", "mad"),
    [
        (
            f"{TITAN}llama-3.1-8b",
            {"release": "v26.6"},
            "tokens_per_s_per_gpu",
            ["tok_per_s_per_gpu", "TFLOPS_per_gpu", "GPU_memory_usage (%)"],
        ),
        (
            f"{MEGATRON}llama-2-7b",
            {"release": "v26.4"},
            "tokens_per_s_per_gpu",
            ["tok_per_s_per_gpu", "TFLOPS_per_gpu"],
        ),
        (
            f"{MEGATRON}llama-2-7b",
            {"release": "v26.5"},
            "tokens_per_s_per_gpu",
            ["tok_per_s_per_gpu", "TFLOPS_per_gpu", "tok_per_s_per_gpu_avg", "TFLOPS_per_gpu_avg"],
        ),
        (f"{MEGATRON}qwen3-32b-sft", {}, "tflops_per_gpu", ["TFLOPS_per_gpu"]),
    ],
)
def test_result_rows_are_mad_s_of_that_release(tag, asked, headline, mad):
    rule = plans(tag, **asked)[0].result_rule
    assert rule.kind == "steps" and rule.headline_metric == headline
    assert [metric.metric for metric in rule.mad] == mad
    assert {metric.rule for metric in rule.mad} == {"last"}


def test_the_running_means_are_read_as_such():
    means = plans(f"{MEGATRON}llama-2-7b")[0].result_rule.mad[-2:]
    assert [m.quantity for m in means] == [Quantity.TOKENS_PER_S_PER_GPU_MEAN, Quantity.TFLOPS_PER_GPU_MEAN]


def test_a_tokenizer_of_meta_is_gated_and_others_are_not():
    def assets(tag: str) -> list[tuple[str, str, bool]]:
        return [(asset.kind, asset.ref, asset.gated) for asset in Primus().assets(plans(tag)[0])]

    assert assets(f"{TITAN}llama-3.1-8b") == [("tokenizer", "meta-llama/Llama-3.1-8B", True)]
    assert assets(f"{MEGATRON}qwen2.5-7b") == [("tokenizer", "Qwen/Qwen2.5-7B", False)]
    assert assets(f"{MEGATRON}mamba-370m") == []
    assert ("model", "Qwen/Qwen3-32B", False) in assets(f"{MEGATRON}qwen-3-32b")


def test_a_card_of_a_tree_plans_with_its_file_s_values():
    sizes = {"micro_batch": 4, "global_batch": 640, "seq_len": 4096, "steps": 50, "ep": 8}
    made = plan(tree_card(**sizes, precision="BF16", model="deepseek_v2_lite", mode="pretrain"))
    assert findings(made) == []
    assert made.image.ref == "rocm/primus:v26.6"
    assert options(made) == [
        "--micro_batch_size 4",
        "--global_batch_size 640",
        "--seq_length 4096",
        "--train_iters 50",
        "--log_interval 1",
        "--stderr_sink_level DEBUG",
        "--expert_model_parallel_size 8",
    ]
    assert "--config_path" not in script(made)
    assert [metric.metric for metric in made.result_rule.mad] == ["tokens_per_second", "tflops"]


def test_what_a_tree_s_file_leaves_to_presets_is_left_to_them():
    made = plan(tree_card(framework="torchtitan", config="examples/torchtitan/configs/MI300X/x-BF16-pretrain.yaml"))
    assert findings(made) == []
    assert options(made) == ["--training.steps 50", "--metrics.log_freq 1"]


def test_a_post_training_and_a_framework_without_known_options_of_a_tree():
    bridge = plan(tree_card(framework="megatron_bridge", suite="posttrain", mode="posttrain/sft", steps=10))
    assert " -- train posttrain " in script(bridge) and bridge.variant.warmup_steps == 3
    assert bridge.result_rule.headline is Quantity.TFLOPS_PER_GPU
    other = plan(tree_card(framework="nemo_automodel"))
    assert options(other) == [] and other.variant.steps is None
    assert [found.fatal for found in findings(other)] == [False]
    assert plan(tree_card(framework="diffusion")).result_rule.headline is Quantity.IMAGES_PER_S_PER_GPU


def test_a_tree_s_file_for_another_gpu_is_told():
    assert findings(plan(tree_card(ep=8), machine("MI325X"))) == []
    (found,) = findings(plan(tree_card(ep=8), machine("MI355X")))
    assert "is made for MI300X, this machine has MI355X" in found.message and not found.fatal


def test_cards_and_recipes_have_no_key_that_nothing_reads():
    known = tomli.loads((Primus.book / "common.toml").read_text())["defaults"]
    assert {"config", "framework", "suite", "tp", "pp", "ep", "cp", "precision", "model", "mode"} <= set(known)


def test_a_machine_without_amd_gpus_is_refused():
    made = plan(tree_card(seq_len=4096, micro_batch=1), Machine())
    assert any("AMD" in found.message for found in findings(made, fatal=True))
