"""The checks of the kit as madlite's own backends pass them: with what is asked of these alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from madlite.testing import CHECKS, Flaw, Subject, run_check
from madlite.testing.flaws import Defect
from tests.kit.quoting import check_quoting


def quoting(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what every backend is checked for, and what bash makes of its scripts."""
    yield from CHECKS["quoting"](subject, folder)
    yield from check_quoting(subject, folder)


EXTENDED = {**CHECKS, "quoting": quoting}


def run_extended(name: str, subject: Subject) -> list[Flaw]:
    """Return what one check finds in one of madlite's own backends."""
    return run_check(name, subject, EXTENDED)
