"""The border to a runtime, which may be a plugin's: what it raises and what it answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from madlite.cancellation import Interrupted
from madlite.errors import MadliteError, RuntimeProblem
from madlite.model import Cause, Problem, Runtime

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def check_type(value: object, kind: type[_T], what: str, runtime: Runtime) -> _T:
    """Return what a runtime answered.

    Raises:
        RuntimeProblem: it is something else, as a plugin's may be.
    """
    if isinstance(value, kind):
        return value
    text = f"runtime '{runtime.name}' failed: {what} answered {value!r}, not a madlite.{kind.__name__}"
    raise RuntimeProblem(text, cause=Cause.INTERNAL, keys=())


@contextmanager
def guard_plugin(runtime: Runtime) -> Iterator[None]:
    """Turn what a runtime raises beyond its contract into its failure: it may be a plugin's."""
    try:
        yield
    except (MadliteError, Interrupted):
        raise
    except Exception as error:
        _log.debug("runtime %s", runtime.name, exc_info=True)
        what = f"runtime '{runtime.name}' failed: {type(error).__name__}: {error}"
        raise RuntimeProblem(what, cause=Cause.INTERNAL, keys=()) from error


def why_unavailable(runtime: Runtime) -> Problem | None:
    """Return why a runtime cannot be used now; None where it can."""
    try:
        return runtime.available()
    except Exception as error:  # noqa: BLE001 - the border to a plugin's runtime
        return Problem(where=runtime.name, what=f"runtime '{runtime.name}' failed: {type(error).__name__}: {error}")
