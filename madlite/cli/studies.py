"""Repeats, sweeps and scalings on the screen; what a study came to, for `madlite runs --of` and `show`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from madlite.cli.format import span_text
from madlite.cli.terminal import shell_line
from madlite.errors import nearest_words
from madlite.model import Status, Value
from madlite.plan.inputs import RUNS
from madlite.reports.index import RunFilter, RunIndex
from madlite.store.batches import BatchLog
from madlite.store.folder import exists
from madlite.store.study import SUMMARY, is_running, read_summary, study_path
from madlite.study.bisect_runs import KIND as BISECT
from madlite.study.bisect_runs import BisectSummary
from madlite.study.bisect_runs import summary_lines as bisect_lines
from madlite.study.efficiency import Scaling, scaling_lines, scalings_of
from madlite.study.repeat import KIND, plan_repeat, warm_up_text
from madlite.study.scaling import KIND as SCALING
from madlite.study.scaling import PAGE as SCALING_PAGE
from madlite.study.summary import MetricSummary, SeriesSummary, StudySummary, samples_of_records, summarise
from madlite.study.sweep import KIND as SWEEP
from madlite.study.sweep import point_text, series_text, sweep_lines
from madlite.study.tune import KIND as TUNE
from madlite.study.tune_report import PAGE, RECIPE, TuneReport, recipe_command, report_lines
from madlite.text import counted, percent

if TYPE_CHECKING:
    from madlite.reports.index import RunIndex
    from madlite.reports.runs import StoredRun
    from madlite.run.screen import PlannedRun
    from madlite.store.record import Record


_Summary = TypeVar("_Summary", bound=Value)


def outcome_lines(runs: Sequence[StoredRun], workspace: Path) -> list[str]:
    """Return what the study of these runs came to, and where its files are; nothing of runs of none or of several."""
    studies = {(run.record.study.id, run.record.study.kind) for run in runs if run.record.study is not None}
    if len(studies) != 1:
        return []
    ((study_id, kind),) = studies
    if kind in (TUNE, BISECT) and any(run.origin for run in runs):  # what it came to is not here, nor goes it on here
        return []
    if kind not in (TUNE, BISECT):
        return statistics_of([run.record for run in runs if run.state in (*Status,)])
    command = next((run.record.command for run in reversed(runs) if run.record.command), ())
    lines = _tune_lines if kind == TUNE else _bisect_lines
    return [*lines(workspace, study_id, command)]


def _tune_lines(workspace: Path, study_id: str, command: Sequence[str]) -> Iterator[str]:
    report = yield from _summary(workspace, study_id, command, TuneReport)
    if report is not None:
        yield from report_lines(report)
        where = study_path(workspace, study_id)
        if exists(where / RECIPE):
            yield f"  {recipe_command(where)}"
        yield f"  {where / SUMMARY}; {where / PAGE}"


def _bisect_lines(workspace: Path, study_id: str, command: Sequence[str]) -> Iterator[str]:
    summary = yield from _summary(workspace, study_id, command, BisectSummary)
    if summary is not None:
        yield from bisect_lines(summary)
        yield f"  {study_path(workspace, study_id) / SUMMARY}"


def _summary(
    workspace: Path, study_id: str, command: Sequence[str], kind: type[_Summary]
) -> Generator[str, None, _Summary | None]:
    """Return what was written down at the end of a study; None where it was not, and yield why."""
    try:
        found = msgspec.json.decode(read_summary(workspace, study_id), type=kind)
    except FileNotFoundError:
        found = None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield f"{study_path(workspace, study_id) / SUMMARY} cannot be read: {error}"
        return None
    if is_running(workspace, study_id):
        yield f"study {study_id} goes on: madlite watch"
    elif found is None:
        words = [word for word in command if not word.startswith("--resume")]
        again = (
            shell_line(("madlite", *words, f"--resume={study_id}"))
            if words
            else f"its command with --resume={study_id}"
        )
        yield f"study {study_id} has not come to its end: {again} goes on with it"
    return found


def unknown_id(index: RunIndex, of: str) -> str:
    """Return that nothing has an id that begins so, with the nearest ones; "" where something has."""
    known = [*dict.fromkeys((*index.values("study"), *index.values("batch")))]
    if any(name.startswith(of) for name in known):
        return ""
    near = nearest_words(of, known, 3)
    hint = f"did you mean {', '.join(near)}?   " if near else ""
    return f"no batch and no study has an id that begins with '{of}': {hint}madlite runs --group study lists them"


USEFUL = 5  # runs, from which on an interval is of use
APART_C = 5.0  # between the starts of a series' runs: from there on the difference is shown


def preview_repeat(planned: Sequence[PlannedRun], params: dict[str, Any]) -> tuple[Sequence[PlannedRun], list[str]]:
    """Return the first run of each series as it would be, and the order of all as lines."""
    repeat = plan_repeat(planned, BatchLog().id, params["repeat"], cold=params["cold"])
    warm_ups = (warm_up_text(one.plan.card.name, one.plan.study) for one in repeat.warm_ups)
    lines = ["# --- order of the runs", *(f"warm-up  {text}" for text in warm_ups)]
    lines += [f"{n}/{len(repeat.runs)}  {place_text(one)}" for n, one in enumerate(repeat.runs, 1)]
    return repeat.firsts, lines


def place_text(one: PlannedRun) -> str:
    """Return what a run measures, and as which of a study: `my_model · pretrain  (run 2 of 5, caches warm)`."""
    plan, study = one.plan, one.plan.study
    varied = point_text(study.varied) if study is not None else ""
    names = (plan.card.name, *((plan.variant.mode, plan.variant.precision) if plan.variant else ()))
    parts = (*names, varied)
    which = f"run {study.index} of {study.count}, caches {study.caches or 'of the user'}" if study else ""
    note = "would not start" if plan.blocked else which
    return f"{' · '.join(filter(None, parts))}{f'  ({note})' if note else ''}"


# The statistics as lines.


def statistics_of(records: Sequence[Record]) -> list[str]:
    """Return the statistics of the runs of one repeat, sweep or scaling as lines; none where they are of several."""
    studies = {(one.study.id, one.study.kind) for one in records if one.study is not None}
    if len(studies) != 1 or any(one.study is None for one in records):
        return []
    ((study_id, kind),) = studies
    if kind == SCALING:
        scalings = scalings_of(list(samples_of_records(records)))
        return [f"{kind} {study_id}", *(f"  {text}" for one in scalings for text in scaling_lines(one))]
    summary = summary_of(records)
    return [*study_lines(summary)] if summary is not None else []


def summary_of(records: Sequence[Record]) -> StudySummary | None:
    """Return what the runs of one repeat or sweep came to; None of others."""
    study, samples = records[0].study if records else None, list(samples_of_records(records))
    failed = _failed_warm_ups(records)
    if study is None or not (samples or failed) or study.kind not in (KIND, SWEEP):
        return None
    return summarise(study.id, study.kind, samples, failed)


def _failed_warm_ups(records: Sequence[Record]) -> list[str]:
    """Return the warm-ups that failed, and did not succeed when the study was resumed."""
    warm_ups = (one for one in records if one.is_warm_up and not one.is_replaced)
    ended = [(warm_up_text(one.card, one.study), one.status) for one in warm_ups]
    good = {name for name, status in ended if status is Status.SUCCESS}
    return sorted({name for name, status in ended if status is Status.FAILURE} - good)


def summary_of_runs(workspace: Path, study_id: str) -> StudySummary | None:
    """Return what a repeat or a sweep came to, by the records of its runs; None where they are of neither."""
    return summary_of(records_of(workspace, study_id))


def records_of(workspace: Path, study_id: str) -> list[Record]:
    """Return the records of a study's runs that have ended."""
    with RunIndex.open(workspace / RUNS) as index:
        index.refresh()
        found = index.opened([run.folder.name for run in index.newest(RunFilter(of=study_id), 0)])
    return [run.record for run in found if run.state in (*Status,)]


def study_lines(summary: StudySummary) -> Iterator[str]:
    """Yield what a repeat or a sweep came to."""
    return summary_lines(summary) if summary.kind == KIND else swept_lines(summary)


def summary_lines(summary: StudySummary) -> Iterator[str]:
    """Yield the statistics of a study, series by series."""
    yield f"{summary.kind} {summary.id}"
    if summary.failed_warm_ups:
        what = "its runs were not started" if any(one.runs for one in summary.series) else "nothing was repeated"
        yield f"  the warm-up failed: {', '.join(summary.failed_warm_ups)}; {what}"
    for one in summary.series:
        parts = (one.card, one.mode, one.precision, one.image, series_text(one))
        yield f"  {' · '.join(filter(None, parts))}  ({_counts(one)})"
        yield from (f"    {_metric_line(metric)}" for metric in one.metrics)
        yield from (f"    {text}" for text in _differences(one))
    if summary.kind == SWEEP:
        yield from (f"  {line}" for line in sweep_lines(summary))


def swept_lines(summary: StudySummary) -> Iterator[str]:
    """Yield what a sweep came to; the statistics of each point where it was repeated."""
    if any(one.requested > 1 for one in summary.series):
        yield from summary_lines(summary)
        return
    yield f"{summary.kind} {summary.id}"
    yield from (f"  {line}" for line in sweep_lines(summary))


def _counts(one: SeriesSummary) -> str:
    """Return how the runs of a series ended: `4 of 5 runs, 1 failed (timeout), 1 suspect, caches warm`."""
    causes = ", ".join(f"{count} x {cause}" if count > 1 else cause for cause, count in one.failed.items())
    said = [f"{one.succeeded} of {counted(one.requested, 'run')}"]
    said += [f"{sum(one.failed.values())} failed ({causes})"] if one.failed else []
    said += [f"{one.skipped} skipped"] if one.skipped else []
    said += [f"{one.not_started} not started"] if one.not_started else []
    said += [f"{one.suspect} suspect, counted"] if one.suspect else []
    return ", ".join([*said, *([f"caches {one.caches}"] if one.caches else [])])


def _metric_line(one: MetricSummary) -> str:
    """Return the statistics of one metric, to six digits."""
    name = f"{one.label} {one.metric}".strip()
    if one.n < 2:
        return f"{name}: {one.mean:,.6g}, of one run: no interval"
    return (
        f"{name}: mean {one.mean:,.6g} ({_interval_text(one)}), median {one.median:,.6g}, {one.min:,.6g} to "
        f"{one.max:,.6g}, between-run CV {percent(one.cv, 'unknown')}{'; less is better' * one.lower_is_better}"
    )


def _interval_text(one: MetricSummary) -> str:
    if one.interval is None:
        return f"{one.n} runs are too few for an interval: --repeat {USEFUL}"
    low, high = one.interval.low, one.interval.high
    wide = f"; wide, for the runs scatter: --repeat {2 * one.n}" if low <= 0 < one.min else ""
    return f"{100 * one.confidence:.0f} % interval {low:,.6g} to {high:,.6g}, Student's t, n {one.n}{wide}"


def _differences(one: SeriesSummary) -> Iterator[str]:
    """Yield what the runs of a series do not have in common, and should."""
    if one.start_c is not None and one.start_c[1] - one.start_c[0] > APART_C:
        yield f"the runs began with GPUs of {span_text(one.start_c, '°C')}: --settle waits until they have cooled down"
    if len(one.images) > 1:
        yield f"the runs had {len(one.images)} different images"


def runs_of_text(workspace: Path, study_id: str, *files: str) -> str:
    """Return the last line of a study: what lists its runs, and where its `files` are."""
    where = study_path(workspace, study_id).relative_to(workspace)
    return "; ".join((f"  madlite runs --of {study_id}", *(str(where / file) for file in files)))


def scaling_study_lines(study_id: str, scalings: Sequence[Scaling], workspace: Path) -> Iterator[str]:
    """Yield what a study came to, and where more of it is."""
    yield f"scaling {study_id}"
    yield from (f"  {text}" for one in scalings for text in scaling_lines(one))
    yield runs_of_text(workspace, study_id, SUMMARY, SCALING_PAGE)
