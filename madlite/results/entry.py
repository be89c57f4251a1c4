"""A result's rows → the entries of the side files: typed, with the configuration and the results of a results file.

Keys, their order and their types are madengine 2's, observed; docs/perf-csv.md says them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from madlite.model import Json, Metric, Result, Row, RunPlan, Value
from madlite.results.header import STANDARD_COLUMNS
from madlite.results.lines import plain_cells
from madlite.results.matching import configs_of
from madlite.results.rows import said_something
from madlite.results.typed import as_cell, as_number, typed_rows

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
