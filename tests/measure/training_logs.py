"""Logs of trainings that are made up: torchtitan's lines around losses, norms and speeds, and what else a log has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from madlite.backends.loader import load_plugins
from madlite.measure.parse_log import LogReading, read_log

PLUGINS = load_plugins(only_built_in=True)
HEAD = (
    "torchtitan version: 0.2.2 (0.0.0 means __version__ is not defined correctly).",
    "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=1, etp=1",
    "Trainer is initialized with local batch size 2, global batch size 8, gradient accumulation steps 1, "
    "sequence length 8192, total steps {steps} (warmup 2)",
)
LABELS: dict[str, Callable[[int], str]] = {
    "torchrun": lambda rank: f"[rank{rank}]: ",
    "tee": lambda rank: f"[default{rank}]:",
    "srun": lambda rank: f"{rank}: ",
    "srun wide": lambda rank: f" {rank}: ",
    "srun zeros": lambda rank: f"00{rank}: ",
    "open mpi 4": lambda rank: f"[1,{rank}]<stdout>:",
    "open mpi 5": lambda rank: f"[prterun-node1-77@1,{rank}]<stdout>: ",
    "pytorchjob": lambda rank: f"[pod/llama-{f'worker-{rank - 1}' if rank else 'master-0'}/pytorch] ",
    "indexed job": lambda rank: f"[pod/train-{rank}-x7k2q/main] ",
    "jobset": lambda rank: f"[pod/train-workers-0-{rank}-p9x4z/main] ",
    "compose": lambda rank: f"trainer-{rank + 1}  | ",
    "compose services": lambda rank: f"rank{rank}-1  | ",
    "swarm": lambda rank: f"train.{rank + 1}.x8k2qwertyuiopasdfghjklzx@node{rank}    | ",
    "cri": lambda rank: f"2026-11-22T10:00:00.123456789Z stdout F [rank{rank}]: ",
    "times": lambda rank: f"2026-11-22T10:00:00.123456789Z {rank}: ",
}


def titan(
    losses: Sequence[float | str],
    norms: Sequence[float | str] = (),
    speeds: Sequence[float] = (),
    between: Iterable[str] = (),
) -> list[str]:
    """Return the lines of a log; those `between` come one by one after the steps."""
    say = "[titan] 2026-11-22 10:{:02}:{:02},123 - root - INFO - {}".format
    lines = [say(0, 0, text.format(steps=len(losses))) for text in HEAD]
    more = list(between)
    for at, loss in enumerate(losses):
        norm = norms[at] if norms else 1.2 + at % 3 / 10
        speed = speeds[at] if speeds else 7000 + 13 * (at % 5)
        told = loss if isinstance(loss, str) else f"{loss:8.5f}"
        lines.append(
            say(
                (at + 1) // 30 % 60,  # a step of 16,384 tokens takes 2 s
                2 * (at + 1) % 60,
                f"step: {at + 1:2}  loss: {told}  grad_norm: {norm}  memory: 120.11GiB(62.57%)  tps: {speed:,.0f}  "
                "tflops: 404.03  mfu: 30.91%",
            )
        )
        lines += more[at :: len(losses)]
    return [*lines, say(59, 59, "Training completed")]


def trainer(losses: Sequence[float | str], norms: Sequence[float | str] = ()) -> list[str]:
    """Return the lines of a Hugging Face Trainer."""
    rows = [
        f"{{'loss': '{loss}', 'grad_norm': '{norms[at] if norms else 1.2}', 'learning_rate': '0.0001', "
        f"'epoch': '{(at + 1) / 100:.2f}'}}"
        for at, loss in enumerate(losses)
    ]
    return [*rows, "{'train_runtime': '17.36', 'train_samples_per_second': '34.57', 'train_loss': '2.4165'}"]


def ranked(label: Callable[[int], str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of several ranks, a line of each in turn."""
    return [label(rank) + line for row in zip(*lines, strict=True) for rank, line in enumerate(row)]


def parsed(lines: Iterable[str], backend: str = "") -> LogReading:
    """Return what `madlite parse` reads of a log."""
    known = PLUGINS.backends()[backend][0] if backend else None
    return read_log("a log", iter(["".join(f"{line}\n" for line in lines).encode()]), PLUGINS, known)
