"""Train a small transformer with DDP or FSDP2 on made-up tokens, and print one JSON line per step.

    MADLITE_STEPS=30 MADLITE_STRATEGY=fsdp torchrun --nproc_per_node N train_ddp.py

A sample for scripts of one's own: sizes come from madlite's variables, a step's time has the device synchronised at
both ends, and rank 0 prints the speed of one rank.  bf16 is autocast under DDP and FSDP2's mixed precision; on GPUs the
ranks talk through NCCL (RCCL), on a CPU through gloo.  Where MADLITE_CHECKPOINT names a folder it saves there every so
many steps, and goes on from what it finds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

ON_GPU = torch.cuda.is_available()  # AMD's too
VOCABULARY, WIDTH, LAYERS, HEADS = 512, 128, 4, 4
GIB = 1024**3
PRECISIONS = {"BF16": torch.bfloat16, "FP32": torch.float32}


def setting(name: str, otherwise: str) -> str:
    """Return what madlite's variable of that name says."""
    return os.environ.get(f"MADLITE_{name}") or otherwise


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self, seq_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(seq_len, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the token after each of (batch, seq_len)."""
        length = ids.shape[1]
        hidden = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device, dtype=hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def spread(model: nn.Module, strategy: str, dtype: torch.dtype) -> nn.Module:
    """Return the model as its ranks share it: every weight on each (ddp), or a part on each (fsdp)."""
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if strategy != "fsdp":
        sys.exit(f"MADLITE_STRATEGY is {strategy!r}, and neither ddp nor fsdp")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if not ON_GPU:
        for module in (*model.layers, model):  # gloo adds up, and knows no mean
            module.set_force_sum_reduction_for_comms(True)
    return model


def made_up(batch: int, seq_len: int, chance: torch.Generator) -> torch.Tensor:
    """Return sequences in which each token is the one before plus a width, so that there is something to learn."""
    start = torch.randint(VOCABULARY, (batch, 1), generator=chance)
    width = torch.randint(1, 5, (batch, 1), generator=chance)
    return (start + width * torch.arange(seq_len + 1)) % VOCABULARY


class Checkpoint:
    """The newest state of a training in a folder; without one nothing is kept."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.folder, self.interval = setting("CHECKPOINT", ""), int(os.environ.get("MADLITE_CHECKPOINT_INTERVAL", "10"))

    def saved(self) -> list[int]:
        """Return the steps that are saved whole, whose metadata is written last."""
        return sorted(int(file.parent.name) for file in Path(self.folder).glob("*/.metadata")) if self.folder else []

    def load(self) -> int:
        """Take the newest state; return the step that it is of, 0 of none."""
        if not (steps := self.saved()):
            return 0
        weights, moments = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=Path(self.folder, str(steps[-1])))
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=moments)
        return steps[-1]

    def save(self, step: int) -> None:
        """Save the state after a step where it is due, and remove the one before."""
        if not self.folder or step % self.interval:
            return
        weights, moments = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=Path(self.folder, str(step)))
        if dist.get_rank() == 0:
            for old in self.saved()[:-1]:
                shutil.rmtree(Path(self.folder, str(old)))


def now() -> float:
    """Return the time in seconds once the GPU has done all it was given."""
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def train(device: torch.device) -> None:
    """Train for the steps that were asked for; rank 0 prints them."""
    rank = dist.get_rank()
    seq_len, batch, steps = (
        int(setting("SEQ_LEN", "128")),
        int(setting("MICRO_BATCH", "8")),
        int(setting("STEPS", "30")),
    )
    precision = setting("PRECISION", "BF16")
    if precision not in PRECISIONS:
        sys.exit(f"MADLITE_PRECISION is {precision!r}, and neither {' nor '.join(PRECISIONS)}")
    dtype = PRECISIONS[precision]
    torch.manual_seed(0)
    model = spread(Transformer(seq_len).to(device), setting("STRATEGY", "ddp"), dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    chance = torch.Generator().manual_seed(1000 + rank)
    checkpoint = Checkpoint(model, optimizer)
    done = checkpoint.load()
    for _ in range(done):
        made_up(batch, seq_len, chance)  # which the steps before were trained with
    begin = now()
    for n in range(done + 1, steps + 1):
        ids = made_up(batch, seq_len, chance).to(device)
        with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end = now()
        if rank == 0:
            say(n, loss.item(), batch * seq_len, end - begin)
        checkpoint.save(n)
        begin = now()
    if rank == 0:
        sys.stdout.write("training is over\n")


def say(n: int, loss: float, tokens: int, seconds: float) -> None:
    """Print a step: the loss and speed of this rank."""
    line = {"step": n, "loss": loss, "tokens_per_s_per_gpu": tokens / seconds, "step_time_s": seconds}
    if ON_GPU:
        line["memory_reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
    sys.stdout.write(f"step {json.dumps(line)}\n")
    sys.stdout.flush()


def main() -> None:
    """Meet the other ranks, train, and part in order."""
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    train(device)
    dist.barrier()  # without it gloo's thread can still hold tensors, and never ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
