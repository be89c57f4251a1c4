"""Planning is pure: the same answer twice, nothing done to the world, nothing changed in what was given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Request, RunSpec
from madlite.plan.context import Context
from madlite.plan.inputs import layers
from madlite.plan.values import asked_origins, asked_values
from madlite.testing.audit import watch
from madlite.testing.flaws import Flaw
from madlite.testing.limits import answered
from madlite.testing.plans import Made, options_of
from madlite.testing.subject import Subject

CHECK = "purity"
_POISON = "left_by_the_kit"


def check_purity(subject: Subject) -> Iterator[Flaw]:
    """Yield what expand, check and assets do beside answering, the first time they are asked too."""
    for where, what in subject.done_at_first:
        yield _world(where, what)
    for made in subject.spread(8):
        request = Request(card=made.case.card, tag=made.case.card.name)
        sources = layers(request, Context(), options_of(made.case))
        request = replace(request, settings=asked_values(sources), origins=asked_origins(sources))
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
        yield _flaw(where, "it changes the environment or the working folder", "put variables into Draft.env")
    if given != before:
        yield _flaw(where, "it changes what it was given", "make changed copies: msgspec.structs.replace")
    kept = deepcopy(first)
    with _poisoned(first):
        again = deepcopy(_answer(call, deepcopy(before)))
    if again != kept:
        mend = "no clock, no chance, no order of a set, and fresh tables in each answer"
        yield _flaw(where, "the same question had two answers", mend)


def _answer(call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    try:
        return answered(call, *given)
    except UsageProblem as problem:
        return (problem.message, problem.hint)


@contextmanager
def _poisoned(drafts: Any) -> Iterator[None]:
    """Write into the tables of an answer for a while: a backend that keeps them would give them to the next run."""
    tables = [table for draft in drafts if isinstance(draft, RunSpec) for table in (draft.settings, draft.env)]
    for table in tables:
        table[_POISON] = "x"
    try:
        yield
    finally:
        for table in tables:
            table.pop(_POISON, None)


def _world(where: str, what: str) -> Flaw:
    return _flaw(where, f"it does something to the world: {what}", "planning only reads; do it in run.sh")


def _flaw(where: str, what: str, mend: str) -> Flaw:
    return Flaw(check=CHECK, where=where, what=what, mend=mend)
