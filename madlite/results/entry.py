"""A result's rows → the entries of the side files: typed, with the configuration and the results of a results file.

Keys, their order and their types are madengine 2's, observed; docs/perf-csv.md says them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from madlite.model import Json, Metric, Result, Row, RunPlan, Value
from madlite.results.header import STANDARD_COLUMNS, as_cell, as_number, on_one_line, plain_cells, typed_rows
from madlite.results.rows import said_something

# Which row of a configuration file a result belongs to.
#
# A row agrees with a result where every column that both have, and neither leaves blank, agrees: `model` and the
# result's label where one has the other's words in a row (`meta/llama-8b` and `llama_8b_serving`), other columns where
# text or number is the same.  The row that agrees best is taken: the same model before one that is a part of it, the
# longer part, then more columns.  Where no row agrees, or several agree alike, there is none: a wrong configuration is
# worse than none.

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


_SECONDS = ("build_duration", "test_duration", "data_download_duration")
_JUDGED = ("model", "performance", "metric", "status")  # what a result says of itself; the rest is common to all
_Cells = Mapping[str, str]
_Object = dict[str, Json]


class Entries(Value, frozen=True):
    """One run's part of the side files, an object per result.

    `entry` is perf_entry.json and `table` perf_entry.csv; `superset` goes into perf_super, which takes only runs whose
    script was started (`ran`); `common` is common_info.json, None for a run without several results.
    """

    entry: tuple[_Object, ...]
    table: tuple[dict[str, str], ...]
    superset: tuple[_Object, ...]
    common: _Object | None
    ran: bool


def build_entries(plan: RunPlan, result: Result, rows: Sequence[Row], bare: Row, configs: Json = None) -> Entries:
    """Return the entries of a result from its rows of perf.csv, which have every column.

    `bare` is the row of the same result without its metrics: what all of them have in common.
    """
    cells = [plain_cells(row) for row in rows]
    if plan.result_rule.kind == "performance_line" or not result.metrics or not said_something(result):
        return _single(plan, result, cells[0], configs)
    return _several(result, cells, _typed(plain_cells(bare)), configs)


def _single(plan: RunPlan, result: Result, cells: dict[str, str], configs: Json) -> Entries:
    """A row by itself: a number is the text of the log; one that was looked for in vain is null."""
    ran = "run" in result.durations_s
    base = _typed(cells)
    if ran and said_something(result):
        base["performance"] = base["performance"] or None
        if plan.result_rule.kind == "performance_line":
            base["metric"] = base["metric"] or None
    (more,) = typed_rows([{name: text for name, text in cells.items() if name not in STANDARD_COLUMNS}])
    return Entries(
        entry=(base | {"configs": configs} | more,),
        table=(cells,),
        superset=(base | {"configs": configs, "multi_results": more or None},),
        common=None,
        ran=ran,
    )


def _several(result: Result, cells: Sequence[dict[str, str]], base: _Object, configs: Json) -> Entries:
    """Results of a results file: all it says is typed column by column, as any reader of a table would."""
    names = [_names(metric) for metric in result.metrics]
    said = typed_rows([{name: row[name] for name in (*own, *_JUDGED)} for own, row in zip(names, cells, strict=True)])
    for typed, row in zip(said, cells, strict=True):
        typed |= {"model": row["model"], "metric": row["metric"] or None}  # names, whatever they look like
    chosen = configs_of(configs, result.metrics)
    common = {name: value for name, value in base.items() if name not in _JUDGED}
    entry = tuple(
        {name: typed.get(name, base[name]) for name in STANDARD_COLUMNS} | {"configs": config} | _beyond(typed)
        for typed, config in zip(said, chosen, strict=True)
    )
    return Entries(
        entry=entry,
        table=tuple(
            {name: row.get(name, as_cell(one[name])) for name in one} for one, row in zip(entry, cells, strict=True)
        ),
        superset=tuple(_super(common, *one) for one in zip(said, names, cells, chosen, strict=True)),
        common=common | {"configs": configs},
        ran=True,
    )


def _super(common: _Object, said: _Object, names: Sequence[str], cells: _Cells, config: Json) -> _Object:
    """Return the entry of one of several results: what the file says stays apart from what the run says."""
    told = {name: said[name] for name in names if name != "test_duration"}
    return (
        common
        | {"test_duration": cells["test_duration"] if "test_duration" in names else "", "configs": config}
        | {name: said[name] for name in ("model", "performance", "metric")}
        | {"multi_results": told or None, "status": cells["status"]}
    )


def _names(metric: Metric) -> list[str]:
    names = plain_cells(Row(cells=dict(metric.columns)))
    return [name for name in names if name not in _JUDGED]


def _beyond(typed: _Object) -> _Object:
    return {name: value for name, value in typed.items() if name not in STANDARD_COLUMNS}


def _typed(cells: _Cells) -> _Object:
    """Return the standard columns: text, but durations are numbers where there is one."""
    base: _Object = {name: cells[name] for name in STANDARD_COLUMNS}
    return base | {name: as_number(cells[name]) or cells[name] for name in _SECONDS}
