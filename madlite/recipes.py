"""Recipes: the values a backend runs a model with, as TOML beside its module.

::

    [defaults]                 # every key a recipe may set: fields of Variant, and the backend's own settings
    [recipe.debug]             # what this recipe changes
    [recipe.debug.on.cpu]      # what it changes on one device, by Machine.device
    [env.all]                  # environment variables; further tables by Machine.vendor: [env.AMD]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from madlite.backend import TemplateBackend
from madlite.errors import PluginError, UsageProblem
from madlite.types import Card, Draft, Finding, Machine, Request, RunPlan, Scalar, Value, Variant

_VARIANT = set(Variant.__struct_fields__)


class Recipe(Value, frozen=True):
    """One recipe: what differs from the defaults, and what differs from that on a device."""

    values: dict[str, Scalar]
    on: dict[str, dict[str, Scalar]]


class RecipeBook(Value, frozen=True):
    """The recipes of one backend."""

    defaults: dict[str, Scalar]
    recipes: dict[str, Recipe]
    env: dict[str, dict[str, str]]

    def values(self, name: str, device: str) -> dict[str, Scalar]:
        """Return the values of a recipe on a device, over the defaults."""
        recipe = self.recipes[name]
        return {**self.defaults, **recipe.values, **recipe.on.get(device, {})}


class RecipeBackend(TemplateBackend):
    """A template backend whose variants and settings come from a file of recipes; set `book` to its path."""

    book: Path

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return the draft of the recipe that `--set recipe=`, the tag or the card names.

        Raises:
            UsageProblem: none is named, or there is none of that name.
        """
        book = read_book(self.book)
        name = self._choose(request, book)
        values = book.values(name, machine.device)
        variant = Variant(**{key: value for key, value in values.items() if key in _VARIANT})  # type: ignore[arg-type]
        settings = {"recipe": name, **{key: value for key, value in values.items() if key not in _VARIANT}}
        draft = self.draft(request, variant, machine)
        return [msgspec.structs.replace(draft, settings=settings, origin=f"recipe {name}")]

    def env(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, str]:
        """Return the book's variables for this machine's vendor."""
        env = read_book(self.book).env
        return {**env.get("all", {}), **env.get(machine.vendor, {})}

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find sizes that are none, and too few steps for a steady window."""
        return _check_sizes(plan.variant) if plan.variant else ()

    def _choose(self, request: Request, book: RecipeBook) -> str:
        given = request.card.recipe
        of_card = str(given.get("name", "")) if isinstance(given, dict) else given
        name = request.settings.get("recipe") or of_card
        if name in book.recipes:
            return name
        what = (
            f"backend '{self.name}' has no recipe '{name}'" if name else f"card '{request.card.name}' names no recipe"
        )
        raise UsageProblem(what, f"recipes: {', '.join(book.recipes)}   choose one with --set recipe=NAME")


@cache
def read_book(path: Path) -> RecipeBook:
    """Return the recipes of a file.

    Raises:
        PluginError: it is no such file, or a recipe sets a key that the defaults do not name.
    """
    import tomli

    try:
        table = tomli.loads(path.read_text(encoding="utf-8"))
        book = msgspec.convert(
            {
                "defaults": table["defaults"],
                "recipes": {name: _split(values) for name, values in table["recipe"].items()},
                "env": table.get("env", {}),
            },
            RecipeBook,
        )
    except (OSError, ValueError, KeyError, AttributeError, msgspec.ValidationError) as error:
        raise PluginError(f"recipes {path}: {error or type(error).__name__}") from None
    _check_keys(book, path)
    return book


def _check_sizes(variant: Variant) -> Iterator[Finding]:
    for name in ("seq_len", "micro_batch", "steps"):
        value = getattr(variant, name)
        if not isinstance(value, int) or value < 1:
            yield Finding(message=f"{name} is {value}, not a whole number above 0", hint=f"--set {name}=N", fatal=True)
    if variant.steps is not None and variant.steps <= variant.warmup_steps + 5:
        yield Finding(
            message=f"{variant.steps} steps leave few or none after {variant.warmup_steps} of warm-up",
            hint=f"--set steps={variant.warmup_steps + 15}",
        )


def _split(values: Mapping[str, object]) -> dict[str, object]:
    return {"values": {key: value for key, value in values.items() if key != "on"}, "on": values.get("on", {})}


def _check_keys(book: RecipeBook, path: Path) -> None:
    """Keep a misspelt key from passing as a setting that nothing reads."""
    known = _VARIANT | set(book.defaults)
    for name, recipe in book.recipes.items():
        for table in (recipe.values, *recipe.on.values()):
            if unknown := sorted(set(table) - known):
                raise PluginError(f"recipes {path}: recipe '{name}' sets {', '.join(unknown)}, which defaults lacks")
