"""Every difference from madengine that the golden tests allow is told to users."""

from __future__ import annotations

from pathlib import Path

from tests.golden.differences import DECLARED
from tests.golden.test_minimad import DIFFERENT, FILES
from tests.rows import each_row

ROWS = {one.row for one in (*DECLARED, *FILES)} | {row for table in DIFFERENT.values() for _, row in table.values()}


@each_row("row", sorted(ROWS))
def test_a_difference_is_documented(row: str) -> None:
    documented = (Path(__file__).parents[2] / "docs/differences.md").read_text()
    assert f"\n| {row}" in documented
