"""docs/architecture.md names code that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.rows import each_row

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PLACES = re.findall(r"`([a-z_/]+\.py):(\w+)`", PAGE)
ROOMS = re.findall(r"`([a-z]+)/`", PAGE[PAGE.index("## Rooms") : PAGE.index("## Size")])


def test_the_run_is_told_in_fifteen_lines_with_their_places():
    lines = re.findall(r"^(\d+)\. (.*)$", PAGE, re.MULTILINE)
    assert [int(n) for n, _ in lines] == list(range(1, 16)) and all(".py:" in text or "`" in text for _, text in lines)
    assert len(PLACES) >= 15


@each_row(("file", "name"), PLACES)
def test_a_place_that_the_page_names_is_there(file, name):
    tree = ast.parse((ROOT / "madlite" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_each_room_of_the_core_is_on_the_page():
    there = {folder.name for folder in (ROOT / "madlite").iterdir() if (folder / "__init__.py").is_file()}
    assert there <= {*ROOMS, "data"}
