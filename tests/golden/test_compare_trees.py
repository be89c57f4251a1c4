"""scripts/compare_trees.py finds what differs between two checkouts, and nothing between a checkout and its copy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import each_row

pytestmark = pytest.mark.host
ROOT = Path(__file__).parents[2]
NO_CODE = shutil.ignore_patterns("__pycache__")


def compared(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/compare_trees.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=800)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout without an interpreter of its own."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("madlite", "plugins", "templates"):
        shutil.copytree(ROOT / name, tree / name, ignore=NO_CODE)
    for name in ("models.json", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    return tree


@pytest.mark.timeout(900)
def test_a_copy_is_the_same_until_a_key_of_the_record_changes(copy: Path, tmp_path: Path) -> None:
    done = compared(ROOT, copy, "--only", "record", "--out", tmp_path / "texts")
    assert done.returncode == 0 and done.stdout.startswith("record: same, "), done.stdout + done.stderr
    told = [path.read_text() for path in (tmp_path / "texts/new/record").glob("show_--json_*")]
    assert len(told) == len(list((ROOT / "tests/data/records").iterdir())) and all("exit code 0" in one for one in told)

    (schema,) = copy.rglob("record.schema.json")
    keys = json.loads(schema.read_text())
    schema.write_text(schema.read_text().replace('"card_source"', '"card_origin"'))
    assert json.loads(schema.read_text()) != keys
    done = compared(ROOT, copy, "--only", "record")
    assert done.returncode == 1 and "1 of " in done.stdout and "texts differ" in done.stdout, done.stdout + done.stderr
    assert '"card_source"' in done.stdout and '"card_origin"' in done.stdout


@each_row(
    ("words", "said"),
    [
        (("nowhere", ROOT), "nowhere is no checkout of madlite"),
        ((ROOT, ROOT, "--only", "nothing"), "invalid choice: 'nothing'"),
        ((ROOT, ROOT, "--logs", "nowhere"), "nowhere: there is no such folder"),
    ],
)
def test_wrong_usage_is_told(words: tuple[str | Path, ...], said: str) -> None:
    done = compared(*words)
    assert done.returncode == 4 and done.stderr.startswith("error: ") and said in done.stderr
