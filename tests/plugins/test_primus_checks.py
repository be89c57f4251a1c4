"""What primus refuses before the start, and what it warns of."""

from __future__ import annotations

import json

from msgspec.structs import replace

from madlite.backends.recipe_book import read_book
from madlite_plugins.primus.backend import Primus
from madlite_plugins.primus.precision import trained_precision
from madlite_plugins.primus.ranks import ranks_needed
from madlite_plugins.primus.release_checks import Config, release_findings
from tests.plugins.primus_plans import findings, machine, options, plan, plans, tree_card
from tests.rows import each_row

TITAN, MEGATRON = "primus_pyt_train_", "primus_pyt_megatron_lm_train_"
CONFIGS, OF_MEGATRON = "examples/torchtitan/configs", "examples/megatron/configs"
OTHER_GPU = f"{CONFIGS}/MI355X/llama3.1_8B-BF16-pretrain.yaml"


def said(made, fatal: bool) -> list[str]:
    return [f"{found.message} | {found.hint}" for found in findings(made, fatal)]


@each_row(
    ("tag", "asked", "word"),
    [
        # the document's command for FP8 on MI355X names the file for BF16
        (
            f"{TITAN}llama-3.1-8b",
            {"precision": "FP8", "config": f"{CONFIGS}/MI355X/llama3.1_8B-BF16-pretrain.yaml"},
            "trains in BF16, and the row would have FP8",
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
        (f"{MEGATRON}qwen3-32b-lora", {"starter": "run_pretrain.sh"}, "supports pretraining alone"),
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
            {"precision": "BF16", "release": "v26.2", "config": f"{CONFIGS}/MI325X/llama3.1_8B-BF16-pretrain.yaml"},
            f"it came with v26.3 | --set config={CONFIGS}/MI300X/llama3.1_8B-BF16-pretrain.yaml",
        ),
        (
            f"{TITAN}llama-3.1-8b",
            {"precision": "BF16", "release": "v25.9", "config": f"{CONFIGS}/MI300X/llama3.1_8B-BF16-pretrain.yaml"},
            f"it came with v25.10 | --set config={CONFIGS}/llama3.1_8B-BF16-pretrain.yaml",
        ),
    ],
)
def test_what_would_fail_or_mislead_is_refused(tag, asked, word):
    (message,) = said(plan(tag, **asked), fatal=True)
    assert word in message


@each_row(
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
    there = plans(f"{TITAN}llama-3.1-405b", release="v26.4", nnodes=8, node_rank=0, master_addr="head")[0]
    assert said(there, fatal=True) == []
    # fewer gpus than the experts are spread over are refused
    (message,) = said(plan(f"{MEGATRON}mixtral-8x7b", machine("MI300X", 4)), fatal=True)
    assert "ep 8" in message and "4 GPUs are here" in message and "nodes" not in message
    # the nodes of the context and of the environment count
    nodes = {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "6006"}
    made = plan(f"{MEGATRON}llama-2-7b", precision="BF16", context=json.dumps({"multi_node_args": nodes}))
    assert made.place.nodes == 2 and said(made, fatal=True) == []
    surrounding = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
    made = plan(f"{MEGATRON}llama-2-7b", precision="BF16", nnodes=2, environ=surrounding)
    assert said(made, fatal=True) == []
    # a node that megatron prints nothing on is told
    several = {"precision": "BF16", "nnodes": 2, "global_batch": 512, "master_addr": "head"}
    first, last = (plan(f"{MEGATRON}llama-2-7b", node_rank=rank, **several) for rank in (0, 1))
    assert said(first, fatal=True) == said(last, fatal=True) == []
    told = [any("there will be no result" in text for text in said(made, fatal=False)) for made in (first, last)]
    assert told == [True, False]


@each_row(
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


@each_row(
    ("tag", "asked", "word"),
    [
        (f"{TITAN}deepseek-v2", {"release": "v25.10"}, "the tag names deepseek-v2, and deepseek_v3_16b"),
        (f"{MEGATRON}llama-3.3-70b", {"release": "v25.8"}, "llama3_70B-pretrain.yaml is what is trained"),
        (f"{MEGATRON}mixtral-8x22b-proxy", {}, "a proxy of 4 layers"),
        (f"{MEGATRON}mamba-370m", {}, "the learning rate rises for 50000 steps"),
        (
            f"{TITAN}llama-3.1-8b",
            {"precision": "BF16", "config": OTHER_GPU},
            "made for MI355X, this machine has MI300X",
        ),
        (
            f"{MEGATRON}llama-2-7b",
            {"precision": "BF16", "release": "v26.2", "config": f"{OF_MEGATRON}/MI300X/gpt_oss_20B-BF16-pretrain.yaml"},
            "is not among the files that the recipes have for v26.2",
        ),
        (f"{MEGATRON}llama-2-7b", {"precision": "BF16", "steps": 9}, "9 steps leave few after 5"),
    ],
)
def test_what_a_reader_of_the_number_should_know_is_a_warning(tag, asked, word):
    made = plan(tag, **asked)
    assert said(made, fatal=True) == []
    assert any(word in message for message in said(made, fatal=False))


@each_row(
    ("release", "path", "said_of_it", "instead"),
    [
        ("v26.5", "MI308X/llama2_7B-BF16", "there are MI300X, MI325X, MI355X", "MI300X/llama2_7B-BF16"),
        ("v26.5", "mi300x/llama2_7B-BF16", "no folder", "MI300X/llama2_7B-BF16"),
        ("v25.10", "llama2_7B", "in a folder for each GPU", "MI300X/llama2_7B"),
        ("v26.1", "llama2_7B-BF16", "in a folder for each GPU", "MI300X/llama2_7B-BF16"),
        ("v25.9", "MI355X/llama2_7B", "it came with v25.10", "llama2_7B"),
        ("v26.1", "MI300X/llama2_7B", "v26.1 has no llama2_7B-pretrain.yaml", "MI300X/llama2_7B-BF16"),
        ("v25.10", "MI300X/llama2_7B-BF16", "v25.10 has no llama2_7B-BF16-pretrain.yaml", "MI300X/llama2_7B"),
    ],
)
def test_a_file_that_a_release_cannot_have_is_refused_with_the_one_it_has(release, path, said_of_it, instead):
    made = plan(
        f"{MEGATRON}llama-2-7b", precision="BF16", release=release, config=f"{OF_MEGATRON}/{path}-pretrain.yaml"
    )
    (message,) = said(made, fatal=True)
    assert said_of_it in message and message.endswith(f"--set config={OF_MEGATRON}/{instead}-pretrain.yaml")


def test_a_file_that_the_recipes_do_not_know_is_told_with_what_is_near():
    made = plan(
        f"{MEGATRON}llama-2-7b", precision="BF16", release="v26.5", config=f"{OF_MEGATRON}/MI300X/llama2_7b-BF16.yaml"
    )
    assert said(made, fatal=True) == []
    (message,) = [text for text in said(made, fatal=False) if "not among the files" in text]
    assert f"near: {OF_MEGATRON}/MI300X/llama2_7B-BF16-pretrain.yaml" in message and "MI355X" not in message
    # what is near a file may be in another folder and is nothing where no name is like it
    book = read_book(Primus.book)
    made = plan(f"{MEGATRON}llama-2-7b", precision="BF16")
    of_release = replace(made.variant, release="v26.5")
    (found,) = release_findings(made, of_release, Config(f"{OF_MEGATRON}/MI300X/extra/llama2_7B-BF16-pretrian.yaml"))
    files = {str(run.values["config"]) for run in book.runs if "v26.5" in run.releases}
    assert found.hint.startswith("near: ") and set(found.hint.removeprefix("near: ").split(", ")) <= files
    assert f"{OF_MEGATRON}/MI300X/llama2_7B-BF16-pretrain.yaml" in found.hint
    (found,) = release_findings(made, of_release, Config(f"{OF_MEGATRON}/MI300X/zzz.yaml"))
    assert found.hint == ""
    # another gpu's file that a recipe or the user takes is not told
    overlay = plan(f"{MEGATRON}gpt-oss-120b_overlay", precision="FP8")
    asked = plan(f"{TITAN}llama-3.1-8b", precision="BF16", recipe_device="MI355X", config=OTHER_GPU)
    for made in (overlay, asked, plan(f"{TITAN}llama-3.1-8b", machine("MI350X"), precision="BF16", config=OTHER_GPU)):
        assert not any("made for" in message for message in said(made, fatal=False))
    # another model's file under a tag is told
    made = plan(f"{TITAN}llama-3.1-8b", precision="BF16", config=f"{CONFIGS}/MI300X/llama3.1_70B-BF16-pretrain.yaml")
    assert any("the tag names llama-3.1-8b" in message for message in said(made, fatal=False))
    # an overlay without its dockerfile is told
    made = plans(f"{MEGATRON}llama-3.1-8b_overlay")[0]
    assert any("RCCL" in message for message in said(made, fatal=False))


def test_no_row_of_the_book_is_a_file_that_its_release_does_not_have():
    book = read_book(Primus.book)
    made = plan(f"{MEGATRON}llama-2-7b", precision="BF16")
    for run in book.runs:
        for release in run.releases:
            assert not list(
                release_findings(made, replace(made.variant, release=release), Config(run.values["config"]))
            )


@each_row(("gpu", "refused"), [("MI300X", True), ("MI325X", True), ("MI350X", False), ("MI355X", False)])
@each_row("precision", ["MXFP4", "MXFP8"])
def test_a_gpu_without_mx_formats_is_refused_them(gpu, refused, precision):
    config = f"{OF_MEGATRON}/MI355X/llama3.1_8B-{precision}-pretrain.yaml"
    made = plan(tree_card(config=config, precision=precision), machine(gpu))
    messages = [text for text in said(made, fatal=True) if f"trains in {precision}" in text]
    assert bool(messages) is refused and all(f"{gpu} (gfx942) does not have" in text for text in messages)


CHANGES = {
    "mock_data": "true",
    "compile": "false",
    "activation_checkpoint": "full",
    "recompute_layers": 3,
    "lr_warmup_steps": 3,
    "tokenizer": "lab/own",
    "tp": 2,
    "pp": 2,
    "cp": 2,
    "ep": 2,
    "log_freq": 2,
    "stderr_sink_level": "INFO",
    "steps": 33,
    "seq_len": 1024,
}


@each_row("tag", [f"{TITAN}llama-3.1-8b", f"{MEGATRON}llama-2-7b", f"{MEGATRON}qwen3-32b-lora"])
@each_row("key", CHANGES)
def test_what_is_set_reaches_the_framework_or_is_refused(tag, key):
    left, changed = plans(tag)[0], plans(tag, **{key: CHANGES[key]})[0]
    refused = any(message.startswith(f"{key} does not reach framework") for message in said(changed, fatal=True))
    assert (options(changed) != options(left)) is not refused


def test_settings_of_a_framework_without_known_options_are_refused_and_its_file_s_own_are_not():
    assert said(plan(tree_card(framework="diffusion", micro_batch=4, steps=20)), fatal=True) == []
    made = plan(tree_card(framework="diffusion"), micro_batch=4, tp=2)
    assert [text.split()[0] for text in said(made, fatal=True)] == ["tp", "micro_batch"]


@each_row("asked", [{"config": f"{OF_MEGATRON}/MI300X/llama3.1_8B-BF16-pretrain.yaml"}, {"framework": "megatron"}])
def test_a_framework_that_is_not_the_config_file_s_is_refused(asked):
    messages = said(plan(f"{TITAN}llama-3.1-8b", precision="BF16", **asked), fatal=True)
    assert any("whose options are not those of" in message for message in messages)


@each_row("key", ["flags", "exports"])
def test_a_quote_without_end_is_refused(key):
    messages = said(plan(f"{TITAN}llama-3.1-8b", precision="BF16", **{key: "A='b"}), fatal=True)
    assert any(f"{key} has a quote that does not end" in message for message in messages)


@each_row(
    ("asked", "word"),
    [
        ({}, "of 2 nodes none is number ''"),
        ({"node_rank": 2, "master_addr": "head"}, "of 2 nodes none is number '2'"),
        ({"node_rank": 1}, "2 nodes cannot meet at 'localhost'"),
        ({"node_rank": 1, "master_addr": "head", "master_port": "high"}, "'high' is no port"),
    ],
)
def test_several_nodes_need_a_number_and_a_place_to_meet(asked, word):
    made = plan(f"{MEGATRON}llama-2-7b", precision="BF16", nnodes=2, global_batch=512, **asked)
    assert any(word in message for message in said(made, fatal=True))


@each_row(
    ("config", "words", "precision"),
    [
        ("a/llama3.1_8B-FP8-pretrain.yaml", [], "FP8"),
        ("a/llama3.1_8B-MXFP8-pretrain.yaml", [], "MXFP8"),
        ("a/llama3.1_8B-BF16-pretrain.yaml", ["--fp8", "hybrid"], "FP8"),
        ("a/llama3.1_8B-BF16-pretrain.yaml", ["--fp8=e4m3"], "FP8"),
        ("a/llama3.1_8B-BF16-pretrain.yaml", ["--fp8", "null"], "BF16"),
        ("a/llama3.1_8B-pretrain.yaml", [], "BF16"),
        ("a/llama3.1_8B-pretrain.yaml", ["--fp8"], "BF16"),
        ("a/deepseek_v3_16b-pretrain.yaml", ["--primus_turbo.use_moe_fp8", "true"], "FP8"),
        ("a/deepseek_v3_16b-pretrain.yaml", ["--primus_turbo.use_moe_fp8=false"], "BF16"),
        ("a/deepseek_v3_16b-pretrain.yaml", ["--primus_turbo.use_turbo_float8_linear", "true"], "BF16"),
    ],
)
def test_a_file_s_name_and_the_options_say_its_precision(config, words, precision):
    assert trained_precision(config, words) == precision
