"""The recipe book: where it is, and the order of its releases."""

from __future__ import annotations

from pathlib import Path

from madlite import read_book

BOOK = Path(__file__).with_name("recipes")


def release_before(release: str, other: str) -> bool:
    """Return whether an image release is older than another; one that is not known is not."""
    order = list(read_book(BOOK).releases)
    return release in order and order.index(release) < order.index(other)
