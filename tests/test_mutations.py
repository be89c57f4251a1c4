"""What scripts/mutations.py breaks is still there, and so are the tests that it and tests/COVERAGE.md name."""

from __future__ import annotations

import re
from pathlib import Path

import tomli

ROOT = Path(__file__).parents[1]


def test_each_mutation_has_its_line_and_its_tests():
    entries = tomli.loads((ROOT / "scripts/mutations.toml").read_text())["mutation"]
    rooms = [entry["file"].split("/")[1] for entry in entries]
    assert len(entries) >= 20 and len({*rooms}) == len(rooms), "one per room"
    for entry in entries:
        assert (ROOT / entry["file"]).read_text().count(entry["old"]) == 1, entry["file"]
        assert [name for name in entry["tests"].split() if not (ROOT / name).exists()] == []


def test_the_tests_that_hold_a_promise_exist():
    names = re.findall(r"`([\w/*.]+)`", (ROOT / "tests/COVERAGE.md").read_text())
    paths = [name for name in names if not name.startswith(("scripts/", "make"))]
    assert len(paths) > 50 and [name for name in paths if not [*(ROOT / "tests").glob(name)]] == []
