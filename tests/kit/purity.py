"""Planning is pure: the same answer twice, nothing done to the world or to what was given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from madlite.errors import UsageProblem
from madlite.model import RunSpec
from madlite.testing.flaws import Flaw, answered
from madlite.testing.plans import Made, options_of, request_of
from madlite.testing.subject import Subject
from tests.kit.watch import watch

_POISON = "left_by_the_kit"


def check_purity(subject: Subject) -> Iterator[Flaw]:
    """Yield what expand, check and assets do beside answering, the first time they are called too."""
    for where, what in subject.done_at_first:
        yield _world(where, what)
    for made in subject.spread(8):
        request = request_of(made.case, options_of(made.case))
        yield from _pure(subject, made, "expand", (request, made.case.machine))
        for member in ("check", "assets"):
            yield from _pure(subject, made, member, (made.plan,))


def _pure(subject: Subject, made: Made, member: str, given: tuple[Any, ...]) -> Iterator[Flaw]:
    where = f"{member} of {made.case}"
    call = getattr(subject.backend, member)
    before, environ, folder = deepcopy(given), dict(os.environ), Path.cwd()
    with watch() as done:
        first = _answer(call, given)
    for what in dict.fromkeys(done):
        yield _world(where, what)
    if dict(os.environ) != environ or Path.cwd() != folder:
        yield _flaw(where, "it changes the environment or the working folder", "put variables into RunSpec.env")
    if given != before:
        yield _flaw(where, "it changes what it was given", "make changed copies: msgspec.structs.replace")
    kept = deepcopy(first)
    with _poisoned(first):
        again = deepcopy(_answer(call, deepcopy(before)))
    if again != kept:
        hint = "no clock, no chance, no order of a set, and fresh tables in each answer"
        yield _flaw(where, "the same question had two answers", hint)


def _answer(call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    try:
        return answered(call, *given)
    except UsageProblem as problem:
        return (problem.message, problem.hint)


@contextmanager
def _poisoned(specs: Any) -> Iterator[None]:
    """Write into the tables of an answer for a while: a backend that keeps them would give them to the next run."""
    tables = [table for spec in specs if isinstance(spec, RunSpec) for table in (spec.settings, spec.env)]
    for table in tables:
        table[_POISON] = "x"
    try:
        yield
    finally:
        for table in tables:
            table.pop(_POISON, None)


def _world(where: str, what: str) -> Flaw:
    return _flaw(where, f"it does something to the world: {what}", "planning only reads; do it in run.sh")


def _flaw(where: str, what: str, hint: str) -> Flaw:
    return Flaw("purity", where, what, hint)
