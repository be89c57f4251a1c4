"""What runs of one folder share."""

from __future__ import annotations

from madlite.engine.claims import claimed
from tests.factories import make_plan


def test_a_rendered_run_needs_nothing_for_itself_and_waits_for_nobody(tmp_path):
    plan = make_plan(tmp_path, model_dir="")
    before = sorted(tmp_path.rglob("*"))
    with claimed(plan, lambda: False) as held:
        assert held is plan and sorted(tmp_path.rglob("*")) == before
