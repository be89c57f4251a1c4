"""The checks of the kit as madlite's own backends pass them: with what is asked of these alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from madlite.backends.recipe_book import RecipeBook, bare_name, read_book
from madlite.backends.recipes import RecipeBackend
from madlite.testing import CHECKS, Flaw, Subject, run_check
from madlite.testing.flaws import Defect
from madlite.testing.subject import Case
from tests.kit.quoting import check_quoting


def quoting(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what every backend is checked for, and what bash makes of its scripts."""
    yield from CHECKS["quoting"](subject, folder)
    yield from check_quoting(subject, folder)


EXTENDED = {**CHECKS, "quoting": quoting}


def run_extended(name: str, subject: Subject) -> list[Flaw]:
    """Return what one check finds in one of madlite's own backends."""
    return run_check(name, subject, EXTENDED)


class ExtendedSubject(Subject):
    """A subject whose cards are planned for the GPUs that its recipe book alone names, too: on the first machine."""

    def list_cases(self) -> Iterator[Case]:
        """Yield what may be planned."""
        yield from super().list_cases()
        book = read_book(self.backend.book) if isinstance(self.backend, RecipeBackend) else RecipeBook()
        known = {machine.device for machine in self.machines}
        for card in self.cards:
            runs = [run for run in book.runs if bare_name(card) in run.cards]
            named = {(release, device) for run in runs for release in run.releases or ("",) for device in run.devices}
            for release, device in sorted(named):
                if device not in known:
                    asked = (("release", release), ("recipe_device", device))
                    asked = tuple((key, value) for key, value in asked if value)
                    yield Case(card=card, machine=self.machines[0], asked=asked)
