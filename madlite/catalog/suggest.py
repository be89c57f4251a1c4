"""What the user may have meant by a tag that matches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from madlite.catalog.found import Catalog
from madlite.errors import CatalogError, one_hint
from madlite.nearest import did_you_mean

_MOST = 3


def unknown_tags(catalog: Catalog, tags: Sequence[str]) -> CatalogError:
    """Return the error for tags that match nothing: all of them, where was looked, and what comes close."""
    named = ", ".join(repr(tag) for tag in tags)
    message = f"no model matches tag{'s' * (len(tags) > 1)} {named} ({_sources(catalog)}{_left_out(catalog)})"
    hints = [_did_you_mean(catalog, tag, several=len(tags) > 1) for tag in tags]
    shared = next(filter(None, (_known_tag_in(catalog, tag) for tag in tags)), "")
    hints.append(f"madlite discover --tags {shared}" if shared else "madlite discover")
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


def _did_you_mean(catalog: Catalog, tag: str, *, several: bool) -> str:
    known = {text.lower(): text for card in catalog.cards for text in (*card.tags, card.name)}
    return did_you_mean(_head(tag), known.values(), most=_MOST, after=f" for {tag!r}" if several else "")


def _known_tag_in(catalog: Catalog, tag: str) -> str:
    """Return the longest tag of a card that what the user typed contains, to list its neighbours by."""
    inside = {known for card in catalog.cards for known in card.tags if known.lower() in _head(tag)}
    return max(sorted(inside), key=len, default="")


def _head(tag: str) -> str:
    return tag.partition(":")[0].strip().lower()
