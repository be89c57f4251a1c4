"""branches.py FILE PERCENT: name the files of a coverage report that have too few branches, and fail if all have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def percent(summary: dict[str, Any]) -> float:
    """Return how many of a summary's branches were taken; what has none lacks none."""
    return 100.0 * summary["covered_branches"] / summary["num_branches"] if summary["num_branches"] else 100.0


def told(name: str, summary: dict[str, Any]) -> str:
    """Return a figure with what it is of."""
    return f"{percent(summary):.2f} % of branches  {name} ({summary['covered_branches']} of {summary['num_branches']})"


def main(file: str, wanted: str) -> int:
    """Say what there is and return the exit code."""
    report = json.loads(Path(file).read_text(encoding="utf-8"))
    totals, limit = report["totals"], float(wanted)
    few = [(name, one["summary"]) for name, one in report["files"].items() if percent(one["summary"]) < limit]
    for name, summary in sorted(few, key=lambda one: percent(one[1])):
        sys.stdout.write(f"{told(name, summary)}\n")
    sys.stdout.write(f"{told('in all', totals)}\n")
    if percent(totals) >= limit:
        return 0
    sys.stderr.write(f"error: {percent(totals):.2f} % of the branches are covered, {limit:g} % are wanted\n")
    sys.stderr.write(" hint: coverage report --show-missing --skip-covered   names the lines\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
