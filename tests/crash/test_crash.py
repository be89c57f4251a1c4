"""Wherever a command is killed or its disk is full, the next ones leave one true row of each run that began.

`make test` plays every thirty-second point; `python -m tests.crash.driver batch FOLDER torn` plays those of a kind, and
keeps the folders of what broke.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.driver import play
from tests.crash.scenarios import SCENARIOS
from tests.tiers import first_of

PARTS = 32


@pytest.mark.host
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", first_of(range(1, PARTS + 1), 1))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_run_that_began_has_one_true_row_after_the_next_command(scenario: str, part: int, tmp_path: Path) -> None:
    assert play(scenario, tmp_path / "here", f"{part}/{PARTS}") == []
