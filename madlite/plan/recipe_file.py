"""A recipe file: settings of a card's run that were found to be good, for `madlite run --recipe-file`.

Format (docs/recipe-files.md), TOML: the table `recipe` names the card's `tag` and the `backend` that the settings are
of, its table `set` has keys and values as `--set` takes them, and the table `about` whatever its writer notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from madlite.errors import UsageProblem, one_hint
from madlite.files import read_text, wrong_key
from madlite.model import Card, Json, Request, Scalar, Value
from madlite.plan.plan_file import write_toml
from madlite.text import scalar_text

_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that TOML needs no quotes for
_SHAPE = 'write it like [recipe] tag = "NAME", backend = "NAME", and below [recipe.set] key = value'


class RecipeFile(Value, frozen=True):
    """The settings of a file, by their keys as `--set` takes them, and what they are for."""

    path: Path
    tag: str
    backend: str
    values: dict[str, Scalar]

    @property
    def origin(self) -> str:
        """The source of its values, as plans name it; what begins with `recipe` is a backend's own recipe."""
        return f"--recipe-file {self.path}"

    @property
    def named(self) -> tuple[tuple[str, str, str], ...]:
        """Origin, key and value of each, as `Options.named` has them."""
        return tuple((self.origin, key, scalar_text(value)) for key, value in self.values.items())


class _Recipe(msgspec.Struct, forbid_unknown_fields=True):
    tag: Annotated[str, msgspec.Meta(min_length=1)]
    backend: Annotated[str, msgspec.Meta(min_length=1)]
    set: dict[str, Json]


_WRITTEN = "madlite tune TAG writes one: ls madlite_runs/study-*/recipe.toml"


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    recipe: _Recipe
    about: dict[str, Json] = {}


def read_recipe_file(path: Path) -> RecipeFile:
    """Return the settings of a recipe file, which the user has named: it may be a pipe.

    Raises:
        UsageProblem: it cannot be read or has another format.
    """
    where = f"recipe file {path}"
    try:
        text = read_text(path, where, given=True)
    except UsageProblem as problem:
        raise UsageProblem(problem.message, one_hint(problem.hint, _WRITTEN)) from None
    try:
        recipe = msgspec.toml.decode(text, type=_Content).recipe
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {wrong_key(error)[1]}", _SHAPE) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageProblem(f"{where} is not TOML: {str(error) or type(error).__name__}", _SHAPE) from None
    return RecipeFile(path=path, tag=recipe.tag, backend=recipe.backend, values=dict(_flat(recipe.set, where)))


def _flat(values: Mapping[str, Json], where: str, before: str = "") -> Iterator[tuple[str, Scalar]]:
    """Yield keys and values; TOML reads `env.NAME = …` as a table `env`.

    Raises:
        UsageProblem: a value is none of a setting.
    """
    for key, value in values.items():
        if isinstance(value, dict) and not before:
            yield from _flat(value, where, f"{key}.")
        elif isinstance(value, (str, int, float, bool)):
            yield f"{before}{key}", value
        else:
            what = f"{where}: recipe.set.{before}{key} is {value!r}: a setting is text, a number, true or false"
            raise UsageProblem(what, _SHAPE)


def refuse_other_cards(recipe: RecipeFile, requests: Iterable[Request]) -> None:
    """Refuse a recipe file beside a card that it is not for.

    Raises:
        UsageProblem: there is such a card.
    """
    for request in requests:
        if not _is_for(recipe.tag, request.card, request.tag):
            raise UsageProblem(
                f"recipe file {recipe.path} is for tag '{recipe.tag}', and '{request.tag}' runs card "
                f"'{request.card.name}'",
                f"name tag {recipe.tag}, or another recipe file",
            )


def _is_for(tag: str, card: Card, requested: str) -> bool:
    return tag in (card.name, card.name.rpartition("/")[2], requested.partition(":")[0].strip(), *card.tags)


# Writing one.


def recipe_text(
    tag: str, backend: str, values: Mapping[str, Scalar], about: Mapping[str, Scalar] | None = None, comment: str = ""
) -> str:
    """Return a recipe file that `read_recipe_file` reads back; each line of `comment` stands above it after a `#`."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += ["[recipe]", _line("tag", tag), _line("backend", backend), "", "[recipe.set]"]
    lines += [_line(key, value) for key, value in values.items()]
    if about:
        lines += ["", "[about]", *(_line(key, value) for key, value in about.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Scalar) -> str:
    return f"{key if _BARE.fullmatch(key) else write_toml(key)} = {write_toml(value)}"
