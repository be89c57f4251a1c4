"""The real torchtune 0.6.1 trains on a CPU what madlite renders, in an environment that scripts/torchtune.sh makes."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.logs import TEMPLATES
from tests.plugins.rendered import files
from tests.plugins.torchtune_plans import changed, plan_of

pytestmark = [pytest.mark.training, pytest.mark.full, pytest.mark.timeout(300)]
NAME = "MADLITE_TEST_TORCHTUNE_PYTHON"


@pytest.fixture(scope="module")
def python() -> str:
    """Return the interpreter of an environment with torchtune; in CI its absence is a failure."""
    beside = Path(sys.prefix).with_name(".venv-torchtune") / "bin/python"
    found = os.environ.get(NAME) or (str(beside) if beside.exists() else "")
    if found:
        return found
    what = f"no torchtune: scripts/torchtune.sh {sys.prefix} {beside.parents[1]}, or {NAME}="
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


def train(tmp_path: Path, python: str, card: str, *sets: str) -> dict[str, dict[str, str]]:
    """Return the rows of a run by their metric."""
    command = [sys.executable, "-m", "madlite", "run", "--runtime", "host", "--tags", card]
    words = [word for one in (f"env.MADLITE_PYTHON={python}", *sets) for word in ("--set", one)]
    ran = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr + log_of(tmp_path)
    with (tmp_path / "perf.csv").open() as file:
        rows = {row["metric"]: row for row in csv.DictReader(file)}
    assert {row["status"] for row in rows.values()} == {"SUCCESS"}
    return rows


def log_of(tmp_path: Path) -> str:
    return "".join(path.read_text() for path in tmp_path.glob("madlite_runs/*/run.log"))


def losses(tmp_path: Path) -> list[float]:
    lines = [line.split("loss:")[1] for line in log_of(tmp_path).splitlines() if "| loss:" in line]
    return [float(line.split()[0]) for line in lines]


@pytest.mark.parametrize("card", ["torchtune_tiny_full", "torchtune_tiny_lora", "torchtune_tiny_qlora"])
def test_the_tiny_cards_train(tmp_path, python, card):
    rows = train(tmp_path, python, card)
    assert set(rows) == {"tokens_per_s_per_gpu", "avg_tokens_per_s_per_gpu"}
    assert float(rows["tokens_per_s_per_gpu"]["performance"]) > 0
    found = losses(tmp_path)
    assert len(found) == 20 and found[-1] < found[0]
    (output,) = tmp_path.glob("madlite_runs/*/output")
    assert not list(output.glob("epoch_*")) and not list(output.parent.glob("assets/weights.pt"))


def test_two_ranks_train_together_and_accumulate(tmp_path, python):
    sets = ("cpu_ranks=2", "micro_batch=2", "global_batch=8", "steps=8", "warmup_steps=2", "seq_len=128")
    train(tmp_path, python, "torchtune_tiny_full", *sets)
    assert len(losses(tmp_path)) == 8
    assert "gradient_accumulation_steps: 2" in log_of(tmp_path) and "Distributed training is enabled" in log_of(
        tmp_path
    )


def test_text_that_is_not_packed_trains_too(tmp_path, python):
    train(tmp_path, python, "torchtune_tiny_lora", "packed=false", "steps=8", "warmup_steps=2", "keep_checkpoint=true")
    assert len(losses(tmp_path)) == 8
    assert list(tmp_path.glob("madlite_runs/*/output/epoch_0/adapter_model.pt"))


def test_an_image_s_configuration_becomes_a_copy_with_the_run_s_changes(tmp_path, python):
    """With 0.6.1's own 70B configuration, which has everything that a run changes, and a folder in place of weights."""
    made = changed(plan_of("pyt_train_llama-3.1-70b", "MI300X", mode="finetune_fw"), steps=20)
    (tmp_path / "changes.yaml").write_text(files(made)["changes.yaml"])
    (tmp_path / "w/original").mkdir(parents=True)
    (tmp_path / "w/original/tokenizer.model").write_text("")
    for n in range(1, 31):
        (tmp_path / f"w/model-{n:05}-of-00030.safetensors").write_text("")
    (tmp_path / "d/data").mkdir(parents=True)
    (tmp_path / "d/data/train.parquet").write_text("")
    env = {**os.environ, "TORCHTUNE_ROOT": ""}
    find = [python, str(TEMPLATES / "torchtune/find_recipes.py"), "configs/llama3_1/70B_full.yaml"]
    recipes = subprocess.run(find, env=env, capture_output=True, text=True, check=True).stdout.strip()
    base = Path(recipes, "configs/llama3_1/70B_full.yaml")
    before = base.read_bytes()
    options = ["--changes", "changes.yaml", "--weights", "w", "--data", "d", "--files", "data/*.parquet"]
    command = [python, str(TEMPLATES / "torchtune/make_config.py"), "--base", str(base), *options]
    subprocess.run([*command, "--samples", "640", "--length", "8192"], cwd=tmp_path, check=True)
    assert base.read_bytes() == before
    load = "json.dumps(OmegaConf.to_container(OmegaConf.load('train.yaml'), resolve=True))"
    show = f"import json; from omegaconf import OmegaConf; print({load})"
    ran = subprocess.run([python, "-c", show], cwd=tmp_path, capture_output=True, text=True, check=True)
    config = json.loads(ran.stdout)
    assert config["optimizer"] == {"_component_": "torch.optim.AdamW", "lr": 2e-05, "fused": True}
    assert not [key for key in config if "parallel" in key or "fp8" in key] and config["fsdp_cpu_offload"] is False
    assert (
        config["tokenizer"]["path"] == "w/original/tokenizer.model" and config["checkpointer"]["checkpoint_dir"] == "w"
    )
    assert config["checkpointer"]["checkpoint_files"]["max_filename"] == "00030"
    assert config["dataset"]["data_files"] == ["d/data/train.parquet"] * 2, "5.2 million tokens of 4 a copy"
    assert config["metric_logger"] == {"_component_": "torchtune.training.metric_logging.StdoutLogger"}
    (tmp_path / "w/model-00007-of-00030.safetensors").unlink()
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "w has no model-00007-of-00030.safetensors" in ran.stderr


def recipes_of(python: str, *asked: str) -> subprocess.CompletedProcess[str]:
    command = [python, str(TEMPLATES / "torchtune/find_recipes.py"), *asked]
    env = {**os.environ, "TORCHTUNE_ROOT": ""}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_0_6_1_knows_no_fp8_and_no_tensor_parallel_lora_and_its_own_keys(python):
    ran = recipes_of(python, "full_finetune_distributed.py=enable_fp8_training")
    assert ran.returncode == 1 and "full_finetune_distributed.py that does not know enable_fp8_training" in ran.stderr
    assert recipes_of(python, "lora_finetune_distributed.py=tensor_parallel_dim").returncode == 1
    assert recipes_of(python, "full_finetune_distributed.py=tensor_parallel_dim").returncode == 0


@pytest.mark.parametrize(("tp", "ratio"), [(1, 1.0), (2, 0.5)])
def test_the_speed_is_that_of_tokens_counted_once(tmp_path, python, tp, ratio):
    """Of two ranks that share each sequence, 0.6.1 counts it twice: what its log says is halved."""
    sets = ("cpu_ranks=2", "micro_batch=2", "steps=8", "warmup_steps=2", "seq_len=128", "max_norm=0", f"tp={tp}")
    rows = train(tmp_path, python, "torchtune_tiny_full", *sets)
    log = log_of(tmp_path)
    assert "madlite: this torchtune counts each token by every rank of a tensor-parallel group" in log
    said = sorted(float(one) for one in re.findall(r"tokens_per_second_per_gpu:([0-9.]+)", log)[2:])
    middle = (said[2] + said[3]) / 2
    assert float(rows["tokens_per_s_per_gpu"]["performance"]) == pytest.approx(middle * ratio, rel=1e-3)
