"""Which row of a configuration file a result belongs to.

A row agrees with a result where every column that both have, and neither leaves blank, agrees: `model` and the
result's label where one has the other's words in a row (`meta/llama-8b` and `llama_8b_serving`), other columns where
text or number is the same.  The row that agrees best is taken: the same model before one that is a part of it, the
longer part, then more columns.  Where no row agrees, or several agree alike, there is none: a wrong configuration is
worse than none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from madlite.model import Json, Metric
from madlite.results.typed import as_cell, on_one_line

_NO_CONFIG = ("model", "performance", "metric", "status")
_WORD = re.compile(r"[a-z0-9]+")
_MOST_WORDS = 100  # of a name
_MOST_PAIRS = 1_000_000  # of a row with a result and each of its columns: some seconds
_MOST_BYTES, _TOO_MUCH = 64 << 20, "more than 64 MiB"  # of the configurations of one run's results
_Rank: TypeAlias = tuple[bool, int, int]
_Words: TypeAlias = tuple[str, ...]
_log = logging.getLogger(__name__)


def configs_of(configs: Json, metrics: Sequence[Metric]) -> list[Json]:
    """Return for each result the one row that it was made with; what is no list of rows belongs to every result.

    None, with a warning, where all of them together would be far larger than the results are.
    """
    chosen = _chosen(configs, metrics)
    known = {id(one): one for one in chosen}  # all alive at once, so that no two have one id
    sizes = {name: len(on_one_line(one)) for name, one in known.items()}
    if len(chosen) > 1 and sum(sizes[id(one)] for one in chosen) > _MOST_BYTES:
        _log.warning("entries have no configs: with %d results they would come to %s", len(chosen), _TOO_MUCH)
        return [None for _ in metrics]
    return chosen


def _chosen(configs: Json, metrics: Sequence[Metric]) -> list[Json]:
    if not isinstance(configs, list) or not all(isinstance(row, dict) for row in configs):
        return [configs for _ in metrics]
    if len(configs) == 1:
        return [configs[0] for _ in metrics]
    if len(configs) * sum(1 + len(metric.columns) for metric in metrics) > _MOST_PAIRS:
        _log.warning("entries have no configs: %d rows are too many for %d results", len(configs), len(metrics))
        return [None for _ in metrics]
    named = [(_words(as_cell(row.get("model"))), row) for row in configs]
    return [_config_of(named, metric) for metric in metrics]


def _config_of(configs: Sequence[tuple[_Words, dict[str, Json]]], metric: Metric) -> Json:
    found = _words(metric.label)
    ranked = [(rank, row) for wanted, row in configs if (rank := _rank(wanted, found, row, metric)) is not None]
    best = max((rank for rank, _ in ranked), default=None)
    winners = [row for rank, row in ranked if rank == best]
    return winners[0] if len(winners) == 1 else None


def _rank(wanted: _Words, found: _Words, row: Mapping[str, Json], metric: Metric) -> _Rank | None:
    """Return how well a row agrees; None where it does not, or says nothing about the result."""
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


def _words(text: str) -> _Words:
    return tuple(found[0] for found in islice(_WORD.finditer(text.lower()), _MOST_WORDS))


def _shared_words(one: _Words, other: _Words) -> int:
    """Return how many words they share where the shorter is a stretch of the longer, else 0."""
    part, whole = sorted((one, other), key=len)
    starts = range(len(whole) - len(part) + 1)
    return len(part) if any(whole[at : at + len(part)] == part for at in starts) else 0


def _same(one: str, other: str) -> bool:
    try:
        return one.lower() == other.lower() or float(one) == float(other)
    except ValueError:
        return False
