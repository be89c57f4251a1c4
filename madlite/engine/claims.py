"""What runs of one folder share, and so take turns with or get apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from madlite.errors import RuntimeProblem
from madlite.plan.actions import settle_model_dir
from madlite.run.claims import claim_model_dir, claim_results, lock_name
from madlite.run.folder import open_runs
from madlite.types import Cause, RunPlan


@contextmanager
def claimed(plan: RunPlan, keep_waiting: Callable[[], bool]) -> Iterator[RunPlan]:
    """Hold what the plan's script needs for itself in the workspace; a rendered run has all of it in its own folder.

    Raises:
        RuntimeProblem: the workspace cannot be written to, or `keep_waiting` ended the wait for another run.
    """
    locks: list[int] = []
    held = plan
    try:
        if plan.model_dir:
            held = _claim(plan, keep_waiting, locks)
        yield held
    finally:
        if held.model_dir != plan.model_dir:  # a name that no other run will have
            with suppress(OSError), open_runs(plan.workspace) as runs:
                runs.remove(lock_name(held.model_dir))
        for lock in locks:
            with suppress(OSError):
                os.close(lock)


def _claim(plan: RunPlan, keep_waiting: Callable[[], bool], locks: list[int]) -> RunPlan:
    try:
        results = claim_results(plan, keep_waiting)
        locks += [] if results is None else [results]
        name, lock = claim_model_dir(plan)
        locks.append(lock)
    except TimeoutError as error:
        raise RuntimeProblem(str(error), cause=Cause.INTERRUPTED) from error
    except OSError as error:
        place = error.filename if str(error.filename).startswith("/") else plan.workspace
        what = f"{place} cannot be written to: {error.strerror or error}"
        raise RuntimeProblem(what, cause=Cause.PREPARE) from error
    return settle_model_dir(plan, name)
