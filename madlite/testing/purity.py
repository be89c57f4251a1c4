"""Planning is pure: the same answer twice, nothing done to the world or to what was given, no secret told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from madlite.errors import MadliteError, UsageProblem
from madlite.model import RunSpec
from madlite.secrets import Redactor
from madlite.testing.flaws import Flaw, answered, watch
from madlite.testing.plans import Made, expand, finish, options_of, request_of
from madlite.testing.subject import Subject

_POISON = "left_by_the_kit"
SECRETS = {
    name: f"kit-secret/{number}&0123456789abcdef"
    for number, name in enumerate(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_KIT"))
}
_MASKS = {name: Redactor([value]).text for name, value in SECRETS.items()}
_HINT = "leave it in the environment: the script has it as a variable"


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


def check_secrets(subject: Subject) -> Iterator[Flaw]:
    """Yield where a secret of the environment shows."""
    for made in subject.spread(subject.examples):
        with _environment(SECRETS):
            yield from _shown(subject, made)


def _shown(subject: Subject, made: Made) -> Iterator[Flaw]:
    options = options_of(made.case, environ=SECRETS)
    try:
        specs = expand(subject.backend, made.case, options)
        plans = [finish(subject.backend, made.case, spec, subject.search, options) for spec in specs]
    except MadliteError as problem:
        yield from _in(f"refusal of {made.case}", f"{problem.message} {problem.hint}")
        return
    for plan in plans:
        yield from _in(f"RunSpec of {made.case}", repr(plan.spec))
        for file in plan.files:
            yield from _in(f"{file.path} of {made.case}", file.data.decode("utf-8", "replace"))
        told = [*answered(subject.backend.check, plan.plan), *answered(subject.backend.assets, plan.plan)]
        yield from _in(f"findings and assets of {made.case}", repr(told))


def _in(where: str, text: str) -> Iterator[Flaw]:
    by_shape = Redactor().text(text)
    for name, mask in _MASKS.items():
        if mask(text) != by_shape:
            yield Flaw("secrets", where, f"it holds the value of ${name}", _HINT)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Give this process variables for a while, for code that searches for them where it should not."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
