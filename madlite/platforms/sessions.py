"""A session whose actions run one after the other: how another thread ends them, and what is left of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from madlite.cancellation import ActionGate
from madlite.model import Action, RunPlan
from madlite.store.mounts import copy_matching


def cwd_of(plan: RunPlan, action: Action, *, inside: bool) -> PurePosixPath:
    """Return the folder that an action starts in, as its command sees it: `inside` its container, or on the machine."""
    workspace, folder = (plan.inside, plan.folder_inside) if inside else (str(plan.workspace), str(plan.folder))
    return PurePosixPath(workspace, action.cwd.replace("{folder}", folder))


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
