"""The torchtune backend: rendered files, what is refused, notes, metrics, failure rules, and the files of a run."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from madlite.model import Machine
from madlite_plugins.torchtune import madlite_failure_rules
from madlite_plugins.torchtune.backend import Torchtune
from tests.plugins.logs import LOGS, TEMPLATES, gpu_machine, plan
from tests.plugins.rendered import files
from tests.plugins.torchtune_plans import changed, drafts_of, fatal, plan_of
from tests.rows import each_row

TINY = ("tiny_full", "tiny_lora", "tiny_qlora")
FOLDER = TEMPLATES / "torchtune"


def tiny(recipe: str = "tiny_full", machine: Machine | None = None, **changes):
    return plan(Torchtune(), machine or Machine(), recipe, **changes)


@each_row("recipe", TINY)
@each_row("machine", [Machine(), gpu_machine(1), gpu_machine(8)])
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


def test_values_reach_the_configuration_as_yaml_reads_them():
    made = changed(tiny("tiny_lora", gpu_machine(4)), lr=3e-5, lr_warmup_steps=4, max_norm=0.5, optimizer="SGD", gas=3)
    changes, base = (yaml.safe_load(files(made)[name]) for name in ("changes.yaml", "base.yaml"))
    assert changes["optimizer"] == {"_component_": "torch.optim.SGD", "fused": False, "lr": 3e-05}
    assert isinstance(changes["optimizer"]["lr"], float)
    assert changes["lr_scheduler"] == {"num_warmup_steps": 4} and changes["clip_grad_norm"] == 0.5
    assert changes["gradient_accumulation_steps"] == 3
    assert base["model"]["lora_attn_modules"] == ["q_proj", "v_proj", "output_proj"]
    assert base["model"]["_component_"] == "torchtune.models.llama3_1.lora_llama3_1"
    # a global batch is accumulated
    made = tiny(machine=gpu_machine(2), global_batch=32)
    assert "gradient_accumulation_steps: 4\n" in files(made)["changes.yaml"] and fatal(made) == []
    assert "--samples 640 " in files(made)["run.sh"]
    # ranks without a gpu go through the bench that torchtune needs there
    made = tiny(cpu_ranks=2)
    assert fatal(made) == []
    script = files(made)["run.sh"]
    assert "--nproc_per_node 2 " in script and 'cpu_ranks.py "$recipes"/full_finetune_distributed.py' in script
    assert "cpu_ranks.py" not in files(tiny(machine=gpu_machine(2)))["run.sh"]


@each_row(
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
        ({"steps": 20, "epochs": 3}, "20 steps are no multiple of 3 epochs"),
        ({"dataset": "wikitext", "data_wikitext": "a/b"}, "data_wikitext 'a/b' is not a repository and a pattern"),
    ],
)
def test_what_torchtune_would_refuse_is_refused_before_the_start(changes, word):
    found = fatal(tiny(machine=gpu_machine(2), **changes))
    assert len(found) == 1 and word in found[0]


@each_row(
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


@each_row(
    ("steps", "epochs", "hint"),
    [(20, 3, "--set steps=18 or --set steps=21, or"), (10, 12, "--set steps=12, or"), (20, 2, ""), (21, 3, "")],
)
def test_steps_that_epochs_cannot_share_name_the_nearest_that_they_can(steps, epochs, hint):
    made = tiny(steps=steps, epochs=epochs)
    found = [one.hint for one in Torchtune().check(made) if one.fatal]
    assert [one.startswith(hint) for one in found] == [True] * bool(hint)
    if not hint:
        assert f"max_steps_per_epoch: {steps // epochs}\nepochs: {epochs}\n" in files(made)["changes.yaml"]


def test_what_a_number_means_is_said_and_published_rows_keep_their_names():
    messages = [finding.message for finding in Torchtune().check(tiny(machine=gpu_machine(2), tp=2))]
    assert any("counts the tokens of a tensor-parallel group 2 times" in message for message in messages)
    assert any("clips no gradients of tensor parallelism" in message for message in messages)
    big = [one.message for one in Torchtune().check(plan(Torchtune(), Machine(), "llama3.1_8B_lora", precision="FP32"))]
    assert any("on a CPU takes very long" in message for message in big)
    (vision, *_) = drafts_of("pyt_train_llama-3.2-vision-11b", "MI300X")
    assert any("counts the tokens of labels alone" in note for note in vision.notes)
    (packed, *_) = drafts_of("pyt_train_llama-3.1-8b", "MI300X")
    assert not any("tokens of labels" in note for note in packed.notes)
    # published rows keep their names and a cpu has no memory's
    names = [metric.metric for metric in Torchtune().result_rule().mad]
    assert names == ["max_memory_alloc", "avg_tokens_per_s_per_gpu"]
    (here,) = Torchtune().expand(_request("tiny_full"), Machine())
    assert [metric.metric for metric in here.result_rule.mad] == ["avg_tokens_per_s_per_gpu"]


def _request(recipe: str):
    from madlite.model import Card, Request

    card = Card(name="a card", root=Path(), source="a test", backend="torchtune", recipe=recipe)
    return Request(card=card, tag=card.name)


@each_row(
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
        ("ValueError: Logging memory stats is not supported on CPU devices", "bad_option"),
        ("RuntimeError: bf16 precision was requested but not available on this hardware.", "bad_option"),
        ("RuntimeError: aten._foreach_norm.Scalar got mixed torch.Tensor and DTensor, need to convert", "bad_option"),
        ("ValueError: Tensor parallelism is currently incompatible with fused optimizer.", "bad_option"),
    ],
)
def test_failures_are_explained(line, cause):
    assert next(rule.cause for rule in madlite_failure_rules() if re.search(rule.pattern, line)) == cause


def test_the_real_failure_on_a_cpu_is_explained():
    text = (LOGS / "torchtune-0.6.1-full-distributed-cpu-memstats-FAIL.log").read_text()
    assert any(re.search(rule.pattern, text) for rule in madlite_failure_rules())


# The files of a run


def find_recipes(tmp_path, *names: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(FOLDER / "find_recipes.py"), *names]
    return subprocess.run(command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.host
def test_a_tree_s_recipes_come_first(tmp_path):
    (tmp_path / "recipes/configs/llama3").mkdir(parents=True)
    (tmp_path / "recipes/configs/llama3/8B_full.yaml").write_text("")
    ran = find_recipes(tmp_path, "configs/llama3/8B_full.yaml", TORCHTUNE_ROOT=str(tmp_path))
    assert (ran.returncode, ran.stdout.strip()) == (0, str(tmp_path / "recipes"))
    ran = find_recipes(tmp_path, "configs/llama3/9B_full.yaml", TORCHTUNE_ROOT=str(tmp_path))
    assert ran.returncode == 1 and "has no configs/llama3/9B_full.yaml; there: 8B_full.yaml" in ran.stderr
    ran = find_recipes(tmp_path, TORCHTUNE_ROOT=str(tmp_path / "nowhere"))
    assert ran.returncode == 1 and "TORCHTUNE_ROOT names" in ran.stderr


@pytest.mark.host
@each_row(
    ("source", "known"),
    [
        ('x = cfg.get("enable_fp8_training", False)', True),
        ("x = cfg['enable_fp8_training']", True),
        ("x = cfg.enable_fp8_training", True),
        ("# enable_fp8_training is not for us", False),
        ('x = cfg.get("enable_fp8_training_later")', False),
        ("", False),
    ],
)
def test_a_recipe_that_does_not_read_a_key_ends_the_run_before_it_fetches_or_trains(tmp_path, source, known):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/full_finetune_distributed.py").write_text(source)
    asked = "full_finetune_distributed.py=enable_fp8_training"
    ran = find_recipes(tmp_path, asked, TORCHTUNE_ROOT=str(tmp_path))
    assert ran.returncode == (0 if known else 1)
    if not known:
        says = f"madlite: torchtune in {tmp_path} has a full_finetune_distributed.py that does not know enable_fp8"
        assert ran.stderr.startswith(says) and ran.stdout == ""
        matching = [rule.cause for rule in madlite_failure_rules() if re.search(rule.pattern, ran.stderr)]
        assert matching[0] == "bad_option"


def test_only_keys_that_a_run_needs_are_asked_for():
    def asked(**changes) -> str:
        script = files(changed(plan_of("pyt_train_llama-3.1-8b", "MI300X", mode="finetune_fw"), **changes))["run.sh"]
        return next(line for line in script.splitlines() if line.startswith("recipes="))

    assert asked(precision="BF16").endswith(" configs/llama3_1/8B_full.yaml) # as `tune run` finds them")
    assert " full_finetune_distributed.py=enable_fp8_training)" in asked(precision="FP8")
    assert " full_finetune_distributed.py=tensor_parallel_dim)" in asked(precision="BF16", tp=2)


# A run with an interpreter that stands in for python: how it ends, and what it leaves

STUB = """#!/bin/bash
case " $* " in
  *" find_recipes.py "*) echo "$PWD/recipes" ;;
  *" make_assets.py "*--weights*) mkdir -p assets && echo weights > assets/weights.pt ;;
  *_finetune_*" --config train.yaml "*)
    mkdir -p output/epoch_0 && echo saved > output/epoch_0/model && echo training
    eval "$STUB_TRAINS" ;;
esac
"""


def started(tmp_path: Path, trains: str, **changes) -> subprocess.Popen[str]:
    made = tiny(**changes)
    for path, text in {**files(made), "stub": STUB}.items():
        (tmp_path / path).write_text(text)
    (tmp_path / "stub").chmod(0o755)
    env = {**os.environ, "MADLITE_PYTHON": str(tmp_path / "stub"), "STUB_TRAINS": trains}
    command = ["bash", "run.sh"]
    return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)


def left(tmp_path: Path) -> tuple[bool, bool]:
    return (tmp_path / "output/epoch_0").exists(), (tmp_path / "assets/weights.pt").exists()


@pytest.mark.host
@each_row("ranks", [1, 2])
@each_row(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_to_the_group_leaves_neither_weights_nor_checkpoints_and_its_own_code(tmp_path, ranks, number, code):
    with started(tmp_path, "exec sleep 600", cpu_ranks=ranks) as run:
        assert run.stdout is not None and "training\n" in iter(run.stdout.readline, "")
        assert left(tmp_path) == (True, True)
        os.killpg(run.pid, number)
        assert run.wait(240) == code
    assert left(tmp_path) == (False, False)


@pytest.mark.host
@each_row("ranks", [1, 2])
@each_row(("trains", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_what_is_saved_goes_however_the_training_ends_and_its_code_stays(tmp_path, ranks, trains, code):
    with started(tmp_path, trains, cpu_ranks=ranks) as run:
        assert run.wait(240) == code
    assert left(tmp_path) == (False, False)


@pytest.mark.host
@each_row("ranks", [1, 2])
def test_what_is_saved_stays_where_it_is_asked_for(tmp_path, ranks):
    with started(tmp_path, "exit 7", cpu_ranks=ranks, keep_checkpoint=True) as run:
        assert run.wait(240) == 7
    assert left(tmp_path) == (True, True)


def test_a_command_that_fails_before_torchrun_starts_ends_the_run(tmp_path):
    made = tiny(cpu_ranks=2)
    script = files(made)["run.sh"].replace("export GLOO_SOCKET_IFNAME=", "false\nexport GLOO_SOCKET_IFNAME=")
    assert script != files(made)["run.sh"]
    for path, text in {"run.sh": script, "stub": STUB}.items():
        (tmp_path / path).write_text(text)
    (tmp_path / "stub").chmod(0o755)
    env = {**os.environ, "MADLITE_PYTHON": str(tmp_path / "stub"), "STUB_TRAINS": ""}
    ran = subprocess.run(["bash", "run.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "training" not in ran.stdout and left(tmp_path) == (False, False)


@pytest.mark.host
@each_row(
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


@pytest.mark.host
@each_row("length", [0, 64, 300, 1000])
def test_there_is_text_for_every_sample_and_the_same_for_the_same_seed(tmp_path, length):
    for name in ("a", "b"):
        make(tmp_path, "--text", f"{name}.json", "--samples", "50", "--length", str(length), "--seed", "7")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    rows = json.loads((tmp_path / "a.json").read_text())
    assert {tuple(row) for row in rows} == {("instruction", "input", "output")}
    assert len(rows) >= 50 and packs(rows, length) >= 50
    make(tmp_path, "--text", "c.json", "--samples", "50", "--length", str(length), "--seed", "8")
    assert (tmp_path / "c.json").read_bytes() != (tmp_path / "a.json").read_bytes()


@pytest.mark.host
def test_rows_of_wikitext_stay_as_they_are_and_in_order_empty_ones_too(tmp_path):
    import pyarrow
    from pyarrow import parquet

    texts = ["", " = Heading = \n", "", *(f" sentence {n} , <unk> \n" for n in range(100))]
    for part, rows in enumerate((texts[:50], texts[50:])):
        file = tmp_path / f"wiki/wikitext-103-v1/train-{part}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table({"text": rows}), file)
    asked = ("--text", "text.json", "--wikitext", "wiki", "--files", "wikitext-103-v1/train-*.parquet")
    make(tmp_path, *asked, "--samples", "4")
    assert json.loads((tmp_path / "text.json").read_text()) == [{"input": text} for text in texts[: 4 + 64]]
