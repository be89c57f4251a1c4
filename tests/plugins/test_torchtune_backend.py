"""The torchtune backend: rendered files, what is refused, notes, metrics, failure rules, and the files of a run."""

from __future__ import annotations

import base64
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from madlite.types import Machine
from madlite_plugins.torchtune.backend import DATASETS, Torchtune
from madlite_plugins.torchtune.failures import RULES
from tests.plugins.logs import LOGS, TEMPLATES, gpu_machine, plan
from tests.plugins.torchtune_plans import changed, drafts_of, fatal, files, plan_of

TINY = ("tiny_full", "tiny_lora", "tiny_qlora")
FOLDER = TEMPLATES / "torchtune"


def tiny(recipe: str = "tiny_full", machine: Machine | None = None, **changes):
    return plan(Torchtune(), machine or Machine(), recipe, **changes)


@pytest.mark.parametrize("recipe", TINY)
@pytest.mark.parametrize("machine", [Machine(), gpu_machine(1), gpu_machine(8)])
def test_tiny_recipes_are_good_on_any_machine_and_need_nothing(recipe, machine):
    made = tiny(recipe, machine)
    assert list(Torchtune().check(made)) == [] and list(Torchtune().assets(made)) == []
    script = files(made)["run.sh"]
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    alone = len(machine.gpus) < 2
    assert ("_single_device.py" in script) is alone and ("torch.distributed.run" in script) is not alone
    changes = yaml.safe_load(files(made)["changes.yaml"])
    assert changes["device"] == ("cuda" if machine.gpus else "cpu")
    assert changes["dtype"] == ("bf16" if machine.gpus else "fp32")
    assert changes["log_peak_memory_stats"] is bool(machine.gpus)


def test_ranks_without_a_gpu_go_through_the_bench_that_torchtune_needs_there():
    made = tiny(cpu_ranks=2)
    assert fatal(made) == []
    script = files(made)["run.sh"]
    assert "--nproc_per_node 2 " in script and 'cpu_ranks.py "$recipes"/full_finetune_distributed.py' in script
    assert "cpu_ranks.py" not in files(tiny(machine=gpu_machine(2)))["run.sh"]


def test_values_reach_the_configuration_as_yaml_reads_them():
    made = changed(tiny("tiny_lora", gpu_machine(4)), lr=3e-5, lr_warmup_steps=4, max_norm=0.5, optimizer="SGD", gas=3)
    changes, base = (yaml.safe_load(files(made)[name]) for name in ("changes.yaml", "base.yaml"))
    assert changes["optimizer"] == {"_component_": "torch.optim.SGD", "fused": False, "lr": 3e-05}
    assert isinstance(changes["optimizer"]["lr"], float)
    assert changes["lr_scheduler"] == {"num_warmup_steps": 4} and changes["clip_grad_norm"] == 0.5
    assert changes["gradient_accumulation_steps"] == 3
    assert base["model"]["lora_attn_modules"] == ["q_proj", "v_proj", "output_proj"]
    assert base["model"]["_component_"] == "torchtune.models.llama3_1.lora_llama3_1"


def test_a_global_batch_is_accumulated():
    made = tiny(machine=gpu_machine(2), global_batch=32)
    assert "gradient_accumulation_steps: 4\n" in files(made)["changes.yaml"] and fatal(made) == []
    assert "--samples 640 " in files(made)["run.sh"]


def test_what_is_saved_goes_unless_it_is_to_stay():
    assert "rm -rf output/epoch_* assets/weights.pt" in files(tiny())["run.sh"]
    assert "rm -rf" not in files(tiny(keep_checkpoint=True))["run.sh"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"precision": "INT8"}, "precision 'INT8'"),
        ({"weights": "stolen"}, "weights 'stolen'"),
        ({"dataset": "c4"}, "dataset 'c4'"),
        ({"lora_targets": "q_proj,x"}, "lora_targets 'x'"),
        ({"builder": "os.system('x')"}, "builder"),
        ({"kv_heads": 3}, "8 heads fit neither"),
        ({"embed_dim": 100}, "embed_dim 100"),
        ({"vocab_size": 100}, "below the tokenizer's 266"),
        ({"gas": 0}, "gas is 0"),
        ({"tp": 3}, "tp 3 does not divide 2"),
        ({"global_batch": 9}, "global batch 9"),
        ({"global_batch": 16, "gas": 4}, "gas 4 is not what global batch 16 needs, 2"),
        ({"seq_len": 4096}, "at most 2048 tokens"),
        ({"precision": "FP8"}, "no FP8"),
        ({"weights": "fetched"}, "no repository"),
        ({"dataset_path": "x.json", "mock_data": False}, "relative"),
        ({"dataset": "the_cauldron", "packed": False}, "pictures are not made up"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 5}, "over before 5 of warm-up"),
    ],
)
def test_what_torchtune_would_refuse_is_refused_before_the_start(changes, word):
    found = fatal(tiny(machine=gpu_machine(2), **changes))
    assert len(found) == 1 and word in found[0]


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (lambda: tiny("tiny_lora", gpu_machine(2), precision="FP8"), "finetune_lora trains no weights in FP8"),
        (lambda: tiny("tiny_qlora", intermediate_dim=688), "no multiple of 16384"),
        (lambda: tiny(precision="BF16"), "no BF16 on a CPU"),
        (lambda: plan(Torchtune(), Machine(), "llama3_8B", precision="FP32"), "wants GPUs"),
        (lambda: changed(plan_of("pyt_train_llama-3.1-70b", "MI300X"), weights="made"), "not for torchtune's"),
        (lambda: changed(plan_of("pyt_train_llama-3.2-vision-11b", "MI300X"), packed=True), "cannot be packed"),
    ],
)
def test_what_does_not_go_together_is_refused(made, word):
    assert any(word in message for message in fatal(made()))


def test_what_a_number_means_is_said():
    messages = [finding.message for finding in Torchtune().check(tiny(machine=gpu_machine(2), tp=2))]
    assert any("counts the tokens of a tensor-parallel group 2 times" in message for message in messages)
    big = [one.message for one in Torchtune().check(plan(Torchtune(), Machine(), "llama3.1_8B_lora", precision="FP32"))]
    assert any("on a CPU takes very long" in message for message in big)
    (vision, *_) = drafts_of("pyt_train_llama-3.2-vision-11b", "MI300X")
    assert any("counts the tokens of labels alone" in note for note in vision.notes)
    (packed, *_) = drafts_of("pyt_train_llama-3.1-8b", "MI300X")
    assert not any("tokens of labels" in note for note in packed.notes)


def test_published_rows_keep_their_names_and_a_cpu_has_no_memory_s():
    names = [metric.metric for metric in Torchtune().result_rule().mad]
    assert names == ["max_memory_alloc", "avg_tokens_per_s_per_gpu"]
    (here,) = Torchtune().expand(_request("tiny_full"), Machine())
    assert [metric.metric for metric in here.result_rule.mad] == ["avg_tokens_per_s_per_gpu"]


def _request(recipe: str):
    from madlite.types import Card, Request

    card = Card(name="a card", root=Path(), source="a test", backend="torchtune", recipe=recipe)
    return Request(card=card, tag=card.name)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "ImportError: cannot import name 'int4_weight_only' from 'torchao.quantization' (/x/__init__.py)",
            "package_conflict",
        ),
        ("ModuleNotFoundError: No module named 'torchao.dtypes.nf4tensor'", "package_conflict"),
        (
            "madlite: torchtune 0.6.1 does not start with torchao 0.17.0: pip install torchao==0.14.1",
            "package_conflict",
        ),
        ("        torchao not installed.", "missing_package"),
        ("ModuleNotFoundError: No module named 'torchtune'", "missing_package"),
        ("ModuleNotFoundError: No module named 'omegaconf'", "missing_package"),
        ("madlite: torchtune in /workspace/torchtune has no configs/qwen3/8B_full.yaml; there: none", "missing_file"),
        ("madlite: /w has no x.bin, which the configuration wants: --set weights_files=", "missing_file"),
        ("ValueError: Logging memory stats is not supported on CPU devices", "no_gpu"),
        ("RuntimeError: bf16 precision was requested but not available on this hardware.", "bad_option"),
        ("ValueError: Tensor parallelism is currently incompatible with fused optimizer.", "bad_option"),
    ],
)
def test_failures_are_explained(line, cause):
    assert next(rule.cause for rule in RULES if re.search(rule.pattern, line)) == cause


def test_the_real_failure_on_a_cpu_is_explained():
    text = (LOGS / "torchtune-0.6.1-full-distributed-cpu-memstats-FAIL.log").read_text()
    assert any(re.search(rule.pattern, text) for rule in RULES)


# The files of a run


def find_recipes(tmp_path, *names: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(FOLDER / "find_recipes.py"), *names]
    return subprocess.run(command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_a_tree_s_recipes_come_first(tmp_path):
    (tmp_path / "recipes/configs/llama3").mkdir(parents=True)
    (tmp_path / "recipes/configs/llama3/8B_full.yaml").write_text("")
    ran = find_recipes(tmp_path, "configs/llama3/8B_full.yaml", TORCHTUNE_ROOT=str(tmp_path))
    assert (ran.returncode, ran.stdout.strip()) == (0, str(tmp_path / "recipes"))
    ran = find_recipes(tmp_path, "configs/llama3/9B_full.yaml", TORCHTUNE_ROOT=str(tmp_path))
    assert ran.returncode == 1 and "has no configs/llama3/9B_full.yaml; there: 8B_full.yaml" in ran.stderr
    ran = find_recipes(tmp_path, TORCHTUNE_ROOT=str(tmp_path / "nowhere"))
    assert ran.returncode == 1 and "TORCHTUNE_ROOT names" in ran.stderr


@pytest.mark.parametrize(
    ("torchtune", "torchao", "good"),
    [
        ("0.6.1", "0.14.1", True),
        ("0.6.1+cpu", "0.15.0", True),
        ("0.6.1", "0.16.0", False),
        ("0.6.1", "1.0", False),
        ("0.7.0.dev20250601", "0.17.0", True),
    ],
)
def test_a_torchao_that_is_too_new_is_told_before_the_start(tmp_path, torchtune, torchao, good):
    (tmp_path / "torchtune").mkdir()
    (tmp_path / "torchtune/__init__.py").write_text("raise SystemExit('it is not to be imported')")
    (tmp_path / "recipes").mkdir()
    for name, version in (("torchtune", torchtune), ("torchao", torchao)):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info/METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    run = f"runpy.run_path({str(FOLDER / 'find_recipes.py')!r}, run_name='__main__')"
    code = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); {run}"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TORCHTUNE_ROOT": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) is good
    assert ran.stdout.strip() == str(tmp_path / "recipes") if good else "pip install torchao==0.14.1" in ran.stderr


def make(tmp_path, *options: str) -> None:
    subprocess.run([sys.executable, str(FOLDER / "make_assets.py"), *options], cwd=tmp_path, check=True)


def test_the_tokenizer_has_a_token_for_every_byte_and_torchtune_s_own(tmp_path):
    make(tmp_path, "--tokenizer", "t")
    rows = [line.split() for line in (tmp_path / "t/tokenizer.model").read_text().splitlines()]
    assert {base64.b64decode(text): int(rank) for text, rank in rows} == {bytes([n]): n for n in range(256)}
    added = json.loads((tmp_path / "t/special_tokens.json").read_text())["added_tokens"]
    assert sorted(token["id"] for token in added) == list(range(256, 266))


def packs(rows: list[dict[str, str]], length: int) -> float:
    """Return how many sequences of `length` the rows fill when none of them is cut in two."""
    full, room = 0, 0
    for row in rows if length else ():
        size = min(length, len("".join(row.values())))
        full, room = (full, room - size) if size <= room else (full + 1, length - size)
    return full if length else float("inf")


@pytest.mark.parametrize("length", [0, 64, 300, 1000])
def test_there_is_text_for_every_sample_and_the_same_for_the_same_seed(tmp_path, length):
    for name in ("a", "b"):
        make(tmp_path, "--text", f"{name}.json", "--samples", "50", "--length", str(length), "--seed", "7")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    rows = json.loads((tmp_path / "a.json").read_text())
    assert {tuple(row) for row in rows} == {("instruction", "input", "output")}
    assert len(rows) >= 50 and packs(rows, length) >= 50
    make(tmp_path, "--text", "c.json", "--samples", "50", "--length", str(length), "--seed", "8")
    assert (tmp_path / "c.json").read_bytes() != (tmp_path / "a.json").read_bytes()


def test_the_templates_know_the_data_sets_that_are_assets():
    pieces = runpy.run_path(str(FOLDER / "make_config.py").replace("make_config", "find_recipes"))
    assert pieces["IMAGE"] == "/workspace/torchtune"
    text = (FOLDER / "_data.j2").read_text()
    for name, (repository, pattern) in DATASETS.items():
        assert f'"{name}": "{repository}"' in text and f'"{name}": "{pattern}"' in text
