"""Runs of a command against results that are there: `run --baseline`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from madlite.model import RunPlan, Status
from madlite.reports.compare import Report, Settings, compare
from madlite.reports.runs import open_run
from madlite.reports.series import Series, of_plan_row, pair
from madlite.reports.series_key import as_key
from madlite.reports.sides import RunHistory, Side, of_runs


def relative_change(side: Side, plan: RunPlan, cells: Mapping[str, str]) -> str:
    """Return the cell `relative_change` of a row: new ÷ median of the base - 1, in percent, as `-2.91`.

    "" where the base has no such series or several, or the row no number.
    """
    from statistics import median

    entry = of_plan_row(plan, cells)
    if entry.sample is None:
        return ""
    key = as_key(entry.dimensions)
    pairs, _, _ = pair([one for one in side.series if one.values], [Series(key=key, values=(entry.sample.value,))])
    middle = median(pairs[0].base.values) if len(pairs) == 1 else 0.0
    return f"{100 * (entry.sample.value - middle) / abs(middle):.2f}" if middle else ""


def compare_runs(side: Side, folders: Iterable[Path], settings: Settings) -> Report:
    """Return the comparison of a side with the runs that a command has just done."""
    runs = [open_run(folder) for folder in folders]
    new = of_runs("this command", (run for run in runs if run.state in [status.value for status in Status]), {})
    wanted = {(one.key[0], one.key[-1]) for one in new.series}
    base = [one for one in side.series if (one.key[0], one.key[-1]) in wanted]
    parent = runs[0].folder.parent if runs else Path()
    return compare(
        base,
        new.series,
        labels=(side.label, new.label),
        settings=settings,
        history=RunHistory(parent, {*side.runs, *new.runs}),
        notes=(*side.notes, *new.notes),
    )
