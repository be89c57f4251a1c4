"""The tests that run what a row of docs/differences.md says, for rows that neither scenarios nor minimad show.

`tests/data/differences.tsv`: how the row begins, and the test.
"""

from __future__ import annotations

from pathlib import Path

_LINES = (Path(__file__).parents[1] / "data/differences.tsv").read_text().splitlines()
HELD: dict[str, str] = dict(line.split("\t") for line in _LINES)
