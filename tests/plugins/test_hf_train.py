"""The training scripts of hf, for real on a CPU: what is trained, on what, and what the lines say of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.model import Machine
from madlite.plan.plan_file import render
from madlite_plugins.hf.backend import HuggingFace
from tests.plugins.logs import TEMPLATES, gpu_machine, plan
from tests.rows import each_row

pytestmark = [pytest.mark.training, pytest.mark.full, pytest.mark.timeout(300)]
SMALL = {"steps": 8, "hidden_size": 64, "intermediate_size": 128, "layers": 2, "vocab_size": 512, "seq_len": 64}

# stands in for Transformer Engine: says what it is asked for, and computes as torch does
ENGINE = {
    "transformer_engine/__init__.py": "",
    "transformer_engine/common/__init__.py": "",
    "transformer_engine/common/recipe.py": """
from enum import Enum
Format = Enum("Format", "HYBRID E4M3 E5M2")
class DelayedScaling:
    def __init__(self, **given):
        print("engine: recipe", sorted(given), flush=True)
""",
    "transformer_engine/pytorch/__init__.py": """
import contextlib, torch
class Linear(torch.nn.Linear):
    def __init__(self, into, out, bias=True, params_dtype=None):
        super().__init__(into, out, bias=bias, dtype=params_dtype)
        print("engine: layer", flush=True)
class LayerNorm(torch.nn.LayerNorm): pass
class TransformerLayer(torch.nn.Module): pass
@contextlib.contextmanager
def fp8_autocast(enabled, fp8_recipe):
    print("engine: pass", enabled, flush=True)
    yield
""",
    "transformer_engine/pytorch/fp8.py": "def check_mxfp8_support(): return False, 'none'\n",
    "transformer_engine-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.0\n",
}


def write_run(folder: Path, recipe: str, nodes: int = 1, launcher: str = "", **changes) -> Path:
    """Write the run folder of a recipe on a CPU, small."""
    made = plan(HuggingFace(), Machine(), recipe, **{**SMALL, **changes})
    made = replace(made, place=replace(made.place, nodes=nodes), launcher=launcher or made.launcher)
    folder.mkdir()
    for file in render(made, [TEMPLATES]):
        (folder / file.path).write_bytes(file.data)
    return folder


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "MADLITE_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **more}


def run(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(folder / "run.sh")]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=240)


def lines_of(text: str, kind: str) -> list[dict]:
    return [json.loads(found) for found in re.findall(rf"madlite-{kind} (\{{.*\}})", text)]


def trained(done: subprocess.CompletedProcess[str], steps: int = 8) -> list[dict]:
    """Return the steps of a training that came to its end and learned."""
    assert done.returncode == 0, done.stdout + done.stderr
    told = lines_of(done.stdout, "step")
    assert [step["n"] for step in told] == list(range(1, steps + 1))
    assert told[-1]["loss"] < told[0]["loss"]
    return told


def parameters(text: str) -> tuple[int, int]:
    """Return how many parameters are trained, and how many there are."""
    one, all_ = re.findall(r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)", text)[0]
    return int(one.replace(",", "")), int(all_.replace(",", ""))


def test_pretraining_trains_every_weight_and_a_step_is_all_its_forward_passes(tmp_path):
    done = run(write_run(tmp_path / "r", "tiny_pretrain", accumulation=3, precision="FP32"))
    told = trained(done)
    one, all_ = parameters(done.stdout)
    # embeddings and head, and of each layer attention of 8 heads of which 4 have keys, MLP and two norms; the last norm
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert one == all_ == 2 * 512 * 64 + 2 * layer + 64
    assert lines_of(done.stdout, "config") == [
        {"steps": 8, "seq_len": 64, "world_size": 1, "global_batch": 12, "micro_batch": 4, "precision": "no"}
    ]
    for step in told:
        assert step["tokens_per_s_per_gpu"] * step["step_time_s"] == pytest.approx(3 * 4 * 64, rel=1e-4)
        assert step["samples_per_s_per_gpu"] * step["step_time_s"] == pytest.approx(3 * 4, rel=1e-4)
    (final,) = lines_of(done.stdout, "summary")
    assert final["train_samples_per_second"] * final["train_runtime"] == pytest.approx(8 * 12, rel=0.01)


def test_gpt_oss_trains_with_lora(tmp_path):
    shape = {"head_dim": 8, "hidden_size": 64, "intermediate_size": 64}
    done = run(write_run(tmp_path / "r", "tiny_gpt_oss", gradient_checkpointing=True, **shape))
    trained(done)
    assert parameters(done.stdout)[0] == 2 * 8 * (2 * (64 + 64) + 2 * (64 + 32)), "attention alone has linear layers"


def test_accelerate_starts_ddp_too(tmp_path):
    folder = write_run(tmp_path / "r", "tiny_lora", launcher="accelerate")
    assert "accelerate.commands.launch" in (folder / "run.sh").read_text()
    trained(run(folder))


def test_cpu_ranks_train_one_model(tmp_path):
    done = run(write_run(tmp_path / "r", "tiny_pretrain", cpu_ranks=2, global_batch=16))
    for step in trained(done):
        assert step["tokens_per_s_per_gpu"] * step["step_time_s"] == pytest.approx(2 * 4 * 64, rel=1e-4), "a rank's own"
    (sizes,) = lines_of(done.stdout, "config")
    assert (sizes["world_size"], sizes["global_batch"]) == (2, 16)
    (final,) = lines_of(done.stdout, "summary")
    assert final["train_samples_per_second"] * final["train_runtime"] == pytest.approx(8 * 16, rel=0.01), "of both"


def test_two_ranks_train_one_model(tmp_path):
    """Two nodes of one CPU rank each, which meet on this machine."""
    where = {"master_addr": "127.0.0.1", "master_port": "29655", "gloo_socket_ifname": "lo", "global_batch": 16}
    folders = [
        write_run(tmp_path / f"n{rank}", "tiny_pretrain", nodes=2, node_rank=str(rank), **where) for rank in (0, 1)
    ]
    other = subprocess.Popen(
        ["bash", str(folders[1] / "run.sh")], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        done = run(folders[0])
        assert other.wait(60) == 0
    finally:
        other.kill()
    for step in trained(done):
        assert step["tokens_per_s_per_gpu"] * step["step_time_s"] == pytest.approx(2 * 4 * 64, rel=1e-4), "a rank's own"
    assert lines_of(done.stdout, "config")[0]["world_size"] == 2
    (final,) = lines_of(done.stdout, "summary")
    assert final["train_samples_per_second"] * final["train_runtime"] == pytest.approx(8 * 16, rel=0.01), "of both"


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Return a folder with a small Llama and its tokenizer, as a repository of the hub has them."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("hub")
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces.train_from_iterator(
        ["how much is one and two", "it is three"],
        trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet),
    )
    PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="</s>").save_pretrained(folder)  # noqa: S106
    shape = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300,
    )  # fmt: skip
    LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    return folder


def test_real_weights_train_on_packed_chats(tmp_path, weights):
    chats = tmp_path / "data/train-00000.jsonl"
    chats.parent.mkdir()
    turns = [{"role": "user", "content": "how much is one and two"}, {"role": "assistant", "content": "it is three"}]
    chats.write_text(f"{json.dumps({'messages': turns})}\n" * 60)
    data = {"dataset": str(chats.parent), "chat_template": "chatml", "lr": 0.01, "dtype": "bfloat16"}
    folder = write_run(tmp_path / "r", "tiny_lora", model_id=str(weights), **data)
    prepared = run(folder, MADLITE_PREPARE_ONLY="1")
    assert prepared.returncode == 0 and "tokens of 1 files" in prepared.stdout and "madlite-" not in prepared.stdout
    done = run(folder)
    trained(done)
    projections = 2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96)
    assert parameters(done.stdout)[0] == 8 * projections
    assert (folder / "tokens.bin").stat().st_size % 4 == 0


def test_made_up_tokens_are_those_that_real_weights_know(tmp_path, weights):
    trained(run(write_run(tmp_path / "r", "tiny_lora", model_id=str(weights), vocab_size=4096, lr=0.01)))


def test_a_shape_comes_from_a_file(tmp_path, weights):
    done = run(write_run(tmp_path / "r", "tiny_pretrain", config_file=str(weights / "config.json")))
    trained(done)
    assert parameters(done.stdout)[1] == 2 * 300 * 64 + (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 64


def test_fp8_is_transformer_engine_s_in_every_forward_pass(tmp_path):
    """Without a GPU: accelerate's settings reach a stand-in, which sees the layers and each pass."""
    site = tmp_path / "site"
    for name, text in ENGINE.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    done = run(write_run(tmp_path / "r", "tiny_pretrain", precision="FP8", accumulation=2), PYTHONPATH=str(site))
    trained(done)
    assert done.stdout.count("engine: layer") == 2 * 7 + 1
    assert "engine: recipe ['amax_compute_algo', 'amax_history_len'" in done.stdout
    assert done.stdout.count("engine: pass True") == 8 * 2


def test_a_sharded_model_computes_in_fp8_too(tmp_path):
    """accelerate leaves it out where fully_shard has the model, so the script does it: before the model is sharded."""
    site = tmp_path / "site"
    for name, text in ENGINE.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    made = plan(HuggingFace(), gpu_machine(2), "tiny_pretrain", **SMALL, precision="FP8", strategy="fsdp")
    values = next(file.data for file in render(made, [TEMPLATES]) if file.path == "train.json")
    program = (
        "import json, sys, torch; sys.path.insert(0, sys.argv[1]); from train_model import build_model\n"
        "build_model(json.loads(sys.argv[2]))(input_ids=torch.zeros(1, 4, dtype=torch.long))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(TEMPLATES / "hf"), values.decode()],
        env=environment(PYTHONPATH=str(site)), capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0 and ran.stdout.count("engine: pass True") == 1, ran.stderr


@each_row(
    ("changes", "words"),
    [
        ({"method": "qlora"}, "QLoRA needs bitsandbytes, which is not installed"),
        ({"strategy": "deepspeed"}, "strategy deepspeed needs deepspeed, which is not installed"),
        ({"method": "full", "precision": "FP8"}, "FP8 needs transformer-engine, which is not installed"),
    ],
)
def test_what_is_not_installed_is_said_before_anything_starts(tmp_path, changes, words):
    done = run(write_run(tmp_path / "r", "tiny_lora", **changes))
    assert done.returncode == 1 and f"madlite: {words}" in done.stderr and "Traceback" not in done.stderr
