"""Whose card it is: the backend that was asked for, the one that the card names, else all who claim it highest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from madlite.backends.loader import Plugin, Plugins
from madlite.backends.recipe_choice import NEAREST, SHOWN, UnknownRun, unknown_run
from madlite.errors import PluginError, UsageProblem, similarity
from madlite.model import Backend, Card, RunSpec

# Whose card it is: the backend that was asked for, the one that the card names, else all who claim it highest.

# The runs of a card that several backends share, each knowing other modes of it, e.g. pretraining and fine-tuning.

Owner: TypeAlias = tuple[Backend, Plugin]
Expand: TypeAlias = Callable[[Backend, Plugin], Sequence[RunSpec]]
_CHOICES = ("mode", "precision", "release", "recipe")
_NUMBER = re.compile(r"[0-9]{1,9}")


def expand_shared(
    card: str, owners: Sequence[Owner], asked: Mapping[str, str], expand: Expand
) -> list[tuple[Owner, RunSpec]]:
    """Return the drafts of a card with their owners: of one image release, where none is `asked` for the newest.

    What one owner refuses another may have; a choice that nobody knows is refused in the words of all.

    Raises:
        UsageProblem: no owner has a run for what was asked.
        PluginError: two owners have runs of one mode, and no rule decides.
    """
    found, refused = _expand_all(owners, expand)
    if refused and not found:
        raise _joined([problem for _, problem in refused], asked)
    if not found:
        return []
    newest = max(_age(draft) for _, draft in found)
    kept = [(owner, draft) for owner, draft in found if asked.get("release") or _age(draft) == newest]
    _check_modes(card, kept, asked.get("recipe", ""))
    others = () if any(asked.get(key) for key in _CHOICES) else (*_not_here(refused), *_older(found, kept))
    (owner, first), *rest = kept
    return [(owner, replace(first, notes=(*first.notes, *_left_out(kept), *others))), *rest]


def _expand_all(
    owners: Sequence[Owner], expand: Expand
) -> tuple[list[tuple[Owner, RunSpec]], list[tuple[Owner, UsageProblem]]]:
    """Return what the owners have, and what they refuse."""
    found: list[tuple[Owner, RunSpec]] = []
    refused: list[tuple[Owner, UsageProblem]] = []
    for owner in owners:
        try:
            found += [(owner, draft) for draft in expand(*owner)]
        except UsageProblem as problem:
            refused.append((owner, problem))
    return found, refused


def _joined(problems: Sequence[UsageProblem], asked: Mapping[str, str]) -> UsageProblem:
    """Return one refusal: what several books say in the same words is said once, with what each knows nearest.

    Of these the nearest to what was asked for come first: a hint's runs begin with their mode and precision.
    """
    if len(problems) == 1:
        return problems[0]
    if len({_said(problem) for problem in problems}) > 1:
        return UsageProblem.of_all((problem.message, problem.hint) for problem in problems)
    unknown = [problem for problem in problems if isinstance(problem, UnknownRun)]
    if not unknown:
        return _in_words(problems)
    runs = [run for turn in zip_longest(*(problem.runs for problem in unknown)) for run in turn if run]
    runs.sort(key=lambda run: -_nearness(run, asked))
    keys = dict.fromkeys(key for problem in unknown for key in problem.words)
    words = {key: list(dict.fromkeys(w for one in unknown for w in one.words.get(key, ()))) for key in keys}
    refused = next((problem.refused for problem in unknown if problem.refused), None)
    return unknown_run(_said(problems[0]), asked, words, runs, refused)


def _said(problem: UsageProblem) -> str:
    """Return a refusal's message without the reason that one owner alone may know."""
    return problem.said if isinstance(problem, UnknownRun) else problem.message


def _in_words(problems: Sequence[UsageProblem]) -> UsageProblem:
    """Return one refusal of several that say the same, and whose hints list what they know nearest."""
    lists = [problem.hint.removeprefix(NEAREST).split("; ") for problem in problems if problem.hint.startswith(NEAREST)]
    turns = dict.fromkeys(one for turn in zip_longest(*lists) for one in turn if one)
    hint = NEAREST + "; ".join(islice(turns, SHOWN)) if turns else problems[0].hint
    return UsageProblem(problems[0].message, hint)


def _nearness(run: str, asked: Mapping[str, str]) -> float:
    """Return how near a run such as `pretrain BF16 on MI300X` is to the mode and precision that were asked for."""
    words = run.split(" ")
    return sum(
        max(similarity(asked[key], word) for word in words[:2]) for key in ("mode", "precision") if asked.get(key)
    )


def _check_modes(card: str, kept: Iterable[tuple[Owner, RunSpec]], recipe: str) -> None:
    """Keep two backends from both running what was asked for once."""
    whose: dict[str, str] = {}
    for (backend, _), draft in kept:
        mode = draft.variant.mode if draft.variant else ""
        other = whose.setdefault(mode, backend.name)
        if other != backend.name:
            what = f"mode {mode} of card" if mode else "card"
            both = " and ".join(sorted((other, backend.name)))
            if recipe:
                choice = f"--backend {other}, or --backend {backend.name}"
                raise UsageProblem(f"backends {both} both have a recipe '{recipe}'", choice)
            raise PluginError(f"backends {both} both claim {what} '{card}'", f"--backend {other} decides")


def _age(draft: RunSpec) -> list[int]:
    """Return what releases are ordered by: their numbers, none for what needs no image."""
    release = draft.variant.release if draft.variant else ""
    return [int(text) for text in _NUMBER.findall(release)]


def _left_out(kept: Sequence[tuple[Owner, RunSpec]]) -> Iterator[str]:
    """Yield which runs other releases have, but for those that a sharer runs in this one."""
    here = {_word(draft) for _, draft in kept}
    for word, releases in {word: where for _, draft in kept for word, where in draft.left_out.items()}.items():
        if word not in here:
            yield f"{word} is known in {releases} only, and left out"


def _word(draft: RunSpec) -> str:
    return f"{draft.variant.mode} {draft.variant.precision}".strip() if draft.variant else ""


def _not_here(refused: Iterable[tuple[Owner, UsageProblem]]) -> Iterator[str]:
    for (backend, _), problem in refused:
        yield f"left out: backend {backend.name} ({problem.message})"


def _older(found: Sequence[tuple[Owner, RunSpec]], kept: Sequence[tuple[Owner, RunSpec]]) -> Iterator[str]:
    """Yield what runs of other releases there are."""
    here = {draft.variant.mode for _, draft in kept if draft.variant}
    for (backend, _), draft in found:
        variant = draft.variant
        if variant and variant.mode not in here:
            here.add(variant.mode)
            yield f"left out: {variant.mode}, which {backend.name} knows in {variant.release or 'no release'} only"


Known = Mapping[str, tuple[Backend, Plugin]]
"""Backends by name, as `Plugins.backends` returns them."""


def find_owners(card: Card, known: Known, plugins: Plugins, workspace: Path, asked: str = "") -> list[Owner]:
    """Return the backends that run the card in this folder: several where they share it; `asked` is --backend.

    Raises:
        UsageProblem: nobody brings the backend that is named, or nobody claims the card.
    """
    if asked:
        return [find_backend(plugins, asked, "--backend")]
    if card.backend:
        return [find_backend(plugins, card.backend, f"card '{card.name}'")]
    owners = claimants(card, known, plugins, workspace)
    if not owners:
        raise _nobody(card)
    return [known[name] for name in owners]


def claimants(card: Card, known: Known, plugins: Plugins, workspace: Path) -> list[str]:
    """Return the names of the backends that claim the card highest: one, none, or several that share it."""
    claims = {
        name: int(plugins.query(backend, "claim", card, workspace, otherwise=0) or 0)
        for name, (backend, _) in known.items()
    }
    highest = max(claims.values(), default=0)
    return sorted(name for name, claim in claims.items() if claim == highest > 0)


def find_backend(plugins: Plugins, name: str, where: str) -> Owner:
    """Return the backend of that name.

    Raises:
        UsageProblem: there is none; the message names who asked for it.
    """
    known = plugins.backends()
    if name in known:
        return known[name]
    from madlite.errors import did_you_mean

    raise UsageProblem(
        f"{where} names backend '{name}', which no plugin brings (known: {', '.join(sorted(known))})",
        did_you_mean(name, known, most=1) or "madlite plugins lists what is installed and what is broken",
    )


def _nobody(card: Card) -> UsageProblem:
    if not card.scripts:
        return UsageProblem(
            f"nothing can run card '{card.name}' here: no backend claims it and it names no script",
            "name a backend with --backend; madlite plugins lists them",
        )
    return UsageProblem(
        f"card '{card.name}' needs a MAD checkout: no backend has a recipe for it, and its script {card.scripts} is "
        "not in this folder",
        "git clone https://github.com/ROCm/MAD, and run it in there",
    )
