"""A program of its own, for a python3 that has torch: prints the speed of a GPU, or of all GPUs together.

    python3 health.py gemm GPU       TFLOP/s of a product of two square matrices in BF16
    python3 health.py copy GPU       GB/s of a copy in the GPU's memory, read and written
    python3 health.py reduce COUNT [MIB]   GB/s of an all-reduce of 64 MiB, or as many, over so many GPUs:
                                           2·size·(n-1)/n per time

Sizes, repetitions and formulas are those of the Primus node smoke test, so that its thresholds apply; 8192 MiB are the
largest message of AMD's acceptance test, whose bus bandwidth is by the same formula.  torch for ROCm has AMD's GPUs as
`cuda`, too, and RCCL as `nccl`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

MIB = 1 << 20
_REPEATS = 20


def seconds(work: Callable[[], object], device: str, warmup: int) -> float:
    """Return the time that a piece of work takes on a device, of twenty one after another."""
    torch = import_module("torch")
    wait: Callable[[], object] = torch.cuda.synchronize if device.startswith("cuda") else bool
    for _ in range(warmup):
        work()
    wait()
    start_s = time.perf_counter()
    for _ in range(_REPEATS):
        work()
    wait()
    return (time.perf_counter() - start_s) / _REPEATS


def gemm(device: str, size: int = 8192) -> float:
    """Return TFLOP/s."""
    torch = import_module("torch")
    left, right = (torch.randn((size, size), dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2.0 * size**3 / seconds(lambda: torch.matmul(left, right), device, warmup=5) / 1e12


def copy(device: str, size: int = 512 * MIB) -> float:
    """Return GB/s."""
    torch = import_module("torch")
    source = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / seconds(lambda: target.copy_(source), device, warmup=10) / 1e9


def reduce(rank: int, count: int, port: int, device: str = "cuda", size: int = 64 * MIB) -> None:
    """Print GB/s, from the first rank."""
    torch, dist = import_module("torch"), import_module("torch.distributed")
    place = f"cuda:{rank}" if device == "cuda" else device
    if device == "cuda":
        torch.cuda.set_device(rank)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=address, world_size=count, rank=rank)
    values = torch.ones(size // 2, dtype=torch.bfloat16, device=place)
    taken_s = seconds(lambda: dist.all_reduce(values), place, warmup=5)
    if rank == 0:
        report(2.0 * size * (count - 1) / count / taken_s / 1e9)
    dist.destroy_process_group()


def report(value: float) -> None:
    """Print a figure as the last line."""
    sys.stdout.write(f"{value:.4g}\n")
    sys.stdout.flush()


def main(what: str, number: int, device: str = "cuda", **size: Any) -> None:
    """Measure on GPU `number`, or over as many."""
    if what == "reduce":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        import_module("torch.multiprocessing").spawn(reduce, args=(number, port, device, *size.values()), nprocs=number)
        return
    place = f"cuda:{number}" if device == "cuda" else device
    if device == "cuda":
        import_module("torch").cuda.set_device(number)  # what `synchronize` waits for
    report({"gemm": gemm, "copy": copy}[what](place, **size))


if __name__ == "__main__":
    os.environ.setdefault("NCCL_IB_DISABLE", "1")  # the GPUs of one node: no network is asked
    asked: dict[str, Any] = {"size": int(sys.argv[3]) * MIB} if len(sys.argv) > 3 else {}
    main(sys.argv[1], int(sys.argv[2]), **asked)
