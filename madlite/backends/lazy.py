"""A backend whose code is loaded when a card or a log needs it; until then its recipe book names its cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from madlite.backends.recipe_book import cards_of_book, claim_by_book
from madlite.model import Asset, Backend, Card, Finding, Machine, Reader, Request, ResultRule, RunPlan, RunSpec

if TYPE_CHECKING:
    from madlite.backends.recipes import RecipeBackend


class LazyBackend:
    """Stands for a RecipeBackend: `claim` is answered from the book, everything else by the backend itself.

    `target` is `package.module:Class`; `book` its recipes, a file or a folder as RecipeBackend has it.
    """

    def __init__(self, name: str, target: str, book: Path) -> None:
        self.name, self.target, self.book = name, target, book

    @cached_property
    def loaded(self) -> RecipeBackend:
        """The backend itself; the first use imports its module."""
        module, _, attribute = self.target.partition(":")
        return cast("RecipeBackend", getattr(import_module(module), attribute)())

    def claim(self, card: Card, checkout: Path) -> int:
        """Own the cards that name this backend, and those that its book has runs for."""
        return claim_by_book(self.name, card, cards_of_book(self.book))

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return the backend's RunSpecs of a card."""
        return self.loaded.expand(request, machine)

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Return what the backend finds in a plan."""
        return self.loaded.check(plan)

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what the backend reports a plan needs."""
        return self.loaded.assets(plan)

    def detect(self, head: Sequence[str]) -> float:
        """Return how sure the backend is that a log is its own."""
        return self.loaded.detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return the backend's reader."""
        return self.loaded.reader(plan)

    def result_rule(self) -> ResultRule:
        """Return where the result of a log comes from that madlite did not start."""
        return self.loaded.result_rule()


def loaded_backend(backend: Backend) -> Backend:
    """Return the backend itself, of one that is not loaded yet too."""
    return backend.loaded if isinstance(backend, LazyBackend) else backend
