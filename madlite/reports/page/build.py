"""Series, runs and a comparison → the values of a page.

How many elements a page has is limited, so that one of 10,000 results stays below 6 MB; what has no room is counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from statistics import median
from typing import Any

from madlite.measure.statistics import change_points, coefficient_of_variation
from madlite.model import Reference
from madlite.reports.compare import Comparison, Report, Verdict
from madlite.reports.page.run_details import curve_panels, failures_of, is_headline
from madlite.reports.page.values import (
    Attention,
    CauseGroup,
    Item,
    LevelChange,
    Page,
    SeriesView,
    Totals,
    Trend,
    rounded,
    thinned,
)
from madlite.reports.references import Match, matches_for, of_dimensions, of_record
from madlite.reports.runs import StoredRun
from madlite.reports.series import Failure, Sample, Series
from madlite.reports.series_key import as_dimensions, series_name, series_names
from madlite.text import change, counted, figure, percent, shortened

MOST_SERIES = 2000  # rows of the table
MOST_POINTS = 1000  # of a trend
_MOST_DETAILED = 400  # series with a trend
_MOST_ATTENTION = 40
_MOST_FAILURES = 50  # of one cause
_MOST_REASONS = 3
_LONGEST_LEVELS = 500  # values among which level changes are looked for; of more the medians of pieces
_LONGEST = 160  # characters of a name


def page_data(
    series: Sequence[Series],
    runs: Sequence[StoredRun] = (),
    comparison: Report | None = None,
    *,
    failures: Sequence[Failure] = (),
    published: Sequence[Reference] = (),
    title: str = "Benchmark results",
    sources: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Page:
    """Return the values of a page.

    `series` are what it is about, and of a comparison the new side.  `runs` are the stored runs among them: they add
    step curves and causes of failures.  `failures` are further ones whose cause is known; those of series that neither
    names are counted without a cause.
    """
    known = {run.folder.name: run for run in runs if run.is_over}
    items = _Items()
    compared = (
        {compared.pair.new.key: compared for compared in comparison.comparisons} if comparison is not None else {}
    )
    order = sorted(series, key=lambda series: (not series.values, series.name))
    names = series_names([as_dimensions(series.key) for series in order])
    views = tuple(
        SeriesView(
            item=items.add(_item(series, compared.get(series.key))),
            series=series,
            name=shortened(name, 2 * _LONGEST),
            model=shortened(series["model"], _LONGEST) or "(no model)",
            settings=shortened(_settings(series, name), _LONGEST),
            metric=shortened(series["metric"], _LONGEST),
            comparison=compared.get(series.key),
            leads=is_headline(series, known),
            references=_published(series, published, known) if series.values else (),
            **(_statistics(series, detailed=place < _MOST_DETAILED) if series.values else {}),
        )
        for place, (series, name) in enumerate(zip(order[:MOST_SERIES], names, strict=False))
    )
    named = (*failures_of(runs), *failures)
    causes = _causes((*named, *_uncaused(series, named)), items)
    found = sorted((*_attention(views), *_unsteady(views, order, runs)), key=lambda attention: -attention.weight)
    of_key = {series.key: view for series, view in zip(order, views, strict=False)}
    return Page(
        title=title,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        sources=tuple(sources),
        totals=_totals(series),
        series=views,
        attention=tuple(found[:_MOST_ATTENTION]),
        attention_left_out=max(0, len(found) - _MOST_ATTENTION),
        comparison=comparison,
        compared=tuple(_compared(comparison, of_key, items)) if comparison is not None else (),
        panels=curve_panels(order, known, {key: view.item for key, view in of_key.items()}),
        causes=causes,
        items=tuple(items),
        notes=tuple(notes),
        series_left_out=max(0, len(order) - MOST_SERIES),
    )


class _Items(list[Item]):
    """The items of a page; adding one returns its number."""

    def add(self, item: Item) -> int:
        self.append(item)
        return len(self) - 1


def _item(series: Series, comparison: Comparison | None) -> Item:
    verdict = comparison.verdict.value if comparison is not None else ""
    is_of = {
        "success": bool(series.values),
        "failure": bool(series.failed),
        "skipped": bool(series.skipped),
        "suspect": bool(series.suspects),
        verdict: verdict in (Verdict.REGRESSION.value, Verdict.IMPROVEMENT.value),
    }
    names = {name: series[name] for name in ("model", "device", "precision")}
    return _item_of(names, [name for name, applies in is_of.items() if applies], series.name)


def _item_of(names: Mapping[str, str], status: Iterable[str], text: str) -> Item:
    short = {name: shortened(own, _LONGEST) for name, own in names.items()}
    return Item(**short, status=tuple(status), text=shortened(text, 2 * _LONGEST).casefold())


# A series.


def _published(series: Series, published: Sequence[Reference], known: Mapping[str, StoredRun]) -> tuple[Match, ...]:
    """Return the published number that a series is nearest to of those it can be compared with; none without any.

    Of a series of stored runs more is known than its dimensions: the GPU's full name, the image's release.
    """
    run = next((known[sample.run] for sample in reversed(series.samples) if sample.run in known), None)
    measured = of_record(run.record)[0] if run is not None else of_dimensions(as_dimensions(series.key))
    return matches_for(published, series["metric"], measured)[:1]


def _settings(series: Series, name: str) -> str:
    """Return what of a series' name is neither model nor metric."""
    dimensions = {**as_dimensions(series.key), "model": "", "metric": ""}
    return f"{series_name(dimensions)} {name.removeprefix(series.name)}".strip()


def _statistics(series: Series, *, detailed: bool) -> dict[str, Any]:
    """Return the fields of a view that a series with numbers has."""
    values = series.values
    changes = tuple(level_changes(series))
    reasons = dict.fromkeys(sample.suspect for sample in series.samples if sample.suspect)
    return {
        "median": median(values),
        "cv": coefficient_of_variation(values),
        "best": {"higher": max(values), "lower": min(values)}.get(series.direction),
        "trend": _trend(series, changes) if detailed else None,
        "changes": changes,
        "differing": tuple((name, texts) for name, texts in series.facts.items() if len(texts) > 1),
        "reasons": tuple(reasons)[:_MOST_REASONS],
    }


def level_changes(series: Series) -> Iterator[LevelChange]:
    """Yield where the level of a series changes, the earliest first; of a long one to the nearest piece."""
    values = series.values
    size = -(-len(values) // _LONGEST_LEVELS) or 1
    levels = [median(values[at : at + size]) for at in range(0, len(values), size)] if size > 1 else values
    places = [place * size for place in change_points(levels)]
    for begin, at, end in zip([0, *places], places, [*places[1:], len(values)], strict=False):
        before, after = median(values[begin:at]), median(values[at:end])
        yield LevelChange(
            at=at,
            before=before,
            after=after,
            change=after / before - 1 if before else 0.0,
            is_worse=None if series.direction == "neutral" else (after < before) == (series.direction == "higher"),
            where=_label(series.samples[at]),
            changed=tuple(_changed(series.samples[at - 1], series.samples[at])),
        )


def _changed(before: Sample, after: Sample) -> Iterator[tuple[str, str, str]]:
    """Yield the facts that both results have, with different values."""
    for name, old in before.facts.items():
        if (new := after.facts.get(name, "")) and new != old:
            yield name, shortened(old, _LONGEST), shortened(new, _LONGEST)


def _label(sample: Sample) -> str:
    """Return what tells a result from others: when and which run, or the line of its file."""
    when = sample.when[:16].replace("T", " ")
    own = sample.run or os.path.basename(sample.place)  # noqa: PTH119 - "file:line" is no path
    return shortened(" · ".join(filter(None, (when, own))), _LONGEST)


def _trend(series: Series, changes: Sequence[LevelChange]) -> Trend:
    at = thinned(series.values, MOST_POINTS)
    starts = [0, *(change.at for change in changes)]
    ends = [*starts[1:], len(series.values)]
    levels = [(begin, rounded(median(series.values[begin:end]))) for begin, end in zip(starts, ends, strict=True)]
    samples = [series.samples[place] for place in at]
    return Trend(
        at=tuple(at),
        values=tuple(rounded(series.values[place]) for place in at),
        labels=tuple(map(_label, samples)),
        suspects=tuple(place for place, sample in enumerate(samples) if sample.suspect),
        levels=tuple(levels),
        total=len(series.values),
    )


# What stands out, first of all.

_FAR_BELOW = 0.9  # of a published number


def _attention(views: Iterable[SeriesView]) -> Iterator[Attention]:
    return (_mark(view, *mark) for view in views for mark in _marks(view))


def _mark(view: SeriesView, kind: str, weight: float, text: str) -> Attention:
    target = f"{'s' if view.is_detailed else 'r'}-{view.item}"
    return Attention(item=view.item, kind=kind, target=target, name=view.name, text=text, weight=weight)


SCATTER = 0.1  # coefficient of variation, of runs or of one run's steps, from which a number is not to be trusted
DRIFT = 0.05  # of the median, over a run's steady steps
_NEWEST = 5  # runs of a series whose steps are looked at


def _unsteady(views: Sequence[SeriesView], order: Sequence[Series], runs: Sequence[StoredRun]) -> Iterator[Attention]:
    """Yield the series whose newest runs drift or scatter over their own steps: their numbers are no steady ones."""
    windows = {run.folder.name: run.record.window for run in runs}
    for view, series in zip(views, order, strict=False):
        for sample in reversed(series.samples[-_NEWEST:]):
            window = windows.get(sample.run)
            drift = window.drift if window is not None and window.drift is not None else 0.0
            cv = sample.steady_cv or 0.0
            if abs(drift) < DRIFT and cv < SCATTER:
                continue
            parts = [f"drifts {change(drift)} over its steady steps"] if abs(drift) >= DRIFT else []
            text = f"run {sample.run}: {', '.join([*parts, *([f'CV {percent(cv)} of its steps'] if cv else [])])}"
            yield _mark(view, "drift" if parts else "scatter", 1.4 + abs(drift), text)
            break


def _marks(view: SeriesView) -> Iterator[tuple[str, float, str]]:
    """Yield what a reader should know of a series: kind, weight, a sentence."""
    if view.comparison is not None:
        yield from _verdict_mark(view.comparison)
    worse = [each for each in view.changes if each.is_worse]
    if worse and worse[-1] is view.changes[-1]:
        yield "change", 2 + abs(worse[-1].change), change_text(worse[-1])
    if view.series.failed:
        beside = f"beside {counted(view.n, 'result')}" if view.n else "and no result"
        yield "failure", 1.1 if view.n else 1.5, f"{counted(view.series.failed, 'failure')} {beside}"
    if view.cv is not None and view.cv >= SCATTER and not view.changes:
        yield "scatter", 1.3, f"CV {percent(view.cv)} between {counted(view.n, 'result')}"
    if view.of_reference is not None and view.of_reference < _FAR_BELOW and view.series.direction == "higher":
        yield (
            "reference",
            1.2,
            f"{percent(view.of_reference)} of the published {figure(view.references[0].reference.value)}",
        )
    if view.series.suspects and (view.comparison is None or view.comparison.verdict is not Verdict.SUSPICIOUS):
        yield (
            "suspect",
            1,
            f"{view.series.suspects} of {counted(view.n, 'result')} suspect: {'; '.join(view.reasons)}",
        )


def _verdict_mark(comparison: Comparison) -> Iterator[tuple[str, float, str]]:
    text = f"{change(comparison.change)} against the base" + (f": {comparison.reason}" if comparison.reason else "")
    if comparison.verdict is Verdict.REGRESSION:
        yield "regression", 4 + abs(comparison.change or 0.0), text
    elif comparison.verdict is Verdict.SUSPICIOUS:
        yield "suspect", 2, f"suspicious, {text}"
    elif comparison.verdict is Verdict.IMPROVEMENT:
        yield "improvement", 0.5, text


def change_text(step: LevelChange) -> str:
    """Return a level change as a sentence, with what else changed there."""
    text = f"level {change(step.change)} from result {step.at + 1:,} on ({figure(step.before)} → {figure(step.after)})"
    return text + (f"; changed there: {', '.join(step.names)}" if step.names else "")


# A comparison, failures, totals.


def _compared(
    report: Report, views: dict[tuple[str, ...], SeriesView], items: _Items
) -> Iterator[tuple[int, str, Comparison]]:
    for comparison in report.comparisons:
        view = views.get(comparison.pair.new.key)
        item = view.item if view is not None else items.add(_item(comparison.pair.new, comparison))
        yield item, shortened(comparison.pair.new.name, 2 * _LONGEST), comparison


def _uncaused(series: Iterable[Series], named: Iterable[Failure]) -> Iterator[Failure]:
    """Yield the failures of series that nothing else tells of: rows of a file."""
    told: dict[str, int] = {}
    for failure in named:
        told[failure.model] = told.get(failure.model, 0) + failure.count
    for each in series:
        known = min(each.failed, told.get(each["model"], 0))
        told[each["model"]] = told.get(each["model"], 0) - known
        if each.failed > known:
            yield Failure.of_key(each.key, each.failed - known)


def _causes(failures: Iterable[Failure], items: _Items) -> tuple[CauseGroup, ...]:
    groups: dict[str, list[Failure]] = {}
    for failure in sorted(failures, key=lambda failure: (failure.when, failure.count), reverse=True):
        groups.setdefault(failure.cause, []).append(failure)
    counts = {cause: sum(failure.count for failure in members) for cause, members in groups.items()}
    most = max(counts.values(), default=1)
    return tuple(
        CauseGroup(
            cause=cause,
            count=counts[cause],
            part=counts[cause] / most,
            failures=tuple((items.add(_failed(failure)), failure) for failure in groups[cause][:_MOST_FAILURES]),
            left_out=max(0, len(groups[cause]) - _MOST_FAILURES),
        )
        for cause in sorted(groups, key=lambda cause: (-counts[cause], cause))
    )


def _failed(failure: Failure) -> Item:
    names = {name: getattr(failure, name) for name in ("model", "device", "precision")}
    return _item_of(
        names, ["failure"], " ".join((failure.model, failure.device, failure.cause, failure.run, failure.reason))
    )


def _totals(series: Sequence[Series]) -> Totals:
    return Totals(
        series=len(series),
        results=sum(len(each.values) for each in series),
        suspects=sum(each.suspects for each in series),
        failed=sum(each.failed for each in series),
        skipped=sum(each.skipped for each in series),
        models=len({each["model"] for each in series}),
    )
