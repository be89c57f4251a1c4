"""Locks between runs of one working folder: of a script's folder and of the file that it writes its results to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from madlite.files import Folder
from madlite.model import RunPlan
from madlite.store.folder import open_runs
from madlite.store.locks import open_locked, remove_locked

_RETRY_S = 0.2
_QUERY_S = 0.2  # a process that tests a lock holds it for less


def claim_model_dir(plan: RunPlan) -> tuple[str, int]:
    """Return the name of a folder of the workspace for the plan's script, and its open lock.

    It is the name that MAD's scripts expect, unless another run of this workspace uses it, or it is another user's.

    Raises:
        OSError: the workspace cannot be written to.
    """
    with open_runs(plan.workspace, make=True) as runs:
        for name in (plan.model_dir, f"{plan.model_dir}_{plan.id[-6:]}"):
            with suppress(BlockingIOError):
                return name, _open_locked(runs, lock_name(name))
    raise BlockingIOError(f"{plan.model_dir} is in use by other runs")


def release_model_dir(plan: RunPlan, name: str, lock: int) -> None:
    """Release what `claim_model_dir` returned."""
    with suppress(OSError), open_runs(plan.workspace) as runs:
        remove_locked(runs, lock_name(name), lock)


@contextmanager
def locked_name(workspace: Path, name: str) -> Iterator[bool]:
    """Hold a lock in a working folder's folder of runs; yield whether it was free.

    Raises:
        OSError: the folder of runs cannot be written to.
    """
    with open_runs(workspace, make=True) as runs:
        try:
            lock = _open_locked(runs, name)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            remove_locked(runs, name, lock)


def lock_name(name: str) -> str:
    """Return the name, in the folder of runs, of the lock of a folder of the workspace."""
    return f".{name}.lock"


def _open_locked(runs: Folder, name: str) -> int:
    try:
        return open_locked(runs, name, _QUERY_S)
    except PermissionError as error:
        if runs.holds(name):
            raise BlockingIOError(f"{name} is another user's") from error
        raise


@contextmanager
def locked_results(plan: RunPlan, keep_waiting: Callable[[], bool]) -> Iterator[None]:
    """Lock the results file that the plan's script writes into the workspace; without one nothing is locked.

    Scripts write it to one place that all runs of a folder share, so runs with the same file name run one at a time.

    Raises:
        OSError: the workspace cannot be written to.
        TimeoutError: `keep_waiting` returned False before the file was free.
    """
    name = plan.result_rule.file.replace("/", "_")
    if plan.result_rule.kind != "multiple_results" or not name:
        yield
        return
    with open_runs(plan.workspace, make=True) as runs:
        while True:
            with suppress(BlockingIOError):
                lock = open_locked(runs, lock_name(name), _RETRY_S)
                break
            if not keep_waiting():
                raise TimeoutError(f"another run of this folder still uses {name}")
        try:
            yield
        finally:
            remove_locked(runs, lock_name(name), lock)
