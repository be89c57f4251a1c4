"""Run one of torchtune's distributed recipes on a machine without a GPU. It is a test bench, not a product.

    torchrun … cpu_ranks.py RECIPE.py --config train.yaml

The recipe asks its device for memory that a CPU has no account of: it is told the peak size of the process.
"""

from __future__ import annotations

import resource
import runpy
import sys

import torch
from torchtune import training


def memory_stats(device: object = None, reset_stats: bool = True) -> dict[str, float]:
    """Return the process's peak size in GiB under each of torchtune's names."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return dict.fromkeys(("peak_memory_active", "peak_memory_alloc", "peak_memory_reserved"), peak)


def main() -> None:
    """Give torchtune what it takes for granted, and run the recipe; not where there is a GPU."""
    if torch.cuda.is_available():
        sys.exit(f"madlite: this is for machines without a GPU, and here is one ({torch.cuda.get_device_name(0)})")
    training.get_memory_stats = memory_stats
    for name in ("empty_cache", "reset_peak_memory_stats"):
        setattr(torch.cpu, name, lambda *_: None)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
