"""What a row says of a run is what ran: a word that nobody knows is refused, and two words are two runs."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Draft
from madlite.plan.effects import Outcome, runs_alike
from madlite.run.effects import Asking, refuse_without_effect
from madlite.testing.flaws import Flaw
from madlite.testing.limits import answered
from madlite.testing.plans import Case, Made, ask, finish, given_of, options_of
from madlite.testing.subject import Subject

CHECK = "effects"
PRECISIONS = ("FP32", "BF16", "FP16", "FP8", "MXFP8", "MXFP4")
_STRANGE = {"mode": "no_such_mode", "precision": "NO_SUCH_PRECISION"}
_MEND = "refuse it: a TemplateBackend does where its variants have one, others by a fatal Finding of check(plan)"


def check_effects(subject: Subject) -> Iterator[Flaw]:
    """Yield words of mode and precision that a row would have, and no run."""
    for made in subject.spread(subject.examples):
        if made.plan.variant is None:
            continue
        for key, word in _STRANGE.items():
            if _outcomes(subject, made, key, word):
                what = f"it takes {key} '{word}', which the row would have"
                yield Flaw(check=CHECK, where=str(made.case), what=what, mend=_MEND)
        yield from _same_runs(subject, made)


def _same_runs(subject: Subject, made: Made) -> Iterator[Flaw]:
    """Yield precisions that are told apart by their rows alone."""
    seen: list[tuple[str, Outcome]] = []
    for word in PRECISIONS:
        for one in _outcomes(subject, made, "precision", word):
            like = next((other for other, known in seen if other != word and runs_alike(known, one)), "")
            if like:
                what = f"precision {word} runs what precision {like} does"
                yield Flaw(check=CHECK, where=str(made.case), what=what, mend=_MEND)
            seen.append((word, one))


def _outcomes(subject: Subject, made: Made, key: str, word: str) -> list[Outcome]:
    """Return the runs of a word, of which nobody refuses one."""
    case = replace(made.case, asked=(*made.case.asked, (key, word)))
    try:
        drafts = ask(subject.backend, case, options_of(case))
        return [one for draft in drafts if not _is_refused(subject, one := _outcome(subject, case, draft), case, draft)]
    except UsageProblem:
        return []


def _outcome(subject: Subject, case: Case, draft: Draft) -> Outcome:
    made = finish(subject.backend, case, draft, subject.search, options_of(case))
    return Outcome(plan=made.plan, files=made.files)


def _is_refused(subject: Subject, one: Outcome, case: Case, draft: Draft) -> bool:
    """Say whether a check of the backend, or madlite itself, refuses a run."""

    def is_fatal(other: Outcome) -> bool:
        return any(finding.fatal for finding in answered(subject.backend.check, other.plan))

    def plans(asking: Asking) -> list[Outcome]:
        other = replace(case, card=asking.request.card, asked=asking.options.sets)
        return [_outcome(subject, other, found) for found in ask(subject.backend, other, options_of(other))]

    if is_fatal(one):
        return True
    given = given_of(subject.backend, case, draft, options_of(case))
    try:
        refuse_without_effect(given, lambda: one, plans, is_fatal)
    except UsageProblem:
        return True
    return False
