"""Recipe books: the values a backend runs its models with, as TOML beside its module.

::

    [defaults]                    # every key a recipe may set: fields of Variant, and the backend's own settings
    [recipe.debug]                # what this recipe changes
    [recipe.debug.on.cpu]         # what it changes on one device, by Machine.device
    [env.all]                     # environment variables; further tables by Machine.vendor: [env.AMD]
    [env_set.vendor.AMD]          # those of a set that the setting `env_set` names, over them; [env_set.NAME.all]

A backend that runs MAD's cards also states which recipe a card stands for, on which GPU and in which image::

    [release."v25.10"]            # from the oldest to the newest; what all its runs share
    image = "rocm/primus:v25.10"  # {architecture} stands for the GPU's, e.g. gfx942
    [stand_in]                    # a GPU without runs of its own takes those of another, and says both names
    MI350X = "MI355X"
    [[run]]
    card = ["primus_pyt_train_llama-3.1-8b"]   # names of cards, without their folder
    recipe = "llama3.1_8B"                     # empty: the defaults alone
    precision = "BF16"
    device = ["MI300X"]                        # absent: any GPU
    release = ["v25.10"]                       # absent: any release
    micro_batch = 4                            # and every other key of the defaults
    source = "where the values are published"

What users are told to run and nobody can is refused with its reason, and the way that there is::

    [[refused]]
    card = ["pyt_train_llama-3.1-70b"]
    mode = "pretrain"                          # absent: any mode, precision or release
    precision = "FP8"
    release = ["v25.3"]
    why = "its image's own script trains in BF16 alone"
    way = "--precision BF16"                   # what to type instead

What its models' floating-point work follows from, where madlite's own table does not have it (docs/measurement.md)::

    [architecture."Tiny-7B"]      # by the name that `model` has: the fields of Architecture, and `also`, further names
    layers = 32
    [architecture."Odd-7B"]
    unknown = "why nothing is known of its shape"
    [shape]
    layers = "num_layers"         # a field of Architecture: the setting that has it, where that is not 0
    others = ["flavor"]           # settings that make another model of it: where one is changed, nothing is known

What `madlite tune` may change of its runs (docs/tune.md): the fields of Knob, by its key::

    [tune.micro_batch]
    most = 64                     # absent: any that fits
    [tune.recompute]
    values = [false, true]
    memory = [1.0, 0.3]           # first guesses, relative to each other: of a sequence's memory, of the throughput
    speed = [1.0, 0.8]
    requires = { fsdp = [false] }
    [tune.recompute_layers]
    parts = [0, 0.5, 1]           # of the model's layers, in place of values
    later = true                  # tried only where the budget leaves room

`book` may be a folder: its files are read as one, in the order of their names.  What several of them have under one
name is merged: tables key by key, the later file's value replacing the earlier one's, and lists one after another.  A
recipe or an architecture of the same name replaces the earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, cached_property, reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from madlite.errors import PluginError
from madlite.model import Architecture, Backend, Card, Knob, Scalar, Shape, Value, Variant

if TYPE_CHECKING:
    from madlite.backends.recipes import RecipeBackend


# Tables of model shapes, as madlite's own file and recipe books have them: `[architecture.NAME]`, a model each.
#
# The keys are the fields of `Architecture`, and `also`, further names of the same shape.  A table whose one key is
# `unknown` states why nothing is to be taken for known of a model, whatever another table has under its name.


def read_architectures(tables: Mapping[str, Mapping[str, object]]) -> dict[str, Architecture | str]:
    """Return the architecture of each name, or why it has none.

    Raises:
        ValueError: a table names what is no key, lacks one, or its sizes are no model's.
    """
    return {name: found for named, values in tables.items() for name, found in _read(named, values)}


def _read(named: str, values: Mapping[str, object]) -> Iterator[tuple[str, Architecture | str]]:
    if unknown := values.get("unknown"):
        if len(values) > 1 or not isinstance(unknown, str):
            raise ValueError(f"architecture '{named}' is unknown, and has keys beside that")
        yield named, unknown
        return
    sizes = {key: value for key, value in values.items() if key != "also"}
    _check_fields(sizes, f"architecture '{named}'")
    for name in (named, *msgspec.convert(values.get("also", ()), tuple[str, ...])):
        try:
            yield name, msgspec.convert({**sizes, "name": name}, Architecture)
        except msgspec.ValidationError as error:
            raise ValueError(f"architecture '{named}': {error}") from None


def _check_fields(names: Iterable[str], where: str) -> None:
    if unknown := sorted({*names} - {*Architecture.__struct_fields__}):
        raise ValueError(f"{where} contains unknown field `{unknown[0]}`")


VARIANT_KEYS = frozenset(Variant.__struct_fields__)
CHOSEN_BY = frozenset({"mode", "precision", "seq_len"})  # keys that choose a run; a release reports nothing of them
_OF_RUN = ("card", "recipe", "device", "release", "source")


class Recipe(Value, frozen=True):
    """One recipe: what differs from the defaults, and what differs from that on a device."""

    values: dict[str, Scalar] = {}
    on: dict[str, dict[str, Scalar]] = {}


class RecipeRun(Value, frozen=True, rename={"cards": "card", "devices": "device", "releases": "release"}):
    """One run that cards stand for; without devices or releases it fits all of them."""

    cards: tuple[str, ...]
    recipe: str = ""
    devices: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    source: str = ""
    values: dict[str, Scalar] = {}


class RefusedRun(Value, frozen=True, forbid_unknown_fields=True, rename={"cards": "card", "releases": "release"}):
    """Runs that documents name and that cannot be: why, and what to type instead."""

    cards: tuple[str, ...]
    why: str
    way: str
    mode: str = ""
    precision: str = ""
    releases: tuple[str, ...] = ()


_TABLES = {
    **{"recipes": "recipe", "env_sets": "env_set", "releases": "release", "runs": "run"},
    **{"architectures": "architecture", "knobs": "tune"},
}


class RecipeBook(Value, frozen=True, forbid_unknown_fields=True, rename=_TABLES):
    """The recipes of one backend."""

    defaults: dict[str, Scalar] = {}
    recipes: dict[str, Recipe] = {}
    env: dict[str, dict[str, str]] = {}
    env_sets: dict[str, dict[str, dict[str, str]]] = {}
    releases: dict[str, dict[str, Scalar]] = {}
    stand_in: dict[str, str] = {}
    runs: tuple[RecipeRun, ...] = ()
    refused: tuple[RefusedRun, ...] = ()
    architectures: dict[str, Architecture | str] = {}  # by the model's name; a text states why there is none
    shape: Shape = Shape()
    knobs: tuple[Knob, ...] = ()

    def values(self, name: str, device: str) -> dict[str, Scalar]:
        """Return the values of a recipe on a device, over the defaults; without a name the defaults."""
        recipe = self.recipes[name] if name else Recipe()
        return {**self.defaults, **recipe.values, **recipe.on.get(device, {})}

    def run_values(self, run: RecipeRun, release: str, device: str) -> dict[str, Scalar]:
        """Return the values of a run: over its recipe's come the release's, and its own over these."""
        return {**self.values(run.recipe, device), **self.releases.get(release, {}), **run.values}


def bare_name(card: Card) -> str:
    """Return a card's name without the folder it came from."""
    return card.name.removeprefix(f"{card.scope}/") if card.scope else card.name


def claim_by_book(backend: str, card: Card, cards: Collection[str]) -> int:
    """Return how much a backend claims a card whose book has runs of `cards`; one that names a backend is that one's.

    A card's own script, where that is here, claims it more.
    """
    if card.backend:
        return 100 if card.backend == backend else 0
    return 30 if bare_name(card) in cards else 0


@cache
def cards_of_book(path: Path) -> frozenset[str]:
    """Return the names of the cards that a book has runs for, its recipes unread.

    Raises:
        PluginError: it is no such file.
    """
    names: set[str] = set()
    for file in _files(path):
        for run in _table(file).get("run", ()):
            names.update(cast(Iterable[str], _listed(run.get("card", ()))))
    return frozenset(names)


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.toml")) if path.is_dir() else [path]


def _table(path: Path) -> dict[str, Any]:
    import tomli

    try:
        return tomli.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PluginError(f"recipes {path}: {error or type(error).__name__}") from None


@cache
def read_book(path: Path) -> RecipeBook:
    """Return the recipes of a file, or of a folder's files.

    Raises:
        PluginError: it is no such file, a recipe sets a key that the defaults do not name, or a run names a recipe or
            release that is not there.
    """
    book = reduce(_merged, map(_read_recipe_book, _files(path)), RecipeBook())
    _check(book, path)
    return book


def _read_recipe_book(path: Path) -> RecipeBook:
    table = _table(path)
    try:
        shape = table.get("shape", {})
        _check_fields(shape.keys() - {"others"}, "shape")
        recipes = table.get("recipe", {}).items()
        made = {
            "recipe": {name: {"on": values.pop("on", {}), "values": values} for name, values in recipes},
            "run": [_run(values) for values in table.get("run", ())],
            "refused": [_with_lists(values) for values in table.get("refused", ())],
            "architecture": read_architectures(table.get("architecture", {})),
            "shape": {"others": shape.pop("others", ()), "fields": shape},
            "tune": [{**values, "key": key} for key, values in table.get("tune", {}).items()],
        }
        return msgspec.convert({**table, **made}, RecipeBook)
    except (ValueError, AttributeError, TypeError, msgspec.ValidationError) as error:
        raise PluginError(f"recipes {path}: {error or type(error).__name__}") from None


def _run(values: Mapping[str, object]) -> dict[str, object]:
    own = {key: value for key, value in values.items() if key not in _OF_RUN}
    return {**_with_lists({key: values[key] for key in _OF_RUN if key in values}), "values": own}


def _with_lists(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values with a list in place of one name of a card, device or release."""
    return {key: _listed(value) if key in ("card", "device", "release") else value for key, value in values.items()}


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _merged(item: Any, other: Any) -> Any:
    """Return what two files have under one name: tables merged key by key, lists joined, else the later value."""
    if isinstance(item, Mapping):
        return {**item, **{key: _merged(item[key], value) if key in item else value for key, value in other.items()}}
    if isinstance(item, RecipeBook | Shape):
        return type(item)(
            **{name: _merged(getattr(item, name), getattr(other, name)) for name in item.__struct_fields__}
        )
    return (*item, *other) if isinstance(item, tuple) else other


def _check(book: RecipeBook, path: Path) -> None:
    """Keep a misspelt key from passing as a setting that nothing reads."""
    known = _known(book)
    if not book.recipes and not book.runs:
        raise PluginError(f"recipes {path}: there is neither a recipe nor a run")
    for name, recipe in book.recipes.items():
        for table in (recipe.values, *recipe.on.values()):
            _check_keys(table, known, f"recipes {path}: recipe '{name}'")
    for release, values in book.releases.items():
        of_release = {key: kind for key, kind in known.items() if key not in CHOSEN_BY}
        _check_keys(values, of_release, f"recipes {path}: release '{release}'")
    for run in book.runs:
        where = f"recipes {path}: run of {', '.join(run.cards)}"
        _check_keys(run.values, known, where)
        if run.recipe and run.recipe not in book.recipes:
            raise PluginError(f"{where} names recipe '{run.recipe}', which is not there")
        _check_releases(run.releases, book, where)
    for refused in book.refused:
        _check_releases(refused.releases, book, f"recipes {path}: refused of {', '.join(refused.cards)}")


def _check_releases(releases: Iterable[str], book: RecipeBook, where: str) -> None:
    if unknown := sorted(set(releases) - set(book.releases)):
        raise PluginError(f"{where} names release {', '.join(unknown)}, which is not there")


def _check_keys(table: Mapping[str, Scalar], known: Mapping[str, type], where: str) -> None:
    if unknown := sorted(set(table) - set(known)):
        raise PluginError(f"{where} sets {', '.join(unknown)}, which defaults lacks")
    for key, value in table.items():
        if not _fits(value, known[key]):
            raise PluginError(f"{where} sets {key} = {value!r}, which is no {known[key].__name__}")


def _fits(value: Scalar, wanted: type) -> bool:
    return type(value) is wanted or (wanted is float and type(value) is int)


def _known(book: RecipeBook) -> dict[str, type]:
    """Return the keys of a book with their types."""
    whole = dict.fromkeys(("seq_len", "micro_batch", "global_batch", "steps", "warmup_steps"), int)
    own = {key: type(value) for key, value in book.defaults.items()}
    return {**own, **dict.fromkeys(VARIANT_KEYS, str), **whole, "image": str}


def _passed_on(member: str) -> Any:
    """Return a method that calls that of the backend itself."""

    def call(lazy: LazyBackend, *arguments: object) -> object:
        return getattr(lazy.loaded, member)(*arguments)

    return call


class LazyBackend:
    """Stands for a RecipeBackend: `claim` is answered from the book, everything else by the backend itself.

    `target` is `package.module:Class`; `book` its recipes, a file or a folder as RecipeBackend has it.
    """

    expand, check, assets = _passed_on("expand"), _passed_on("check"), _passed_on("assets")
    detect, reader, result_rule = _passed_on("detect"), _passed_on("reader"), _passed_on("result_rule")

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


def loaded_backend(backend: Backend) -> Backend:
    """Return the backend itself, of one that is not loaded yet too."""
    return backend.loaded if isinstance(backend, LazyBackend) else backend
