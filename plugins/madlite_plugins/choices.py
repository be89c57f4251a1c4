"""Settings that are one of some words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from madlite import Finding, did_you_mean, one_hint


def unknown_choice(name: str, value: object, known: Iterable[str]) -> Iterator[Finding]:
    """Yield that a setting is none of the words it can be."""
    words = tuple(known)
    if value not in words:
        close = did_you_mean(str(value), filter(None, words), most=1)
        hint = one_hint(close, f"one of {', '.join(filter(None, words))}")
        yield Finding(message=f"{name} '{value}' is unknown", hint=hint, fatal=True, keys=(name,))
