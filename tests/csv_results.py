"""perf.csv files with the numbers that a test wants."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from madlite.perfcsv.rows import STANDARD_COLUMNS


def row(value: object, **cells: object) -> dict[str, str]:
    """Return a row as madengine writes one: 8 GPUs, bf16, a success where there is a number."""
    common = {
        "model": "llama",
        "n_gpus": "8",
        "nnodes": "1",
        "training_precision": "bf16",
        "gpu_architecture": "gfx942",
        "docker_image": "rocm/pytorch:v1",
        "metric": "tokens_per_s_per_gpu",
        "status": "SUCCESS" if value != "" else "FAILURE",
        "performance": str(value),
    }
    return {name: str(text) for name, text in {**common, **cells}.items()}


def write(path: Path, rows: Iterable[dict[str, str]], columns: Sequence[str] = STANDARD_COLUMNS) -> Path:
    """Write a perf.csv."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore", restval="")
        table.writeheader()
        table.writerows(rows)
    return path


def noisy(n: int, seed: int, middle: float = 100.0, noise: float = 0.01) -> list[float]:
    """Return numbers of runs that differ in nothing but noise."""
    rng = random.Random(seed)
    return [round(rng.gauss(middle, noise * middle), 6) for _ in range(n)]
