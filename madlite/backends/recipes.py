"""A backend whose runs come from a recipe book (madlite/backends/recipe_book.py tells its format)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from madlite.backends.base import TemplateBackend
from madlite.backends.recipe_book import VARIANT_KEYS, RecipeBook, bare_name, claim_by_book, read_book
from madlite.backends.recipe_choice import RecipeSelection, choose_runs, listed_releases, spelled
from madlite.errors import UsageProblem, did_you_mean, nearest_words, one_hint
from madlite.model import Architecture, Card, Finding, Machine, Request, RunPlan, RunSpec, Variant

OF_RUN: tuple[str, ...] = ("mode", "precision", "release", "recipe", "recipe_device")
OF_RECIPE: tuple[str, ...] = ("mode", "release", "recipe")
"""Keys that choose a run or a recipe: what was chosen by them, no value put over it calls by another name."""
FEW = 5  # fewer steady steps mean little


class RecipeBackend(TemplateBackend):
    """A template backend whose variants and settings come from recipes; set `book` to their file or folder."""

    book: Path
    sizes: tuple[str, ...] = ("seq_len", "micro_batch", "steps")  # fields of a variant without which nothing can run

    def claim(self, card: Card, checkout: Path) -> int:
        """Own the cards that name this backend, and those that its book has runs for."""
        return claim_by_book(self.name, card, read_book(self.book).cards)

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run that the book has for the card, or the one of the recipe that the card names.

        A recipe is named by `--set recipe=`, by the tag or by the card.

        Raises:
            UsageProblem: no recipe is named or known for what was asked.
        """
        book = read_book(self.book)
        named = self._named(request)
        if not named and bare_name(request.card) in book.cards:
            chosen = choose_runs(book, bare_name(request.card), request.settings, machine)
        else:
            chosen = [self._of_name(named, request, machine, book)]
        decided = OF_RECIPE if named else OF_RUN
        return [msgspec.structs.replace(self._spec_of(request, item, machine), chosen=decided) for item in chosen]

    def env(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, str]:
        """Return the book's variables for this machine's vendor."""
        env = read_book(self.book).env
        return {**env.get("all", {}), **env.get(machine.vendor, {})}

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find sizes that are none, too few steps for a steady window, and what is wrong with the backend's variant."""
        if plan.variant is None:
            return ()
        sizes = tuple(_check_sizes(plan.variant, self.sizes))
        rest = sizes or (*self.check_steps(plan, plan.variant), *_check_gpus(plan))
        return (*rest, *self.check_variant(plan, plan.variant))

    def check_variant(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find what is wrong with a variant of this backend, beside its sizes and steps; nothing here."""
        return ()

    def check_steps(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find too few steps for a steady window, of a plan whose sizes are whole numbers above 0."""
        steps, warmup = variant.steps or 0, variant.warmup_steps
        return few_steps(f"{steps} steps", steps - warmup, warmup, f"--steps {warmup + 15}")

    def _spec_of(self, request: Request, chosen: RecipeSelection, machine: Machine) -> RunSpec:
        values = chosen.values
        variant = Variant(**{key: value for key, value in values.items() if key in VARIANT_KEYS})  # type: ignore[arg-type]
        variant = msgspec.structs.replace(variant, release=chosen.release or variant.release)
        image = str(values.get("image", "")).format(architecture=machine.architecture)
        own = {key: value for key, value in values.items() if key not in VARIANT_KEYS and key != "image"}
        spec, book = self.run_spec(request, variant, machine), read_book(self.book)
        shape = book.architectures.get(variant.model)
        return msgspec.structs.replace(
            spec,
            architecture=shape if isinstance(shape, Architecture) else spec.architecture,
            shape=msgspec.structs.replace(book.shape, unknown=shape if isinstance(shape, str) else ""),
            settings={"recipe": chosen.name, **own, **({"recipe_device": chosen.device} if chosen.device else {})},
            image=image or spec.image,
            origin=chosen.origin,
            notes=chosen.notes,
            left_out=chosen.left_out,
            knobs=(*spec.knobs, *book.knobs),
        )

    def _named(self, request: Request) -> str:
        given = request.card.recipe
        of_card = str(given.get("name", "")) if isinstance(given, dict) else given
        return request.settings.get("recipe") or of_card

    def _of_name(self, name: str, request: Request, machine: Machine, book: RecipeBook) -> RecipeSelection:
        """Return the recipe of a name; a release, where one is requested, is what its values come from."""
        if name not in book.recipes:
            raise self._no_recipe(name, request, book)
        release = spelled(request.settings.get("release", ""), book.releases)
        if release and release not in book.releases:
            raise _no_release(release, request, book)
        values = {**book.values(name, machine.device), **book.releases.get(release, {})}
        mode, own = request.settings.get("mode", ""), values.get("mode", Variant(model="").mode)
        if mode and mode.casefold() != str(own).casefold():
            what = f"recipe '{name}' of backend '{self.name}' runs mode {own}, not {mode}"
            what += f" ({origin})" if (origin := request.origins.get("mode", "")) not in ("", "--mode") else ""
            meant = did_you_mean(mode, [str(own)], before="--mode ")
            hint = "leave --mode out, or choose another recipe with --set recipe=NAME"
            raise UsageProblem(what, one_hint(meant, hint), keys=("mode", "recipe"))
        return RecipeSelection(name=name, device="", release=release, values=values, origin=f"recipe {name}")

    def _no_recipe(self, name: str, request: Request, book: RecipeBook) -> UsageProblem:
        what = f"backend '{self.name}' has no recipe '{name}'"
        if not name:
            what = f"card '{request.card.name}' names no recipe, and backend '{self.name}' has no runs for it"
        near = nearest_words(name, book.recipes, most=5) if name else []
        near = near or list(book.recipes)[:5]
        more = ", …" if len(book.recipes) > len(near) else ""
        hint = f"recipes: {', '.join(near)}{more}   choose one with --set recipe=NAME"
        return UsageProblem(what, hint, keys=("recipe",))


def _no_release(release: str, request: Request, book: RecipeBook) -> UsageProblem:
    hint = listed_releases(book.releases) if book.releases else "leave --image-release out; --image names an image"
    origin = request.origins.get("release", "")
    where = f" ({origin})" if origin not in ("", "--image-release") else ""
    what = f"image release '{release}' is not known to this recipe's backend{where}"
    return UsageProblem(what, hint, keys=("release",))


def _check_sizes(variant: Variant, sizes: Iterable[str]) -> Iterator[Finding]:
    for name in sizes:
        value = getattr(variant, name)
        if not isinstance(value, int) or value < 1:
            what = f"{name} is {value}, not a whole number above 0"
            yield Finding(message=what, hint=f"--set {name}=N", fatal=True, keys=(name,))


def _check_gpus(plan: RunPlan) -> Iterator[Finding]:
    """Say that fewer GPUs share a model than where its sizes were published: each holds more of it."""
    published = plan.settings.get("published_gpus", 0)
    here = plan.place.nodes * plan.place.gpus_per_node
    if isinstance(published, int) and 0 < here < published:
        yield Finding(
            message=f"these sizes are of {published} GPUs: each of {here} holds more of the model, which may not fit, "
            "and the numbers do not compare",
            hint="a smaller --batch-size, or more GPUs",
        )


def few_steps(
    steps: str, left: int, warmup: int, hint: str, keys: tuple[str, ...] = ("steps", "warmup_steps")
) -> Iterator[Finding]:
    """Yield that a run is too short: fatal where no line is left after its steps of warm-up.

    `steps` are the run's as text, `left` the lines of steps after the warm-up, `keys` what they follow from.
    """
    if left < 1:
        what = f"{steps} are over before {warmup} of warm-up are"
        yield Finding(message=what, hint=hint, fatal=True, keys=keys)
    elif left < FEW:
        yield Finding(message=f"{steps} leave few after {warmup} of warm-up", hint=hint)
