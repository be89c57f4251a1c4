"""The members that a backend and its readers have, what they take, and what they answer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from madlite.errors import UsageProblem
from madlite.model import Asset, Card, Event, Finding, RunSpec
from madlite.testing.flaws import Flaw
from madlite.testing.limits import answered
from madlite.testing.plans import WORKSPACE, ask, options_of
from madlite.testing.subject import Subject, raised

CHECK = "members"
TAKES = {
    "claim": ("card", "checkout"),
    "expand": ("request", "machine"),
    "check": ("plan",),
    "assets": ("plan",),
    "recognise": ("head",),
    "reader": ("plan",),
}
READER_TAKES: dict[str, tuple[str, ...]] = {"feed": ("line",), "finish": ("outputs",)}
_EVENTS = get_args(Event)


def is_event(value: object) -> bool:
    """Say whether a value is what a reader may answer with."""
    return isinstance(value, _EVENTS)


def check_members(subject: Subject) -> Iterator[Flaw]:
    """Yield members that are missing, take something else, or answer with something else."""
    missing = [*signatures(subject.backend, TAKES, f"backend {subject.name}")]
    yield from missing
    if missing:
        return
    yield from _claims(subject)
    yield from _reader(subject)
    yield from _answers(subject)


def signatures(thing: object, takes: dict[str, tuple[str, ...]], where: str) -> Iterator[Flaw]:
    """Yield which methods are missing, or do not take so many arguments, which the words name."""
    for member, words in takes.items():
        wanted = f"{member}(self, {', '.join(words)})"
        found = getattr(thing, member, None)
        if not callable(found):
            yield _flaw(where, f"it has no method {member}", f"def {wanted}")
        elif inspect.iscoroutinefunction(found):
            yield _flaw(where, f"{member} is a coroutine", f"def {wanted}, not async")
        elif not _takes(found, len(words)):
            yield _flaw(where, f"{member} does not take {', '.join(words)}", f"def {wanted}")


def _takes(found: Any, count: int) -> bool:
    try:
        inspect.signature(found).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin that shows no signature
        return True
    return True


def _claims(subject: Subject) -> Iterator[Flaw]:
    own = Card(name="a card of the kit", root=WORKSPACE, source="the kit", backend=subject.name)
    other = Card(name="another card of the kit", root=WORKSPACE, source="the kit", backend="another")
    for card, wanted in ((own, True), (other, False)):
        where = f"claim of a card with backend {card.backend!r}"
        try:
            claim = subject.backend.claim(card, WORKSPACE)
        except Exception as error:  # noqa: BLE001 - the border to the backend under test
            yield _flaw(where, f"it raised {raised(error)}", "answer 0 where the card is not yours")
            continue
        if isinstance(claim, bool) or not isinstance(claim, int) or claim < 0:
            yield _flaw(where, f"it answered {claim!r}", "a whole number: 0 not at all, 100 where the card names it")
        elif claim and not wanted:
            yield _flaw(where, f"it answered {claim}", "a card that names another backend is that one's")


def _reader(subject: Subject) -> Iterator[Flaw]:
    one, other = subject.backend.reader(None), subject.backend.reader(None)
    if one is other:
        yield _flaw("reader(None)", "it gave the same reader twice", "return a fresh one for each run")
    yield from signatures(one, READER_TAKES, f"reader {type(one).__name__}")


def _answers(subject: Subject) -> Iterator[Flaw]:
    for made in subject.spread(8):
        yield from _drafts(subject, made.case)
        for member, kind in (("check", Finding), ("assets", Asset)):
            where = f"{member} of {made.case}"
            try:
                items = answered(getattr(subject.backend, member), made.plan)
            except Exception as error:  # noqa: BLE001 - the border to the backend under test
                yield _flaw(where, f"it raised {raised(error)}", f"return what is wrong as {kind.__name__}")
                if isinstance(error, TimeoutError):  # each further one would take as long
                    return
                continue
            yield from (
                _flaw(where, f"it answered {item!r}", f"return madlite.{kind.__name__}")
                for item in items
                if not isinstance(item, kind)
            )


def _drafts(subject: Subject, case: Any) -> Iterator[Flaw]:
    try:
        drafts = ask(subject.backend, case, options_of(case))
    except UsageProblem:
        return
    if not isinstance(drafts, Sequence) or not drafts or not all(isinstance(one, RunSpec) for one in drafts):
        what = f"it answered {drafts!r}"[:200]
        yield _flaw(f"expand of {case}", what, "return a list of madlite.Draft, or raise madlite.UsageProblem")


def check_finish(subject: Subject, folder: Path) -> Iterator[Flaw]:
    """Yield what a reader does wrong at the end of a run that left nothing; `folder` is empty."""
    plans = [made.plan for made in subject.spread(2)]
    for plan in (None, *plans):
        for outputs in (folder, folder / "not_there"):
            where = f"finish({'an empty folder' if outputs == folder else 'a folder that is not there'})"
            try:
                events: list[Event] = answered(subject.backend.reader(plan).finish, outputs)
            except Exception as error:  # noqa: BLE001 - as above
                mend = "return nothing where no file is"
                yield Flaw(check="finish", where=where, what=f"it raised {raised(error)}", mend=mend)
                continue
            if odd := [event for event in events if not is_event(event)]:
                mend = "return events of madlite"
                yield Flaw(check="finish", where=where, what=f"it answered {odd[0]!r}", mend=mend)


def _flaw(where: str, what: str, mend: str) -> Flaw:
    return Flaw(check=CHECK, where=where, what=what, mend=mend)
