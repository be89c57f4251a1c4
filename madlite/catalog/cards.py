"""models.json → cards, each field checked, each complaint with the place and the value; tags → the selected cards.

Format: a JSON list of objects, as MAD's cards are written and madengine 1.0 and 2.1 read them, plus `backend`,
`recipe`, `image` and `runtimes`.  A field that is null counts as absent.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from madlite.errors import CatalogError, UsageProblem, did_you_mean, one_hint
from madlite.files import NotJson, decode_json, texts, wrong_key
from madlite.model import Card, Json, Problem, Request, Value

# madengine takes the first of these that a card has.
_GPU_COUNTS = ("gpus_per_node", "gpu_count", "n_gpus", "num_gpus", "ngpus")

_LISTS = ("tags", "data", "skip_gpu_arch", "runtimes")
KNOWN_FIELDS = frozenset(
    {*_GPU_COUNTS, "timeout", *Card.__struct_fields__} - {"root", "source", "scope", "timeout_s", "extra"}
)
"""The fields that madlite reads."""
# A million GPUs, ten years: more is a slip of the pen that arithmetic would trip over later.
_COUNT_TEXT = re.compile(r"\s*(-1|0{0,9}([0-9]{1,6}|1000000))\s*", re.ASCII)
_LONGEST_S = 10 * 365 * 24 * 3600
_LIST = "a list of texts, or one text with commas"
_COUNT = 'text such as "8" or "-1", at most "1000000"'
_EXPECTED = {
    "name": "text that can be printed and is not empty",
    **dict.fromkeys(_GPU_COUNTS, _COUNT),
    **dict.fromkeys(_LISTS, _LIST),
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
    written = {field: value for field, value in entry.items() if value is not None}
    if "name" not in written:
        raise CatalogError(f"{where_at} has no name; it has {', '.join(map(str, written)) or 'no field at all'}")
    folder, _, bare = written["name"].partition("/") if named else ("", "", "")
    counts = [str(written[field]).strip() for field in _GPU_COUNTS if field in written]
    fields = {
        **{field: _split(field, value) for field, value in written.items() if field in KNOWN_FIELDS},
        "root": root,
        "source": where,
        "scope": scope or (folder if bare else ""),
        "n_gpus": counts[0] if counts else "1",
        "timeout_s": None if written.get("timeout", -1) == -1 else written["timeout"],
        "extra": {field: value for field, value in entry.items() if field not in KNOWN_FIELDS},
    }
    wrong = next((field for field, value in written.items() if not _fits(field, value)), "")
    try:
        card = None if wrong else msgspec.convert(fields, Card)
    except msgspec.ValidationError as error:
        card, wrong = None, re.split(r"[.\[]", wrong_key(error)[0])[0]
    if card is None:
        expected = _EXPECTED.get(wrong, "text")
        raise CatalogError(f"{where_at}: {wrong} must be {expected}, found {_json_excerpt(entry[wrong])}")
    return msgspec.structs.replace(
        card,
        name=f"{scope}/{card.name}" if scope else card.name,
        dockerfile=_from_root(card.dockerfile, scope),
        scripts=_from_root(card.scripts, scope),
    )


def _fits(field: str, value: Json) -> bool:
    """Return whether a value is one of a field that a card has in another form, or with a limit."""
    if field == "name":
        return isinstance(value, str) and value.isprintable() and bool(value.strip())
    if field in _GPU_COUNTS:
        return type(value) in (str, int) and _COUNT_TEXT.fullmatch(str(value)) is not None
    return field != "timeout" or (type(value) is int and -1 <= value <= _LONGEST_S)


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


def _decode(text: bytes, where: str) -> Json:
    try:
        return decode_json(text)
    except NotJson as error:
        raise CatalogError(f"{where}: {error}") from None


def _json_excerpt(value: Json) -> str:
    import json  # msgspec refuses half a surrogate pair, which is what may be wrong

    try:
        shown = json.dumps(value, default=repr)
    except ValueError:  # more digits than Python writes
        shown = f"a {type(value).__name__} too long to be shown"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _split(field: str, value: Json) -> Json:
    """Return the parts of a list, which may be one text with commas."""
    if field not in _LISTS or not isinstance(value, (str, list)):
        return value
    parts = value.split(",") if isinstance(value, str) else value
    stripped = [part.strip() if isinstance(part, str) else part for part in parts]
    return [part for part in stripped if part != ""]


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


# Tags → requests: the selected cards with their additions.
#
# Grammar: `NAME_OR_TAG[:part[:part…]]`, madengine 2's rules (a name, a tag, `all`, `folder/name`, `folder/tag`,
# `folder/all`), plus the bare name of a sub-folder's card, and the folder's name before that of a card elsewhere.


def split_tags(values: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of `--tags a b`, `--tags a,b` and `--tags a --tags b` as one list.

    A comma always separates, also after a colon, as in madengine 2.
    """
    return tuple(tag.strip() for value in values for tag in value.split(",") if tag.strip())


def select(catalog: Catalog, tags: Sequence[str]) -> tuple[Request, ...]:
    """Return one request per tag and card that it matches: tags as given, cards in the catalogue's order.

    The installed layer is searched only for tags that nothing in the checkout matches, so that `all` in a checkout
    is the checkout's cards.  A card that two tags match is there twice.

    Raises:
        UsageProblem: there is no tag.
        CatalogError: a tag matches nothing (it names all such tags), or a computed card cannot be completed.
    """
    if not tags:
        raise UsageProblem("no model is named", "add --tags NAME; madlite discover lists the names")
    if unknown := unmatched(catalog, tags):
        raise unknown_tags(catalog, unknown)
    return tuple(_request(found, tag) for tag in tags for found in _matches(catalog, _parts(tag)[0]))


def without_repeats(requests: Sequence[Request]) -> tuple[tuple[Request, ...], tuple[str, ...]]:
    """Return the requests without repeated cards, and a sentence for each repeated one.

    With additions (`card:a=1`) a card is named on purpose, and runs as often as that, as by madengine.
    """
    groups: dict[tuple[object, ...], list[Request]] = {}
    for at, request in enumerate(requests):
        key = (request.card.name, request.card.root, at if request.overrides else ())
        groups.setdefault(key, []).append(request)
    repeated = (group for group in groups.values() if len(group) > 1)
    return tuple(group[0] for group in groups.values()), tuple(map(_repeat_note, repeated))


def _repeat_note(group: Sequence[Request]) -> str:
    tags = ", ".join(dict.fromkeys(request.tag for request in group))
    return f"{group[0].card.name} is selected {len(group)} times (--tags {tags}), and runs once"


def tag_names(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags without their additions."""
    return tuple(dict.fromkeys(_parts(tag)[0] for tag in tags))


def tag_additions(tag: str) -> tuple[str, ...]:
    """Return the names of what a tag adds: `n_gpus` of `card:n_gpus=8`."""
    return tuple(_override(part)[0] for part in _parts(tag)[1:])


def unmatched(catalog: Catalog, tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags that no card matches, each once; no computed card is completed."""
    return tuple(tag for tag in dict.fromkeys(tags) if not _matches(catalog, _parts(tag)[0]))


def args_of(request: Request) -> str:
    """Return the card's args with the tag's additions: each ` --name value` or ` --flag`, every `=` a blank."""
    values = ((name, "" if value is None else f" {value.replace('=', ' ')}") for name, value in request.overrides)
    return request.card.args + "".join(f" --{name}{value}" for name, value in values)


def _request(found: FoundCard, tag: str) -> Request:
    return Request(card=found.complete(), tag=tag, overrides=tuple(map(_override, _parts(tag)[1:])))


def _override(part: str) -> tuple[str, str | None]:
    name, equals, value = part.partition("=")
    return name.strip().lstrip("-"), value.strip() if equals else None  # `:--x=1` means `:x=1`


def _parts(tag: str) -> list[str]:
    return [part.strip() for part in tag.split(":") if part.strip()] or [""]


def _matches(catalog: Catalog, wanted: str) -> tuple[FoundCard, ...]:
    checkout = tuple(_candidates(catalog.checkout, wanted))
    for layer, rules in ((checkout, _RULES), (catalog.installed, (*_RULES, _by_folder))):
        for rule in rules:
            if found := tuple(each for each in layer if rule(each.card, wanted)):
                return found
    return ()


def _candidates(checkout: Sequence[FoundCard], wanted: str) -> Iterator[FoundCard]:
    """Yield the checkout's candidates for a tag: those whose program runs for it, whatever other programs ran.

    A card that is written down and has this very name needs no program, and `folder/name` that folder's alone.
    """
    written = any(found.finish is None and found.card.name == wanted for found in checkout)
    folder, slash, _ = wanted.partition("/")
    alone = bool(slash) and any(found.finish and found.card.scope == folder for found in checkout)
    for found in checkout:
        if found.finish is None or not (written or (alone and found.card.scope != folder)):
            yield found


def _by_name_or_tag(card: Card, wanted: str) -> bool:
    if wanted in ("all", card.name) or wanted in card.tags:
        return True
    folder, _, rest = wanted.partition("/")
    return bool(card.scope) and folder == card.scope and (rest == "all" or rest in card.tags)


def _by_bare_name(card: Card, wanted: str) -> bool:
    return bool(card.scope) and card.name == f"{card.scope}/{wanted}"


def _by_folder(card: Card, wanted: str) -> bool:
    """Return whether a tag names an installed card by the folder of its script, as MAD's newer cards are named."""
    folder, _, rest = wanted.partition("/")
    return card.scripts.startswith(f"scripts/{folder}/") and (rest in (card.name, "all") or rest in card.tags)


# The later ones are only for what no earlier one finds, so that madengine's selections stay what they are.
_RULES: tuple[Callable[[Card, str], bool], ...] = (_by_name_or_tag, _by_bare_name)


# Suggestions for a tag that matches nothing.

_MOST = 3


def unknown_tags(catalog: Catalog, tags: Sequence[str]) -> CatalogError:
    """Return the error for tags that match nothing: the tags, the searched sources, and near matches."""
    named = ", ".join(repr(tag) for tag in tags)
    message = f"no model matches tag{'s' * (len(tags) > 1)} {named} ({_sources(catalog)}{_left_out_text(catalog)})"
    after = [f" for {tag!r}" if len(tags) > 1 else "" for tag in tags]
    hints = [
        did_you_mean(_head(tag), _words(catalog), most=_MOST, after=end) for tag, end in zip(tags, after, strict=True)
    ]
    hints.append(next(filter(None, (_listing(catalog, tag) for tag in tags)), "madlite discover"))
    if any("/" in tag for tag in tags):
        hints.append("cards of a framework's tree need --cards-from DIR")
    return CatalogError(message, one_hint(*hints))


def _sources(catalog: Catalog) -> str:
    counts = Counter(card.source for card in catalog.cards)
    (first, number), *others = counts.items()
    return ", ".join([f"{number} card{'s' * (number > 1)} in {first}", *(f"{n} in {source}" for source, n in others)])


def _left_out_text(catalog: Catalog) -> str:
    places = list(dict.fromkeys(problem.where for problem in catalog.problems))
    more = f" and {len(places) - _MOST} more" if len(places) > _MOST else ""
    return "".join(f"; left out: {place}" for place in places[:_MOST]) + more


def _words(catalog: Catalog) -> Collection[str]:
    return {text.lower(): text for card in catalog.cards for text in (*card.tags, card.name)}.values()


def _listing(catalog: Catalog, tag: str) -> str:
    """Return the command that lists what comes close: by the longest tag of a card that the user's word has."""
    words = {name for card in catalog.cards for name in card.tags if name and name.lower() in _head(tag)}
    if not words:
        return ""
    word = max(sorted(words), key=len)
    here = [found.card for found in catalog.checkout]
    every = " --all" if here and not any(word in name for card in here for name in (card.name, *card.tags)) else ""
    return f"madlite discover{every} | grep {shlex.quote(word)}"


def _head(tag: str) -> str:
    return tag.partition(":")[0].strip().lower()
