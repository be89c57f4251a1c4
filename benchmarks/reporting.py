"""Time, memory and size of pages of results: python benchmarks/reporting.py [rows of the large file]

Each file is read and reported by a process of its own, as `madlite report html` does it.  Seconds of the parts are of
the processor, those of the whole command of the wall clock.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from madlite.perfcsv.rows import STANDARD_COLUMNS

SERIES = 200
SMALL = 10_000


def main(large: int) -> None:
    print("| file | MiB | series | reading, s | page and Markdown, s | whole command, s | page, MiB | peak RSS, MiB |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        for rows, series in ((SMALL, SERIES), (SMALL, SMALL), (large, SERIES)):
            path = write(Path(name, "perf.csv"), rows, series)
            seen = measured(path)
            print(
                f"| {rows:,} rows | {path.stat().st_size / 2**20:.0f} | {series:,} | {seen['reading_s']:.2f} "
                f"| {seen['page_s']:.2f} and {seen['markdown_s']:.2f} | {seen['whole_s']:.2f} "
                f"| {seen['bytes'] / 2**20:.1f} | {seen['peak_mib']:.0f} |"
            )


def write(path: Path, rows: int, series: int) -> Path:
    """Write a results file of 29 columns; a tenth of its series become slower in the middle, a hundredth failed."""
    chance = random.Random(1)
    with path.open("w") as file:
        file.write(",".join(STANDARD_COLUMNS) + "\n")
        for n in range(rows):
            which = n % series
            slower = 0.95 if which % 10 == 0 and n > rows / 2 else 1.0
            cells = {
                "model": f"primus_pyt_train_model-{which}",
                "n_gpus": "8",
                "training_precision": ("BF16", "FP8")[which % 2],
                "gpu_architecture": ("gfx942", "gfx950")[which % 3 % 2],
                "performance": "" if n % 100 == 99 else f"{(which + 1) * 100 * slower * chance.gauss(1, 0.01):.3f}",
                "metric": "tokens_per_s_per_gpu",
                "status": "FAILURE" if n % 100 == 99 else "SUCCESS",
                "machine_name": f"node-{n % 16}",
                "docker_image": f"rocm/primus:v26.{n * 4 // rows}",
                "git_commit": f"{n * 7 // rows:07x}",
                "args": "--mode pretrain --precision bf16 --batch 4",
            }
            file.write(",".join(cells.get(name, "") for name in STANDARD_COLUMNS) + "\n")
    return path


def measured(path: Path) -> dict[str, float]:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "madlite", "report", "html", str(path), "-o", str(path.with_suffix(".html"))]
    subprocess.run(command, check=True, capture_output=True)
    whole_s = time.perf_counter() - begun
    said = subprocess.run([sys.executable, __file__, "--one", str(path)], check=True, capture_output=True, text=True)
    return {**json.loads(said.stdout), "whole_s": whole_s}


def one(path: Path) -> None:
    from madlite.reports.index import open_index
    from madlite.reports.page.build import page_data
    from madlite.reports.page.render import render_markdown, render_page
    from madlite.reports.selectors import collect

    times = [time.process_time()]
    with open_index(path.parent / "madlite_runs") as index:
        found, runs = collect([str(path)], Path(), index, {})
    times.append(time.process_time())
    page = page_data(found.series, runs, sources=(found.label,), notes=found.notes)
    text = render_page(page)
    times.append(time.process_time())
    render_markdown(page)
    times.append(time.process_time())
    reading_s, page_s, markdown_s = (after - before for before, after in pairwise(times))
    facts = {"reading_s": reading_s, "page_s": page_s, "markdown_s": markdown_s, "bytes": len(text.encode())}
    print(json.dumps({**facts, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
