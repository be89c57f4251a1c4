"""Runs by what they belong to, and the statistics of each group: of its numbers, from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from madlite.measure.statistics import coefficient_of_variation
from madlite.model import Json, Status, Value
from madlite.reports.comparison_text import number_text
from madlite.reports.runs import StoredRun
from madlite.reports.series import Entry, Sample, Series, group
from madlite.reports.series_key import as_dimensions, as_key, record_dimensions, series_names


class RunGroup(Value, frozen=True):
    """Runs that have one batch, study, series or card.

    `series` has the number of each run that is over and can be trusted, as the list shows it; warm-ups have none.
    """

    by: str
    name: str
    runs: tuple[StoredRun, ...]
    series: tuple[Series, ...] = ()


def group_runs(runs: Iterable[StoredRun], by: str) -> list[RunGroup]:
    """Return runs by `study`, `batch`, `series` or `card`, in the order in which their groups first come."""
    runs = list(runs)
    keys = _series_keys(runs) if by == "series" else [(_KEYS[by](run),) for run in runs]
    found: dict[tuple[str, ...], list[StoredRun]] = {}
    for key, run in zip(keys, runs, strict=True):
        found.setdefault(key, []).append(run)
    names = series_names(list(map(as_dimensions, found))) if by == "series" else [name for (name,) in found]
    return [
        RunGroup(by=by, name=name, runs=tuple(own), series=_numbers(own))
        for name, own in zip(names, found.values(), strict=True)
    ]


_KEYS: dict[str, Callable[[StoredRun], str]] = {
    "study": lambda run: run.record.study.id if run.record.study is not None else "",
    "batch": lambda run: run.record.batch,
    "card": lambda run: run.record.card,
}
GROUPS = ("study", "batch", "series", "card")
"""What runs can be grouped by."""


def _series_keys(runs: Sequence[StoredRun]) -> list[tuple[str, ...]]:
    """Return the key of each run's series; one without a number is of the first that has its other dimensions."""
    keys = [as_key(_dimensions(run)) for run in runs]
    named: dict[tuple[str, ...], tuple[str, ...]] = {}
    for key in keys:
        if key[-1]:
            named.setdefault(key[:-1], key)
    return [named.get(key[:-1], key) if not key[-1] else key for key in keys]


def _dimensions(run: StoredRun) -> dict[str, str]:
    metric = run.headline.metric if run.headline else ""
    return {**record_dimensions(run.record), "metric": metric}


def _numbers(runs: Iterable[StoredRun]) -> tuple[Series, ...]:
    """Return the numbers of runs that are over, series by series."""
    over = (run for run in runs if run.state == run.record.status.value and not run.doubt)
    return group(entry for run in over if (entry := _entry(run)) is not None)


def _entry(run: StoredRun) -> Entry | None:
    """Return a run's headline as a result, or that it has no number; None of one that is no result."""
    record, headline, dimensions = run.record, run.headline, _dimensions(run)
    if record.is_warm_up or record.is_short or record.is_replaced:
        return None
    if headline is not None and headline.value is not None:
        sample = Sample(value=headline.value, run=run.folder.name, suspect="; ".join(record.suspect))
        return Entry(dimensions=dimensions, status=run.state, sample=sample)
    return Entry(dimensions=dimensions, status=run.state) if run.state != Status.SUCCESS.value else None


# In words, and for programs.


def heading(one: RunGroup) -> Iterator[str]:
    """Yield the line of a group, with its statistics; of several series one line more for each."""
    study = one.runs[0].record.study if one.by == "study" else None
    title = f"{study.kind if study is not None else one.by} {one.name}" if one.name else f"no {one.by}"
    if len(one.series) == 1:
        yield f"{title}: {_statistics_text(one.series[0])}"
        return
    yield f"{title}: {len(one.runs)} runs" if len(one.runs) != 1 else f"{title}: 1 run"
    for series in one.series:
        yield f"  {series.name}: {_statistics_text(series)}"


def _statistics_text(one: Series) -> str:
    values = one.values
    parts = [f"n {len(values)}"]
    if values:
        parts.append(f"median {number_text(median(values))} {one['metric']}".rstrip())
    if (cv := coefficient_of_variation(values)) is not None:
        parts.append(f"CV {cv:.2%} between runs")
    if len(values) > 1:
        parts.append(f"{number_text(min(values))}..{number_text(max(values))}")
    counts = ((one.failed, "failed"), (one.skipped, "skipped"), (one.suspects, "suspect"))
    return ", ".join((*parts, *(f"{count} {word}" for count, word in counts if count)))


def as_json(one: RunGroup, runs: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """Return a group for programs, with its runs as the caller shows them; `cv` is std ÷ mean."""
    return {"by": one.by, "name": one.name, "series": [_statistics(series) for series in one.series], "runs": runs}


def _statistics(one: Series) -> dict[str, Json]:
    values = one.values
    return {
        "series": as_dimensions(one.key),
        "n": len(values),
        "median": median(values) if values else None,
        "cv": coefficient_of_variation(values),
        "min": min(values, default=None),
        "max": max(values, default=None),
        "failed": one.failed,
        "skipped": one.skipped,
        "suspect": one.suspects,
    }
