"""Comparing: how often a true change is found and chance takes for one, and what a comparison costs."""

from __future__ import annotations

import csv
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from madlite.perfcsv.rows import STANDARD_COLUMNS
from madlite.reports.compare import Settings, Verdict, compare, read_gates, trips
from madlite.reports.series import Sample, Series, direction_of
from madlite.reports.series_key import DIMENSIONS

_DRAWS = 10_000
_SITTING_DRAWS = 2_000
_ORDERS = ((True, None), (False, None), (False, 0.01))  # whether in turns, and the stated noise
_CHANGED = (Verdict.REGRESSION, Verdict.IMPROVEMENT)


def _series(values: list[float], model: str = "m") -> Series:
    known = {"model": model, "metric": "tokens_per_s_per_gpu"}
    key = tuple(known.get(name, "") for name in DIMENSIONS)
    return Series(key=key, values=tuple(values), direction=direction_of(key[-1]))


def _found(n: int, change: float, noise: float, settings: Settings) -> float:
    rng = random.Random(f"{n} {change} {noise}")
    hits = 0
    for _ in range(_DRAWS):
        base = _series([rng.gauss(100, 100 * noise) for _ in range(n)])
        new = _series([rng.gauss(100 * (1 - change), 100 * noise) for _ in range(n)])
        hits += compare([base], [new], settings=settings).comparisons[0].verdict in _CHANGED
    return hits / _DRAWS


def power() -> None:
    """Print how often a change is found, by runs a side and noise."""
    print(f"a change of 3 % found, least effect 1 %, {_DRAWS} pairs each; and changes found where there is none\n")
    print("| runs a side | noise 0.5 % | 1 % | 2 % | none, noise 1 % |\n|---|--:|--:|--:|--:|")
    for n in (4, 5, 6, 8, 10):
        cells = [_found(n, 0.03, noise, Settings()) for noise in (0.005, 0.01, 0.02)] + [_found(n, 0, 0.01, Settings())]
        print(f"| {n} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |", flush=True)


def _levels(rng: random.Random, count: int, rho: float, drift: float) -> Iterator[float]:
    """Yield the machine's level at each run: AR(1) that varies by 1 %, and drifts by this part over all of them."""
    state = rng.gauss(0, 1)
    for place in range(count):
        yield 100 * (1 + 0.01 * state) * (1 + drift * place / count)
        state = rho * state + math.sqrt(1 - rho * rho) * rng.gauss(0, 1)


def _sampled(values: list[tuple[int, float]], study: str) -> Series:
    when = [f"2026-01-01T{place:02}:00:00" for place, _ in values]
    samples = [Sample(value=value, when=at, study=study) for at, (_, value) in zip(when, values, strict=True)]
    return replace(_series([value for _, value in values]), samples=tuple(samples))


def _sides(n: int, rho: float, drift: float, turns: bool, draws: int) -> Iterator[tuple[Series, Series]]:
    """Yield two unchanged sides of n runs, A B A B … within one study or A A … B B …, each its own."""
    rng = random.Random(f"{n} {rho} {drift}")
    for _ in range(draws):
        runs = [(place, rng.gauss(level, 0.5)) for place, level in enumerate(_levels(rng, 2 * n, rho, drift))]
        base, new = (runs[::2], runs[1::2]) if turns else (runs[:n], runs[n:])
        yield _sampled(base, "a"), _sampled(new, "a" if turns else "b")


def sittings() -> None:
    """Print how often the interval has the true ratio, and verdicts are false, by the order of the runs."""
    print(f"\n{_SITTING_DRAWS} unchanged pairs each, on a machine whose level varies by 1 %, AR(1); runs by 0.5 %\n")
    print(
        "| runs a side | level | in turns: inside the interval | false | one after the other: false | with --noise 1% |"
    )
    print("|---|---|--:|--:|--:|--:|")
    for n in (3, 5, 10):
        for rho, drift in ((0, 0), (0.5, 0), (0.9, 0), (0.99, 0), (0.9, 0.03)):
            cells = [_outcomes(_sides(n, rho, drift, turns, _SITTING_DRAWS), noise) for turns, noise in _ORDERS]
            level = f"ρ {rho}{f', drift {drift:.0%}' if drift else ''}"
            print(f"| {n} | {level} | {cells[0][0]:.1%} | " + " | ".join(f"{cell[1]:.1%}" for cell in cells) + " |")


def _outcomes(sides: Iterator[tuple[Series, Series]], noise: float | None) -> tuple[float, float]:
    inside = false = 0
    for base, new in sides:
        found = compare([base], [new], settings=Settings(noise=noise)).comparisons[0]
        inside += found.interval is not None and found.interval.low <= 1 <= found.interval.high
        false += found.verdict in _CHANGED
    return inside / _SITTING_DRAWS, false / _SITTING_DRAWS


def gate() -> None:
    """Print how often `regression>3%` stays silent over 200 series in which nothing changed."""
    rng, gates, silent = random.Random(3), read_gates(["regression>3%"]), 0
    for _ in range(100):
        sides = [[_series([rng.gauss(100, 0.6) for _ in range(5)], f"m{k}") for k in range(200)] for _ in range(2)]
        silent += not trips(compare(*sides), gates)
    print(f"\n200 unchanged series of five runs, noise 0.6 %: regression>3% silent in {silent} of 100 comparisons")


def _write(path: Path, rows: int, series: int, shift: float) -> None:
    rng = random.Random(1)
    common = {"n_gpus": 8, "nnodes": 1, "training_precision": "bf16", "gpu_architecture": "gfx942",
              "status": "SUCCESS", "machine_name": "node-1",
              "metric": "tokens_per_s_per_gpu", "docker_image": "rocm/pytorch-training:v25.2",
              "tags": "pyt,train", "additional_docker_run_options": "--shm-size 64G"}  # fmt: skip
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, STANDARD_COLUMNS, restval="")
        table.writeheader()
        for i in range(rows):
            table.writerow({**common, "model": f"m{i % series}", "performance": round(rng.gauss(100 * shift, 1), 3)})


def _command(*args: object, cwd: Path) -> tuple[float, int]:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "madlite", *map(str, args)], cwd=cwd, check=False, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def cost() -> None:
    """Print time and memory of `madlite compare`."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        sizes = (("two runs", 1, 1), ("200 series of five", 1000, 200), ("1,000,000 rows, 200 series", 500_000, 200))
        for what, rows, series in sizes:
            _write(home / "a.csv", rows, series, 1.0)
            _write(home / "b.csv", rows, series, 0.97)
            took, mib = _command("compare", "a.csv", "b.csv", cwd=home)
            print(f"madlite compare, {what} in all: {took:.2f} s, {mib} MiB")


if __name__ == "__main__":
    power()
    sittings()
    gate()
    cost()
