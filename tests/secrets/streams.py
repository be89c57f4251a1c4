"""A log as it passes a redactor."""

from __future__ import annotations

from collections.abc import Iterable

from madlite.secrets import Redactor


def streamed(redactor: Redactor, pieces: Iterable[bytes]) -> bytes:
    """Return all that comes out for what is fed in piece by piece."""
    return b"".join([*map(redactor.feed, pieces), redactor.flush()])
