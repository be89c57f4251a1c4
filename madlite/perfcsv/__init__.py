"""A result → rows of perf.csv, appended without loss."""

from __future__ import annotations

from madlite.perfcsv.append import append_rows, check_appendable, save_rows
from madlite.perfcsv.header import STANDARD_COLUMNS
from madlite.perfcsv.rows import build_rows
from madlite.perfcsv.side_files import write_side_files
from madlite.perfcsv.update_perf import update_perf

__all__ = [
    "STANDARD_COLUMNS",
    "append_rows",
    "build_rows",
    "check_appendable",
    "save_rows",
    "update_perf",
    "write_side_files",
]
