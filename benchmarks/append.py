"""Time of one append to perf.csv, for short and long files: python benchmarks/append.py [folder]

An append reads the header and the tail and writes once, so its time must not grow with the file.  Without sync: what
the disk needs to keep a row is the disk's business, not the format's.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from madlite.perfcsv.append import append_rows
from madlite.perfcsv.rows import STANDARD_COLUMNS

ROW = dict.fromkeys(STANDARD_COLUMNS, "some text") | {"tags": "pyt,train,llama", "performance": "14164.25"}
TURNS = 200


def main(folder: Path) -> None:
    """Print one line per length of file: milliseconds of an append, and of one that adds a column."""
    print("|      rows |     MiB | append, median ms | append, worst ms | new column, s |")
    print("|----------:|--------:|------------------:|-----------------:|--------------:|")
    for count in (10, 1_000, 1_000_000):
        path = folder / f"perf-{count}.csv"
        fill(path, count)
        size_mib = path.stat().st_size / 2**20
        times_s = sorted(timed(lambda: append_rows(path, [ROW])) for _ in range(TURNS))  # noqa: B023
        wide = ROW | {"temperature": "61"}
        wide_s = timed(lambda: append_rows(path, [wide]))  # noqa: B023
        median_ms, worst_ms = 1e3 * statistics.median(times_s), 1e3 * times_s[-1]
        print(f"| {count:9,} | {size_mib:7.1f} | {median_ms:17.3f} | {worst_ms:16.3f} | {wide_s:13.2f} |")
        path.unlink()


def fill(path: Path, count: int) -> None:
    """Write a perf.csv of `count` rows."""
    append_rows(path, [ROW])
    header, line = path.read_text().splitlines(keepends=True)
    with path.open("w") as file:
        file.write(header)
        file.writelines(line for _ in range(count))


def timed(action: Callable[[], None]) -> float:
    """Return how many seconds the action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as scratch:
        main(Path(scratch))
