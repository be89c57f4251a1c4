"""The options that say where results go, and what of madlite's own stands beside them."""

from __future__ import annotations

from pathlib import Path

import click

_FILE = click.Path(path_type=Path)
MANIFEST = Path("build_manifest.json")  # where nobody names another
COLUMNS = ("cause", "reason", "suspect", "run", "notes")  # record.rows.OWN_COLUMNS: a test holds them together

RESULTS = (
    click.option(
        "-o", "--output", type=_FILE, default=Path("perf.csv"), show_default=True, metavar="FILE", help="Results file."
    ),
    click.option("--strict-header", is_flag=True, help="Never add a column to perf.csv."),
    click.option(
        "--add-column",
        multiple=True,
        type=click.Choice(COLUMNS),
        help="Add a column of madlite's own to perf.csv; repeatable.",
    ),
)
SUMMARY = click.option(
    "-s", "--summary-output", type=_FILE, metavar="FILE", help="Also write what happened to FILE, as JSON."
)
FAIL_ON_SUSPECT = click.option(
    "--fail-on-suspect", is_flag=True, help="End with exit code 3 where a success is suspect; its row stays SUCCESS."
)
CLEANUP = click.option(
    "--cleanup-perf", is_flag=True, help="Remove perf_entry.* and perf_entry_super.* after the runs."
)
