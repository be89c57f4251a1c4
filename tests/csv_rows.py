"""Results files as a program reads them."""

from __future__ import annotations

import csv
from pathlib import Path


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table by the names of its columns."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def perf_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a folder's perf.csv."""
    return csv_rows(folder / "perf.csv")
