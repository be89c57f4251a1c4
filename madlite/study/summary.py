"""What a study came to: the statistics of each series over its runs.

A series' samples are its runs' numbers: of a run with a steady window the window's median, else each metric it has.
Failed runs have none and are counted; a suspect number is a sample like any other, and counted too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

from madlite.measure.statistics import Interval, coefficient_of_variation, mean_interval, ratio_of_means
from madlite.model import Metric, Result, Scalar, Status, Study, Value, Variant
from madlite.plan.submission import PlannedRun
from madlite.run.screen import pair
from madlite.secrets import masked_value
from madlite.store.record import Record, result_of
from madlite.text import align, counted, percent

CONFIDENCE = 0.95
SWEEP = "sweep"
NODE = "node"
"""What runs vary that are bound to a node each."""
LEAST_FOR_INTERVAL = 3
"""Of two runs the quantile is 12.7: an interval several times as wide as their difference, which says nothing."""
INTERVAL = "Student's t interval of the mean of the runs"


class Sample(Value, frozen=True):
    """One run of a study, on how many nodes with how many GPUs each; `result` is None of one that never started."""

    study: Study
    run: str
    card: str
    variant: Variant | None
    image: str
    result: Result | None
    nodes: int = 1
    gpus_per_node: int = 0

    @property
    def micro_batch(self) -> int | None:
        """The micro batch that it ran with where the planned one did not fit."""
        return self.result.attempt.micro_batch if self.result is not None and self.result.attempt is not None else None


class MetricSummary(Value, frozen=True):
    """One metric of a series over its runs; `cv` is None of fewer than two values, `interval` of fewer than three.

    `cv` is the standard deviation (of n - 1) of the runs' numbers ÷ their mean: that between runs, not within one.
    Of values above 0 the interval begins at 0 where Student's would begin below.
    """

    metric: str
    label: str
    unit: str
    lower_is_better: bool
    values: tuple[float, ...]  # in the order of the runs
    n: int
    mean: float
    median: float
    min: float
    max: float
    cv: float | None
    interval: Interval | None
    confidence: float = CONFIDENCE
    interval_kind: str = INTERVAL


class SeriesSummary(Value, frozen=True):
    """The runs of one card, variant and image: how many came to each outcome, and the statistics of each metric.

    `micro_batch` is the one that they ran with where the planned one did not fit; runs of the series that it did fit
    are a summary of their own.
    """

    series: int
    card: str
    mode: str
    precision: str
    image: str
    varied: dict[str, Scalar]
    caches: str
    runs: tuple[str, ...]  # ids of those that started
    requested: int
    succeeded: int
    suspect: int
    failed: dict[str, int]  # cause → runs
    skipped: int
    not_started: int
    start_c: tuple[float, float] | None  # the coolest and the hottest start of a run, by its hottest GPU
    images: tuple[str, ...]  # digests or ids of the images that its runs had
    metrics: tuple[MetricSummary, ...]
    micro_batch: int | None = None

    @property
    def headline(self) -> MetricSummary | None:
        """The first metric, by which series are compared."""
        return self.metrics[0] if self.metrics else None


class StudySummary(Value, frozen=True):
    """The series of a study; `failed_warm_ups` are the cards whose failed warm-up ended it before its first run.

    `leave_out` are the nodes of a study of each node that should have no further runs, each with why.
    """

    id: str
    kind: str
    series: tuple[SeriesSummary, ...]
    failed_warm_ups: tuple[str, ...] = ()
    leave_out: dict[str, str] = {}


def samples_of(planned: Sequence[PlannedRun], results: Sequence[Result]) -> Iterator[Sample]:
    """Yield the runs of a study as they were planned; `results` are those of the runs that ended."""
    for planned_run, result in pair(planned, results):
        plan, study = planned_run.plan, planned_run.plan.study
        if study is not None:
            yield Sample(
                study=study,
                run=plan.id if result is None else result.plan_id,  # which is the last attempt's
                card=plan.card.name,
                variant=plan.variant,
                image=plan.image.ref if plan.image is not None else "",
                result=result,
                nodes=plan.place.nodes,
                gpus_per_node=plan.place.gpus_per_node,
            )


def sample_of_record(record: Record) -> Sample:
    """Return the run of a study of which there is this record."""
    return Sample(
        study=record.study or Study(id="", kind=""),
        run=record.id,
        card=record.card,
        variant=record.variant,
        image=record.image.ref,
        result=result_of(record),
        nodes=record.place.nodes if record.place else 1,
        gpus_per_node=record.place.gpus_per_node if record.place else 0,
    )


def samples_of_records(records: Iterable[Record]) -> Iterator[Sample]:
    """Yield the runs of studies of which there are records, without those whose next attempt counts in their place."""
    own = [record for record in records if record.study is not None and not record.is_replaced]
    earlier = {failed.run for record in own if record.attempt is not None for failed in record.attempt.earlier}
    return (sample_of_record(record) for record in own if record.id not in earlier)


def point_text(values: Mapping[str, object]) -> str:
    """Return a point as text, without secrets: `micro_batch=2, steps=50`."""
    return ", ".join(f"{key}={masked_value(key, value)}" for key, value in values.items())


def warm_up_text(card: str, study: Study | None) -> str:
    """Return the card of a warm-up, with the values of its point in a sweep."""
    varied = study.varied if study is not None else {}
    return card + (f" ({point_text(varied)})" if varied else "")


def summarise(study_id: str, kind: str, samples: Iterable[Sample]) -> StudySummary:
    """Return what the runs of a study come to, series by series, and which warm-ups failed and never succeeded."""
    by_series: dict[int, list[Sample]] = {}
    warm_ups: dict[str, set[Status]] = {}
    for sample in samples:
        if not sample.study.warm_up:
            by_series.setdefault(sample.study.series or 0, []).append(sample)
        elif sample.result is not None:
            warm_ups.setdefault(warm_up_text(sample.card, sample.study), set()).add(sample.result.status)
    series = tuple(summary for number in sorted(by_series) for summary in _by_micro_batch(number, by_series[number]))
    failed = (name for name, ends in warm_ups.items() if Status.FAILURE in ends and Status.SUCCESS not in ends)
    return StudySummary(id=study_id, kind=kind, series=series, failed_warm_ups=tuple(failed))


def _by_micro_batch(number: int, samples: Sequence[Sample]) -> Iterator[SeriesSummary]:
    """Yield a series; where a micro batch did not fit, a summary of each that ran, the last one with what is left."""
    left = samples[0].study.count or 0
    groups: dict[int | None, list[Sample]] = {}
    for sample in samples:
        if sample.result is not None:
            groups.setdefault(sample.micro_batch, []).append(sample)
    *earlier, last = groups.values() or [list(samples)]
    for group in earlier:
        yield summarise_series(number, group, len(group))
        left -= len(group)
    yield summarise_series(number, last, max(left, len(last)))


def summarise_series(number: int, samples: Sequence[Sample], requested: int) -> SeriesSummary:
    """Return what the runs of one point come to, of which so many were `requested`."""
    first, ended = samples[0], [sample.result for sample in samples if sample.result is not None]
    good = [result for result in ended if result.status is Status.SUCCESS]
    begun_c = [result.telemetry.start_c for result in ended if result.telemetry is not None]
    known_c = [value for value in begun_c if value is not None]
    return SeriesSummary(
        series=number,
        card=first.card,
        mode=first.variant.mode if first.variant else "",
        precision=first.variant.precision if first.variant else "",
        image=first.image,
        varied=first.study.varied,
        caches=first.study.caches,
        runs=tuple(sample.run for sample in samples if sample.result is not None),
        requested=requested,
        succeeded=len(good),
        suspect=sum(1 for result in good if result.suspect),
        failed=dict(Counter(result.code for result in ended if result.status is Status.FAILURE)),
        skipped=sum(1 for result in ended if result.status is Status.SKIPPED),
        not_started=max(0, requested - len(ended)),
        start_c=(min(known_c), max(known_c)) if known_c else None,
        images=tuple(dict.fromkeys(name for result in ended if (name := result.image.id or result.image.digest))),
        metrics=tuple(_metrics(good)),
        micro_batch=first.micro_batch,
    )


def _metrics(results: Sequence[Result]) -> Iterator[MetricSummary]:
    """Yield the statistics of each metric that a successful run has, the headline's first."""
    found: dict[tuple[str, str], list[Metric]] = {}
    for result in results:
        for metric in (result.headline,) if result.window is not None else result.metrics:
            if metric is not None and metric.status is Status.SUCCESS and metric.value is not None:
                found.setdefault((metric.label, metric.metric), []).append(metric)
    for metrics in found.values():
        yield _metric(metrics[0], tuple(float(metric.value or 0.0) for metric in metrics))


def _metric(metric: Metric, values: tuple[float, ...]) -> MetricSummary:
    return MetricSummary(
        metric=metric.metric,
        label=metric.label,
        unit=metric.unit,
        lower_is_better=metric.lower_is_better,
        values=values,
        n=len(values),
        mean=fmean(values),
        median=median(values),
        min=min(values),
        max=max(values),
        cv=coefficient_of_variation(values),
        interval=_interval(values),
    )


def _interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the mean; None where the values are too few for one that says anything."""
    found = mean_interval(values, CONFIDENCE) if len(values) >= LEAST_FOR_INTERVAL else None
    if found is None or min(values) <= 0:
        return found
    return Interval(low=max(0.0, found.low), high=found.high)  # a speed is never below 0


# As lines.

USEFUL = 5  # runs, from which on an interval is of use
APART_C = 5.0  # between the starts of a series' runs: from there on the difference is shown


def series_text(summary: SeriesSummary) -> str:
    """Return the point that a series is of, and its micro batch where that is not the planned one."""
    fallback = f"(ran with micro batch {summary.micro_batch})" if summary.micro_batch is not None else ""
    return f"{point_text(summary.varied)} {fallback}".strip()


def study_lines(summary: StudySummary) -> Iterator[str]:
    """Yield what a repeat or a sweep came to: the statistics of what was repeated, and the table of a sweep."""
    yield f"{summary.kind} {summary.id}"
    if summary.failed_warm_ups:
        has_runs = any(series.runs for series in summary.series)
        what = "its runs were not started" if has_runs else "nothing was repeated"
        yield f"  the warm-up failed: {', '.join(summary.failed_warm_ups)}; {what}"
    if summary.kind != SWEEP or any(series.requested > 1 for series in summary.series):
        for series in summary.series:
            caches = f", caches {series.caches}" if series.caches else ""
            parts = (series.card, series.mode, series.precision, series.image, series_text(series))
            yield f"  {' · '.join(filter(None, parts))}  ({counts_text(series)}{caches})"
            yield from (f"    {_metric_line(metric)}" for metric in series.metrics)
            yield from (f"    {text}" for text in _differences(series))
    if summary.kind == SWEEP:
        yield from (f"  {line}" for line in sweep_lines(summary))


def counts_text(summary: SeriesSummary) -> str:
    """Return how the runs of a series ended: `4 of 5 runs, 1 failed (timeout), 1 suspect, counted`."""
    causes = ", ".join(f"{count} x {cause}" if count > 1 else cause for cause, count in summary.failed.items())
    said = [f"{summary.succeeded} of {counted(summary.requested, 'run')}"]
    said += [f"{sum(summary.failed.values())} failed ({causes})"] if summary.failed else []
    said += [f"{summary.skipped} skipped"] if summary.skipped else []
    said += [f"{summary.not_started} not started"] if summary.not_started else []
    said += [f"{summary.suspect} suspect, counted"] if summary.suspect else []
    return ", ".join(said)


def _metric_line(summary: MetricSummary) -> str:
    """Return the statistics of one metric, to six digits."""
    name = f"{summary.label} {summary.metric}".strip()
    if summary.n < 2:
        return f"{name}: {summary.mean:,.6g}, of one run: no interval"
    cv = percent(summary.cv, "unknown") + "; less is better" * summary.lower_is_better
    spread = f"median {summary.median:,.6g}, {summary.min:,.6g} to {summary.max:,.6g}, between-run CV {cv}"
    return f"{name}: mean {summary.mean:,.6g} ({_interval_text(summary)}), {spread}"


def _interval_text(summary: MetricSummary) -> str:
    if summary.interval is None:
        return f"{summary.n} runs are too few for an interval: --repeat {USEFUL}"
    low, high = summary.interval.low, summary.interval.high
    wide = f"; wide, for the runs scatter: --repeat {2 * summary.n}" if low <= 0 < summary.min else ""
    return f"{100 * summary.confidence:.0f} % interval {low:,.6g} to {high:,.6g}, Student's t, n {summary.n}{wide}"


def _differences(summary: SeriesSummary) -> Iterator[str]:
    """Yield what the runs of a series do not have in common, and should."""
    if summary.start_c is not None and summary.start_c[1] - summary.start_c[0] > APART_C:
        cool, hot = summary.start_c
        yield f"the runs began with GPUs of {cool:.0f} to {hot:.0f} °C: --settle waits until they have cooled down"
    if len(summary.images) > 1:
        yield f"the runs had {len(summary.images)} different images"


def sweep_lines(summary: StudySummary) -> Iterator[str]:
    """Yield a table of each card, variant and image: a line per point, the best one marked."""
    for name, series in grouped(summary.series).items():
        yield " · ".join(filter(None, name))
        yield from (f"  {line}" for line in _table(series))


def grouped(series: Sequence[SeriesSummary]) -> dict[tuple[str, ...], list[SeriesSummary]]:
    """Return the series that are lines of one table, by what they have in common."""
    names = [_group_name(summary) for summary in series]
    groups: dict[tuple[str, ...], list[SeriesSummary]] = {}
    for name, summary in zip(names, series, strict=True):
        # a point that could not be planned has neither variant nor image: it stands with the others of its card
        whole = next((other for other in names if other[0] == name[0] and any(other[1:])), name)
        groups.setdefault(name if any(name[1:]) else whole, []).append(summary)
    return groups


def _group_name(summary: SeriesSummary) -> tuple[str, ...]:
    """Return the card, variant and image of a line, and of one that is a node's the point that all nodes ran."""
    varied = summary.varied
    point = {key: value for key, value in varied.items() if key != NODE} if NODE in varied else {}
    precision = "" if "precision" in varied else summary.precision
    return summary.card, summary.mode, precision, summary.image, point_text(point)


def _table(series: Sequence[SeriesSummary]) -> Iterator[str]:
    metrics = {at: summary.headline for at, summary in enumerate(series) if summary.headline is not None}
    best, how = _best({at: metric for at, metric in metrics.items() if not series[at].suspect})
    rows = [(series_text(summary), *_cells(summary, metrics.get(at))) for at, summary in enumerate(series)]
    for at, line in enumerate(align(rows, (1,))):
        yield f"{line}  <- best{how}" if at == best else line


def _cells(summary: SeriesSummary, metric: MetricSummary | None) -> tuple[str, str]:
    """Return the number of a point and its unit with its spread, or how its runs ended."""
    if metric is None:
        causes = ", ".join(summary.failed) or ("skipped" if summary.skipped else "not started")
        return "-", f"{'FAILURE ' if summary.failed else ''}{causes}"
    spread = f", CV {100 * metric.cv:.2f} %, n {metric.n}" if metric.cv is not None else ""
    failed = f", {sum(summary.failed.values())} failed" if summary.failed else ""
    suspect = f", {summary.suspect} suspect" if summary.suspect else ""
    return f"{metric.mean:,.6g}", f"{metric.label or metric.metric}{spread}{failed}{suspect}"


def _best(metrics: Mapping[int, MetricSummary]) -> tuple[int | None, str]:
    """Return the place of the best mean, and how sure that is; None of fewer than two, or of different metrics."""
    if len(metrics) < 2 or len({(summary.metric, summary.label) for summary in metrics.values()}) > 1:
        return None, ""
    sign = -1 if next(iter(metrics.values())).lower_is_better else 1
    best, second, *_ = sorted(metrics, key=lambda at: -sign * metrics[at].mean)
    if min(metrics[best].n, metrics[second].n) < 2:
        return best, " (by one run; --repeat tells it from noise)"
    ratio = ratio_of_means(metrics[second].values, metrics[best].values)
    is_sure = ratio is not None and (ratio.low > 1 or ratio.high < 1)
    return best, "" if is_sure else " (not told from noise)"
