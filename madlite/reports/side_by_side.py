"""Several runs side by side: what differs between them, their numbers, GPUs, checks and versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from madlite.measure.profile import part_texts
from madlite.reports.runs import StoredRun
from madlite.reports.series_key import (
    Input,
    as_key,
    compare_inputs,
    record_dimensions,
    record_facts,
    series_name,
    unknown_inputs,
)
from madlite.text import align, change, figure, percent, printable, shortened_middle

_GAP = 2  # blanks between columns
_INDENT = 2  # blanks before a line of a section
_NARROWEST = 12  # characters of a run's column, however narrow the terminal is
_LONGEST_NAME = 28  # characters of the names, and of a value that goes to no terminal:
_LONGEST_VALUE = 64
DIFFERS, RAN = "what differs", "what ran"  # titles of the first section


def sections(runs: Sequence[StoredRun], *, every: bool = False) -> dict[str, list[Input]]:
    """Return what differs between runs by titles, first what they ran with; with `every` also what is equal.

    What no run has is left out.
    """
    checks = [{check.name: f"{check.status}  {check.text}".rstrip() for check in run.record.checks} for run in runs]
    found = {
        RAN if every else DIFFERS: compare_inputs(*_inputs(runs)),
        "number": _fields(runs, _number(runs)),
        "a step": _of_mappings([dict(part_texts(found)) if (found := run.record.profile) else {} for run in runs]),
        "GPUs": _fields(runs, _GPUS),
        "checks": _of_mappings(checks),
        "versions": _of_mappings([run.record.provenance.versions for run in runs]),
    }
    chosen = {
        title: [field for field in fields if any(field.values) and (every or field.differs or field.name in _ALWAYS)]
        for title, fields in found.items()
    }
    return {title: fields for title, fields in chosen.items() if fields}


def common_name(runs: Sequence[StoredRun]) -> str:
    """Return the dimensions that all runs have in common, in one line."""
    every = [record_dimensions(run.record) for run in runs]
    return series_name({name: text for name, text in every[0].items() if all(own[name] == text for own in every)})


# The fields of each section.

Read = Callable[[StoredRun], str]


def _fields(runs: Sequence[StoredRun], reads: Mapping[str, Read]) -> Iterator[Input]:
    return _of_mappings([{name: read(run) for name, read in reads.items()} for run in runs])


_ALWAYS = ("status", "number", "started")


def _of_mappings(every: Sequence[Mapping[str, str]]) -> Iterator[Input]:
    for name in dict.fromkeys(name for texts in every for name in texts):
        values = tuple((text,) if (text := texts.get(name, "")) else () for texts in every)
        yield Input(name, values, differs=len({*values}) > 1)


def _inputs(runs: Sequence[StoredRun]) -> tuple[list[tuple[str, ...]], list[dict[str, tuple[str, ...]]]]:
    metrics = ({"metric": run.headline.metric if run.headline else ""} for run in runs)
    keys = [as_key({**record_dimensions(run.record), **own}) for run, own in zip(runs, metrics, strict=True)]
    return keys, [{name: (text,) for name, text in record_facts(run.record).items()} for run in runs]


def unknown(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    """Return what not all of the runs record, so that a difference cannot be seen."""
    return unknown_inputs(*_inputs(runs))


def _number(runs: Sequence[StoredRun]) -> dict[str, Read]:
    return {
        "status": lambda run: run.state + (" (suspect)" if run.is_suspect else ""),
        "cause": lambda run: run.record.cause,
        "number": lambda run: f"{run.headline.text} {run.headline.metric}" if run.headline else "",
        "against the first": lambda run: _change(runs[0], run),
        "started": lambda run: run.when,
        **_OF_RECORD,
        "suspect": lambda run: "; ".join(run.record.suspect),
        "reason": lambda run: run.problem or run.record.reason,
        **{
            f"{name} s": lambda run, name=name: figure(run.record.durations_s.get(name), "")  # type: ignore[misc]
            for name in dict.fromkeys(name for run in runs for name in run.record.durations_s)
        },
    }


def _change(first: StoredRun, run: StoredRun) -> str:
    """Return by how much a number is more than the first run's, where both count the same."""
    metric, other = first.headline, run.headline
    if metric is None or other is None or metric.metric != other.metric or not metric.value or other.value is None:
        return ""
    return "" if run is first else change(other.value / metric.value - 1)


def _at(place: str, text: Callable[[float | None, str], str] = figure) -> Read:
    """Return what reads a number by its place in a record, "" where there is none."""

    def read(run: StoredRun) -> str:
        value: Any = run.record
        for name in place.split("."):
            value = getattr(value, name, None)
        return text(value, "")

    return read


def _over_gpus(name: str, over: Callable[[list[float]], float]) -> Read:
    def read(run: StoredRun) -> str:
        gpus = run.record.telemetry.gpus if run.record.telemetry is not None else ()
        values = [value for gpu in gpus if (value := getattr(gpu, name)) is not None]
        return figure(over(values), "") if values else ""

    return read


_OF_RECORD: dict[str, Read] = {
    "steps": lambda run: f"{found.n}, {found.first_step} to {found.last_step}" if (found := run.record.window) else "",
    "mean": _at("window.mean"),
    "CV": _at("window.cv", percent),
    "min": _at("window.min"),
    "max": _at("window.max"),
    "drift": _at("window.drift", change),
    "outliers": _at("window.outliers"),
    "dropped": _at("window.dropped"),
    "TFLOP/s/GPU": _at("compute.tflops_per_gpu"),
    "MFU": _at("compute.mfu", percent),
}
_GPUS: dict[str, Read] = {
    "power W/GPU": _at("telemetry.power_w"),
    "tokens/J": _at("telemetry.tokens_per_joule"),
    "throttled": _at("telemetry.throttled", percent),
    "at power limit": _at("telemetry.power_cap", percent),
    "clock MHz": _over_gpus("clock_mhz", fmean),
    "memory clock MHz": _over_gpus("memory_clock_mhz", fmean),
    "utilization %": _over_gpus("utilization_percent", fmean),
    "temperature °C": _over_gpus("temperature_c", max),
    "memory GiB": _over_gpus("memory_used_gib", max),
    "other processes": lambda run: ", ".join(run.record.telemetry.foreign_processes if run.record.telemetry else ()),
    "measured": lambda run: f"by {found.source}, over the {found.over}" if (found := run.record.telemetry) else "",
}


# Lines that fit a terminal.


def as_lines(runs: Sequence[StoredRun], found: Mapping[str, Sequence[Input]], width: int | None) -> Iterator[str]:
    """Yield a table with a column for each run, as wide as a terminal; without one values have at most 64 characters.

    The middle of what is too long is left out, or what all values begin with, where only that shows how they differ.
    """
    fields = [field for own in found.values() for field in own]
    ids = [run.folder.name for run in runs]
    texts = [[", ".join(own) for own in field.values] for field in fields]
    names = max((len(_name(field.name)) for field in fields), default=0)
    columns = list(zip(ids, *(map(printable, row) for row in texts), strict=True))
    share = _LONGEST_VALUE if width is None else (width - _INDENT - names - _GAP * len(runs)) // len(runs)
    widths = [min(max(map(len, column)), max(share, _NARROWEST)) for column in columns]
    rows = [
        ("", *_cells(ids, widths)),
        *((_name(field.name), *_cells(row, widths)) for field, row in zip(fields, texts, strict=True)),
    ]
    lines = iter(f"{' ' * _INDENT}{line}" for line in align(rows))
    yield next(lines)
    for title, own in found.items():
        yield title
        yield from (next(lines) for _ in own)


def _name(text: str) -> str:
    return shortened_middle(printable(text), _LONGEST_NAME)


def _cells(values: Sequence[str], widths: Sequence[int]) -> list[str]:
    texts = [" ".join(printable(text).split()) for text in values]
    different = {text for text in texts if text}
    if len({shortened_middle(text, min(widths)) for text in different}) < len(different):
        # they differ in a part that would be left out
        same = max(len(os.path.commonprefix([*different])) - 3, 0)  # noqa: RUF071 - of characters
        texts = [f"…{text[same:]}" if text and same else text for text in texts]
    return [shortened_middle(text or "-", wide) for text, wide in zip(texts, widths, strict=True)]
