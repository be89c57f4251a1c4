"""Tags → requests: the selected cards with their additions.

Grammar: `NAME_OR_TAG[:part[:part…]]`, madengine 2's rules (a name, a tag, `all`, `folder/name`, `folder/tag`,
`folder/all`), plus the bare name of a sub-folder's card, and the folder's name before that of a card elsewhere.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from madlite.catalog.cards import Catalog, FoundCard
from madlite.errors import CatalogError, UsageProblem, did_you_mean, one_hint
from madlite.model import Card, Request


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
    message = f"no model matches tag{'s' * (len(tags) > 1)} {named} ({_sources(catalog)}{_left_out(catalog)})"
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


def _left_out(catalog: Catalog) -> str:
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
