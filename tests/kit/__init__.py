"""The checks that madlite's own backends pass: those of `madlite.testing`, and further ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import madlite.testing
from madlite.model import Backend, RunSpec
from madlite.plan.context import Options
from madlite.testing import Flaw
from madlite.testing.checks import Check, find_flaws, once, selected
from madlite.testing.flaws import answered
from madlite.testing.plans import Case, Made
from madlite.testing.subject import CardLike, spread
from tests.kit.members import check_members, check_names
from tests.kit.purity import check_purity
from tests.kit.quoting import check_quoting
from tests.kit.results import check_effects, check_results
from tests.kit.scripts import check_scripts
from tests.kit.watch import watch

_OWN: dict[str, Check] = {
    "members": lambda subject, folder: check_members(subject),
    "names": lambda subject, folder: check_names(subject),
    "scripts": check_scripts,
    "quoting": check_quoting,
    "purity": lambda subject, folder: check_purity(subject),
    "results": check_results,
    "effects": lambda subject, folder: check_effects(subject),
}
CHECKS: dict[str, Check] = {**_OWN, **madlite.testing.CHECKS}
OF_PLANS = (*_OWN, *madlite.testing.checks.OF_PLANS)


class Subject(madlite.testing.Subject):
    """A backend under test, with what its planning did to the world before anything was cached."""

    @cached_property
    def done_at_first(self) -> list[tuple[str, str]]:
        """What was done, each with the member that did it."""
        return []

    @cached_property
    def planned(self) -> tuple[tuple[Made, ...], tuple[Flaw, ...], tuple[Case, ...]]:
        """What became of the cases; check and assets of some plans are called as nobody has before."""
        found = super().planned
        self._ask_first(found[0])
        return found

    def _expand(self, case: Case, options: Options) -> Sequence[RunSpec]:
        """Return the RunSpecs of a case."""
        with self._watched("expand", case):
            return super()._expand(case, options)

    def _ask_first(self, made: Sequence[Made]) -> None:
        """Call check and assets of some plans as nobody has before; what they answer other checks inspect."""
        for one in spread(made, 8):
            for member in ("check", "assets"):
                try:
                    with self._watched(member, one.case):
                        answered(getattr(self.backend, member), one.plan)
                except TimeoutError:
                    return
                except Exception:  # noqa: BLE001, S112 - the check of members tells it
                    continue

    @contextmanager
    def _watched(self, member: str, case: Case) -> Iterator[None]:
        with watch() as done:
            try:
                yield
            finally:
                self.done_at_first += [(f"{member} of {case}", what) for what in dict.fromkeys(done)]


def run_check(name: str, subject: madlite.testing.Subject) -> list[Flaw]:
    """Return what one check finds."""
    return find_flaws(name, subject, CHECKS, OF_PLANS)


def check_backend(
    backend: Backend,
    cards: Iterable[CardLike] = (),
    logs: Mapping[str | Path, int | None] | None = None,
    *,
    only: Iterable[str] = (),
    **given: Any,
) -> list[Flaw]:
    """Return everything that is wrong with a backend, as `madlite.testing.check_backend` does."""
    names = selected(only, CHECKS)
    subject = Subject(backend, cards, logs, **given)
    return once(flaw for name in names for flaw in run_check(name, subject))
