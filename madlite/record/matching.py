"""Which row of a configuration file a result belongs to.

A row agrees with a result where every column that both have, and neither leaves blank, agrees: `model` and the
result's label where one has the other's words in a row (`meta/llama-8b` and `llama_8b_serving`), other columns where
text or number is the same.  The row that agrees best is taken: the same model before one that is a part of it, the
longer part, then more columns.  Where no row agrees, or several agree alike, there is none: a wrong configuration is
worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from madlite.record.typed import as_cell
from madlite.types import Json, Metric

_NO_CONFIG = ("model", "performance", "metric", "status")
_WORD = re.compile(r"[a-z0-9]+")
_Rank: TypeAlias = tuple[bool, int, int]


def config_of(configs: Json, metric: Metric) -> Json:
    """Return the one row that a result was made with; what is no list of rows belongs to every result."""
    if not isinstance(configs, list) or not all(isinstance(row, dict) for row in configs):
        return configs
    if len(configs) == 1:
        return configs[0]
    ranked = [(rank, row) for row in configs if (rank := _rank(row, metric)) is not None]
    best = max((rank for rank, _ in ranked), default=None)
    winners = [row for rank, row in ranked if rank == best]
    return winners[0] if len(winners) == 1 else None


def _rank(row: Mapping[str, Json], metric: Metric) -> _Rank | None:
    """Return how well a row agrees; None where it does not, or says nothing about the result."""
    wanted, found = _words(as_cell(row.get("model"))), _words(metric.label)
    shared = _shared_words(wanted, found)
    if wanted and found and not shared:
        return None
    pairs = [(as_cell(row[name]).strip(), text.strip()) for name, text in metric.columns.items() if _told(row, name)]
    pairs = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if not all(_same(ours, theirs) for ours, theirs in pairs):
        return None
    return (wanted == found, shared, len(pairs)) if shared or pairs else None


def _told(row: Mapping[str, Json], name: str) -> bool:
    return name in row and name not in _NO_CONFIG


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _shared_words(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many words they share where the shorter is a stretch of the longer, else 0."""
    part, whole = sorted((one, other), key=len)
    starts = range(len(whole) - len(part) + 1)
    return len(part) if any(whole[at : at + len(part)] == part for at in starts) else 0


def _same(one: str, other: str) -> bool:
    try:
        return one.lower() == other.lower() or float(one) == float(other)
    except ValueError:
        return False
