"""A session whose actions run one after the other: how another thread ends them, and what is left of them."""

from __future__ import annotations

import logging
import os
import selectors
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from madlite.cancellation import ActionGate
from madlite.errors import RuntimeProblem
from madlite.files import Folder, copy_inside
from madlite.model import Action, Cause, Chunk, Mount, RunPlan
from madlite.store.folder import VIEW, WORK


def cwd_of(plan: RunPlan, action: Action, *, inside: bool) -> PurePosixPath:
    """Return the folder that an action starts in, as its command sees it: `inside` its container, or on the machine."""
    workspace, folder = (plan.inside, plan.folder_inside) if inside else (str(plan.workspace), str(plan.folder))
    return PurePosixPath(workspace, action.cwd.replace("{folder}", folder))


READ_BYTES = 1 << 18


class GatedSession(ABC):
    """Runs one action at a time, through its gate; a subclass has what runs one, and what ends it."""

    return_limit_s = 5.0  # for an action to be seen as over after its processes were killed

    def __init__(self, workspace: Path, grace_s: float) -> None:
        """Make a session of actions in a workspace; at an action's own limit each signal has `grace_s`."""
        self.notes: tuple[str, ...] = ()
        self._workspace, self._grace_s = workspace, grace_s
        self._gate = ActionGate()

    @abstractmethod
    def _end(self, grace_s: float) -> None:
        """End what runs: INT, `grace_s`, TERM, `grace_s`, KILL."""

    def stop(self, grace_s: float) -> None:
        """End the running action: INT, `grace_s`, TERM, `grace_s`, KILL; nothing starts here any more.

        Safe from another thread.  Without a grace it also hurries a stop that is under way.
        """
        self._gate.closed.set()
        self._stop(grace_s)

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Copy the files of the workspace that match into the folder `into`."""
        copy_matching(self._workspace, patterns, into)

    def _stop(self, grace_s: float) -> None:
        with self._gate.ending(grace_s):
            if not self._gate.end_until_over(partial(self._end, grace_s), self.return_limit_s):
                self._gate.abandoned.set()


def read_pipes(pipes: selectors.BaseSelector, wait_s: float) -> Iterator[Chunk]:
    """Yield what comes by pipes, waiting so long for it; one that ends is dropped.

    The data of a pipe are its node and stream; without any it carries no output, and is left alone.
    """
    for key, _ in pipes.select(wait_s):
        if key.data is not None:
            node, stream = key.data
            if data := os.read(key.fd, READ_BYTES):
                yield Chunk(data=data, stream=stream, node=node)
            else:
                pipes.unregister(key.fileobj)


# Mounts of a plan's container: the workspace, the run's own work folder, and the plan's mounts.


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


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Say of what cannot be written inside that it, `what`, cannot be.

    Raises:
        RuntimeProblem: there is such.
    """
    try:
        yield
    except OSError as error:
        text = f"{what} cannot be written to: {error.strerror or error}"
        raise RuntimeProblem(text, cause=Cause.PREPARE) from error


def make_mounts(plan: RunPlan) -> tuple[Mount, ...]:
    """Make the folders that the mounts need, as the current user, and return the mounts.

    Raises:
        RuntimeProblem: one cannot be made.
    """
    with writing(f"the run's folder {plan.folder}"), Folder.open(plan.folder) as home, home.below(WORK, make=True):
        home.below(f"{VIEW}/{plan.folder.name}", make=True).close()
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
