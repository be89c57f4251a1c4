"""What a study came to: the statistics of each series over its runs.

A series' samples are its runs' numbers: of a run with a steady window the window's median, else each metric it has.
Failed runs have none and are counted; a suspect number is a sample like any other, and counted too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median

from madlite.errors import UsageProblem
from madlite.measure.statistics import Interval, coefficient_of_variation, mean_interval
from madlite.model import Metric, Result, RunPlan, Scalar, Status, Study, Value, Variant
from madlite.run.screen import PlannedRun, pair
from madlite.store.record import Record, result_of
from madlite.store.study import StudyFolder

CONFIDENCE = 0.95
SCALING = "scaling"
"""The kind of the study that has no summary but figures of its own (`efficiency`)."""
LEAST_FOR_INTERVAL = 3
"""Of two runs the quantile is 12.7: an interval several times as wide as their difference, which says nothing."""
INTERVAL = "Student's t interval of the mean of the runs"


@contextmanager
def making_folder(study_id: str, workspace: Path) -> Iterator[None]:
    """Turn what keeps the folder of a study from being made, or opened, into a problem of the user's.

    Raises:
        UsageProblem: there is such; nothing has run.
    """
    try:
        yield
    except BlockingIOError as error:
        raise UsageProblem(f"study {study_id} is going on in another madlite", "madlite watch shows it") from error
    except OSError as error:
        where = error.filename or workspace
        what = f"the folder of the study cannot be made: {error.strerror or error} ({where})"
        raise UsageProblem(what, "run madlite in a folder of yours, on a disk with room") from error


def save_files(study_id: str, workspace: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Write files of a study whose runs other processes ran; return what went wrong."""
    try:
        folder = StudyFolder.reopen(workspace, study_id, make=True)
    except BlockingIOError:
        return ()  # another command that saw the last run end is writing it
    except OSError as error:
        return (f"the folder of the study cannot be made: {error.strerror or error}",)
    return tuple(filter(None, (*(folder.write(name, text) for name, text in files.items()), folder.close())))


class Sample(Value, frozen=True):
    """One run of a study, on how many nodes with how many GPUs each; `result` is None of one that never started."""

    study: Study
    run: str
    card: str
    variant: Variant | None
    image: str
    result: Result | None
    caches: str = ""
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


class StudySummary(Value, frozen=True):
    """The series of a study; `failed_warm_ups` are the cards whose failed warm-up ended it before its first run."""

    id: str
    kind: str
    series: tuple[SeriesSummary, ...]
    failed_warm_ups: tuple[str, ...] = ()


def samples_of(planned: Sequence[PlannedRun], results: Sequence[Result]) -> Iterator[Sample]:
    """Yield the runs of a study as they were planned; `results` are those of the runs that ended."""
    for one, result in pair(planned, results):
        if one.plan.study is not None:
            yield _sample(one.plan, one.plan.study, result)


def _sample(plan: RunPlan, study: Study, result: Result | None) -> Sample:
    image = plan.image.ref if plan.image is not None else ""
    return Sample(
        study=study,
        run=plan.id if result is None else result.plan_id,  # which is the last attempt's
        card=plan.card.name,
        variant=plan.variant,
        image=image,
        result=result,
        caches=study.caches,
        nodes=plan.place.nodes,
        gpus_per_node=plan.place.gpus_per_node,
    )


def samples_of_records(records: Iterable[Record]) -> Iterator[Sample]:
    """Yield the runs of studies of which there are records, without those that are no results."""
    for record in records:
        no_result = record.is_warm_up or record.is_short or record.is_replaced
        if record.study is not None and not no_result:
            yield Sample(
                study=record.study,
                run=record.id,
                card=record.card,
                variant=record.variant,
                image=record.image.ref,
                result=result_of(record),
                caches=record.caches,
                nodes=record.place.nodes if record.place else 1,
                gpus_per_node=record.place.gpus_per_node if record.place else 0,
            )


def summarise(study_id: str, kind: str, samples: Iterable[Sample], failed_warm_ups: Sequence[str] = ()) -> StudySummary:
    """Return what the runs of a study come to, series by series."""
    by_series: dict[int, list[Sample]] = {}
    for one in samples:
        by_series.setdefault(one.study.series or 0, []).append(one)
    series = tuple(one for number in sorted(by_series) for one in _by_micro_batch(number, by_series[number]))
    return StudySummary(id=study_id, kind=kind, series=series, failed_warm_ups=tuple(failed_warm_ups))


def _by_micro_batch(number: int, samples: Sequence[Sample]) -> Iterator[SeriesSummary]:
    """Yield a series; where a micro batch did not fit, a summary of each that ran, the last one with what is left."""
    left = samples[0].study.count or 0
    groups: dict[int | None, list[Sample]] = {}
    for one in samples:
        if one.result is not None:
            groups.setdefault(one.micro_batch, []).append(one)
    *earlier, last = groups.values() or [list(samples)]
    for group in earlier:
        yield _series(number, group, len(group))
        left -= len(group)
    yield _series(number, last, max(left, len(last)))


def _series(number: int, samples: Sequence[Sample], requested: int) -> SeriesSummary:
    first, ended = samples[0], [one.result for one in samples if one.result is not None]
    good = [one for one in ended if one.status is Status.SUCCESS]
    begun_c = [one.telemetry.start_c for one in ended if one.telemetry is not None]
    known_c = [value for value in begun_c if value is not None]
    return SeriesSummary(
        series=number,
        card=first.card,
        mode=first.variant.mode if first.variant else "",
        precision=first.variant.precision if first.variant else "",
        image=first.image,
        varied=first.study.varied,
        caches=first.caches,
        runs=tuple(one.run for one in samples if one.result is not None),
        requested=requested,
        succeeded=len(good),
        suspect=sum(1 for one in good if one.suspect),
        failed=dict(Counter(one.code for one in ended if one.status is Status.FAILURE)),
        skipped=sum(1 for one in ended if one.status is Status.SKIPPED),
        not_started=max(0, requested - len(ended)),
        start_c=(min(known_c), max(known_c)) if known_c else None,
        images=tuple(dict.fromkeys(name for one in ended if (name := one.image.id or one.image.digest))),
        metrics=tuple(_metrics(good)),
        micro_batch=first.micro_batch,
    )


def _metrics(results: Sequence[Result]) -> Iterator[MetricSummary]:
    """Yield the statistics of each metric that a successful run has, the headline's first."""
    found: dict[tuple[str, str], list[Metric]] = {}
    for one in results:
        for metric in (one.headline,) if one.window is not None else one.metrics:
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
