"""Train a causal language model with Hugging Face's Trainer, and print every step's speed.

    torchrun --nproc_per_node N train.py train.json [--any_training_argument value …]

The model is random, of a shape, or real weights from the folder that $MADLITE_WEIGHTS names; all of it is trained, or
LoRA beside frozen weights, which QLoRA keeps in 4 bits.  Tokens are made up by a rule that a model can learn, or come
from the file that pack.py made of a data set.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from train_data import sequences
from train_lines import ON_GPU, StepLines, say
from train_model import build_model, tell_parameters
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments, set_seed

try:
    from transformers.modeling_layers import GradientCheckpointingLayer
except ImportError:  # transformers before 4.53

    class GradientCheckpointingLayer:  # type: ignore[no-redef]
        """Of no model."""


def training_arguments(values: dict[str, Any], more: list[str]) -> TrainingArguments:
    """Return the Trainer's arguments; those of the command line come last and win."""
    chosen = {
        "output_dir": "outputs",
        "max_steps": values["steps"],
        "per_device_train_batch_size": values["micro_batch"],
        "gradient_accumulation_steps": values["accumulation"],
        "learning_rate": values["lr"],
        "lr_scheduler_type": values["lr_schedule"],
        "warmup_steps": values["lr_warmup_steps"],
        "weight_decay": values["weight_decay"],
        "max_grad_norm": values["max_norm"],
        "seed": values["seed"],
        "bf16": values["precision"] == "BF16",  # FP8 is said by accelerate's configuration alone
        "fp16": values["precision"] == "FP16",
        "torch_compile": values["compile"],
        "use_cpu": not ON_GPU,
        "dataloader_pin_memory": ON_GPU,
        "remove_unused_columns": False,  # there are none
        "ddp_find_unused_parameters": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # else the Trainer prints an average where the loss is NaN
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if values["gradient_checkpointing"] and values["strategy"] != "fsdp":  # FSDP has its own, without a second gather
        chosen |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"use_reentrant": false}'}
    if values["checkpoint"]:
        saved = {"save_strategy": "steps", "save_steps": values["checkpoint_interval"], "save_total_limit": 2}
        chosen |= {"output_dir": "checkpoint", **saved}
    for name, value in (("torch_compile_mode", values["compile_mode"]), ("optim", values["optim"])):
        chosen |= {name: value} if value else {}
    words = [f"--{name}={value}" for name, value in chosen.items()]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        [*words, *more], look_for_args_file=False
    )
    return arguments


def last_checkpoint(folder: str) -> str | None:
    """Return the newest checkpoint of a folder that is whole: the Trainer's state is written last."""
    steps = [int(file.parent.name.rpartition("-")[2]) for file in Path(folder).glob("checkpoint-*/trainer_state.json")]
    return f"{folder}/checkpoint-{max(steps)}" if steps else None


class CheckpointEvery(TrainerCallback):
    """Has every Nth layer recomputed alone: the others keep their activations."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Turn checkpointing off in the other layers, once the Trainer has turned it on in all of them."""
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            sys.exit("madlite: this transformers recomputes all layers or none: --set checkpoint_every=1")
        for n, layer in enumerate(layers):
            layer.gradient_checkpointing = layer.gradient_checkpointing and n % self.every == 0


def tell_sizes(trainer: Trainer, values: dict[str, Any], ranks: int) -> None:
    """Print what the run is, as the arguments that won have it."""
    arguments = trainer.args
    batch = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * ranks
    sizes = {"steps": arguments.max_steps, "seq_len": values["seq_len"], "world_size": ranks, "global_batch": batch}
    computed = {"precision": trainer.accelerator.mixed_precision}  # "no": in the weights' own
    say("config", {**sizes, "micro_batch": arguments.per_device_train_batch_size, **computed})


def main() -> None:
    """Train as the file given first says."""
    values = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    arguments = training_arguments(values, sys.argv[2:])
    ranks = max(1, arguments.world_size)  # asked for, the ranks meet: real weights are loaded by the first for all
    set_seed(arguments.seed)
    model = build_model(values)
    samples = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    lines = StepLines(samples * values["seq_len"], samples)
    words = getattr(model.config, "vocab_size", None) or values["vocab_size"]  # of real weights it is their own
    data = sequences({**values, "vocab_size": words}, samples * ranks, arguments.max_steps)
    parts = [CheckpointEvery(values["checkpoint_every"])] if values["checkpoint_every"] > 1 else []
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[lines, *parts])
    if trainer.is_world_process_zero():
        tell_sizes(trainer, values, ranks)
        tell_parameters(model)
    result = trainer.train(resume_from_checkpoint=last_checkpoint("checkpoint") if values["checkpoint"] else None)
    if trainer.is_world_process_zero():
        say("summary", {name: value for name, value in result.metrics.items() if isinstance(value, (int, float))})
    if torch.distributed.is_initialized():
        leave()


def leave() -> None:
    """End a rank once all of them are done.

    A CPU's rank ends without the interpreter's own end: a thread of gloo that still holds a tensor waits there for the
    lock of the interpreter, which waits for that thread for ever.
    """
    torch.distributed.barrier()
    if ON_GPU:
        torch.distributed.destroy_process_group()
        return
    atexit._run_exitfuncs()  # what reports elsewhere, if asked for, sends its last figures in them
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
