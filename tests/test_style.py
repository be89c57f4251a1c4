"""Modules and functions stay short enough to be read at one sight; ruff counts statements, not lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 500, 40
ROOT = Path(__file__).parents[1]


def too_long(name: str, text: str) -> Iterator[str]:
    """Yield what of a module is longer than it may be; a function counts from its `def` to its last line."""
    if (lines := len(text.splitlines())) > LINES_OF_A_FILE:
        yield f"{name}: {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LINES_OF_A_FUNCTION:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines"


def test_no_module_and_no_function_is_too_long() -> None:
    files = [file for folder in ("madlite", "plugins") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    assert [one for file in files for one in too_long(str(file.relative_to(ROOT)), file.read_text())] == []


def test_the_check_finds_what_is_one_line_too_long() -> None:
    def function(lines: int) -> str:
        return "class C:\n    async def f():\n" + "        x\n" * (lines - 1)

    assert list(too_long("m.py", function(40) + "y\n" * 459)) == []
    assert list(too_long("m.py", function(41) + "y\n" * 459)) == ["m.py: 501 lines", "m.py:2: f has 41 lines"]
