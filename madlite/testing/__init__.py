"""The conformance kit for authors of backends (docs/plugins.md) and runtimes (docs/runtimes.md).

A function that returns every flaw, or a class of tests: `check_backend`, `check_runtime`.

Nothing of a run imports it; it needs bash, and shellcheck (`pip install 'madlite[testing]'`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from madlite.model import Backend
from madlite.testing.checks import CHECKS, NO_PLAN, BackendConformance, run_check
from madlite.testing.flaws import Flaw
from madlite.testing.runtimes import RUNTIME_CHECKS, RuntimeConformance, check_runtime
from madlite.testing.subject import MACHINES, CardLike, Subject

__all__ = [
    "CHECKS",
    "MACHINES",
    "RUNTIME_CHECKS",
    "BackendConformance",
    "Flaw",
    "RuntimeConformance",
    "Subject",
    "check_backend",
    "check_runtime",
    "run_check",
]


def check_backend(
    backend: Backend,
    cards: Iterable[CardLike] = (),
    logs: Mapping[str | Path, int | None] | None = None,
    *,
    only: Iterable[str] = (),
    **given: Any,
) -> list[Flaw]:
    """Return everything that is wrong with a backend; nothing where it conforms.

    What else is given beside the backend is told by `Subject`; `only` are names of CHECKS, all where it is empty.

    Raises:
        ValueError: `only` names something else.
    """
    if isinstance(only, str):
        raise ValueError(f"only={only!r} is one text, where a list of names is wanted: only=[{only!r}]")
    names = tuple(only) or tuple(CHECKS)
    if unknown := [name for name in names if name not in CHECKS]:
        raise ValueError(f"only={list(names)!r}: there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    subject = Subject(backend, cards, logs, **given)
    flaws = [flaw for name in names for flaw in run_check(name, subject)]
    unplanned = [flaw for flaw in flaws if flaw.what == NO_PLAN][1:]  # of all checks that want a plan, told once
    return [flaw for flaw in flaws if flaw not in unplanned]
