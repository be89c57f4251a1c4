"""What runs of one working folder take turns with: the folder of a script, the file that it leaves its results in."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from madlite.run.folder import hold, open_runs
from madlite.safe_files import Folder
from madlite.types import RunPlan

_TURN_S = 0.2
_ASKED_S = 0.2  # who asks has a lock for less


def claim_model_dir(plan: RunPlan) -> tuple[str, int]:
    """Return the name of a folder of the workspace for the plan's script, and the lock that keeps it ours.

    It is the name that MAD's scripts know, unless another run of this workspace is in it, or it is another user's.

    Raises:
        OSError: the workspace cannot be written to.
    """
    with open_runs(plan.workspace, make=True) as runs:
        for name in (plan.model_dir, f"{plan.model_dir}_{plan.id[-6:]}"):
            with suppress(BlockingIOError):
                return name, _taken(runs, lock_name(name))
    raise BlockingIOError(f"{plan.model_dir} is in use by other runs")


@contextmanager
def held_model_dir(runs: Path, name: str) -> Iterator[bool]:
    """Keep a folder that runs claim from being claimed; say whether it is free.

    Raises:
        OSError: the folder of runs cannot be written to.
    """
    try:
        with open_runs(runs.parent) as folder:
            lock = _taken(folder, lock_name(name))
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(lock)


def lock_name(name: str) -> str:
    """Return the name, in the folder of runs, of what says that a run has a folder of the workspace."""
    return f".{name}.lock"


def _taken(runs: Folder, name: str) -> int:
    try:
        lock = runs.open_lock(name)
    except PermissionError as error:
        if runs.holds(name):
            raise BlockingIOError(f"{name} is another user's") from error
        raise
    try:
        hold(lock, _ASKED_S)
    except OSError:
        os.close(lock)
        raise
    return lock


def claim_results(plan: RunPlan, keep_waiting: Callable[[], bool]) -> int | None:
    """Take the lock of the results file that the plan's script leaves in the workspace; None for a plan without one.

    Scripts write it to the one place that all runs of a folder share, so runs that use the same name take turns.

    Raises:
        OSError: the workspace cannot be written to.
        TimeoutError: `keep_waiting` said no before the lock was free.
    """
    name = plan.result_rule.file.replace("/", "_")
    if plan.result_rule.kind != "multiple_results" or not name:
        return None
    with open_runs(plan.workspace, make=True) as runs:
        lock = runs.open_lock(lock_name(name))
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not keep_waiting():
                os.close(lock)
                raise TimeoutError(f"another run of this folder still uses {name}") from None
            time.sleep(_TURN_S)
        else:
            return lock
