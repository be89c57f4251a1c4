"""Secrets of the environment are in no file, no draft, no finding and no asset, however they are written there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from madlite.errors import MadliteError
from madlite.secrets import Redactor
from madlite.testing.flaws import Flaw
from madlite.testing.limits import answered
from madlite.testing.plans import Made, ask, finish, options_of
from madlite.testing.subject import Subject

CHECK = "secrets"
SECRETS = {
    name: f"kit-secret/{number}&0123456789abcdef"
    for number, name in enumerate(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_KIT"))
}
_MASKS = {name: Redactor([value]).text for name, value in SECRETS.items()}
_MEND = "leave it in the environment: the script has it as a variable"


def check_secrets(subject: Subject) -> Iterator[Flaw]:
    """Yield where a secret of the environment shows."""
    for made in subject.spread(subject.examples):
        with _environment(SECRETS):
            yield from _shown(subject, made)


def _shown(subject: Subject, made: Made) -> Iterator[Flaw]:
    options = options_of(made.case, environ=SECRETS)
    try:
        drafts = ask(subject.backend, made.case, options)
        plans = [finish(subject.backend, made.case, draft, subject.search, options) for draft in drafts]
    except MadliteError as problem:
        yield from _in(f"refusal of {made.case}", f"{problem.message} {problem.hint}")
        return
    for one in plans:
        yield from _in(f"draft of {made.case}", repr(one.draft))
        for file in one.files:
            yield from _in(f"{file.path} of {made.case}", file.data.decode("utf-8", "replace"))
        told = [*answered(subject.backend.check, one.plan), *answered(subject.backend.assets, one.plan)]
        yield from _in(f"findings and assets of {made.case}", repr(told))


def _in(where: str, text: str) -> Iterator[Flaw]:
    by_shape = Redactor().text(text)
    for name, mask in _MASKS.items():
        if mask(text) != by_shape:
            yield Flaw(check=CHECK, where=where, what=f"it holds the value of ${name}", mend=_MEND)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Give this process variables for a while, for code that looks for them where it should not."""
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
