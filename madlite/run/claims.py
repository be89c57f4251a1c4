"""What runs of one working folder take turns with: the folder of a script, the file that it leaves its results in."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

from madlite.types import RunPlan

_TURN_S = 0.2


def claim_model_dir(plan: RunPlan) -> tuple[str, int]:
    """Return the name of a folder of the workspace for the plan's script, and the lock that keeps it ours.

    It is the name that MAD's scripts know, unless another run of this workspace is in it.

    Raises:
        OSError: the workspace cannot be written to.
    """
    runs = plan.folder.parent
    runs.mkdir(parents=True, exist_ok=True)
    for name in (plan.model_dir, f"{plan.model_dir}_{plan.id[-6:]}"):
        lock = os.open(runs / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return name, lock
    raise BlockingIOError(f"{plan.model_dir} is in use by other runs")


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
    plan.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(plan.folder.parent / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
