"""The eras of torchtitan's configuration, key by key, and what one era lacks."""

from __future__ import annotations

import tomli

from madlite.model import RunPlan
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import gpu_machine, plan
from tests.plugins.rendered import files
from tests.rows import each_row

ERAS = ("0.0", "0.1", "0.2.0", "0.2")
COMMON = {
    "job.description": "a card",
    "job.dump_folder": "outputs",
    "metrics.log_freq": 1,
    "model.name": "llama3",
    "model.flavor": "8B",
    "optimizer.name": "AdamW",
    "optimizer.lr": 3e-4,
    "lr_scheduler.warmup_steps": 10,
    "training.dataset": "c4_test",
    "training.dataset_path": "assets/c4_test",
    "training.seq_len": 8192,
    "training.steps": 50,
    "training.max_norm": 1.0,
    "training.mixed_precision_param": "bfloat16",
    "training.mixed_precision_reduce": "float32",
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.context_parallel_degree": 1,
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "op",
    "checkpoint.interval": 500,
}
OLD = {
    "model.tokenizer_path": "assets/tokenizer/tokenizer.model",
    "model.converters": ["float8"],
    "training.compile": True,
    "training.seed": 42,
    "checkpoint.enable_checkpoint": False,
    "float8.enable_fsdp_float8_all_gather": True,
    "float8.precompute_float8_dynamic_scale_for_fsdp": True,
    "float8.force_recompute_fp8_weight_in_bwd": True,
    "float8.filter_fqns": ["output"],
}
NEW = {
    "metrics.disable_color_printing": True,
    "model.hf_assets_path": "assets/tokenizer",
    "model.converters": ["quantize.linear.float8"],
    "training.local_batch_size": 2,
    "training.dtype": "float32",
    "parallelism.expert_parallel_degree": 1,
    "compile.enable": True,
    "checkpoint.enable": False,
    "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
    "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": True,
    "quantize.linear.float8.filter_fqns": ["output"],
}
EXPECTED = {
    "0.0": {**COMMON, **OLD, "training.batch_size": 2},
    "0.1": {
        **COMMON,
        **OLD,
        "training.local_batch_size": 2,
        "training.deterministic": False,
        "metrics.disable_color_printing": True,
    },
    "0.2.0": {**COMMON, **NEW, "training.seed": 42, "training.deterministic": False},
    "0.2": {**COMMON, **NEW, "debug.seed": 42, "debug.deterministic": False},
}


def llama(era: str, args: str = "", **changes) -> RunPlan:
    return plan(Torchtitan(), gpu_machine(8), "llama3.1_8B", args, era=era, **changes)


def dotted(table: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in table.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def fatal(made: RunPlan) -> list[tuple[str, str]]:
    return [(finding.message, finding.hint) for finding in Torchtitan().check(made) if finding.fatal]


@each_row("era", ERAS)
def test_every_key_is_the_one_of_its_era(era):
    made = llama(era, precision="FP8")
    assert dotted(tomli.loads(files(made)["train.toml"])) == EXPECTED[era]
    assert fatal(made) == []


@each_row("era", ERAS)
def test_without_fp8_no_era_has_a_section_of_it(era):
    keys = dotted(tomli.loads(files(llama(era))["train.toml"]))
    assert keys["model.converters"] == [] and not any("float8" in key for key in keys)


def test_gradient_accumulation_and_the_mode_of_a_memory_budget_are_rendered_where_they_are_known():
    for era in ERAS[1:]:
        assert tomli.loads(files(llama(era, global_batch=32))["train.toml"])["training"]["global_batch_size"] == 32
    ((message, _),) = fatal(llama("0.0", global_batch=32))
    assert "before 0.1 has no gradient accumulation" in message
    assert fatal(llama("0.0", global_batch=16)) == [], "2 sequences of 8 ranks, without accumulation"
    budget = {"activation_checkpoint": "memory_budget", "memory_budget": 0.3, "compile": True}
    keys = dotted(tomli.loads(files(llama("0.2", precision="FP8", **budget))["train.toml"]))
    mode = {"activation_checkpoint.mode": "memory_budget", "activation_checkpoint.memory_budget": 0.3}
    assert keys == {**EXPECTED["0.2"], **mode}


@each_row("era", ERAS)
def test_a_number_recomputes_every_so_many_layers(era):
    keys = dotted(tomli.loads(files(llama(era, precision="FP8", activation_checkpoint="8"))["train.toml"]))
    assert keys == {**EXPECTED[era], "activation_checkpoint.selective_ac_option": "8"}


@each_row("era", ERAS[1:])
def test_when_weights_are_freed_is_left_to_torchtitan_unless_it_is_set(era):
    never = dotted(tomli.loads(files(llama(era, precision="FP8", reshard="never"))["train.toml"]))
    assert never == {**EXPECTED[era], "parallelism.fsdp_reshard_after_forward": "never"}


def test_an_old_era_takes_the_tokenizer_of_the_image_before_that_of_the_hub():
    script = files(llama("0.0", mock_data=False))["run.sh"]
    assert 'if [ ! -f "$tokenizer/original/tokenizer.model" ]; then' in script
    assert "fetch.py meta-llama/Llama-3.1-8B original/tokenizer.model)" in script
    (tokenizer,) = (asset for asset in Torchtitan().assets(llama("0.0", mock_data=False)) if asset.kind == "tokenizer")
    assert tokenizer.files == ("original/tokenizer.model",)
    # the made up tokenizer of an old era has as many tokens as the model
    assert "--tokenizer assets/tokenizer --tiktoken 128256 " in files(llama("0.0"))["run.sh"]
    assert "--tiktoken" not in files(llama("0.2"))["run.sh"]
    assert "--tiktoken 512 " in files(plan(Torchtitan(), gpu_machine(1), "debug", era="0.1"))["run.sh"]


@each_row(
    ("era", "changes", "word"),
    [
        ("0.1", {"dtype": "bfloat16"}, "0.1.0 has no dtype bfloat16"),
        ("0.0", {"activation_checkpoint": "memory_budget"}, "has no memory_budget"),
        ("0.1", {"ep": 2}, "has no expert parallelism"),
        ("0.0", {"reshard": "never"}, "before 0.1 has no reshard never"),
        ("0.1", {"converters": "quantize.linear.float8", "precision": "FP8"}, "it calls FP8's float8"),
        ("0.2.0", {"converters": "float8", "precision": "FP8"}, "it calls FP8's quantize.linear.float8"),
        ("0.4", {}, "era '0.4' cannot be rendered: its configuration is Python"),
        ("0.10", {}, "its configuration is Python"),
        ("0.3", {}, "its configuration is Python"),
        ("0.2.2", {}, "one of 0.0, 0.1, 0.2.0, 0.2"),
        ("new", {}, "one of 0.0, 0.1, 0.2.0, 0.2"),
    ],
)
def test_what_an_era_lacks_is_refused(era, changes, word):
    ((message, hint),) = fatal(llama(era, **changes))
    assert word in message and hint


@each_row(
    ("era", "args", "option", "instead"),
    [
        ("0.2", "--training.compile", "training.compile", "compile=true"),
        ("0.2", "--float8.enable-fsdp-float8-all-gather", "float8.", "precision=FP8"),
        ("0.2", "--training.seed=7", "training.seed", "seed=N"),
        ("0.2.0", "--debug.seed 7", "debug.", "seed=N or deterministic=true"),
        ("0.2", "--checkpoint.enable_checkpoint", "checkpoint.enable_checkpoint", "checkpoint=true"),
        ("0.1", "--compile.enable", "compile.", "compile=true"),
        ("0.1", "--model.hf_assets_path /m", "model.hf_assets_path", "hf_assets_path=PATH"),
    ],
)
def test_options_of_another_era_are_refused(era, args, option, instead):
    ((message, hint),) = fatal(llama(era, args))
    assert f"has no option --{option}" in message and f"--set {instead}" in hint


@each_row(
    ("era", "args"),
    [
        ("0.0", "--training.compile"),
        ("0.1", "--checkpoint.enable_checkpoint"),
        ("0.2", "--compile.enable --compile.components model --debug.seed 3 --checkpoint.enable"),
        ("0.2", "--metrics.log_freq 5 --profiling.enable-profiling"),
        ("0.2", "'not closed"),
    ],
)
def test_options_of_the_era_pass(era, args):
    assert fatal(llama(era, args)) == []


@each_row("era", ERAS)
def test_a_checkpoint_lies_where_the_next_attempt_finds_it(era):
    made = files(llama(era, checkpoint=True, checkpoint_interval=10))
    section = tomli.loads(made["train.toml"])["checkpoint"]
    assert section.pop("enable_checkpoint" if era in ("0.0", "0.1") else "enable") is True
    assert section.pop("last_save_model_only", None) is (None if era in ("0.0", "0.1") else False)
    assert section == {"interval": 10, "folder": "../checkpoint", "keep_latest_k": 2}
    assert "mkdir -p outputs checkpoint" in made["run.sh"] and "checkpoint" not in files(llama(era))["run.sh"]
