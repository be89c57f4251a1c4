"""Planning is pure: the same answer twice, nothing done to the world or to what was given, no secret told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from madlite.errors import MadliteError, UsageProblem
from madlite.model import RunSpec
from madlite.secrets import Redactor
from madlite.testing.flaws import Defect, answered
from madlite.testing.subject import Made, Subject, request_of

SECRETS = {
    name: f"kit-secret/{number}&0123456789abcdef"
    for number, name in enumerate(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_KIT"))
}


def check_purity(subject: Subject) -> Iterator[Defect]:
    """Yield what expand, check and assets do beside answering, the first time they are called too."""
    for where, what in subject.done_at_first:
        yield where, f"it does something to the world: {what}", "planning only reads; do it in run.sh"
    for made in subject.spread(8):
        yield from _pure(subject, made, "expand", (request_of(made.case), made.case.machine))
        for member in ("check", "assets"):
            yield from _pure(subject, made, member, (made.plan,))


def _pure(subject: Subject, made: Made, member: str, given: tuple[Any, ...]) -> Iterator[Defect]:
    where = f"{member} of {made.case}"
    call = getattr(subject.backend, member)
    before = deepcopy(given)
    first = _answer(call, given)
    if given != before:
        yield where, "it changes what it was given", "make changed copies: msgspec.structs.replace"
    kept = deepcopy(first)
    tables = [table for spec in first if isinstance(spec, RunSpec) for table in (spec.settings, spec.env)]
    for table in tables:  # a backend that keeps them would give what is written there to the next run
        table["left_by_the_kit"] = "x"
    again = deepcopy(_answer(call, before))
    for table in tables:
        table.pop("left_by_the_kit", None)
    if again != kept:
        hint = "no clock, no chance, no order of a set, and fresh tables in each answer"
        yield where, "the same question had two answers", hint


def _answer(call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    try:
        return answered(call, *given)
    except UsageProblem as problem:
        return (problem.message, problem.hint)


def check_secrets(subject: Subject) -> Iterator[Defect]:
    """Yield where a secret of the environment shows."""
    for made in subject.spread(subject.examples):
        with patch.dict(os.environ, SECRETS):  # for code that searches for them where it should not
            texts = list(_texts(subject, made))
        for where, text in texts:
            for name, value in SECRETS.items():
                if Redactor([value]).text(text) != Redactor().text(text):
                    yield where, f"it holds the value of ${name}", "leave it in the environment: the script has it"


def _texts(subject: Subject, made: Made) -> Iterator[tuple[str, str]]:
    """Yield what a backend answers, and whose words it is."""
    try:
        plans = subject.runs(replace(made.case, environ=SECRETS))
    except MadliteError as problem:
        yield f"refusal of {made.case}", f"{problem.message} {problem.hint}"
        return
    for plan in plans:
        yield f"RunSpec of {made.case}", repr(plan.spec)
        yield from ((f"{file.path} of {made.case}", file.data.decode("utf-8", "replace")) for file in plan.files)
        findings = [*answered(subject.backend.check, plan.plan), *answered(subject.backend.assets, plan.plan)]
        yield f"findings and assets of {made.case}", repr(findings)
