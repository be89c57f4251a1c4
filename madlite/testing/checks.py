"""The checks by name, and what runs them: all flaws are collected, whatever a check meets."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from madlite.backends.loader import raised
from madlite.model import Backend
from madlite.testing import members, plans, reading
from madlite.testing.flaws import Defect, Flaw
from madlite.testing.subject import CardLike, Subject

Check: TypeAlias = Callable[[Subject, Path], Iterable[Defect]]
"""A check gets the subject and an empty folder of its own."""
_CASE = re.compile(r"card \S.* on (\d+x\S+|cpu)( with .*)?$", re.DOTALL)  # as subject.Case is worded
_ALL = (*members.CHECKS, *plans.CHECKS, *reading.CHECKS)
CHECKS: dict[str, Check] = {check.__name__.removeprefix("check_"): check for check in _ALL}


def run_check(name: str, subject: Subject, checks: Mapping[str, Check] = CHECKS) -> list[Flaw]:
    """Return what one check finds; a check that cannot go on says so and keeps what it found before.

    Flaws that differ in nothing but the card, machine and what was asked are one, with their number.

    Raises:
        ValueError: there is no check of this name.
    """
    if name not in checks:
        raise ValueError(f"there is no check {name!r}: there are {', '.join(checks)}")
    found: list[Defect] = []
    with tempfile.TemporaryDirectory(prefix="madlite_kit_", ignore_cleanup_errors=True) as folder:
        try:
            found.extend(checks[name](subject, Path(folder).resolve()))
        except Exception as error:  # noqa: BLE001 - the border to the code under test
            hint = "mend this first; the rest of this check was not done"
            found.append((f"backend {subject.name}", raised(error), hint))
    groups: dict[Defect, list[str]] = {}
    for where, what, hint in dict.fromkeys(found):
        groups.setdefault((_CASE.sub("", where), what, hint), []).append(where)
    counts = {1: "", 2: " and 1 more case"}
    return [
        Flaw(name, where[0] + counts.get(len(where), f" and {len(where) - 1} more cases"), what, hint)
        for (_, what, hint), where in groups.items()
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
    subject = Subject(backend, cards, logs, **given)
    return [flaw for name in tuple(only) or CHECKS for flaw in run_check(name, subject)]


class BackendConformance:
    """Set `backend` and the rest in a class whose name begins with Test; the fields are the arguments of `Subject`."""

    backend: ClassVar[Backend]
    _subject: ClassVar[Subject]

    def flaws(self, check: str) -> list[Flaw]:
        """Return what a check finds in the subject, which is made once for all tests of the class."""
        if "_subject" not in (cls := type(self)).__dict__:
            fields = inspect.signature(Subject).parameters
            cls._subject = Subject(**{name: getattr(cls, name) for name in fields if hasattr(cls, name)})
        return run_check(check, cls._subject)


def _test_of(check: str) -> Callable[[BackendConformance], None]:
    def test(self: BackendConformance) -> None:
        if flaws := self.flaws(check):
            raise AssertionError("\n".join(map(str, flaws)))

    return test


for _name in CHECKS:
    setattr(BackendConformance, f"test_{_name}", _test_of(_name))
