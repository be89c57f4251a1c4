"""Compare what madlite did with what madengine did, and account for every difference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

ANY = "*"  # an expectation that any text meets


class Gap(NamedTuple):
    """One fact that differs; None is what is not there."""

    path: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.path}: madengine {self.theirs!r}, madlite {self.ours!r}"


class Declared(NamedTuple):
    """A difference that is meant: where it shows, what madlite has there, how its row of docs/differences.md begins.

    `version`, `scenario` and `path` are patterns as of fnmatch; `ours` is a regular expression for madlite's text.
    """

    version: str
    scenario: str
    path: str
    ours: str
    row: str

    def covers(self, version: str, scenario: str, gap: Gap) -> bool:
        places = ((version, self.version), (scenario, self.scenario), (gap.path, self.path))
        fits = all(any(fnmatchcase(place, one) for one in pattern.split("|")) for place, pattern in places)
        return fits and bool(re.fullmatch(self.ours, "" if gap.ours is None else str(gap.ours), re.DOTALL))


def undeclared(gaps: Iterable[Gap], declared: Iterable[Declared], version: str, scenario: str) -> list[Gap]:
    """Return the differences that nobody meant."""
    table = list(declared)
    return [gap for gap in gaps if not any(one.covers(version, scenario, gap) for one in table)]


def compare_tables(path: str, theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[Gap]:
    """Yield what differs, name by name; tables within are compared likewise."""
    for name in sorted({*theirs, *ours}):
        one, other, place = theirs.get(name), ours.get(name), f"{path}.{name}"
        if isinstance(one, dict) and isinstance(other, dict):
            yield from compare_tables(place, one, other)
        elif not equal(one, other):
            yield Gap(place, one, other)


def compare_lists(path: str, theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], key: str) -> list[Gap]:
    """Return what differs in a list of facts; where not the same things are named, that alone."""
    names, own = ([str(one.get(key)) for one in facts] for facts in (theirs, ours))
    if len(names) != len(own):
        return [Gap(path, " ".join(names), " ".join(own))]
    found: list[Gap] = []
    for n, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        found += compare_tables(f"{path}.{n}", one, other)
    return found


def compare_names(path: str, theirs: Iterable[str], ours: Iterable[str]) -> list[Gap]:
    """Return names that are on one side alone."""
    here, there = set(ours), set(theirs)
    return [Gap(f"{path}.{name}", "there" if name in there else None, "there" if name in here else None)
            for name in sorted(here ^ there)]  # fmt: skip


def equal(theirs: Any, ours: Any) -> bool:
    """Say whether two facts are one: numbers as numbers, and what varies only by being there."""
    if theirs == ANY:
        return bool(ours)
    if isinstance(theirs, str) and isinstance(ours, str):
        return theirs == ours or (_number(theirs) is not None and _number(theirs) == _number(ours))
    return bool(theirs == ours)


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
