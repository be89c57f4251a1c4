"""A backend whose runs come from a recipe book (madlite/backends/recipe_book.py tells its format)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.base import TemplateBackend
from madlite.backends.recipe_book import (
    VARIANT_KEYS,
    RecipeBook,
    RecipeRun,
    RefusedRun,
    bare_name,
    cards_of_book,
    claim_by_book,
    read_book,
)
from madlite.errors import UsageProblem, did_you_mean, likeness, nearest_words, one_hint
from madlite.model import Architecture, Card, Finding, Machine, Request, RunPlan, RunSpec, Scalar, Value, Variant

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
        return claim_by_book(self.name, card, cards_of_book(self.book))

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run that the book has for the card, or the one of the recipe that the card names.

        A recipe is named by `--set recipe=`, by the tag or by the card.

        Raises:
            UsageProblem: no recipe is named or known for what was asked.
        """
        book = read_book(self.book)
        named = self._named(request)
        if not named and bare_name(request.card) in cards_of_book(self.book):
            chosen = choose_runs(book, bare_name(request.card), request.settings, machine)
        else:
            chosen = [self._of_name(named, request, machine, book)]
        decided = OF_RECIPE if named else OF_RUN
        return [replace(self._spec_of(request, item, machine), chosen=decided) for item in chosen]

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
        variant = replace(variant, release=chosen.release or variant.release)
        image = str(values.get("image", "")).replace("{architecture}", machine.architecture)
        own = {key: value for key, value in values.items() if key not in VARIANT_KEYS and key != "image"}
        spec, book = self.run_spec(request, variant, machine), read_book(self.book)
        shape = book.architectures.get(variant.model)
        return replace(
            spec,
            architecture=shape if isinstance(shape, Architecture) else spec.architecture,
            shape=replace(book.shape, unknown=shape if isinstance(shape, str) else ""),
            env={**spec.env, **_env_set(book, request.settings.get("env_set", str(own.get("env_set", ""))), machine)},
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


def _env_set(book: RecipeBook, name: str, machine: Machine) -> dict[str, str]:
    """Return the variables of a named set on a machine.

    Raises:
        UsageProblem: the book has no set of this name.
    """
    if name and name not in book.env_sets:
        known = ", ".join(book.env_sets) or "none"
        raise UsageProblem(f"env_set '{name}' is unknown", f"there are: {known}", keys=("env_set",))
    found = book.env_sets.get(name, {})
    return {**found.get("all", {}), **found.get(machine.vendor, {})}


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


# Which runs of a book a card stands for: by mode, precision, sequence length, GPU and image release.
#
# What nobody published is refused with the nearest that is known, never guessed.

_SHOWN = 4  # of the nearest known runs
CPU = Machine().device
_VENDORS = ("AMD", "NVIDIA")  # in place of a GPU's name where nothing tells which GPU it is
_SELECTORS = ("mode", "precision")


class RecipeSelection(Value, frozen=True):
    """A run that was chosen: its values, and what a reader of the plan should know of the choice."""

    name: str
    device: str  # whose recipe it is; the machine's own name may be another
    release: str
    values: dict[str, Scalar]
    origin: str
    notes: tuple[str, ...] = ()
    left_out: dict[str, str] = {}  # mode and precision of the card's other runs, and the releases that have them


class UnknownRun(UsageProblem):
    """No run fits what was asked: what words for it there are, by key, and how far each run is from it, as text.

    The hint states which word was meant, or which there are, and the nearest runs.  What is `refused` for a reason that
    is known says it, and the way that there is; `said` is the message without it.
    """

    def __init__(
        self,
        said: str,
        requested: Mapping[str, str],
        words: Mapping[str, Sequence[str]],
        runs: Sequence[tuple[float, str]],
        refused: RefusedRun | None = None,
    ) -> None:
        self.said, self.words, self.runs, self.refused = said, words, runs, refused
        nearest = list(dict.fromkeys(text for _, text in sorted(runs, key=lambda run: run[0])))[:_SHOWN]
        meant = [_meant(key, requested[key], known) for key, known in words.items() if requested.get(key)]
        first = [text for text in meant if text.endswith("?")]  # the word that was meant, before all that there is
        lists = [text for text in meant if text and text not in first]
        near = one_hint(*first, f"nearest known: {'; '.join(nearest)}{'.' * bool(lists)}", *lists)
        what, hint = (f"{said}: {refused.why}", refused.way) if refused else (said, near)
        super().__init__(what, hint, keys=("mode", "precision", "release", "recipe", "recipe_device"))


def _meant(key: str, wanted: str, known: Sequence[str]) -> str:
    """Return the option that was meant, or what it can be; nothing where it is known, and other values are wrong."""
    words = [word for word in known if word]
    if not words or any(_same(word, wanted) for word in words):
        return ""
    close = nearest_words(wanted, words, most=1)
    if close and key != "release":
        return f"did you mean --{key} {close[0]}?"
    return listed_releases(words) if key == "release" else f"{key}s: {', '.join(words)}"


def listed_releases(known: Iterable[str]) -> str:
    """Return which releases there are, those of images by their numbers, then what runs without one."""
    words = sorted(known, key=_numbers)
    plain = [f"{word} (no image: the packages that are installed)" for word in words if not _numbers(word)]
    return f"releases: {', '.join([*filter(_numbers, words), *plain])}"


def choose_runs(book: RecipeBook, card: str, requested: Mapping[str, str], machine: Machine) -> list[RecipeSelection]:
    """Return the runs of a card on this machine, in the book's order; all of one release.

    `requested` may have mode, precision, seq_len, release and recipe_device.  Without a release it is the newest that
    has a run.  A sequence length that no run has selects nothing: it overrides one.

    Raises:
        UsageProblem: no run fits; the hint names the nearest ones.
    """
    requested = {**requested, "release": spelled(requested.get("release", ""), book.releases)}
    rows = [run for run in book.runs if card in run.cards]
    devices = {device for run in rows for device in run.devices} | set(book.stand_in)
    device = spelled(requested.get("recipe_device", ""), devices) or machine.device
    fitting = _of_device([run for run in rows if _selected(book, run, device, requested)], device, book)
    release = requested["release"] or _newest(fitting, book)
    found = _with_seq_len([run for run in fitting if _in(release, run.releases)], book, device, requested)
    if not found or (book.releases and release not in book.releases):
        raise _unknown(book, card, rows, requested, device)
    newest = f"image release {release}: the newest with a recipe (--image-release chooses another)"
    notes = (
        *([newest] if release and not requested["release"] else []),
        *_device_notes(found[0], machine, device, book),
    )
    left_out = _left_out(book, rows, found, device)
    return [replace(_chosen(book, run, release, device, notes), left_out=left_out) for run in found]


def spelled(requested: str, known: Iterable[str]) -> str:
    """Return what was requested as the book spells it: `25.10` and `V25.10` are v25.10, `mi300x` is MI300X."""
    exact = {name.casefold(): name for name in known}
    return exact.get(requested.casefold()) or exact.get(f"v{requested.casefold()}") or requested


def _chosen(book: RecipeBook, run: RecipeRun, release: str, device: str, notes: tuple[str, ...]) -> RecipeSelection:
    whose = _device_of(book, run, device)
    values = book.run_values(run, release, whose)
    where = ", ".join(filter(None, (release, whose)))
    source = f"; {run.source}" if run.source else ""
    name = run.recipe or str(values.get("model", ""))
    return RecipeSelection(
        name=name, device=whose, release=release, values=values, origin=f"recipe {name} ({where}{source})", notes=notes
    )


def _device_of(book: RecipeBook, run: RecipeRun, device: str) -> str:
    """Return the device whose values a run has: this one's, or its stand-in's."""
    return device if _in(device, run.devices) else book.stand_in.get(device, device)


def _values(book: RecipeBook, run: RecipeRun, device: str) -> dict[str, Scalar]:
    """Return what a run can be chosen by; a release has no part in that."""
    return book.run_values(run, "", _device_of(book, run, device))


def _selected(book: RecipeBook, run: RecipeRun, device: str, requested: Mapping[str, str]) -> bool:
    values = _values(book, run, device)
    return all(_same(str(values.get(key, "")), requested[key]) for key in _SELECTORS if requested.get(key))


def _same(item: str, other: str) -> bool:
    """Return whether a run's word is the one requested; `posttrain` also requests `posttrain/lora`."""
    return other.casefold() in (item.casefold(), item.casefold().partition("/")[0])


def _in(word: str, words: Sequence[str]) -> bool:
    return not words or word in words


def _of_device(rows: Sequence[RecipeRun], device: str, book: RecipeBook) -> list[RecipeRun]:
    """Return the rows of a device; of its stand-in those that it has none of its own for, release by release."""
    own = [run for run in rows if _in(device, run.devices)]
    others = [run for run in rows if book.stand_in.get(device) in run.devices and run not in own]
    if not own:
        return others
    taken = {release for run in own for release in run.releases}
    left = (replace(run, releases=tuple(name for name in run.releases if name not in taken)) for run in others)
    return [*own, *(run for run in left if run.releases)]


def _newest(rows: Iterable[RecipeRun], book: RecipeBook) -> str:
    order = list(book.releases)
    known = [release for run in rows for release in run.releases if release in book.releases]
    if not known and order and any(not run.releases for run in rows):
        return order[-1]
    return max(known, key=order.index, default="")


def _with_seq_len(
    rows: list[RecipeRun], book: RecipeBook, device: str, requested: Mapping[str, str]
) -> list[RecipeRun]:
    """Return the rows of the sequence length requested; where no row has it, of those that differ by it alone one."""
    wanted = requested.get("seq_len", "")
    if not wanted:
        return rows
    exact = [run for run in rows if str(_values(book, run, device).get("seq_len")) == wanted]
    return exact or list({_word(book, run): run for run in reversed(rows)}.values())[::-1]


def _left_out(book: RecipeBook, rows: Sequence[RecipeRun], found: Sequence[RecipeRun], device: str) -> dict[str, str]:
    """Return the card's runs that other releases alone have."""
    here = {_word(book, run) for run in found}
    others: dict[str, set[str]] = {}
    for run in _of_device(rows, device, book):
        if (word := _word(book, run)) not in here:
            others.setdefault(word, set()).update(run.releases)
    return {word: _listed(releases, book) for word, releases in others.items()}


def _device_notes(run: RecipeRun, machine: Machine, device: str, book: RecipeBook) -> Iterable[str]:
    whose = _device_of(book, run, device)
    if not run.devices or whose == machine.device:
        return
    why = "as recipe_device asks" if device != machine.device else "it has none of its own here"
    yield f"{machine.device} runs with the recipe of {whose}: {why}"


def _word(book: RecipeBook, run: RecipeRun) -> str:
    values = book.run_values(run, "", "")
    return f"{values.get('mode', '')} {values.get('precision', '')}".strip()


def _unknown(
    book: RecipeBook, card: str, rows: Sequence[RecipeRun], requested: Mapping[str, str], device: str
) -> UsageProblem:
    release = requested["release"]
    wanted = [requested[key] for key in _SELECTORS if requested.get(key)]
    what = " ".join(["in", *wanted, f"on {device}"]) if wanted else f"on {device}"
    what += f" in release {release}" if release else ""
    if device == CPU:
        what += ": no GPU is seen here (--machine 8xMI300X plans for a machine that has them)"
    every = [book.run_values(run, "", "") for run in rows]
    words = {key: list(dict.fromkeys(str(values.get(key, "")) for values in every)) for key in _SELECTORS}
    words["release"] = list(book.releases)
    if device in _VENDORS:
        what += " GPUs of which nothing says which they are (gpu in a cluster file, device in a context: MI300X)"
    said = f"no recipe is known for {card} {what}"
    runs = [(-_similarity(book, run, requested, device), _described(book, run)) for run in rows]
    others = [run for run in _of_device(rows, device, book) if not release or _in(release, run.releases)]
    return UnknownRun(said, requested, words, runs, _why_refused(book, card, requested) if others else None)


def _why_refused(book: RecipeBook, card: str, requested: Mapping[str, str]) -> RefusedRun | None:
    """Return why the book refuses a run that was requested; a mode that nobody named may be its own."""
    for item in book.refused:
        mode, precision = requested.get("mode") or item.mode, requested.get("precision", "")
        words = [_same(mode, item.mode) or not item.mode, _same(precision, item.precision) or not item.precision]
        if card in item.cards and all(words) and _in(requested["release"], item.releases):
            return item
    return None


def _similarity(book: RecipeBook, run: RecipeRun, requested: Mapping[str, str], device: str) -> float:
    """Return how near a run is to what was asked: words by the slips between them, then the GPU, then the release."""
    values = _values(book, run, device)
    points = 0.0
    for key in _SELECTORS:
        if word := requested.get(key):
            own = str(values.get(key, ""))
            points += 3.0 if _same(own, word) else 2.0 * likeness(word, own)
    points += 1.5 * (device in run.devices) + 1.0 * (book.stand_in.get(device) in run.devices)
    order = list(book.releases)
    wanted = _place(requested["release"], order) if requested["release"] else len(order)
    return points - min((abs(order.index(release) - wanted) for release in run.releases), default=0.0) / 100


def _place(release: str, order: Sequence[str]) -> float:
    """Return where a release stands, or would stand by its numbers, among those of the book."""
    if release in order:
        return order.index(release)
    return sum(_numbers(item) < _numbers(release) for item in order) - 0.4  # of two that are as near the newer


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(text[:9]) for text in re.findall(r"[0-9]+", release))


def _described(book: RecipeBook, run: RecipeRun) -> str:
    releases = f" in {_listed(run.releases, book)}" if run.releases else ""
    return f"{_word(book, run)} on {'/'.join(run.devices) or 'any GPU'}{releases}"


def _listed(releases: Iterable[str], book: RecipeBook) -> str:
    """Return releases in the book's order."""
    return ", ".join(release for release in book.releases if release in set(releases))
