"""Modules and functions stay short enough to be read at one sight; ruff counts statements, not lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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


# how code would ask for a runtime's name or class, where its traits are to be asked
_BY_NAME = re.compile(
    r"""runtime(?:\.name|\.runtime)?\s*(?:==|!=|\bin\b|not in)\s*[("'\[{]"""
    r"""|["'](?:docker|host)["']\s*(?:==|!=|in\b|not in)|isinstance\([^()]*,\s*\(?[^()]*Runtime\b"""
)


def test_no_runtime_is_asked_for_its_name_or_class() -> None:
    files = [file for folder in ("madlite", "plugins") for file in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "templates").rglob("*.j2")
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if _BY_NAME.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'if plan.runtime == "docker":',
        "given.runtime.runtime != 'host'",
        'plan.runtime in ("docker", "host")',
        '"docker" not in listed',
        "isinstance(self._runtime, DockerRuntime)",
        'runtime.name == "slurm"',
    ],
)
def test_the_check_finds_a_runtime_asked_for_its_name(line: str) -> None:
    assert _BY_NAME.search(line)


def test_the_check_finds_what_is_one_line_too_long() -> None:
    def function(lines: int) -> str:
        return "class C:\n    async def f():\n" + "        x\n" * (lines - 1)

    assert list(too_long("m.py", function(40) + "y\n" * 459)) == []
    assert list(too_long("m.py", function(41) + "y\n" * 459)) == ["m.py: 501 lines", "m.py:2: f has 41 lines"]
