"""Write the last row of the benchmark's results.csv as the result rows that MAD writes for it.

    python3 results.py RESULTS OUTPUT NAME=VALUE …

Each NAME=VALUE is a further column.  Numbers stay the text that they are.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

MEAN, SPREAD = "Recommendations/s (mean)", "Recommendations/s (std/mean)"


def main() -> None:
    """Read one file, write the other."""
    source, target, *pairs = sys.argv[1:]
    with Path(source).open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or MEAN not in rows[-1]:
        sys.exit(f"madlite: {source} has no row with {MEAN}")
    columns = dict(pair.split("=", 1) for pair in pairs)
    figures = (("recs_per_s_mean", rows[-1][MEAN]), ("recs_per_s_cv", rows[-1].get(SPREAD, "")))
    beside = Path(f"{target}.{os.getpid()}")
    with beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["model", "performance", "metric", *columns], lineterminator="\n")
        writer.writeheader()
        for metric, text in figures:
            writer.writerow({"model": "DLRM", "performance": text, "metric": metric, **columns})
    beside.replace(target)


if __name__ == "__main__":
    main()
