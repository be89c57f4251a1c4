"""Runs as they lie in a working folder, for the commands that look at them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from madlite.model import Metric, Result, RunPlan, Status, to_json
from madlite.store.folder import LOCK, LOG, PLAN, RECORD, RunStart
from madlite.store.record import Record, make_record, record_json
from tests.factories import make_plan, note_made, write_journal

GOOD = Metric(metric="tps", text="12.5", status=Status.SUCCESS, value=12.5)


def store(workspace: Path, run_id: str, outcome: Result | None = None, log: bytes = b"", **changes: object) -> Record:
    """Leave a run's folder, without a record where there is no outcome, and return what its record says."""
    plan: RunPlan = make_plan(workspace, id=run_id, **changes)
    (plan.folder / PLAN).write_text(to_json(plan))
    (plan.folder / LOCK).touch()
    write_journal(plan.folder)
    (plan.folder / LOG).write_bytes(log)
    note_made(plan.folder)
    told = outcome or Result(plan_id=run_id, status=Status.FAILURE)
    record = make_record(plan, told, None, RunStart(command=("run", "--tags", plan.card.name)))
    if outcome is not None:
        (plan.folder / RECORD).write_text(record_json(record))
    return record


def good(run_id: str, when: str = "2026-01-02T03:04:05+00:00", **changes: object) -> Result:
    """Return a success."""
    result = Result(plan_id=run_id, status=Status.SUCCESS, metrics=(GOOD,), started=when, durations_s={"total": 61.0})
    return replace(result, **changes)
