"""models.json → cards: each field checked, each complaint with the place and the value.

Format: a JSON list of objects, as MAD's cards are written and madengine 1.0 and 2.1 read them, plus `backend`,
`recipe`, `image` and `runtimes`.  A field that is null counts as absent.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from madlite.errors import CatalogError, did_you_mean
from madlite.files import NotJson, decode_json, texts, wrong_key
from madlite.model import Card, Json, Problem, Scalar, Value

# madengine takes the first of these that a card has.
_GPU_COUNTS = ("gpus_per_node", "gpu_count", "n_gpus", "num_gpus", "ngpus")

_Names: TypeAlias = str | list[str]
# A million GPUs, ten years: more is a slip of the pen that arithmetic would trip over later.
_Count: TypeAlias = (
    Annotated[str, Meta(pattern=r"^\s*(-1|0{0,9}([0-9]{1,6}|1000000))\s*\Z")]
    | Annotated[int, Meta(ge=-1, le=1_000_000)]
)
_LONGEST_S = 10 * 365 * 24 * 3600


class _Entry(msgspec.Struct):
    """A card as it is written, with the fields that madlite reads."""

    name: Annotated[str, Meta(pattern=r"\S")]
    dockerfile: str = ""
    dockercontext: str = ""
    scripts: str = ""
    args: str = ""
    gpus_per_node: _Count | UnsetType = UNSET
    gpu_count: _Count | UnsetType = UNSET
    n_gpus: _Count | UnsetType = UNSET
    num_gpus: _Count | UnsetType = UNSET
    ngpus: _Count | UnsetType = UNSET
    tags: _Names = ""
    timeout: Annotated[int, Meta(ge=-1, le=_LONGEST_S)] = -1
    multiple_results: str = ""
    data: _Names = ""
    cred: str = ""
    url: str = ""
    owner: str = ""
    training_precision: str = ""
    skip_gpu_arch: _Names = ""
    additional_docker_run_options: str = ""
    is_deprecated: bool = False
    backend: str = ""
    recipe: str | dict[str, Scalar] = ""
    image: str = ""
    runtimes: _Names = ""


# fields that a Card has as they are written
_UNCHANGED = (
    *("dockercontext", "args", "multiple_results", "cred", "url", "owner", "training_precision"),
    *("additional_docker_run_options", "is_deprecated", "backend", "recipe", "image"),
)
_LIST = "a list of texts, or one text with commas"
_COUNT = 'text such as "8" or "-1", at most "1000000"'
_EXPECTED = {
    "name": "text that can be printed and is not empty",
    **dict.fromkeys(_GPU_COUNTS, _COUNT),
    **dict.fromkeys(("tags", "data", "skip_gpu_arch", "runtimes"), _LIST),
    "timeout": f"a whole number of seconds up to {_LONGEST_S}, 0 for none, -1 for the default",
    "is_deprecated": "true or false",
    "recipe": "a recipe's name, or an object of texts, numbers and truth values",
}


def read_cards(text: bytes, where: str, root: Path, scope: str = "") -> tuple[Card, ...]:
    """Return the cards of a models.json, in its order.

    `where` names the file in messages and in the cards; paths in the cards are relative to `root`.  `scope` is the
    sub-folder of `root/scripts` that the file lies in, if it lies there: names then begin with it, and dockerfile
    and scripts, written relative to that folder, become relative to `root`.

    Raises:
        CatalogError: the file is not JSON, or an entry is no card; the message holds the place and the value.
    """
    entries = _decode(text, where)
    if not isinstance(entries, list):
        raise CatalogError(f"{where}: it must be a list of cards, found {_json_excerpt(entries)}")
    cards = tuple(make_card(entry, where, f"entry {n}", root, scope) for n, entry in enumerate(entries, 1))
    refuse_duplicates(cards, where)
    return cards


def make_card(entry: Json, where: str, at: str, root: Path, scope: str = "") -> Card:
    """Return one entry as a card; messages call it `at` of `where`, with its name; the rest as in `read_cards`.

    Raises:
        CatalogError: the entry is no card.
    """
    if not isinstance(entry, dict):
        raise CatalogError(f"{where}: {at} must be an object, found {_json_excerpt(entry)}")
    named = isinstance(name := entry.get("name"), str) and name.isprintable() and name.strip()
    where_at = f"{where}: card '{name}' ({at})" if named else f"{where}: {at}"
    for place, text in texts(entry, ""):
        if "\0" in text:  # which no command, variable or path can contain
            found = _json_excerpt(text)
            raise CatalogError(f"{where_at}: {place.lstrip('. ')} must be text without a NUL character, found {found}")
    written = _checked({field: value for field, value in entry.items() if value is not None}, where_at)
    folder, _, bare = written.name.partition("/")
    counts = (getattr(written, field) for field in _GPU_COUNTS)
    return Card(
        name=f"{scope}/{written.name}" if scope else written.name,
        root=root,
        source=where,
        scope=scope or (folder if bare else ""),
        dockerfile=_from_root(written.dockerfile, scope),
        scripts=_from_root(written.scripts, scope),
        n_gpus=next((str(count).strip() for count in counts if count is not UNSET), "1"),
        tags=_split(written.tags),
        timeout_s=None if written.timeout == -1 else written.timeout,
        data=_split(written.data),
        skip_gpu_arch=_split(written.skip_gpu_arch),
        runtimes=_split(written.runtimes),
        extra={field: value for field, value in entry.items() if field not in KNOWN_FIELDS},
        **{field: getattr(written, field) for field in _UNCHANGED},
    )


def refuse_duplicates(cards: tuple[Card, ...], where: str) -> None:
    """Refuse two cards of the same name in one file.

    Raises:
        CatalogError: two have; it names the places of both.
    """
    first: dict[str, int] = {}
    for n, card in enumerate(cards, 1):
        if first.setdefault(card.name, n) != n:
            raise CatalogError(f"{where}: entries {first[card.name]} and {n} have one name, {card.name!r}")


def to_plain(entry: Mapping[str, Json]) -> dict[str, Json]:
    """Return a card made by Python code as plain JSON: paths as text, tuples as lists.

    Raises:
        TypeError: a value is of a type that JSON has nothing for.
    """
    plain: dict[str, Json] = msgspec.to_builtins(dict(entry), enc_hook=os.fspath, str_keys=True)
    return plain


KNOWN_FIELDS = frozenset(_Entry.__struct_fields__)
"""The fields that madlite reads."""


def _decode(text: bytes, where: str) -> Json:
    try:
        return decode_json(text)
    except NotJson as error:
        raise CatalogError(f"{where}: {error}") from None


def _checked(entry: dict[str, Json], where_at: str) -> _Entry:
    if "name" not in entry:
        raise CatalogError(f"{where_at} has no name; it has {', '.join(map(str, entry)) or 'no field at all'}")
    try:
        written = msgspec.convert(entry, _Entry)
        if written.name.isprintable():
            return written
        field = "name"
    except msgspec.ValidationError as error:
        field = re.split(r"[.\[]", wrong_key(error)[0])[0]
    expected = _EXPECTED.get(field, "text")
    raise CatalogError(f"{where_at}: {field} must be {expected}, found {_json_excerpt(entry[field])}")


def _json_excerpt(value: Json) -> str:
    import json  # msgspec refuses half a surrogate pair, which is what may be wrong

    try:
        shown = json.dumps(value, default=repr)
    except ValueError:  # more digits than Python writes
        shown = f"a {type(value).__name__} too long to be shown"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _split(names: _Names) -> tuple[str, ...]:
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(part.strip() for part in parts if part.strip())


def _from_root(path: str, scope: str) -> str:
    return posixpath.normpath(posixpath.join("scripts", scope, path)) if scope and path else path


# Unknown fields of cards are reported: a misspelt one would else be ignored silently.

# fields of madengine, MAD's tools and users that madlite reads in other modules or ignores
_FOREIGN_FIELDS = frozenset(
    {
        *("distributed", "slurm", "k8s", "kubernetes", "env_vars", "vllm", "nnodes", "launcher", "deploy"),
        *("deployment_config", "shared_data", "primus", "description", "comment", "_comment", "_source"),
        *("log_error_pattern_scan", "log_error_patterns", "log_error_benign_patterns"),
    }
)


def odd_fields(cards: Iterable[Card]) -> list[str]:
    """Return a sentence for each unknown field, with the cards that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for card in cards:
        for field in card.extra:
            if field not in _FOREIGN_FIELDS and not field.startswith("_"):
                names = found.setdefault((card.source, field), [])
                names += [card.name] if card.name not in names else []
    return [_sentence(source, field, names) for (source, field), names in found.items()]


def _sentence(source: str, field: str, names: list[str]) -> str:
    whose = f"card '{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    close = did_you_mean(field, (*KNOWN_FIELDS, *_FOREIGN_FIELDS), most=1)
    return f"{source}: field '{field}' of {whose} has no effect" + (f": {close}" if close else "")


# Cards as they were found, and all of them together.


class FoundCard(Value, frozen=True):
    """A card and, where it was computed by a program, what completes it once it is selected."""

    card: Card
    finish: Callable[[], Card] | None = None

    def complete(self) -> Card:
        """Return the card as it is to be run; its program runs at most once.

        Raises:
            CatalogError: the program failed.
        """
        return self.finish() if self.finish else self.card


class Catalog(Value, frozen=True):
    """Every card there is, by layer; a card that a nearer one of the same name hides is in none of them."""

    checkout: tuple[FoundCard, ...] = ()  # of the working folder
    installed: tuple[FoundCard, ...] = ()  # of plugins, then those that come with madlite
    problems: tuple[Problem, ...] = ()  # files and cards that were left out

    @property
    def cards(self) -> tuple[Card, ...]:
        """All cards, nearest layer first; a computed one is not completed yet."""
        return tuple(found.card for found in (*self.checkout, *self.installed))
