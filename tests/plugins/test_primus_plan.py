"""What a plan of primus passes on: options of each framework and era, variables; results, assets, cards of a tree."""

from __future__ import annotations

import json

import pytest
import tomli

from madlite.errors import UsageProblem
from madlite.model import Machine, Quantity
from madlite_plugins.primus.backend import Primus
from tests.plugins.primus_plans import findings, machine, mad_card, options, plan, plans, tree_card
from tests.plugins.rendered import run_sh
from tests.rows import each_row

TITAN, MEGATRON = "primus_pyt_train_", "primus_pyt_megatron_lm_train_"


def test_each_framework_is_told_its_sizes_by_the_names_of_its_release():
    # torchtitan is told its sizes and to print every step
    made = plan(f"{TITAN}llama-3.1-70b", machine("MI325X"), precision="BF16", release="v26.6")
    assert options(made) == [
        "--training.local_batch_size 3",
        "--training.global_batch_size 48",
        "--training.seq_len 8192",
        "--training.steps 10",
        "--metrics.log_freq 1",
    ]
    # options of v25 9 have that release's names
    made = plan(f"{TITAN}llama-3.1-8b", precision="BF16", release="v25.9", compile="false")
    assert "--training.batch_size 4" in options(made) and "--training.compile false" in options(made)
    assert "local_batch_size" not in " ".join(options(made))
    # megatron is told its sizes and from v26 where its numbers go
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
    # fp8 is another file since v26 and an option before
    old = run_sh(plan(f"{MEGATRON}llama-2-7b", precision="FP8", release="v25.10"))
    new = run_sh(plan(f"{MEGATRON}llama-2-7b", precision="FP8", release="v26.1"))
    assert " --fp8 hybrid\n" in old and "llama2_7B-pretrain.yaml" in old
    assert "--fp8" not in new and "llama2_7B-FP8-pretrain.yaml" in new


def test_flags_variables_and_args_are_mad_s():
    text = run_sh(plan(f"{MEGATRON}llama-3.1-70b-proxy", release="v26.3"))
    assert " --num_layers 40 --fp8 hybrid --no_fp8_weight_transpose_cache true\n" in text
    assert "  --micro_batch_size 3\n" in text and "  --global_batch_size 24\n" in text
    # a card's args are its script's and not primus's
    assert "--model_repo" not in run_sh(plans(f"{TITAN}llama-3.1-8b")[0])
    own = mad_card(f"{TITAN}llama-3.1-8b", scripts="", args="--training.seed 'a b'")
    assert "  --training.seed\n  'a b'\n)" in run_sh(plans(own)[0])

    # variables follow the architecture
    def variables(gpu: str) -> dict:
        return plans(f"{MEGATRON}llama-2-70b", machine(gpu))[0].env

    for gpu in ("MI300X", "MI325X"):
        assert variables(gpu)["NVTE_CK_IS_V3_ATOMIC_FP32"] == "1"
        assert variables(gpu)["PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32"] == "1"
    assert "NVTE_CK_IS_V3_ATOMIC_FP32" not in variables("MI355X")
    assert variables("MI355X")["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert "NVTE_CK_IS_V3_ATOMIC_FP32" not in run_sh(plans(f"{MEGATRON}llama-2-70b", machine("MI350X"))[0])
    # a row's own variables are set
    text = run_sh(plan(f"{MEGATRON}zebra-llama-1b"))
    assert "export PRIMUS_TRAIN_RUNTIME=legacy\n" in text
    mxfp4 = plan(f"{MEGATRON}llama-3.1-8b", machine("MI355X"), precision="MXFP4")
    assert "export NVTE_USE_CAST_TRANSPOSE_TRITON=0\n" in run_sh(mxfp4)
    # flags and exports are words as a shell reads them
    text = run_sh(plan(f"{TITAN}llama-3.1-8b", precision="BF16", flags="--a 'b c' --d=\\$e", exports="A='b c' D=e"))
    assert " --a 'b c' '--d=$e'\n" in text
    assert "export 'A=b c'\nexport D=e\n" in text


@each_row(
    ("tag", "asked", "option"),
    [
        (f"{TITAN}llama-3.1-8b", {"mock_data": "true"}, "--training.mock_data true"),
        (f"{TITAN}llama-3.1-8b", {"mock_data": "false"}, "--training.mock_data false"),
        (f"{TITAN}llama-3.1-8b", {"tp": 2}, "--parallelism.tensor_parallel_degree 2"),
        (f"{TITAN}llama-3.1-8b", {"activation_checkpoint": "full"}, "--activation_checkpoint.mode full"),
        (f"{TITAN}llama-3.1-8b", {"compile": "false"}, "--compile.enable false"),
        (f"{TITAN}llama-3.1-8b", {"reshard": "never"}, "--parallelism.fsdp_reshard_after_forward never"),
        (f"{TITAN}llama-3.1-8b", {"dp_replicate": 2}, "--parallelism.data_parallel_replicate_degree 2"),
        (f"{MEGATRON}llama-3.1-8b", {"turbo_attention": "false"}, "--use_turbo_attention false"),
        (f"{MEGATRON}llama-3.1-8b", {"distributed_optimizer": "true"}, "--use_distributed_optimizer true"),
        (f"{MEGATRON}llama-3.1-8b", {"overlap": "false"}, "--overlap_grad_reduce false --overlap_param_gather false"),
        (
            f"{TITAN}llama-3.1-8b",
            {"activation_checkpoint": "8"},
            "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option 8",
        ),
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


@each_row(
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
    assert "--config_path" not in run_sh(made)
    assert [metric.metric for metric in made.result_rule.mad] == ["tokens_per_second", "tflops"]
    # what a tree's file leaves to presets is left to them
    made = plan(tree_card(framework="torchtitan", config="examples/torchtitan/configs/MI300X/x-BF16-pretrain.yaml"))
    assert findings(made) == []
    assert options(made) == ["--training.steps 50", "--metrics.log_freq 1"]
    # a tree's card keeps its file's mode and another is refused
    card = tree_card(framework="megatron_bridge", suite="posttrain", mode="posttrain/sft", steps=20)
    assert [plan(card, **asked).variant.mode for asked in ({}, {"mode": "posttrain"})] == ["posttrain/sft"] * 2
    with pytest.raises(UsageProblem, match="is one for posttrain/sft, not for pretrain"):
        plans(card, mode="pretrain")
    # a tree's file for another gpu is told
    assert findings(plan(tree_card(ep=8), machine("MI325X"))) == []
    (found,) = findings(plan(tree_card(ep=8), machine("MI355X")))
    assert "is made for MI300X, this machine has MI355X" in found.message and not found.fatal
    # a sentinel that leaves a value to the file is not passed on
    asked = {"recompute_layers": -1, "lr_warmup_steps": -1, "tokenizer": ""}
    assert options(plans(f"{MEGATRON}llama-2-7b", **asked)[0]) == options(plans(f"{MEGATRON}llama-2-7b")[0])


def test_what_a_tree_s_card_says_of_data_and_tokenizer_is_shown_and_left_to_its_file():
    card = tree_card(mock_data="false", tokenizer="meta-llama/Llama-3.1-8B", mode="pretrain")
    made = plan(card)
    assert made.settings["mock_data"] is False and made.origins["settings.mock_data"] == "card"
    tokenizer, data = Primus().assets(made)
    assert (tokenizer.ref, tokenizer.gated) == ("meta-llama/Llama-3.1-8B", True)
    assert (data.source, data.path) == ("made", ""), "what its file names is fetched by each run"
    assert not any(word in run_sh(made) for word in ("--mock_data", "--tokenizer_model"))
    assert "export MOCK_DATA=${MOCK_DATA:-0}" in run_sh(made)
    changed = plan(card, mock_data="true", tokenizer="lab/own")
    assert {"--mock_data true", "--tokenizer_model lab/own"} <= set(options(changed))
    # data that neither file nor preset says is not claimed to be made up
    made = plan(tree_card())
    assert made.settings["mock_data"] == "" and "MOCK_DATA" not in run_sh(made)
    assert "--mock_data true" in options(plan(tree_card(), mock_data="true"))
    assert any(
        "mock_data is 'maybe'" in found.message for found in findings(plan(tree_card(), mock_data="maybe"), True)
    )
    # a tokenizer that is a folder is nothing to fetch
    assert list(Primus().assets(plan(tree_card(tokenizer="/data/tokenizers/own"), mock_data="true"))) == []

    # a tokenizer of meta is gated and others are not
    def assets(tag: str) -> list[tuple[str, str, bool]]:
        return [(asset.kind, asset.ref, asset.gated) for asset in Primus().assets(plans(tag)[0])]

    tokenizer = ("tokenizer", "meta-llama/Llama-3.1-8B", True)
    assert assets(f"{TITAN}llama-3.1-8b") == [tokenizer, ("dataset", "allenai/c4", False)]
    assert assets(f"{MEGATRON}qwen2.5-7b") == [("tokenizer", "Qwen/Qwen2.5-7B", False)]
    assert assets(f"{MEGATRON}mamba-370m") == []
    assert ("model", "Qwen/Qwen3-32B", False) in assets(f"{MEGATRON}qwen-3-32b")


def test_in_a_container_a_tree_s_file_is_the_image_s_and_that_is_told(tmp_path):
    for folder in ("primus", "examples/megatron/configs"):
        (tmp_path / folder).mkdir(parents=True)

    def told(**asked) -> list[str]:
        return [f.hint for f in findings(plan(tree_card(tmp_path), **asked)) if "image's own" in f.message]

    (hint,) = told()
    assert "docker_mounts" in hint and str(tmp_path) in hint and "--set primus_root=/primus" in hint
    assert told(primus_root="/primus") == told(runtime="host") == []


def test_a_log_that_somebody_else_made_has_every_framework_s_figures():
    rule = Primus().result_rule()
    for tag in (f"{TITAN}llama-3.1-8b", f"{MEGATRON}llama-2-7b", f"{MEGATRON}qwen3-32b-sft"):
        assert set(plans(tag)[0].result_rule.mad) <= set(rule.mad)
    # the running means are read as such
    means = plans(f"{MEGATRON}llama-2-7b")[0].result_rule.mad[-2:]
    assert [m.quantity for m in means] == [Quantity.TOKENS_PER_S_PER_GPU_MEAN, Quantity.TFLOPS_PER_GPU_MEAN]


def test_a_post_training_and_a_framework_without_known_options_of_a_tree():
    bridge = plan(tree_card(framework="megatron_bridge", suite="posttrain", mode="posttrain/sft", steps=10))
    assert " -- train posttrain " in run_sh(bridge) and bridge.variant.warmup_steps == 3
    assert bridge.result_rule.headline == Quantity.TFLOPS_PER_GPU
    other = plan(tree_card(framework="nemo_automodel"))
    assert options(other) == [] and other.variant.steps is None
    assert [found.fatal for found in findings(other)] == [False]
    assert plan(tree_card(framework="diffusion")).result_rule.headline == Quantity.IMAGES_PER_S_PER_GPU


def test_cards_and_recipes_have_no_key_that_nothing_reads():
    known = tomli.loads((Primus.book / "common.toml").read_text())["defaults"]
    assert {"config", "framework", "suite", "tp", "pp", "ep", "cp", "precision", "model", "mode"} <= set(known)


def test_a_machine_without_amd_gpus_is_refused_and_several_nodes_are_the_context_s():
    made = plan(tree_card(seq_len=4096, micro_batch=1), Machine())
    assert any("AMD" in found.message for found in findings(made, fatal=True))
    # several nodes are what the context says of them
    nodes = {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "6006", "NCCL_SOCKET_IFNAME": "e0"}
    text = run_sh(plan(f"{MEGATRON}llama-2-7b", precision="BF16", context=json.dumps({"multi_node_args": nodes})))
    for line in ("NNODES=2", "NODE_RANK=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=6006", "NCCL_SOCKET_IFNAME=e0"):
        assert f"export {line}" in text
    assert "any_port" not in text
