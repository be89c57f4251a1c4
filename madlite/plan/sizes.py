"""Sizes as people type them, `500M` or `2G`, and as they are shown."""

from __future__ import annotations

import re

_UNITS = "KMGT"
_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?:(?P<unit>[KMGT])(?:i?B)?)?", re.IGNORECASE)
LEAST_BYTES = 16 << 10  # of a limit: less has no room for a beginning and an end
_MOST_BYTES = 1 << 60  # more is a slip, and more than programs count in


class Size(int):
    """A limit in bytes; 0 is none."""


def as_size(text: str) -> Size:
    """Return what `500M`, `1.5 GiB` and `65536` say, each unit 1024 of the one before.

    Raises:
        ValueError: it is no size, or too small a limit.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    power = 1 + _UNITS.index(found["unit"].upper()) if found["unit"] else 0
    whole, _, part = found["number"].partition(".")
    number, parts = int(whole + part), 10 ** len(part)
    count = number * 1024**power // parts
    if number and not LEAST_BYTES <= count <= _MOST_BYTES:
        raise ValueError(text)
    return Size(count)


def size_words(count: int) -> str:
    """Return a size as `as_size` reads it, in the largest unit of which it is a whole number; "none" for no limit."""
    if not count:
        return "none"
    power = max(n for n in range(len(_UNITS) + 1) if count % 1024**n == 0)
    return f"{count // 1024**power}{' KMGT'[power].strip()}"
