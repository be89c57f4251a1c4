"""The torchtitan backend: recipes by device, checks, and the files of a run folder."""

from __future__ import annotations

import subprocess

import msgspec
import tomli

from madlite.model import Machine, RunPlan
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import gpu_machine, plan
from tests.plugins.rendered import files
from tests.rows import each_row


def titan(machine: Machine, recipe: str = "debug", args: str = "", **changes) -> RunPlan:
    return plan(Torchtitan(), machine, recipe, args, **changes)


def toml(made: RunPlan) -> dict:
    return tomli.loads(files(made)["train.toml"])


def complaints(made: RunPlan, fatal: bool) -> list[str]:
    return [finding.message for finding in Torchtitan().check(made) if finding.fatal is fatal]


def test_a_recipe_fits_the_device():
    assert titan(Machine()).variant.seq_len == 256
    assert titan(gpu_machine(1)).variant.seq_len == 2048
    assert titan(gpu_machine(8, "MI355X"), "llama3.1_8B").variant.micro_batch == 6
    assert titan(gpu_machine(8, "H100"), "llama3.1_8B").variant.micro_batch == 2
    assert titan(gpu_machine(8, "H100"), "llama3.1_70B").settings["tp"] == 8
    # amd's variables are set on amd alone
    amd = Machine(vendor="AMD", device="MI300X")
    assert titan(amd).env["GPU_MAX_HW_QUEUES"] == "8"
    assert "GPU_MAX_HW_QUEUES" not in titan(gpu_machine(1)).env
    # the shim goes where there is no gpu and nowhere else
    on_cpu, on_gpu = files(titan(Machine())), files(titan(gpu_machine(2)))
    assert "cpu_shim/sitecustomize.py" in on_cpu and "PYTHONPATH=" in on_cpu["run.sh"]
    assert not any("cpu_shim" in path + text for path, text in on_gpu.items())
    # the demo has nothing to complain of on a cpu
    assert list(Torchtitan().check(titan(Machine()))) == []


@each_row("recipe", ["debug", "llama3.1_8B", "llama3.1_8B_1gpu", "llama3.1_70B"])
def test_no_recipe_is_refused_on_gpus(recipe):
    made = titan(gpu_machine(8), recipe)
    assert list(Torchtitan().check(made)) == []
    assert toml(made)["training"]["steps"] == 50


def test_the_configuration_says_what_the_plan_says():
    made = titan(
        gpu_machine(8), "llama3.1_8B", global_batch=32, tp=2, lr=1e-4, precision="FP8", converters="mx", seed=7
    )
    config = toml(made)
    assert config["training"]["local_batch_size"] == made.variant.micro_batch == 2
    assert config["training"]["global_batch_size"] == 32
    assert config["training"]["seq_len"] == 8192
    assert config["parallelism"]["tensor_parallel_degree"] == 2
    assert config["parallelism"]["data_parallel_shard_degree"] == -1
    assert config["model"] == {
        "name": "llama3",
        "flavor": "8B",
        "hf_assets_path": "assets/tokenizer",
        "converters": ["quantize.linear.float8", "mx"],
    }
    assert config["optimizer"]["lr"] == 1e-4 and config["debug"]["seed"] == 7
    assert config["compile"]["enable"] is True and config["checkpoint"]["enable"] is False
    # nothing is made where the user brings it
    own = files(titan(gpu_machine(1), dataset_path="/data/c4", hf_assets_path="/models/llama"))
    assert "make_assets.py " not in own["run.sh"] and "HF_HUB_OFFLINE" in own["run.sh"]
    assert tomli.loads(own["train.toml"])["training"]["dataset_path"] == "/data/c4"
    assert list(Torchtitan().assets(titan(gpu_machine(1), dataset_path="/data/c4"))) == []
    # the rank that knows the loss is the one that prints
    assert "--local-ranks-filter 0 " in files(titan(gpu_machine(8)))["run.sh"]
    assert "--local-ranks-filter 6 " in files(titan(gpu_machine(8), pp=4))["run.sh"]
    assert "--local-ranks-filter 0,1 " in files(titan(gpu_machine(8), log_ranks="0,1"))["run.sh"]


def test_text_and_tokenizer_are_those_of_the_hub_or_of_the_prepared_part():
    # without mock data text and tokenizer are those of the hub
    made = titan(gpu_machine(8), "llama3.1_8B", mock_data=False)
    streamed = files(made)
    assert "fetch.py meta-llama/Llama-3.1-8B tokenizer.json tokenizer_config.json" in streamed["run.sh"]
    assert "--text" not in streamed["run.sh"] and "HF_HUB_OFFLINE" not in streamed["run.sh"]
    training = tomli.loads(streamed["train.toml"])["training"]
    assert training["dataset"] == "c4" and "dataset_path" not in training
    assert [(asset.kind, asset.ref, asset.gated) for asset in Torchtitan().assets(made)] == [
        ("tokenizer", "meta-llama/Llama-3.1-8B", True),
        ("dataset", "allenai/c4", False),
    ]
    assert list(Torchtitan().assets(titan(gpu_machine(8), "llama3.1_8B"))) == []
    # prepared it reads the part of c4 that is here
    made = titan(gpu_machine(8), "llama3.1_8B", mock_data=False)
    offline = files(msgspec.structs.replace(made, env={**made.env, "HF_HUB_OFFLINE": "1"}))
    training = tomli.loads(offline["train.toml"])["training"]
    assert (training["dataset"], training["dataset_path"]) == ("c4", "assets/c4")
    (data,) = (asset for asset in Torchtitan().assets(made) if asset.kind == "dataset")
    assert f"fetch.py --dataset {data.ref} {data.files[0]}" in offline["run.sh"]
    own = files(
        msgspec.structs.replace(made, env={"HF_HUB_OFFLINE": "1"}, settings={**made.settings, "dataset": "other"})
    )
    assert "dataset_path" not in tomli.loads(own["train.toml"])["training"] and "allenai" not in own["run.sh"]
    # another data set of torchtitan's is fetched by each run
    *_, data = Torchtitan().assets(titan(gpu_machine(8), "llama3.1_8B", mock_data=False, dataset="other"))
    assert (data.ref, data.source, data.path) == ("other", "made", "")
    # a debug model streams with the tokenizer that fits its vocabulary
    made = titan(gpu_machine(1), mock_data=False)
    script = files(made)["run.sh"]
    assert "--tokenizer assets/tokenizer" in script and "--text" not in script and "HF_HUB_OFFLINE" not in script
    assert [asset.gated for asset in Torchtitan().assets(made)] == [False]
    # a data set that nothing reads is said
    (message,) = complaints(titan(gpu_machine(1), dataset="c4"), fatal=False)
    assert "dataset 'c4' is not read: made-up text is" in message
    assert complaints(titan(gpu_machine(1), dataset="c4", mock_data=False), fatal=False) == []


def test_the_script_is_good_shell_and_ends_with_the_card_s_args(tmp_path):
    script = files(titan(gpu_machine(4), args="--training.dataset 'a b' --x='$(id)'"))["run.sh"]
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    assert "--nproc_per_node 4 " in script
    assert script.rstrip().endswith("-m torchtitan.train --job.config_file train.toml"
                                    " --training.dataset 'a b' '--x=$(id)'")  # fmt: skip


@each_row(
    ("changes", "word"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"seq_len": None}, "seq_len is None"),
        ({"tp": 3}, "tp 3"),
        ({"tp": 0}, "tp=0"),
        ({"dp_shard": 2}, "dp_shard 2"),
        ({"dp_shard": -2}, "dp_shard=-2"),
        ({"global_batch": 12}, "global batch 12"),
        ({"precision": "INT4"}, "precision 'INT4'"),
        ({"activation_checkpoint": "some"}, "activation_checkpoint 'some'"),
        ({"activation_checkpoint": "0"}, "activation_checkpoint '0'"),
        ({"activation_checkpoint": "memory_budget", "compile": False}, "memory_budget needs a compiled model"),
        ({"memory_budget": 1.5}, "memory_budget 1.5 is not from 0 to 1"),
        ({"reshard": "sometimes"}, "reshard 'sometimes'"),
        ({"converters": "float8"}, "quantize.linear.float8"),
        ({"dataset_path": "data/c4"}, "dataset_path 'data/c4' is relative"),
        ({"converters": "quantize.linear.float8"}, "the result's row would have BF16"),
        ({"ep": 3}, "ep 3 does not divide the 8 rank(s)"),
        ({"ep": 0}, "ep 0"),
        ({"vocab_size": 300}, "vocab_size 300"),
        ({"script": "run_train.sh"}, "script comes from an image release"),
    ],
)
def test_what_torchtitan_would_refuse_is_refused_before_the_start(changes, word):
    (message,) = complaints(titan(gpu_machine(8), **changes), fatal=True)
    assert word in message


@each_row(
    ("changes", "fatal", "word"),
    [
        ({"log_freq": 0}, True, "log_freq is 0"),
        ({"log_freq": -1}, True, "log_freq is -1"),
        ({"log_freq": 10, "steps": 15}, True, "15 steps, with a line for every 10, are over before 5"),
        ({"log_freq": 10, "steps": 50}, False, "leave few after 5 of warm-up"),
        ({"log_ranks": "8"}, True, "log_ranks '8' names no rank of 8"),
        ({"log_ranks": "0,x"}, True, "log_ranks '0,x' names no rank"),
        ({"log_ranks": "0,1"}, False, "lines of several ranks cannot be distinguished"),
        ({"lr_warmup_steps": 51}, False, "the learning rate rises for 51 steps"),
    ],
)
def test_a_log_without_a_result_is_told_of(changes, fatal, word):
    (message,) = complaints(titan(gpu_machine(8), **changes), fatal)
    assert word in message and complaints(titan(gpu_machine(8), **changes), not fatal) == []


PIPELINE = {"pp": 4, "micro_batch": 4}


@each_row(
    "degrees",
    [
        {"tp": 2, "cp": 4},
        {"dp_shard": 8},
        {"dp_replicate": 2},
        {"pp": 4, "micro_batch": 4},
        {"ep": 8},
        {"tp": 2, "ep": 4},
    ],
)
def test_meshes_that_fit_pass(degrees):
    assert complaints(titan(gpu_machine(8), **degrees), fatal=True) == []


@each_row("degrees", [{"tp": 8}, {**PIPELINE, "tp": 2}, {"tp": 4, "dp_replicate": 2}])
def test_a_mesh_without_fsdp_would_train_in_float32_and_is_refused(degrees):
    """torchtitan says then: Mixed precision training with TP or PP is only supported when FSDP/HSDP/CP is enabled."""
    (message,) = complaints(titan(gpu_machine(8), **degrees), fatal=True)
    assert "one FSDP shard torchtitan trains in float32, not BF16" in message
    assert complaints(titan(gpu_machine(8), dtype="bfloat16", **degrees), fatal=True) == []
    assert complaints(titan(gpu_machine(8), precision="FP32", **degrees), fatal=True) == []


def test_a_pipeline_without_a_sequence_for_each_stage_is_refused():
    """torch says then: Number of microbatches (2) must be greater than or equal to the number of stages (4)."""
    (message,) = complaints(titan(gpu_machine(8), pp=4, micro_batch=2), fatal=True)
    assert message == "pp 4 needs a micro batch of as many sequences or more, not 2"


def test_what_makes_a_number_doubtful_is_said():
    assert any("warm-up" in text for text in complaints(titan(gpu_machine(1), steps=8), fatal=False))
    assert any("torch.compile" in text for text in complaints(titan(Machine(), compile=True), fatal=False))
    # a gpu machine never runs on its cpu
    machine = gpu_machine(2)
    made = plan(Torchtitan(), Machine(), "debug")
    (message,) = complaints(msgspec.structs.replace(made, machine=machine), fatal=True)
    assert "no GPU is granted" in message
    # enough steps are named where not each is logged
    machine = gpu_machine(8)
    (finding,) = Torchtitan().check(titan(machine, log_freq=10, steps=15, warmup_steps=10))
    enough = int(finding.hint.removeprefix("--steps "))
    assert list(Torchtitan().check(titan(machine, log_freq=10, steps=enough, warmup_steps=10))) == []


def test_published_rows_keep_their_names():
    rule = Torchtitan().result_rule()
    assert [(metric.metric, metric.rule) for metric in rule.mad] == [
        ("tok_per_s_per_gpu", "last"),
        ("TFLOPS_per_gpu", "last"),
    ]
    assert rule.headline_metric == "tokens_per_s_per_gpu"
