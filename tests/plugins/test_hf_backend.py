"""The hf backend: its recipes, its checks, and the files of a run folder."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from madlite.backends.recipe_book import read_book
from madlite.model import Asset, Gpu, Machine, RunPlan, Traits
from madlite.plan.plan_file import render
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.hf.sizes import bytes_per_gpu, count_weights
from tests.factories import HOST
from tests.plugins.logs import TEMPLATES, gpu_machine, plan
from tests.plugins.rendered import files
from tests.rows import each_row

BOOK = read_book(HuggingFace.book)
CPU = Machine()
SCRIPTS = ("train.py", "train_model.py", "train_data.py", "pack.py", "packages.py")


def hf(machine: Machine, recipe: str = "tiny_lora", args: str = "", nodes: int = 1, **changes) -> RunPlan:
    made = plan(HuggingFace(), machine, recipe, args, **changes)
    return replace(made, place=replace(made.place, nodes=nodes))


def run_sh(made: RunPlan) -> str:
    (template,) = (one for one in made.templates if one.path == "run.sh")
    (file,) = render(replace(made, templates=(template,)), [TEMPLATES])
    return file.data.decode()


def fatal(made: RunPlan) -> list[str]:
    return [finding.message for finding in HuggingFace().check(made) if finding.fatal]


def keys_read(script: str) -> set[str]:
    return {
        node.slice.value
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "values"
        if isinstance(node.slice, ast.Constant)
    }


def test_the_training_scripts_get_every_value_they_read():
    given = files(hf(gpu_machine(8), global_batch=64))
    values = json.loads(given["train.json"])
    reads = set().union(*(keys_read(given[name]) for name in SCRIPTS))
    assert reads <= set(values) and {"lora_r", "steps", "accumulation", "dataset_split"} <= reads
    assert values["steps"] == 40 and values["gradient_checkpointing"] is False
    assert (values["accumulation"], values["ranks"]) == (2, 8)


@each_row(("recipe", "sizes"), [("gpt_oss_20B_lora", {}), ("tiny_lora", {"accumulation": 4})])
def test_without_a_global_batch_the_forward_passes_of_a_step_are_the_recipe_s(recipe, sizes):
    assert json.loads(files(hf(gpu_machine(2), recipe, **sizes))["train.json"])["accumulation"] == 4


def test_the_script_is_good_shell_and_ends_with_the_card_s_args():
    script = files(hf(gpu_machine(2), args="--weight_decay 0.1 --run_name 'a b'"))["run.sh"]
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    assert "--nproc_per_node 2 " in script
    assert script.rstrip().endswith("train.py train.json --weight_decay 0.1 --run_name 'a b'")


@each_row(
    ("machine", "recipe"),
    [
        (CPU, "tiny_lora"),
        (CPU, "tiny_qlora"),
        (CPU, "tiny_pretrain"),
        (CPU, "tiny_gpt_oss"),
        (gpu_machine(1), "llama3.1_8B_lora"),
        (gpu_machine(1), "llama3.1_8B_qlora"),
        (gpu_machine(2), "llama3.1_8B_pretrain"),
        (gpu_machine(8), "gpt_oss_20B_lora"),
        (gpu_machine(8), "gpt_oss_120B_lora"),
        (gpu_machine(8), "llama-3.1-8b-accelerate"),
    ],
)
def test_no_recipe_is_refused_where_it_belongs(machine, recipe):
    assert list(HuggingFace().check(hf(machine, recipe))) == []


@each_row("recipe", ["llama2_70B_lora", "llama3.1_70B_lora"])
def test_mad_s_five_steps_are_said_to_be_few(recipe):
    (finding,) = HuggingFace().check(hf(gpu_machine(8), recipe))
    assert finding.message == "5 steps leave few after 1 of warm-up" and not finding.fatal


@each_row(
    ("changes", "word"),
    [
        ({"precision": "TF32"}, "precision 'TF32'"),
        ({"method": "dora"}, "method 'dora'"),
        ({"strategy": "tp"}, "strategy 'tp'"),
        ({"fsdp_version": 3}, "fsdp_version '3'"),
        ({"zero_stage": 1}, "zero_stage '1'"),
        ({"dtype": "float8"}, "dtype 'float8'"),
        ({"chat_template": "zephyr"}, "chat_template 'zephyr'"),
        ({"global_batch": 3}, "global batch 3"),
        ({"accumulation": 0}, "accumulation is 0"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"heads": 0}, "0 heads"),
        ({"hidden_size": 100}, "hidden_size 100"),
        ({"layers": 0}, "layers is 0"),
        ({"experts": 2, "experts_per_token": 4}, "4 of 2 experts"),
        ({"steps": 0}, "steps is 0"),
        ({"seq_len": 1}, "one token"),
        ({"lora_r": 0}, "lora_r is 0"),
        ({"lora_targets": "q_proj,"}, "names no layer"),
        ({"precision": "FP8"}, "LoRA's are not"),
        ({"precision": "FP8", "method": "full", "strategy": "fsdp", "fsdp_version": 1}, "FSDP1's optimizer"),
        ({"precision": "FP8", "method": "full", "gradient_checkpointing": True}, "would not be in FP8"),
        ({"precision": "FP8", "method": "full", "seq_len": 250, "micro_batch": 1}, "multiple of 16 tokens"),
        ({"precision": "FP16", "method": "full", "dtype": "bfloat16"}, "gradients of bfloat16 ones"),
        ({"method": "qlora", "architecture": "gpt_oss", "attention": "eager"}, "experts are none"),
        ({"method": "qlora", "strategy": "fsdp", "dtype": "bfloat16"}, "random ones are not"),
        ({"method": "qlora", "strategy": "fsdp", "model_id": "a/b"}, "all others have 16 bits"),
        ({"architecture": "gpt_oss"}, "no attention by sdpa"),
        ({"dataset": "a/b"}, "no tokenizer is set for data set a/b"),
        ({"model_id": "./weights"}, "counts from the run's own folder"),
        ({"config_file": "config.json"}, "counts from the run's own folder"),
        ({"lora_dropout": 7.0}, "lora_dropout is 7.0"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1.0"),
        ({"lora_dropout": -0.1}, "lora_dropout is -0.1"),
        ({"checkpoint": True, "checkpoint_interval": 0}, "checkpoint_interval is 0"),
        ({"lr": -1.0}, "lr is -1.0, below 0"),
        ({"lr_warmup_steps": -1}, "lr_warmup_steps is -1"),
        ({"lr_schedule": "zork"}, "lr_schedule 'zork'"),
        ({"lora_r": 257}, "lora_r 257 is above the model's hidden size, 256"),
        ({"lora_r": 9999999, "model_id": "a/b"}, "lora_r 9999999 is above"),
        ({"architecture": "zork"}, "architecture 'zork'"),
        ({"attention": "zork"}, "attention 'zork'"),
        ({"lora_targets": "nonsense"}, "are no layers of llama"),
        ({"lora_targets": "gate_proj", "architecture": "gpt_oss", "attention": "eager"}, "are no layers of gpt_oss"),
        ({"cpu_ranks": 0}, "cpu_ranks is 0"),
    ],
)
def test_what_would_be_refused_is_refused_before_the_start(changes, word):
    (message,) = fatal(hf(gpu_machine(2), **changes))
    assert word in message


@each_row(
    ("changes", "word"),
    [
        ({"strategy": "fsdp"}, "it would silently be DDP"),
        ({"strategy": "deepspeed"}, "it would silently be DDP"),
        ({"precision": "FP8", "method": "full"}, "FP8 needs a GPU"),
        ({"precision": "FP16"}, "FP16 needs a GPU"),
        ({"attention": "flex_attention"}, "no backward pass on a CPU"),
    ],
)
def test_what_a_cpu_cannot_do_is_refused(changes, word):
    (message,) = fatal(hf(CPU, **changes))
    assert word in message


@each_row(
    ("recipe", "most"),
    [
        ("llama2_70B_lora", 4096),
        ("llama3.1_70B_lora", 131072),
        ("gpt_oss_20B_lora", 131072),
        ("llama3.1_8B_lora", 131072),
    ],
)
def test_sequences_longer_than_a_model_s_positions_are_refused(recipe, most):
    assert fatal(hf(gpu_machine(8), recipe, seq_len=most)) == []
    (message,) = fatal(hf(gpu_machine(8), recipe, seq_len=most + 1))
    assert f"takes {most} tokens at most" in message


def test_a_model_of_another_name_has_positions_of_its_own():
    assert fatal(hf(gpu_machine(8), "llama2_70B_lora", seq_len=8192, model_id="a/b")) == []
    assert fatal(hf(gpu_machine(8), "llama2_70B_lora", seq_len=8192, model_id="", dataset="")) != []
    assert "takes 8192 tokens" in fatal(hf(gpu_machine(8), seq_len=8193, model_id="meta-llama/Meta-Llama-3-8B"))[0]


@each_row(
    "changes",
    [
        {"lora_dropout": 0.0, "lora_r": 256, "lr": 0.0, "lr_schedule": "cosine_with_min_lr"},
        {"attention": "flash_attention_3"},
        {"attention": "kernels-community/flash-attn"},
        {"lora_targets": "layers.0.self_attn.q_proj, nonsense"},
        {"lora_targets": "Wqkv", "architecture": "mpt"},
        {"lora_targets": "nonsense", "lora_r": 4096, "model_id": "a/b"},
        {"architecture": "zork", "config_file": "/its/config.json"},
        {"lora_targets": "", "lora_r": 0, "lora_dropout": 7.0, "method": "full"},
    ],
)
def test_a_value_that_some_training_takes_is_not_refused(changes):
    assert fatal(hf(gpu_machine(2), **changes)) == []


def on_host(made: RunPlan, **changes) -> RunPlan:
    return replace(made, runtime="host", traits=HOST, env={**made.env, "MADLITE_PYTHON": sys.executable}, **changes)


@each_row("name", ["model_id", "dataset", "tokenizer_id", "config_file"])
def test_a_path_that_is_not_on_the_host_is_refused(name, tmp_path):
    for path, told in ((tmp_path / "nope", [f"{name} '{tmp_path}/nope' is not there"]), (tmp_path, [])):
        made = hf(gpu_machine(2), **{"tokenizer_id": "a/b", name: str(path)})
        assert fatal(on_host(made)) == told
        assert fatal(made) == [], "a container has paths of its own"
        assert fatal(on_host(made, machine=replace(made.machine, pretended=True))) == []


@each_row(
    ("package", "changes"),
    [
        ("bitsandbytes", {"method": "qlora"}),
        ("deepspeed", {"strategy": "deepspeed"}),
        ("transformer_engine", {"precision": "FP8", "method": "full"}),
    ],
)
def test_a_package_that_madlite_s_own_interpreter_lacks_is_said_before_the_start(monkeypatch, package, changes):
    made = on_host(hf(gpu_machine(2), **changes))
    monkeypatch.setattr("madlite_plugins.hf.here_checks.find_spec", lambda name: None if name == package else name)
    (finding,) = (one for one in HuggingFace().check(made) if one.fatal)
    assert f"needs {package.replace('_', '-')}, which is not installed for {sys.executable}" in finding.message
    assert f"pip install {package.replace('_', '-')}" in finding.hint
    assert fatal(replace(made, env={**made.env, "MADLITE_PYTHON": "/another/python"})) == []
    assert fatal(replace(made, runtime="docker", traits=Traits())) == []
    monkeypatch.setattr("madlite_plugins.hf.here_checks.find_spec", lambda name: name)
    assert fatal(made) == []


def test_ranks_of_a_cpu_and_of_several_nodes():
    # a cpu has as many ranks as were asked for
    made = hf(CPU, cpu_ranks=2, global_batch=16)
    values = json.loads(files(made)["train.json"])
    assert (values["ranks"], values["accumulation"]) == (2, 2)
    assert "--nproc_per_node 2 " in run_sh(made) and fatal(made) == []
    assert "micro batch × ranks = 8" in fatal(hf(CPU, cpu_ranks=2, global_batch=12))[0]
    assert "--nproc_per_node 1 " in run_sh(hf(gpu_machine(1), cpu_ranks=2)), "GPUs are the ranks"
    started = replace(made, launcher="accelerate")
    assert fatal(started) == ["accelerate starts several CPU ranks through MPI alone"]
    said = replace(hf(gpu_machine(1), cpu_ranks=2), origins={"settings.cpu_ranks": "--set"})
    assert "cpu_ranks mean nothing" in remarks(said)[0]
    # accelerate starts no cpu ranks of several nodes
    made = replace(hf(CPU, nodes=2, node_rank="0", master_addr="n0"), launcher="accelerate")
    assert fatal(made) == ["accelerate starts CPU ranks of several nodes through MPI alone"]

    # the first of several nodes has the result
    def told(made: RunPlan) -> str:
        return "; ".join(remarks(made))

    meet = {"node_rank": "1", "master_addr": "n0"}
    finding = "the result is printed on node 0: on node 1 there will be no result"
    assert finding in told(hf(gpu_machine(8), nodes=2, **meet))
    assert "no result" not in told(hf(gpu_machine(8), nodes=2, **{**meet, "node_rank": "0"}))
    assert "writes a row of its own" in told(hf(gpu_machine(8), "llama-3.1-8b-accelerate", nodes=2, **meet))


def small_gpus() -> Machine:
    return replace(gpu_machine(2), gpus=tuple(Gpu(index=n, memory_bytes=60 * 1024**3) for n in range(2)))


def remarks(made: RunPlan) -> list[str]:
    return [finding.message for finding in HuggingFace().check(made) if not finding.fatal]


def test_what_is_odd_or_read_by_nothing_is_told_and_runs():
    assert remarks(hf(gpu_machine(1), strategy="fsdp")) == ["one GPU leaves fsdp nothing to share out"]
    assert remarks(hf(gpu_machine(1), strategy="fsdp", offload=True)) == []
    assert remarks(hf(CPU, "llama3.1_8B_lora")) == ["Llama-3.1-8B on a CPU takes very long and much memory"]
    assert "the learning rate still rises" not in "".join(remarks(hf(CPU)))
    (rising,) = remarks(hf(CPU, lr_warmup_steps=99))
    assert "rises for 99 steps" in rising
    (scores,) = remarks(hf(gpu_machine(8), "gpt_oss_20B_lora", attention="eager"))
    assert "64 GiB for each layer" in scores  # 8 × 64 heads × 8192² × 2 bytes
    (logits,) = remarks(hf(small_gpus(), "llama3.1_8B_lora", micro_batch=64))
    assert "take 125 GiB alone, and a GPU has 60" in logits  # 64 × 4096 × 128256 × 4 bytes
    # values that nothing reads are told
    made = hf(gpu_machine(2), zero_stage=2)
    told = replace(made, origins={"settings.zero_stage": "--set", "settings.reshard": "recipe tiny_lora"})
    assert remarks(told) == ["zero_stage mean nothing to strategy ddp"]
    weights = replace(hf(gpu_machine(2), model_id="a/b"), origins={"settings.layers": "--set"})
    assert "layers are not read" in remarks(weights)[0]
    made_up = replace(hf(gpu_machine(2)), origins={"settings.chat_template": "--set"})
    assert "chat_template mean nothing to made-up tokens" in remarks(made_up)[0]


def test_accumulation_and_a_global_batch_that_contradict_each_other_are_refused():
    made = hf(gpu_machine(2), global_batch=16, accumulation=3)
    assert fatal(made) == []  # the recipe's accumulation gives way
    said = replace(made, origins={"settings.accumulation": "--set"})
    assert fatal(said) == ["global batch 16 is not micro batch × ranks × accumulation = 24"]


def test_weights_are_counted_as_the_models_have_them():
    llama = hf(gpu_machine(1), "llama3.1_8B_lora").settings
    assert count_weights(llama) == pytest.approx(8_030_261_248, rel=1e-4)  # as published, norms left out
    assert count_weights(hf(gpu_machine(1), "gpt_oss_20B_lora").settings) == pytest.approx(20.9e9, rel=0.01)
    assert count_weights(hf(gpu_machine(1), "gpt_oss_120B_lora").settings) == pytest.approx(116.8e9, rel=0.01)
    assert count_weights(hf(gpu_machine(1), "llama2_70B_lora").settings) == pytest.approx(68.98e9, rel=0.001)
    # weights that take more than a gpu has are warned of
    small = small_gpus()
    made = hf(small, "llama3.1_8B_pretrain", strategy="ddp")
    assert bytes_per_gpu(made) == pytest.approx(16 * 8.03e9, rel=1e-3)
    (finding,) = HuggingFace().check(made)
    assert "take 120 GiB on each GPU, which has 60" in finding.message and finding.hint == "--set strategy=fsdp"
    assert bytes_per_gpu(hf(small, "llama3.1_8B_pretrain")) == pytest.approx(8 * 8.03e9, rel=1e-3)
    assert remarks(hf(small, "llama3.1_8B_qlora")) == []


def accelerate_yaml(made: RunPlan) -> dict:
    return yaml.safe_load(files(made)["accelerate.yaml"])


def test_accelerate_is_told_of_fsdp():
    made = hf(gpu_machine(4), "llama3.1_8B_pretrain", nodes=2, node_rank="1", master_addr="n0", master_port="1234")
    told = accelerate_yaml(made)
    assert (told["distributed_type"], told["num_processes"], told["num_machines"]) == ("FSDP", 8, 2)
    assert told["mixed_precision"] == "bf16" and told["use_cpu"] is False
    assert told["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": True,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_reshard_after_forward": True,
    }
    script = files(made)["run.sh"]
    assert "torch.distributed.run" not in script and "accelerate.commands.launch" in script
    where = '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"'
    assert where in script and "export MASTER_ADDR=n0" in script
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    # fsdp's first version and real weights have what they need
    told = accelerate_yaml(hf(gpu_machine(2), strategy="fsdp", fsdp_version=1, reshard=False, model_id="a/b"))
    config = told["fsdp_config"]
    assert config["fsdp_sharding_strategy"] == "SHARD_GRAD_OP" and config["fsdp_sync_module_states"] is True
    assert config["fsdp_cpu_ram_efficient_loading"] is True and "fsdp_reshard_after_forward" not in config


def test_accelerate_is_told_of_deepspeed_and_transformer_engine_and_ddp_is_torchrun_s():
    told = accelerate_yaml(hf(gpu_machine(2), strategy="deepspeed", global_batch=24, offload=True))
    assert told["distributed_type"] == "DEEPSPEED"
    assert told["deepspeed_config"] == {
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "cpu",
        "offload_param_device": "cpu",
        "zero3_init_flag": False,
        "zero3_save_16bit_model": False,
        "zero_stage": 3,
    }
    second = accelerate_yaml(hf(gpu_machine(2), strategy="deepspeed", zero_stage=2, offload=True))
    assert second["deepspeed_config"]["offload_param_device"] == "none"
    made = hf(gpu_machine(2), "tiny_pretrain", precision="FP8")
    told = accelerate_yaml(made)
    assert (told["distributed_type"], told["mixed_precision"]) == ("MULTI_GPU", "fp8")
    assert told["fp8_config"]["backend"] == "TE" and told["fp8_config"]["fp8_format"] == "HYBRID"
    assert "accelerate.commands.launch" in files(made)["run.sh"]
    # ddp is torchrun's unless accelerate is asked for
    made = hf(gpu_machine(2))
    assert "torch.distributed.run" in files(made)["run.sh"]
    asked = replace(made, launcher="accelerate")
    assert "accelerate.commands.launch" in files(asked)["run.sh"]
    assert accelerate_yaml(asked)["distributed_type"] == "MULTI_GPU"


def asked_of_the_hub(script: str) -> list[tuple[str, ...]]:
    return [tuple(found.split()) for found in re.findall(r'"\$python" fetch\.py (.*)\)', script)]


def words(asset: Asset) -> tuple[str, ...]:
    """Return the words of fetch.py that fetch an asset."""
    revision = ("--revision", shlex.quote(asset.revision)) if asset.kind != "tokenizer" else ()
    return (
        *(("--dataset",) if asset.kind == "dataset" else ()),
        *revision,
        *map(shlex.quote, (asset.ref, *asset.files)),
    )


@each_row("recipe", sorted(name for name in BOOK.recipes if not BOOK.values(name, "")["script"]))
def test_every_recipe_s_script_asks_the_hub_for_what_the_assets_say(recipe):
    made = hf(gpu_machine(8), recipe)
    assert asked_of_the_hub(run_sh(made)) == [words(asset) for asset in HuggingFace().assets(made)]


@each_row("name", ["", "a/b", "/a/b", "./a", "~/a", "..", "~"])
def test_only_names_of_the_hub_are_fetched(name):
    made = hf(gpu_machine(2), **dict.fromkeys(("model_id", "tokenizer_id", "dataset"), name))
    assets = list(HuggingFace().assets(made))
    assert asked_of_the_hub(run_sh(made)) == [words(asset) for asset in assets]
    assert len(assets) == (3 if name == "a/b" else 0)


def test_the_script_asks_the_hub_for_what_the_assets_say():
    made = hf(
        gpu_machine(2), "llama2_70B_lora", revision="abc", dataset_revision="def", tokenizer_id="meta-llama/Llama-3"
    )
    model, tokenizer, dataset = HuggingFace().assets(made)
    assert (model.kind, model.ref, model.gated) == ("model", "meta-llama/Llama-2-70b-chat-hf", True)
    assert (tokenizer.kind, tokenizer.gated) == ("tokenizer", True)
    assert (dataset.kind, dataset.ref, dataset.gated) == ("dataset", "HuggingFaceH4/ultrachat_200k", False)

    script = files(made)["run.sh"]
    assert asked_of_the_hub(script) == [words(model), words(tokenizer), words(dataset)]
    assert "HF_HUB_OFFLINE" not in script and "HF_TOKEN" in script
    # made things need nothing from the hub and ask it nothing
    made = hf(gpu_machine(2))
    assert list(HuggingFace().assets(made)) == []
    script = files(made)["run.sh"]
    assert "HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}" in script and "fetch.py" not in script and "TOKEN" not in script


def test_every_word_of_the_user_is_one_word_of_the_shell():
    odd = "/a b/$(touch x)'`;\"*"
    made = hf(gpu_machine(2), model_id=odd, dataset=odd, tokenizer_id=odd, revision=odd)
    script = files(made)["run.sh"]
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    line = next(line for line in script.splitlines() if line.startswith("export MADLITE_WEIGHTS="))
    ran = subprocess.run(["bash", "-c", f'{line}; printf %s "$MADLITE_WEIGHTS"'], capture_output=True, text=True)
    assert ran.stdout == odd
    assert json.loads(files(made)["train.json"])["model_id"] == odd


@pytest.fixture
def packages(monkeypatch):
    """Return what packages.py says to values, where only these packages are installed."""
    monkeypatch.syspath_prepend(str(TEMPLATES / "hf"))
    sys.modules.pop("packages", None)
    import packages as module

    def told(there: dict[str, str], **changes) -> list[str]:
        values = {"method": "lora", "strategy": "ddp", "precision": "BF16", "architecture": "llama", **changes}
        monkeypatch.setattr(module, "find_spec", lambda name: name if name in there else None)
        monkeypatch.setattr(module, "version", lambda name: there[name])
        return [words.partition(",")[0] for words in module.missing(values)]

    yield told
    sys.modules.pop("packages", None)


def test_what_is_not_installed_is_said_in_a_sentence(packages):
    usual = {"transformers": "5.1.0", "accelerate": "1.10", "peft": "0.17"}
    assert packages(usual) == []
    assert packages({}, method="full") == ["a training needs transformers", "a training needs accelerate"]
    assert packages(usual, method="qlora") == ["QLoRA needs bitsandbytes"]
    assert packages(usual, strategy="deepspeed") == ["strategy deepspeed needs deepspeed"]
    assert packages(usual, precision="FP8", method="full") == ["FP8 needs transformer-engine"]
    assert packages({**usual, "transformers": "4.53.1"}, architecture="gpt_oss") == [
        "gpt_oss needs transformers 4.55 or later"
    ]
    assert packages({**usual, "transformers": "4.55.0"}, architecture="gpt_oss") == []


class Words:
    """A tokenizer whose tokens are lengths of words."""

    eos_token_id = 0
    chat_template = ""

    def __call__(self, texts, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [[len(word) for word in text.split()] for text in texts]}


@pytest.fixture
def pack(monkeypatch):
    monkeypatch.syspath_prepend(str(TEMPLATES / "hf"))
    sys.modules.pop("pack", None)
    import pack as module

    yield module
    sys.modules.pop("pack", None)


def test_texts_are_packed_with_an_end_mark_after_each_and_no_more_than_asked_for(pack):
    assert list(pack.pack(["a bb ccc", "dddd"], Words(), 100)) == [1, 2, 3, 0, 4, 0]
    assert list(pack.pack(iter(["a bb"] * 1000), Words(), 7)) == [1, 2, 0, 1, 2, 0, 1]
    # rows become texts
    values = {"dataset": "d", "dataset_field": "", "chat_template": "chatml"}
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n"
    assert pack.text_of({"prompt": "x", "messages": chat}, values, Words()) == text
    assert pack.text_of({"content": "plain"}, values, Words()) == "plain"
    assert pack.text_of("paragraph", values, Words()) == "paragraph"
    assert pack.text_of({"a": "1", "b": "2"}, {**values, "dataset_field": "b"}, Words()) == "2"
    with pytest.raises(SystemExit, match="has no column 'messages', but a, b"):
        pack.text_of({"a": "1", "b": "2"}, values, Words())
    with pytest.raises(SystemExit, match="--set chat_template=chatml"):
        pack.text_of({"messages": chat}, {**values, "chat_template": ""}, Words())


def test_a_split_is_told_by_the_names_of_files_and_else_all_are_read(pack, tmp_path):
    for name in ("data/train_sft-0.jsonl", "data/train_gen-0.jsonl", "data/test_sft-0.jsonl", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert [path.name for path in pack.files(tmp_path, "train_sft")] == ["train_sft-0.jsonl"]
    assert len(pack.files(tmp_path, "train")) == 3, "no file is called train"
    (tmp_path / "train").mkdir()
    (tmp_path / "train/x.txt").write_text("one\n\n\n two \n\n")
    (found,) = pack.files(tmp_path, "train")
    assert [row.strip() for row in pack.rows(found)] == ["one", "two"]
    assert [row["text"] for row in pack.rows(tmp_path / "data/train_sft-0.jsonl")] == ["a", "b"]
    assert pack.files(Path(found), "whatever") == [found]
