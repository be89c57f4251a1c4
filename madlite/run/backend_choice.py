"""Backend selection: the backend that was asked for, the one that the card names, else all who claim it highest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from madlite.backends.loader import Plugin, Plugins
from madlite.backends.recipes import UnknownRun
from madlite.errors import CardProblem, PluginError, UsageProblem, did_you_mean
from madlite.model import Backend, Card, RunSpec
from madlite.plan.fields import BACKEND

# The runs of a card that several backends share, each knowing other modes of it, e.g. pretraining and fine-tuning.

BackendMatch: TypeAlias = tuple[Backend, Plugin]
Expand: TypeAlias = Callable[[Backend, Plugin], Sequence[RunSpec]]
_CHOICES = ("mode", "precision", "release", "recipe")
_NUMBER = re.compile(r"[0-9]{1,9}")


def expand_shared(
    card: str, owners: Sequence[BackendMatch], requested: Mapping[str, str], expand: Expand
) -> list[tuple[BackendMatch, RunSpec]]:
    """Return the specs of a card with their owners: of one image release, where none is `requested` for the newest.

    What one owner refuses another may have; a choice that nobody knows is refused in the words of all.

    Raises:
        UsageProblem: no owner has a run for what was asked.
        PluginError: two owners have runs of one mode, and no rule decides.
    """
    found: list[tuple[BackendMatch, RunSpec]] = []
    refused: dict[str, UsageProblem] = {}  # by backend
    for owner in owners:
        try:
            found += [(owner, spec) for spec in expand(*owner)]
        except UsageProblem as problem:
            refused[owner[0].name] = problem
    if refused and not found:
        raise _merge_refusals([*refused.values()], requested)
    if not found:
        return []
    newest = max(_release_key(spec) for _, spec in found)
    chosen = [(owner, spec) for owner, spec in found if requested.get("release") or _release_key(spec) == newest]
    _check_modes(card, chosen, requested.get("recipe", ""))
    others = [f"left out: backend {name} ({problem.message})" for name, problem in refused.items()]
    others = [] if any(requested.get(key) for key in _CHOICES) else others
    if not (requested.get("mode") or requested.get("precision")):
        others += _left_out_note(found, chosen)
    (owner, first), *rest = chosen
    return [(owner, replace(first, notes=(*first.notes, *others))), *rest]


def _merge_refusals(problems: Sequence[UsageProblem], requested: Mapping[str, str]) -> UsageProblem:
    """Return one refusal: the same message of several books is reported once, with the nearest known runs of all."""
    unknown = [problem for problem in problems if isinstance(problem, UnknownRun)]
    said = {problem.said if isinstance(problem, UnknownRun) else problem.message for problem in problems}
    if len(problems) > 1 and len(said) > 1:
        every = [problem.keys for problem in problems]  # what keys they are about; None where one of them does not say
        keys = None if None in every else tuple(dict.fromkeys(key for own in every for key in own or ()))
        return UsageProblem.of_all([(problem.message, problem.hint) for problem in problems], keys)
    if len(problems) == 1 or not unknown:
        return problems[0]
    words: dict[str, list[str]] = {}
    for item in unknown:
        for key, known in item.words.items():
            words[key] = list(dict.fromkeys((*words.get(key, ()), *known)))
    refused = next((problem.refused for problem in unknown if problem.refused), None)
    return UnknownRun(unknown[0].said, requested, words, [run for item in unknown for run in item.runs], refused)


def _check_modes(card: str, chosen: Iterable[tuple[BackendMatch, RunSpec]], recipe: str) -> None:
    """Keep two backends from both running what was asked for once."""
    owner_of_mode: dict[str, str] = {}
    for (backend, _), spec in chosen:
        mode = spec.variant.mode if spec.variant else ""
        other = owner_of_mode.setdefault(mode, backend.name)
        if other != backend.name:
            what = f"mode {mode} of card" if mode else "card"
            both = " and ".join(sorted((other, backend.name)))
            if recipe:
                choice = f"--backend {other}, or --backend {backend.name}"
                raise UsageProblem(f"backends {both} both have a recipe '{recipe}'", choice, keys=("recipe",))
            raise PluginError(f"backends {both} both claim {what} '{card}'", f"--backend {other} decides", keys=())


def _release_key(spec: RunSpec) -> list[int]:
    """Return what releases are ordered by: their numbers, none for what needs no image."""
    release = spec.variant.release if spec.variant else ""
    return [int(text) for text in _NUMBER.findall(release)]


def _left_out_note(
    found: Sequence[tuple[BackendMatch, RunSpec]], chosen: Sequence[tuple[BackendMatch, RunSpec]]
) -> Iterator[str]:
    """Yield one note of the runs that other releases alone have, those of a sharer too."""
    here = {_mode_text(spec) for _, spec in chosen}
    known: dict[str, list[str]] = {}
    for _, spec in found:
        own = spec.variant.release if spec.variant else ""
        for word, releases in {_mode_text(spec): own, **spec.left_out}.items():
            if word not in here and releases not in known.setdefault(word, []):
                known[word].append(releases)
    each = [
        f"{word} is known in {', '.join(filter(None, where)) or 'other releases'} only" for word, where in known.items()
    ]
    if each:
        yield f"{', '.join(each)}, and left out"


def _mode_text(spec: RunSpec) -> str:
    return f"{spec.variant.mode} {spec.variant.precision}".strip() if spec.variant else ""


def select_backends(card: Card, plugins: Plugins, workspace: Path, requested: str = "") -> list[BackendMatch]:
    """Return the backends that run the card in this folder: several where they share it; `requested` is --backend.

    Raises:
        UsageProblem: no plugin brings the named backend, or no backend claims the card.
    """
    if requested:
        return [find_backend(plugins, requested, "--backend")]
    if card.backend:
        return [find_backend(plugins, card.backend, f"card '{card.name}'", keys=())]
    owners = owner_names(card, plugins, workspace)
    if not owners:
        raise _no_backend(card)
    return [plugins.backends()[name] for name in owners]


def owner_names(card: Card, plugins: Plugins, workspace: Path) -> list[str]:
    """Return the backend that the card names, else those that claim it highest: one, none, or several that share it."""
    if card.backend:
        return [card.backend]
    claims = {
        name: int(plugins.query(backend, "claim", card, workspace, otherwise=0) or 0)
        for name, (backend, _) in plugins.backends().items()
    }
    highest = max(claims.values(), default=0)
    return sorted(name for name, claim in claims.items() if claim == highest > 0)


def find_backend(plugins: Plugins, name: str, where: str, keys: tuple[str, ...] = (BACKEND,)) -> BackendMatch:
    """Return the backend of that name, which comes from `where`, or from the command's values of `keys`.

    Raises:
        UsageProblem: there is none; the message names its source.
    """
    backends = plugins.backends()
    if name in backends:
        return backends[name]
    raise UsageProblem(
        f"{where} names backend '{name}', which no plugin brings (known: {', '.join(sorted(backends))})",
        did_you_mean(name, backends, most=1) or "madlite doctor --plugins lists what is installed and what is broken",
        keys=keys,
    )


def _no_backend(card: Card) -> CardProblem:
    if not card.scripts:
        return CardProblem(
            f"nothing can run card '{card.name}' here: no backend claims it and it names no script",
            "name a backend with --backend; madlite doctor --plugins lists them",
        )
    return CardProblem(
        f"card '{card.name}' needs a MAD checkout: no backend has a recipe for it, and its script {card.scripts} is "
        "not in this folder",
        "git clone https://github.com/ROCm/MAD, and run it in there",
    )
