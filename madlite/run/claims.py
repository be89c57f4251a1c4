"""What runs of one folder share, and so take turns with or get apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from madlite.errors import RuntimeProblem
from madlite.model import Cause, RunPlan
from madlite.plan.actions import settle_model_dir
from madlite.workspace.claims import claim_model_dir, held_results, lock_name
from madlite.workspace.folder import open_runs


@contextmanager
def claimed(plan: RunPlan, keep_waiting: Callable[[], bool]) -> Iterator[RunPlan]:
    """Hold what the plan's script needs for itself in the workspace; a rendered run has all of it in its own folder.

    Raises:
        RuntimeProblem: the workspace cannot be written to, or `keep_waiting` ended the wait for another run.
    """
    if not plan.model_dir:
        yield plan
        return
    with ExitStack() as stack:
        with _told(plan):
            stack.enter_context(held_results(plan, keep_waiting))
            name, lock = claim_model_dir(plan)
            stack.callback(_let_go, plan, name, lock)
        yield settle_model_dir(plan, name)


def _let_go(plan: RunPlan, name: str, lock: int) -> None:
    if name != plan.model_dir:  # a name that no other run will have
        with suppress(OSError), open_runs(plan.workspace) as runs:
            runs.remove(lock_name(name))
    with suppress(OSError):
        os.close(lock)


@contextmanager
def _told(plan: RunPlan) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise RuntimeProblem(str(error), cause=Cause.INTERRUPTED) from error
    except OSError as error:
        place = error.filename if str(error.filename).startswith("/") else plan.workspace
        what = f"{place} cannot be written to: {error.strerror or error}"
        raise RuntimeProblem(what, cause=Cause.PREPARE) from error
