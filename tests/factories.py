"""Small plans for tests."""

from __future__ import annotations

from pathlib import Path

from madlite.types import Card, Image, Machine, Place, RunPlan

BASE_IMAGE = "madlite-test/base:latest"


def make_plan(workspace: Path, **changes: object) -> RunPlan:
    """Return the plan of a CPU run in a container, with its run folder made below `workspace`."""
    run_id = str(changes.pop("id", f"test-{workspace.name}"))
    folder = workspace / "madlite_runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, object] = {
        "id": run_id,
        "card": Card(name="tiny", root=workspace, source="a test"),
        "backend": "script",
        "place": Place(engine="docker"),
        "machine": Machine(),
        "workspace": workspace,
        "inside": "/myworkspace",
        "folder": folder,
        "image": Image(ref=BASE_IMAGE),
        "name": f"container_{run_id}",
        "stop_grace_s": 1.0,
    }
    return RunPlan(**{**values, **changes})  # type: ignore[arg-type]
