"""Small plans and what belongs to them, for tests."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

from madlite.files import Folder
from madlite.model import Card, Image, Machine, Place, Quantity, Result, RunPlan, Traits, Window
from madlite.perfcsv.side_files import make_entries, write_entries
from madlite.store.events import Requested, Started, append
from madlite.store.folder import RunEntry, RunRows, RunStart, add_entry

BASE_IMAGE = "madlite-test/base:latest"
SMALL_IMAGE = "madlite-test/small:latest"  # bash and the usual small programs: what is pushed or saved, and read back
WINDOW = Window(
    quantity=Quantity.TOKENS_PER_S_PER_GPU,
    n=6,
    first_step=5,
    last_step=10,
    dropped=4,
    median=10.0,
    mean=10.0,
    std=0.1,
    cv=0.01,
    min=9.0,
    max=11.0,
    drift=0.02,
)


HOST = Traits(containerised=False)
SLURM = Traits(containerised=False, local=False)


def id_of(workspace: Path) -> str:
    """Return the id of the run that `make_plan` plans there, which no other test has: by it processes are ended."""
    return f"test-{workspace.name}-{zlib.crc32(bytes(workspace)):08x}"


def make_plan(workspace: Path, **changes: object) -> RunPlan:
    """Return the plan of a CPU run in a container, with its run folder made below `workspace`."""
    run_id = str(changes.pop("id", id_of(workspace)))
    folder = workspace / "madlite_runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, object] = {
        "id": run_id,
        "card": Card(name="tiny", root=workspace, source="a test"),
        "backend": "script",
        "place": Place(),
        "machine": Machine(),
        "workspace": workspace,
        "inside": "/myworkspace",
        "folder": folder,
        "image": Image(ref=BASE_IMAGE),
        "name": f"container_{run_id}",
        "stop_grace_s": 1.0,
    }
    return RunPlan(**{**values, **changes})  # type: ignore[arg-type]


def write_journal(folder: Path, rows: RunRows | None = None, cleaned: str | None = None) -> Path:
    """Write the journal of a run that began, and came to its rows or was dealt with by `clean`; return the folder."""
    entries = [
        RunEntry(at="t"),
        *([RunEntry(at="t", rows=rows, cleaned=cleaned)] if rows or cleaned is not None else []),
    ]
    with Folder.open(folder) as home:
        assert "".join(add_entry(home, entry) for entry in entries) == ""
    return folder


def note_requested(workspace: Path, study_id: str) -> None:
    """Note that a study has requested runs."""
    with Folder.open(workspace / "madlite_runs") as runs:
        append(runs, Requested(batch=study_id, study=study_id))


def note_made(folder: Path) -> Path:
    """Note a run's folder that a test made by hand as madlite notes those that it makes; return it."""
    with Folder.open(folder.parent) as runs, runs.below(folder.name):
        append(runs, Started(run=folder.name))
    return folder


def write_side_files(
    plan: RunPlan, result: Result, *, pipeline: str, build_number: str, mask: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Write a run's side files into its working folder, and return the error messages."""
    entries = make_entries(plan, result, RunStart(pipeline=pipeline, build_number=build_number), mask)
    return write_entries(plan.workspace, entries)
