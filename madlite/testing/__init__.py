"""The conformance kit for authors of backends (docs/plugins.md) and runtimes (docs/runtimes.md).

A function that returns every flaw, or a class of tests: `check_backend`, `check_runtime`.

Nothing of a run imports it; it needs bash, and shellcheck (`pip install 'madlite[testing]'`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from madlite.model import Backend
from madlite.testing.checks import CHECKS, NO_PLAN, BackendConformance, run_check
from madlite.testing.flaws import Flaw
from madlite.testing.plans import MACHINES
from madlite.testing.runtimes import RUNTIME_CHECKS, RuntimeConformance, check_runtime
from madlite.testing.subject import CardLike, Subject

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
    names = _checks(only)
    subject = Subject(backend, cards, logs, **given)
    return _once(flaw for name in names for flaw in run_check(name, subject))


def _checks(only: Iterable[str]) -> tuple[str, ...]:
    if isinstance(only, str):
        raise ValueError(f"only={only!r} is one text, where a list of names is wanted: only=[{only!r}]")
    names = tuple(only) or tuple(CHECKS)
    if unknown := [name for name in names if name not in CHECKS]:
        raise ValueError(f"only={list(names)!r}: there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    return names


def _once(flaws: Iterable[Flaw]) -> list[Flaw]:
    """Return flaws, and that there is no plan once, with the names of all checks that want one."""
    found = list(flaws)
    unplanned = [flaw for flaw in found if flaw.what == NO_PLAN]
    kept = [flaw for flaw in found if flaw not in unplanned[1:]]
    if len(unplanned) > 1:
        others = ", ".join(flaw.check for flaw in unplanned[1:])
        kept[kept.index(unplanned[0])] = replace(unplanned[0], where=f"{unplanned[0].where}, and for {others}")
    return kept
