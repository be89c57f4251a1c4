"""Runs as a table and as JSON; which of them are listed, in which order and groups.

A value of a run is known by its name: a column of the list, a dimension of its series, a fact of what it ran with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.measure.statistics import coefficient_of_variation
from madlite.model import Cause, Json, Status, Value
from madlite.reports.runs import CUT_OFF, IN_CLUSTER, RUNNING, UNREADABLE, StoredRun, why_not_over
from madlite.reports.series import Entry, Sample, Series, group
from madlite.reports.series_key import (
    DIMENSIONS,
    FACT_GROUPS,
    FACT_NAMES,
    as_dimensions,
    as_key,
    record_dimensions,
    record_facts,
    series_names,
)
from madlite.text import align, counted, figure, percent, printable, scalar_text, shortened_middle, without_groups

_VALUES: dict[str, Callable[[StoredRun], Json]] = {
    "id": lambda run: run.folder.name,
    "when": lambda run: run.when,
    "card": lambda run: run.record.card,
    "status": lambda run: run.state,
    "cause": lambda run: run.record.cause,
    "performance": lambda run: run.headline.text if run.headline else "",
    "metric": lambda run: run.headline.metric if run.headline else "",
    "suspect": lambda run: list(run.record.suspect),
    "duration_s": lambda run: run.record.durations_s.get("total"),
    "reason": lambda run: run.problem or run.record.reason,
    "doubt": lambda run: "",  # of earlier versions, which found records that were changed
    "origin": lambda run: run.origin,
    "pruned": lambda run: run.pruned,
    "folder": lambda run: str(run.folder),
    "backend": lambda run: run.record.backend,
    "mode": lambda run: run.record.variant.mode if run.record.variant else "",
    "precision": lambda run: run.record.variant.precision if run.record.variant else "",
    "gpu": lambda run: run.record.device,
    "n_gpus": lambda run: run.n_gpus,
    "collected": lambda run: run.collected,
    "batch": lambda run: run.record.batch,
    "study": lambda run: run.record.study.id if run.record.study else "",
    "study_kind": lambda run: run.record.study.kind if run.record.study else "",
    "varied": lambda run: dict(run.record.study.varied) if run.record.study else {},
    "series": lambda run: run.record.study.series if run.record.study else None,
    "index": lambda run: run.record.study.index if run.record.study else None,
    "warm_up": lambda run: run.record.is_warm_up,
    "caches": lambda run: run.record.caches,
}
COLUMNS = tuple(_VALUES)
"""The fields of a run in `--json`."""
HEAD = ("ID", "WHEN (UTC)", "CARD", "BACKEND", "MODE", "PRECISION", "GPU", "STATUS", "NUMBER", "TOOK")
SUSPECT = "suspect"  # `--status` of a success whose number is suspect
NOT_COLLECTED = "not collected"  # and of a run whose result waits for `madlite runs collect`
TRIED_AGAIN = "tried again"  # of a failed attempt whose place another one took
STATES = (
    *("success", SUSPECT, "failure", "tried-again", "skipped", "not-collected"),
    *("running", "in-cluster", "cut-off", "unreadable"),
)
"""The values of `--status` besides the causes of failures."""


def as_json(run: StoredRun, columns: Sequence[str] = ()) -> dict[str, Json]:
    """Return a run as the list shows it, for programs; with columns these values of it."""
    return {name: value_of(run, name) for name in columns or COLUMNS}


def problems(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield a note on runs with unreadable records, and on those that jobs of a cluster have."""
    yield from {f"{IN_CLUSTER}: {why_not_over(run)}" for run in runs if run.state == IN_CLUSTER}
    if found := [*dict.fromkeys(f"{run.folder.name}: {run.problem}" for run in runs if run.state == UNREADABLE)]:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        yield f"{counted(len(found), 'record')} cannot be read: {'; '.join(found[:3])}{more}"


def status_words(run: StoredRun) -> tuple[str, ...]:
    """Return the `--status` values of a run; a suspect success is a success too, an attempt tried again a failure."""
    return (
        run.state.lower(),
        _normalized(run.record.cause),
        SUSPECT if run.is_suspect else "",
        TRIED_AGAIN if run.record.is_replaced else "" if run.collected else NOT_COLLECTED,
    )


def wanted_status(status: str, causes: Iterable[str]) -> str:
    """Return a value of `--status` as `status_words` has it; `causes` are those that runs have, of plugins too.

    Raises:
        UsageProblem: there is no such status, and neither a cause.
    """
    wanted = _normalized(status)
    words = (*Status, SUSPECT, NOT_COLLECTED, TRIED_AGAIN, *Cause, RUNNING, IN_CLUSTER, CUT_OFF, UNREADABLE, *causes)
    if wanted and wanted not in (statuses := {_normalized(word) for word in words} - {""}):
        raise _no_status(status, statuses)
    return wanted


def _normalized(status: str) -> str:
    return status.strip().lower().replace("-", " ").replace("_", " ")


def _no_status(status: str, statuses: Iterable[str]) -> UsageProblem:
    words = [word.replace(" ", "-") for word in sorted(statuses)]
    near = did_you_mean(status, STATES, most=1) or did_you_mean(status, words, most=1)
    hint = f"{', '.join(STATES)}, or a cause: docs/failures.md"
    return UsageProblem(f"--status {status!r}: no run can be that", one_hint(near, hint))


def names_of(run: StoredRun) -> Iterator[str]:
    """Yield the names in which `--tags` looks for its words, in lower case."""
    return (name.lower() for name in (run.record.card, *run.record.tags, run.folder.name))


_HEADS = {"id": "ID", "when": "WHEN (UTC)"}
_LONGEST = 60  # characters of a cell


# Names.


class Fields:
    """The names that can be used for the runs of a folder, and the values that runs have by them."""

    def __init__(self, runs: Iterable[StoredRun]) -> None:
        self._runs = tuple(runs)
        self._facts: frozenset[str] | None = None

    def name(self, text: str, option: str) -> str:
        """Return the name that a text stands for; case, `-` and `_` are one in it (`image-digest`).

        Raises:
            UsageProblem: there is none; `option` is where the text is from.
        """
        if text in COLUMNS or text in DIMENSIONS or text in self.facts:
            return text
        known = {_plain(name): name for name in (*sorted(self.facts), *DIMENSIONS, *COLUMNS)}
        if (found := known.get(_plain(text))) is not None:
            return found
        if text.startswith(FACT_GROUPS):
            return text
        raise self._unknown(text, option)

    @property
    def facts(self) -> frozenset[str]:
        """The names of facts that a run here has, and those that every run can have."""
        if self._facts is None:
            self._facts = frozenset(FACT_NAMES).union(*(record_facts(run.record) for run in self._runs))
        return self._facts

    def missing(self, names: Iterable[str]) -> Iterator[str]:
        """Yield a sentence for each name of a fact that no run here has."""
        for name in dict.fromkeys(names):
            if self._runs and name not in COLUMNS and name not in DIMENSIONS and name not in self.facts:
                near = did_you_mean(name, sorted(self.facts), most=1)
                yield one_hint(f"no run here has '{name}'", near)

    def _unknown(self, text: str, option: str) -> UsageProblem:
        known = (*COLUMNS, *DIMENSIONS, *sorted(self.facts))
        close = did_you_mean(text, known, most=1) if text else ""
        hint = f"{', '.join(dict.fromkeys((*COLUMNS, *DIMENSIONS)))}, or a fact: 'image digest', 'gpu driver'"
        return UsageProblem(f"{option} {text!r}: no run has a value of that name", one_hint(close, hint))


def _plain(text: str) -> str:
    return text.strip().casefold().replace("-", " ").replace("_", " ")


def value_of(run: StoredRun, name: str) -> Json:
    """Return a run's value of a field by its name as `Fields.name` has it; "" of a dimension or fact without one."""
    if name in _VALUES:
        return _VALUES[name](run)
    if name in DIMENSIONS:
        return record_dimensions(run.record)[name]
    return record_facts(run.record).get(name, "")


def text_of(value: Json) -> str:
    """Return a value as one text: parts of a list with semicolons, "" for none."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}={scalar_text(item)}" for key, item in value.items())
    return "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else scalar_text(value)


# Filters.


def narrowed(runs: Iterable[StoredRun], where: Sequence[tuple[str, str]]) -> list[StoredRun]:
    """Return the runs that have all these values; of a name that comes several times one value is enough."""
    wanted: dict[str, list[str]] = {}
    for name, text in where:
        wanted.setdefault(name, []).append(text)
    return [run for run in runs if all(_has(run, name, texts) for name, texts in wanted.items())]


def _has(run: StoredRun, name: str, texts: Iterable[str]) -> bool:
    own = text_of(value_of(run, name)).casefold()
    return any(own == text.strip().casefold() for text in texts)


# Order.


def ordered(runs: Iterable[StoredRun], names: Sequence[tuple[str, bool]]) -> list[StoredRun]:
    """Return runs in the order of fields, the first of which decides; True with a name is descending.

    Numbers are in the order of their values.  Runs without a value come last either way.
    """
    found = list(runs)
    for name, descending in reversed(names):
        texts = [text_of(value_of(run, name)) for run in found]
        key = _number if all(_number(text) is not None for text in texts if text) else str.casefold
        known = [(key(text), at) for at, text in enumerate(texts) if text]
        known.sort(key=lambda pair: pair[0], reverse=descending)  # type: ignore[arg-type, return-value]
        blank = [at for at, text in enumerate(texts) if not text]
        found = [found[at] for at in (*(at for _, at in known), *blank)]
    return found


def _number(text: str) -> float | None:
    try:
        number = float(without_groups(text.strip()))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# Runs with chosen columns.


def as_table(runs: Sequence[StoredRun], columns: Sequence[str]) -> list[str]:
    """Return the lines of a table, its head first."""
    rows = [[_HEADS.get(name, printable(name.upper())) for name in columns]]
    rows += [
        [shortened_middle(printable(text_of(value_of(run, name))), _LONGEST) or "-" for name in columns] for run in runs
    ]
    return align(rows)


class RunGroup(Value, frozen=True):
    """Runs that have one batch, study, series or card.

    `series` has the number of each run that is over, as the list shows it; warm-ups have none.
    """

    by: str
    name: str
    runs: tuple[StoredRun, ...]
    series: tuple[Series, ...] = ()


def group_runs(runs: Iterable[StoredRun], by: str) -> list[RunGroup]:
    """Return runs by `study`, `batch`, `series` or `card`, in the order in which their groups first come."""
    runs = list(runs)
    is_series = by == "series"  # whatever a run's metric: one without a number has none
    keys = [as_key(record_dimensions(run.record)) if is_series else (text_of(value_of(run, by)),) for run in runs]
    found: dict[tuple[str, ...], list[StoredRun]] = {}
    for key, run in zip(keys, runs, strict=True):
        found.setdefault(key, []).append(run)
    names = series_names(list(map(as_dimensions, found))) if is_series else [name for (name,) in found]
    return [
        RunGroup(by=by, name=name, runs=tuple(own), series=_numbers(own))
        for name, own in zip(names, found.values(), strict=True)
    ]


def _dimensions(run: StoredRun) -> dict[str, str]:
    metric = run.headline.metric if run.headline else ""
    return {**record_dimensions(run.record), "metric": metric}


def _numbers(runs: Iterable[StoredRun]) -> tuple[Series, ...]:
    """Return the numbers of runs that are over, series by series."""
    return group(entry for run in runs if run.is_over and (entry := _entry(run)) is not None)


def _entry(run: StoredRun) -> Entry | None:
    """Return a run's headline as a result, or that it has no number; None of one that is no result."""
    record, headline, key = run.record, run.headline, as_key(_dimensions(run))
    if record.is_warm_up or record.is_short or record.is_replaced:
        return None
    if headline is not None and headline.value is not None:
        sample = Sample(value=headline.value, run=run.folder.name, suspect="; ".join(record.suspect))
        return Entry(key=key, status=run.state, sample=sample)
    return Entry(key=key, status=run.state) if run.state != Status.SUCCESS.value else None


# In words, and for programs.


def heading(run_group: RunGroup) -> Iterator[str]:
    """Yield the line of a group, with its statistics; of several series one line more for each."""
    study = run_group.runs[0].record.study if run_group.by == "study" else None
    title = (
        f"{study.kind if study is not None else run_group.by} {run_group.name}"
        if run_group.name
        else f"no {run_group.by}"
    )
    if len(run_group.series) == 1:
        yield f"{title}: {_statistics_text(run_group.series[0])}"
        return
    yield f"{title}: {len(run_group.runs)} runs" if len(run_group.runs) != 1 else f"{title}: 1 run"
    for series in run_group.series:
        yield f"  {series.name}: {_statistics_text(series)}"


def _statistics_text(series: Series) -> str:
    found = _statistics(series)
    parts = [f"n {found['n']}"]
    if series.values:
        parts.append(f"median {figure(found['median'])} {series['metric']}".rstrip())
    if found["cv"] is not None:
        parts.append(f"CV {percent(found['cv'])} between runs")
    if len(series.values) > 1:
        parts.append(f"{figure(found['min'])}..{figure(found['max'])}")
    return ", ".join((*parts, *(f"{found[word]} {word}" for word in ("failed", "skipped", "suspect") if found[word])))


def group_json(run_group: RunGroup, columns: Sequence[str] = ()) -> dict[str, Json]:
    """Return a group for programs, with its runs as `as_json` has them; `cv` is std ÷ mean."""
    return {
        "by": run_group.by,
        "name": run_group.name,
        "series": [_statistics(series) for series in run_group.series],
        "runs": [as_json(run, columns) for run in run_group.runs],
    }


def _statistics(series: Series) -> dict[str, Any]:
    values = series.values
    return {
        "series": as_dimensions(series.key),
        "n": len(values),
        "median": median(values) if values else None,
        "cv": coefficient_of_variation(values),
        "min": min(values, default=None),
        "max": max(values, default=None),
        "failed": series.failed,
        "skipped": series.skipped,
        "suspect": series.suspects,
    }
