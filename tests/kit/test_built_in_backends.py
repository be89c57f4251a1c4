"""Every backend that comes with madlite conforms, with all of its plans and logs or with a sample of them."""

from __future__ import annotations

import pytest

from madlite.testing import CHECKS
from tests.kit.built_in import IN_FULL, LOGS, NAMES, STEPS, subject
from tests.kit.extended import run_extended
from tests.rows import each_row
from tests.tiers import ALL


@pytest.mark.host
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", NAMES)
@each_row("check", CHECKS)
def test_it_conforms(name, check):
    assert list(map(str, run_extended(check, subject(name, whole=ALL or name == IN_FULL)))) == []


@pytest.mark.host
@each_row("name", [name for name in NAMES if name != "script"])
def test_the_sample_says_something(name):
    tested = subject(name, whole=False)
    assert len(tested.made) >= 3 and tested.cards
    judged = any(made.spec.result_rule.kind == "steps" for made in tested.made)
    assert any(tested.logs.values()) or not judged, "a log with steps"


def test_the_counted_logs_are_in_file():
    assert [name for name in STEPS if not (LOGS / name).is_file()] == []
