"""Mounts of a plan's container: the workspace, the run's own work folder, and the plan's mounts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.files import Folder, copy_inside
from madlite.model import Cause, Mount, RunPlan
from madlite.store.folder import VIEW, WORK


def container_mounts(plan: RunPlan) -> tuple[Mount, ...]:
    """Return the mounts, outer ones first; touches nothing.

    In place of the folder of runs a container sees only what the workload needs of its own run: journals, records and
    other runs are trusted later, so a workload, which may be root there, must not reach them.
    """
    runs = f"{plan.inside}/{plan.folder.parent.relative_to(plan.workspace)}"
    return (
        Mount(source=str(plan.workspace), target=f"{plan.inside}/"),
        Mount(source=str(plan.folder / VIEW), target=runs, read_only=True),
        Mount(source=str(plan.folder / WORK), target=plan.folder_inside),
        *plan.mounts,
    )


def make_mounts(plan: RunPlan) -> tuple[Mount, ...]:
    """Make the folders that the mounts need, as the current user, and return the mounts.

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


# Copies of files that a run wrote into the workspace.

_LOG = logging.getLogger(__name__)


def copy_matching(workspace: Path, patterns: Sequence[str], into: Path) -> None:
    """Copy the files below `workspace` that match a glob pattern into the folder `into`, by their own names.

    A link is followed as long as it stays in the workspace: a workload must not expose other files of the caller.
    """
    for pattern in patterns:
        for path in sorted(workspace.glob(pattern)):
            if path.is_file() and path.parent != into:
                into.mkdir(parents=True, exist_ok=True)
                copy_whole(path, into / path.name, workspace)


def copy_whole(path: Path, to: Path, root: Path) -> None:
    """Copy a file below `root` so that a reader sees the old one or the new one; what cannot be copied is logged."""
    try:
        copy_inside(path, root, to)
    except OSError as error:
        _LOG.warning("%s was not copied to %s: %s", path, to, error.strerror)
