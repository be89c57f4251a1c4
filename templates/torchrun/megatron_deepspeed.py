"""Start Megatron-DeepSpeed's pretrain_gpt.py in this rank, with the sizes of the plan; torchrun starts one per GPU.

The options are those of its examples_deepspeed/rebase/ds_pretrain_gpt_125M_flashattn.sh, which is for 8 GPUs: tensor
and pipeline parallel 2 each, ZeRO stage 1, activations recomputed.  What this program is given as arguments goes
before them: `--tensor-model-parallel-size 1`.  $MEGATRON_DEEPSPEED_ROOT is the tree, or /workspace/Megatron-DeepSpeed.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(os.environ.get("MEGATRON_DEEPSPEED_ROOT") or "/workspace/Megatron-DeepSpeed")
DATA = {"--vocab-file": "gpt2-vocab.json", "--merge-file": "gpt2-merges.txt", "--data-path": "my-gpt2_text_document"}
FLAGS = (
    *("--no-gradient-accumulation-fusion", "--no-async-tensor-model-parallel-allreduce", "--checkpoint-activations"),
    *("--deepspeed", "--deepspeed-activation-checkpointing"),
)
SCALING = {"loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 11}


def main() -> None:
    """Write DeepSpeed's configuration, and become pretrain_gpt.py."""
    program = ROOT / "pretrain_gpt.py"
    if not program.is_file():
        sys.exit(f"madlite: {ROOT} has no pretrain_gpt.py, which is Megatron-DeepSpeed's")
    precision = os.environ["MADLITE_PRECISION"]
    own, given = options_of(os.environ), values_of(sys.argv[1:])
    check(own, given)
    options = {**own, **given}
    config = Path(__file__).with_name(f"ds_config_{os.environ['RANK']}.json")  # a rank waits for no other's
    config.write_text(json.dumps(config_of(options, precision)), encoding="utf-8")
    words = [word for name in own if name not in given for word in (name, own[name])]
    words += [*flags_of(options), f"--{precision.lower()}", "--deepspeed_config", str(config)]
    sys.argv = [str(program), *words, *sys.argv[1:]]
    sys.path.insert(0, str(ROOT))
    runpy.run_path(str(program), run_name="__main__")


def options_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that have values: the plan's sizes, and those of the script that is followed."""
    return {
        "--tensor-model-parallel-size": "2",
        "--pipeline-model-parallel-size": "2",
        "--zero-stage": "1",
        "--num-layers": "12",
        "--hidden-size": "768",
        "--num-attention-heads": "12",
        "--seq-length": environ["MADLITE_SEQ_LEN"],
        "--max-position-embeddings": environ["MADLITE_SEQ_LEN"],
        "--micro-batch-size": environ["MADLITE_MICRO_BATCH"],
        "--global-batch-size": environ["MADLITE_GLOBAL_BATCH"],
        "--train-iters": environ["MADLITE_STEPS"],
        "--lr": "6.0e-4",
        "--min-lr": "1.0e-6",
        "--lr-decay-style": "cosine",
        "--adam-beta1": "0.9",
        "--adam-beta2": "0.95",
        "--weight-decay": "0.1",
        "--clip-grad": "1.0",
        "--init-method-std": "0.02",
        "--seed": "1234",
        "--num-workers": "0",
        "--log-interval": "1",
        "--split": "100,0,0",  # a benchmark neither validates nor tests
        "--eval-iters": "0",
        "--data-impl": "mmap",
        **{name: str(ROOT / "dataset" / file) for name, file in DATA.items()},
    }


def values_of(words: Sequence[str]) -> dict[str, str]:
    """Return the values of the arguments that are given, the last of each; `--name value` or `--name=value`."""
    values = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        after = words[at + 1] if at + 1 < len(words) else ""
        if name.startswith("--") and (equals or (after and not after.startswith("--"))):
            values[name] = value if equals else after
    return values


def flags_of(options: Mapping[str, str]) -> list[str]:
    """Return the options without a value: attention is Megatron's own where flash_attn is not installed."""
    flags = [*FLAGS, *(["--no-pipeline-parallel"] if options["--pipeline-model-parallel-size"] == "1" else [])]
    if find_spec("flash_attn") is not None:
        return [*flags, "--use-flash-attn"]
    if os.environ["RANK"] == "0":
        print("madlite: flash_attn is not installed: attention is Megatron's own", flush=True)  # noqa: T201 - for the log
    return flags


def check(own: Mapping[str, str], given: Mapping[str, str]) -> None:
    """End the run where the ranks cannot be shared out, or the data is missing that nobody has named."""
    sizes = [f"--{kind}-model-parallel-size" for kind in ("tensor", "pipeline")]
    tensor, pipeline = (int(given.get(name, own[name])) for name in sizes)
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks % (tensor * pipeline):
        sys.exit(f"madlite: {ranks} rank(s) are no multiple of tensor × pipeline parallel = {tensor} × {pipeline}")
    files = [f"{own[name]}.bin" if name == "--data-path" else own[name] for name in DATA if name not in given]
    if missing := [file for file in files if not Path(file).is_file()]:
        sys.exit(f"madlite: Megatron-DeepSpeed's data is not there: {missing[0]}")


def config_of(options: Mapping[str, str], precision: str) -> dict[str, object]:
    """Return DeepSpeed's configuration, with the sizes that the options have."""
    scaling = SCALING if precision == "FP16" else {}
    return {
        "train_batch_size": int(options["--global-batch-size"]),
        "train_micro_batch_size_per_gpu": int(options["--micro-batch-size"]),
        "steps_per_print": 1,
        "zero_optimization": {"stage": int(options["--zero-stage"])},
        "gradient_clipping": float(options["--clip-grad"]),
        "prescale_gradients": options["--zero-stage"] == "0",
        precision.lower(): {"enabled": True, **scaling},
        "wall_clock_breakdown": False,
    }


if __name__ == "__main__":
    main()
