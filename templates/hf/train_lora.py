"""Fine-tune a random Llama with LoRA through Hugging Face's Trainer, and print every step's speed.

    torchrun --nproc_per_node N train_lora.py train.json [--any_training_argument value …]

No weights, no tokenizer and no data set are read: the model comes from its shape, the tokens from a rule that a model
can learn.  One line `madlite-step {…}` follows each optimizer step, per GPU, with the device synchronised before time
is taken; a step's time runs from the end of the step before, so that nothing a run pays for is left out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

ON_GPU = torch.cuda.is_available()  # AMD's too
GIB = 1024**3
TOKENS = 61  # how many of the vocabulary the data uses


class Sequences(torch.utils.data.Dataset):
    """Full sequences that walk through a few tokens in steps of one width: each token decides the next."""

    def __init__(self, seq_len: int, vocab_size: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.seq_len = seq_len
        self.tokens = torch.randperm(vocab_size, generator=chance)[:TOKENS]

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, width = index % TOKENS, 1 + index % 7
        ids = self.tokens[(start + width * torch.arange(self.seq_len)) % len(self.tokens)]
        return {"input_ids": ids, "labels": ids.clone()}


class StepLines(TrainerCallback):
    """Print one JSON line per step."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.last = 0.0
        self.seconds = 0.0

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **more: object) -> None:
        """Start the clock."""
        self.last = now()

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **more: object) -> None:
        """Take the step's time, before anything is logged."""
        end = now()
        self.seconds, self.last = end - self.last, end

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: Any = None, **more: object) -> None:
        """Print the step; every rank has the same loss, so the first one's line stands for all."""
        if not state.is_world_process_zero or "loss" not in (logs or {}):
            return
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps
        line = {
            "n": state.global_step,
            **{name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate") if name in logs},
            "tokens_per_s_per_gpu": samples * self.seq_len / self.seconds,
            "samples_per_s_per_gpu": samples / self.seconds,
            "step_time_s": self.seconds,
        }
        if ON_GPU:
            line["memory_reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
        say("step", line)


def now() -> float:
    """Return the time in seconds once the GPU has done all it was given."""
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def say(kind: str, values: dict[str, float]) -> None:
    """Print one line of ours."""
    short = {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in values.items()}
    sys.stdout.write(f"madlite-{kind} {json.dumps(short)}\n")
    sys.stdout.flush()


def build_model(values: dict[str, Any]) -> torch.nn.Module:
    """Return a Llama of the shape asked for, random and frozen, with LoRA weights to train."""
    config = LlamaConfig(
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        num_hidden_layers=values["layers"],
        num_attention_heads=values["heads"],
        num_key_value_heads=values["kv_heads"],
        vocab_size=values["vocab_size"],
        rope_theta=values["rope_theta"],
        max_position_embeddings=values["seq_len"],
        attn_implementation=values["attention"],
        use_cache=False,
    )
    torch.set_default_dtype(getattr(torch, values["dtype"]))
    with torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if ON_GPU else "cpu"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    lora = LoraConfig(
        r=values["lora_r"],
        lora_alpha=values["lora_alpha"],
        lora_dropout=values["lora_dropout"],
        target_modules=values["lora_targets"].split(","),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora)


def training_arguments(values: dict[str, Any], more: list[str]) -> TrainingArguments:
    """Return the Trainer's arguments; those of the command line come last and win."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = {
        "output_dir": "outputs",
        "max_steps": values["steps"],
        "per_device_train_batch_size": values["micro_batch"],
        "gradient_accumulation_steps": max(1, values["global_batch"] // (values["micro_batch"] * ranks)),
        "learning_rate": values["lr"],
        "warmup_steps": values["lr_warmup_steps"],
        "max_grad_norm": values["max_norm"],
        "seed": values["seed"],
        "bf16": values["precision"] == "BF16",
        "torch_compile": values["compile"],
        "use_cpu": not ON_GPU,
        "dataloader_pin_memory": ON_GPU,
        "ddp_find_unused_parameters": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # else the Trainer prints an average where the loss is NaN
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if values["gradient_checkpointing"]:
        chosen |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"use_reentrant": false}'}
    words = [f"--{name}={value}" for name, value in chosen.items()]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        [*words, *more], look_for_args_file=False
    )
    return arguments


def main() -> None:
    """Train as the file given first says."""
    values = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    arguments = training_arguments(values, sys.argv[2:])
    set_seed(arguments.seed)
    model = build_model(values)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Sequences(values["seq_len"], values["vocab_size"], values["seed"]),
        callbacks=[StepLines(values["seq_len"])],
    )
    if trainer.is_world_process_zero():
        model.print_trainable_parameters()
    result = trainer.train()
    if trainer.is_world_process_zero():
        say("summary", {name: value for name, value in result.metrics.items() if isinstance(value, (int, float))})
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # without it gloo's thread can still hold tensors, and never ends
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
