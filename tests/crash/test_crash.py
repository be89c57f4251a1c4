"""Wherever a command is killed or its disk is full, the next ones leave one true row of each run that began.

`make test` plays every thirty-second point; `python -m tests.crash.driver batch FOLDER torn` plays those of a kind, and
keeps the folders of what broke.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.scenarios import SCENARIOS
from tests.tiers import first_of

ROOT = Path(__file__).parents[2]
PARTS = 32


@pytest.mark.host
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", first_of(range(1, PARTS + 1), 1))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_run_that_began_has_one_true_row_after_the_next_command(scenario: str, part: int, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.crash.driver", scenario, str(tmp_path / "here"), f"{part}/{PARTS}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], done.stderr
