"""What a training prints: one line of JSON per optimizer step, `madlite-step {…}`, per GPU.

The device is synchronised before time is taken, and a step's time runs from the end of the step before, so that
nothing a run pays for is left out.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments

ON_GPU = torch.cuda.is_available()  # AMD's too
GIB = 1024**3


class StepLines(TrainerCallback):
    """Print one JSON line per step, of so many tokens and samples on each GPU."""

    def __init__(self, tokens: int, samples: int) -> None:
        self.tokens = tokens
        self.samples = samples
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
        line = {
            "n": state.global_step,
            **{name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate") if name in logs},
            "tokens_per_s_per_gpu": self.tokens / self.seconds,
            "samples_per_s_per_gpu": self.samples / self.seconds,
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


def say(kind: str, values: dict[str, Any]) -> None:
    """Print one line of ours."""
    short = {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in values.items()}
    sys.stdout.write(f"madlite-{kind} {json.dumps(short)}\n")
    sys.stdout.flush()
