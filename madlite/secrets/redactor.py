"""Masks secrets: those that are known, however they are written, and what is one by its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path

import msgspec

from madlite.model import to_json
from madlite.secrets import shapes
from madlite.secrets.search import Reading, Search, searches
from madlite.secrets.spellings import SHORTEST, as_it_stands, encoded, errors_of, spellings

MASK = b"***"


class Redactor:
    """Masks secrets in text, and in a stream of bytes however it is cut; those that overlap share one mask.

    Without any known ones it masks what is a secret by its shape.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._searches = _searches(tuple(dict.fromkeys(secrets)))
        self._held = b""
        self._out = 0  # so many bytes of what is held have been returned: they are kept for what comes after them
        self._covered = 0  # so many of them belong to a mask that is out

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be written now; the end is held while it may be the start of a secret, or of a longer one.

        Where too little stands there to be worth waiting for it is only remembered, and of a secret that goes on after
        it the rest is masked.
        """
        data = self._held + chunk
        kept, held = shapes.begun(data)
        for search in self._searches:
            begun = search.begun(data)
            kept, held = min(kept, begun.kept), min(held, begun.held)
        return self._pass(data, max(self._out, held), kept)

    def flush(self) -> bytes:
        """Return what was held; call it when the stream ends."""
        data = self._pass(self._held, len(self._held), len(self._held))
        self._covered = 0
        return data

    def text(self, text: str) -> str:
        """Return the text with every secret masked; never raises."""
        errors = errors_of(text)
        data = text.encode("utf-8", errors)
        spans = self._spans(data)
        return _mask(data, spans, 0, 0, len(data))[0].decode("utf-8", errors) if spans else text

    def _spans(self, data: bytes) -> list[shapes.Span]:
        found = shapes.spans(data)
        if self._searches:
            reading = Reading(data)
            for search in self._searches:
                found += search.spans(reading)
        return sorted(found)

    def _pass(self, data: bytes, cut: int, kept: int) -> bytes:
        """Return the data up to `cut`, masked, as far as it is not out; keep it from `kept` on."""
        out, end = _mask(data, self._spans(data), self._covered, self._out, cut)
        kept = min(kept, cut)
        self._held, self._out, self._covered = data[kept:], cut - kept, max(0, end - kept)
        return out


def masked_json(value: object, secrets: Iterable[str]) -> str:
    """Return a value as `to_json` does, secrets masked; text by text, for a masked number would be no JSON."""
    return to_json(_masked(value, Redactor(secrets).text))


@lru_cache(maxsize=8)
def _searches(secrets: tuple[str, ...]) -> tuple[Search, ...]:
    long = [secret for secret in secrets if len(secret) >= SHORTEST]
    plain = {encoded(text) for secret in long for text in as_it_stands(secret)}
    return searches({one for secret in long for one in spellings(secret)}, plain)


def _mask(data: bytes, spans: Iterable[shapes.Span], at: int, out: int, cut: int) -> tuple[bytes, int]:
    """Return data[out:cut] with the spans, given in order, masked, and where the last mask ends.

    Up to `at` the data belongs to a mask that is out.
    """
    parts: list[bytes] = []
    done = max(at, out)
    for start, end in spans:
        if start >= cut:
            break
        if end > done:
            parts += [data[done:start], MASK] if start >= at else []
            done = end
        at = max(at, end)
    parts.append(data[done:cut])
    return b"".join(parts), at


def texts_of(value: object) -> Iterator[str]:
    """Yield all texts of a value but those that are wrapped as secrets, names of a table too."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from texts_of(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in (*value, *value.values()):
            yield from texts_of(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, (str, Path)):
        yield str(value)


def _masked(value: object, mask: Callable[[str], str]) -> object:
    """Return a value's parts with their texts masked; names of fields stay."""
    if isinstance(value, msgspec.Struct):
        return {name: _masked(getattr(value, name), mask) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {_masked(key, mask): _masked(item, mask) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_masked(item, mask) for item in value]
    if isinstance(value, Enum):
        return value.value
    return mask(str(value)) if isinstance(value, (str, Path)) else value
