"""How much of its tests a tier runs, and in which order; CONTRIBUTING.md says what the tiers are.

`make test` runs what has no marker `full`, with a quarter of the examples; MADLITE_TEST_TIER=all is `make test-all`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

ALL = os.environ.get("MADLITE_TEST_TIER") == "all"
_USUAL_LIMIT_S = 300.0


def examples(of_all: int) -> int:
    """Return how many examples Hypothesis makes, of so many that `make test-all` wants."""
    return of_all if ALL else max(min(of_all, 5), of_all // 4)


def first_of(values: Iterable[Any], count: int) -> list[Any]:
    """Return values to parametrize a test with, of which `make test` takes the first ones alone."""
    return [value if at < count else pytest.param(value, marks=pytest.mark.full) for at, value in enumerate(values)]


def order(items: list[pytest.Item]) -> None:
    """Put tests that may take long before others, so that no worker ends late, and keep those together that share much.

    Who shares a fixture that a file makes once for several of its tests runs in one process (with --dist loadgroup).
    """
    for item in items:
        if not item.get_closest_marker("xdist_group") and _shares_what_its_file_makes(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=_limit_s, reverse=True)


def _shares_what_its_file_makes(item: pytest.Item) -> bool:
    made = getattr(item, "_fixtureinfo", None)
    file = item.nodeid.partition("::")[0]
    every = [one for found in made.name2fixturedefs.values() for one in found] if made else []
    return any(one.scope != "function" and one.baseid.partition("::")[0] == file for one in every)


def _limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else _USUAL_LIMIT_S
