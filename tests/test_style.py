"""What of the style no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.rows import each_row

ROOT = Path(__file__).parents[1]

# how code would ask for a runtime's name or class, where its traits are to be asked
_BY_NAME = re.compile(
    r"""runtime(?:\.name|\.runtime)?\s*(?:==|!=|\bin\b|not in)\s*[("'\[{]"""
    r"""|["'](?:docker|host)["']\s*(?:==|!=|in\b|not in)|isinstance\([^()]*,\s*\(?[^()]*Runtime\b"""
)


_CONFLICT = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


def test_no_file_has_both_sides_of_a_merge() -> None:
    folders = ("docs", "madlite", "plugins", "templates", "tests", "scripts", "benchmarks")
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in (ROOT / folder).rglob("*"))]
    texts = (file for file in files if file.suffix in (".py", ".md", ".toml", ".sh", ".j2", ".json") and file.is_file())
    assert [str(file.relative_to(ROOT)) for file in texts if _CONFLICT.search(file.read_text(errors="replace"))] == []


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


@each_row(
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
