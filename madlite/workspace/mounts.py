"""What a plan's container has of this machine: the workspace, its own run's work folder, and the plan's mounts."""

from __future__ import annotations

from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.model import Cause, Mount, RunPlan
from madlite.safe_files import Folder
from madlite.workspace.folder import VIEW, WORK


def container_mounts(plan: RunPlan) -> tuple[Mount, ...]:
    """Return the mounts, each after what it lies in; touches nothing.

    In place of the folder of runs a container has of its own run what the workload needs, and no more: journals,
    records and other runs are trusted later, so that a workload, which may be root there, must not reach them.
    """
    runs = f"{plan.inside}/{plan.folder.parent.relative_to(plan.workspace)}"
    return (
        Mount(source=str(plan.workspace), target=f"{plan.inside}/"),
        Mount(source=str(plan.folder / VIEW), target=runs, read_only=True),
        Mount(source=str(plan.folder / WORK), target=plan.folder_inside),
        *plan.mounts,
    )


def make_mounts(plan: RunPlan) -> tuple[Mount, ...]:
    """Make the folders that the mounts want, as whoever calls this, and return the mounts.

    Raises:
        RuntimeProblem: one cannot be made.
    """
    try:
        with Folder.open(plan.folder) as home, home.below(WORK, make=True):
            home.below(f"{VIEW}/{plan.folder.name}", make=True).close()
    except OSError as error:
        what = f"the run's folder {plan.folder} cannot be written to: {error.strerror}"
        raise RuntimeProblem(what, cause=Cause.PREPARE) from error
    for mount in plan.mounts:
        try:
            if mount.create:
                Path(mount.source).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"folder {mount.source} (for {mount.target}) cannot be made: {error.strerror}"
            raise RuntimeProblem(what, cause=Cause.PREPARE) from error
    return container_mounts(plan)
