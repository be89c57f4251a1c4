"""The checks by name, and what runs them: all flaws are collected, whatever a check meets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

from msgspec.structs import replace

from madlite.model import Backend
from madlite.testing.flaws import Defect, Flaw, defects_of
from madlite.testing.members import check_docs, check_failures, check_finish, check_members, check_names
from madlite.testing.plans import (
    check_effects,
    check_purity,
    check_quoting,
    check_rendering,
    check_results,
    check_scripts,
    check_secrets,
)
from madlite.testing.reading import check_detection, check_fuzz, check_reading
from madlite.testing.subject import Subject

Check: TypeAlias = Callable[[Subject, Path], Iterable[Defect]]
"""A check gets the subject and an empty folder of its own."""
_T = TypeVar("_T")
_CASE = re.compile(r"card \S.* on (\d+x\S+|cpu)( with .*)?$", re.DOTALL)  # as subject.Case is worded

CHECKS: dict[str, Check] = {
    "members": lambda subject, folder: check_members(subject),
    "names": lambda subject, folder: check_names(subject),
    "rendering": lambda subject, folder: check_rendering(subject),
    "scripts": check_scripts,
    "quoting": lambda subject, folder: check_quoting(subject),
    "secrets": lambda subject, folder: check_secrets(subject),
    "purity": lambda subject, folder: check_purity(subject),
    "reading": lambda subject, folder: check_reading(subject),
    "finish": check_finish,
    "fuzz": lambda subject, folder: check_fuzz(subject),
    "detection": lambda subject, folder: check_detection(subject),
    "results": check_results,
    "effects": lambda subject, folder: check_effects(subject),
    "docs": lambda subject, folder: check_docs(subject),
    "failures": lambda subject, folder: check_failures(subject),
}


NO_PLAN = "there is no plan to check"
OF_PLANS = ("members", "names", "scripts", "quoting", "secrets", "purity", "results", "effects", "docs")
"""Checks that inspect plans, so that they find nothing where there is none."""


def run_check(name: str, subject: Subject, checks: Mapping[str, Check] = CHECKS) -> list[Flaw]:
    """Return what one check finds; a check that cannot go on says so and keeps what it found before.

    Raises:
        ValueError: there is no check of this name.
    """
    if name not in checks:
        raise ValueError(f"there is no check {name!r}: there are {', '.join(checks)}")
    found: list[Defect] = []
    if name in OF_PLANS and not subject.made:
        hint = "give a card that the backend plans; the check `rendering` reports what prevents that"
        found.append((f"backend {subject.name}", NO_PLAN, hint))
    hint = "mend this first; the rest of this check was not done"
    found += defects_of(partial(checks[name], subject), f"backend {subject.name}", hint)
    return _grouped([Flaw(name, *defect) for defect in dict.fromkeys(found)])


def _grouped(flaws: Sequence[Flaw]) -> list[Flaw]:
    """Return flaws that differ in nothing but the card, machine and what was asked as one: the first, and how many."""
    groups: dict[Flaw, list[Flaw]] = {}
    for flaw in flaws:
        groups.setdefault(replace(flaw, where=_CASE.sub("", flaw.where)), []).append(flaw)
    return [_with_count(group[0], len(group) - 1) for group in groups.values()]


def _with_count(flaw: Flaw, more: int) -> Flaw:
    cases = f"and {more} more case{'s' if more > 1 else ''}"
    return replace(flaw, where=f"{flaw.where} {cases}") if more else flaw


def with_tests(names: Iterable[str]) -> Callable[[type[_T]], type[_T]]:
    """Give a class a test for each check, which asks its method `flaws`."""

    def add(cls: type[_T]) -> type[_T]:
        for name in names:

            def test(self: Any, name: str = name) -> None:
                if flaws := self.flaws(name):
                    raise AssertionError("\n".join(map(str, flaws)))

            setattr(cls, f"test_{name}", test)
        return cls

    return add


@with_tests(CHECKS)
class BackendConformance:
    """Set `backend` and the rest in a class whose name begins with Test; the fields are the arguments of `Subject`."""

    backend: ClassVar[Backend]
    _subject: ClassVar[Subject]

    @classmethod
    def subject(cls) -> Subject:
        """Return what is tested, made once for all tests of the class."""
        if "_subject" not in cls.__dict__:
            fields = inspect.signature(Subject).parameters
            cls._subject = Subject(**{name: getattr(cls, name) for name in fields if hasattr(cls, name)})
        return cls._subject

    def flaws(self, check: str) -> list[Flaw]:
        """Return what a check finds."""
        return run_check(check, self.subject())
