"""The conformance kit for authors of backends (docs/plugins.md shows it): `check_backend`, or a class of tests.

Nothing of a run imports it; it needs bash, and shellcheck (`pip install 'madlite[testing]'`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from madlite.testing.checks import CHECKS, run_check
from madlite.testing.conformance import BackendConformance
from madlite.testing.flaws import Flaw
from madlite.testing.machines import MACHINES
from madlite.testing.subject import CardLike, Subject
from madlite.types import Backend, Machine

__all__ = ["CHECKS", "MACHINES", "BackendConformance", "Flaw", "Subject", "check_backend", "run_check"]


def check_backend(
    backend: Backend,
    cards: Iterable[CardLike] = (),
    logs: Mapping[str | Path, int | None] | None = None,
    *,
    outputs: Iterable[str | Path] = (),
    docs: Iterable[str | Path] = (),
    foreign: Mapping[str | Path, str] | None = None,
    asks: Iterable[Mapping[str, str]] = (),
    machines: Sequence[Machine] = MACHINES,
    templates: Iterable[str | Path] = (),
    installed: bool = True,
    most: int | None = None,
    only: Iterable[str] = (),
) -> list[Flaw]:
    """Return everything that is wrong with a backend; nothing where it conforms.

    What is given beside the backend is told by `Subject`; `only` are names of CHECKS, all of them where it is empty.
    """
    subject = Subject(
        backend,
        cards,
        logs,
        outputs=outputs,
        docs=docs,
        foreign=foreign,
        asks=asks,
        machines=machines,
        templates=templates,
        installed=installed,
        most=most,
    )
    return [flaw for name in only or CHECKS for flaw in run_check(name, subject)]
