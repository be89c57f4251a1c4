"""What a user names for a report → its series, stored runs and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import asdict, replace

from madlite.errors import UsageProblem
from madlite.model import Reference, Status, Value
from madlite.perfcsv.pending import rows_path
from madlite.plan.inputs import RUNS
from madlite.reports.page.run_details import failures_of, trusted
from madlite.reports.page.values import Failure, ReferenceMark, References
from madlite.reports.references import Match, Published, matching, model_key, of_record, of_series
from madlite.reports.results_files import Read, Recorded, read_results
from madlite.reports.runs import StoredRun, appended_to, list_runs, open_run
from madlite.reports.series import Entry, Series, joined, merged_facts, of_row
from madlite.reports.sides import Side, joined_reads, of_runs, read_side, recorded_in

PERF_CSV = "perf.csv"
_CAUSE = "cause"  # the column that `--add-column cause` makes


class Collected(Value, frozen=True):
    """What a report is about; `failures` are those whose cause is known."""

    sources: tuple[str, ...]
    series: tuple[Series, ...]
    runs: tuple[StoredRun, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()


def collect(names: Sequence[str], directory: Path, where: Mapping[str, str]) -> Collected:
    """Return the results that are named; without a name the runs of a working folder, and perf.csv beside them.

    Raises:
        UsageProblem: a name stands for nothing, or there are no results.
    """
    parts = [_named(name, directory / RUNS, where) for name in names] if names else list(_of_folder(directory, where))
    found = Collected(
        sources=tuple(name for one in parts for name in one.sources),
        series=_joined(series for one in parts for series in one.series),
        runs=tuple({run.folder: run for one in parts for run in one.runs}.values()),
        failures=tuple(dict.fromkeys(failure for one in parts for failure in one.failures)),
        notes=tuple(dict.fromkeys(note for one in parts for note in one.notes)),
    )
    if not found.series and not found.runs:
        raise _nothing(directory, where)
    return found


def as_side(found: Collected) -> Side:
    """Return collected results as a side of a comparison."""
    ids = tuple(run.folder.name for run in found.runs)
    return Side(label=", ".join(found.sources), series=found.series, runs=ids, stored=found.runs)


def _joined(series: Iterable[Series]) -> tuple[Series, ...]:
    known: dict[tuple[str, ...], Series] = {}
    for one in series:
        known[one.key] = joined(known.get(one.key), one)
    return tuple(known.values())


def _named(name: str, runs: Path, where: Mapping[str, str]) -> Collected:
    if Path(name).is_file():
        return _of_file(Path(name), where)
    return _of_side(read_side(name, runs, where))


def _of_side(side: Side) -> Collected:
    return Collected(
        sources=(side.label,),
        series=side.series,
        runs=side.stored,
        failures=failures_of(side.stored),
        notes=side.notes,
    )


def _of_file(path: Path, where: Mapping[str, str]) -> Collected:
    """Return the results of a results file, with what the runs beside it that appended its rows know of them."""
    found = _of_rows(path, where, partial(recorded_in, path))
    if not any(sample.run for one in found.series for sample in one.samples):
        return found
    beside = (open_run(folder) for folder, _, _ in appended_to(path))
    runs = of_runs(str(path), beside, where).stored
    named = failures_of(runs)
    told = {(one.cause, one.model) for one in named}
    others = tuple(one for one in found.failures if (one.cause, one.model) not in told)
    return replace(found, runs=runs, failures=(*named, *others))


def _of_rows(path: Path, where: Mapping[str, str], recorded: Recorded = lambda columns: {}) -> Collected:
    """Return the results of a results file, its failures by their causes where it has a column of them."""
    try:
        reads = read_results(path, where=where, by=_CAUSE, recorded=recorded)
    except UsageProblem:
        reads = read_results(path, where=where, recorded=recorded)
    side = joined_reads(str(path), reads.values())
    notes = tuple(dict.fromkeys(side.notes))
    return Collected(sources=(side.label,), series=side.series, failures=tuple(_failures(reads)), notes=notes)


def _failures(reads: Mapping[str, Read]) -> Iterator[Failure]:
    for cause, read in reads.items():
        for one in read.series:
            if cause and one.failed:
                yield Failure(
                    cause=cause,
                    model=one["model"],
                    device=one["device"],
                    precision=one["precision"],
                    count=one.failed,
                )


# A working folder: its runs, and what perf.csv has beyond their rows.


def _of_folder(directory: Path, where: Mapping[str, str]) -> Iterator[Collected]:
    runs = list_runs(directory / RUNS) if (directory / RUNS).is_dir() else ()
    if runs:
        side = of_runs(str(directory / RUNS), runs, where)
        # those that are not over are counted, and have no results
        known = side.stored if where else runs
        yield replace(_of_side(side), runs=known, failures=failures_of(side.stored))
    file = directory / PERF_CSV
    if file.is_file():
        try:
            yield _beyond(_of_rows(file, where), runs, rows_path(file, directory))
        except UsageProblem as problem:
            if not runs:
                raise
            yield Collected(sources=(), series=(), notes=(problem.message,))


def _beyond(found: Collected, runs: Sequence[StoredRun], path: str) -> Collected:
    """Return what a results file has beyond the rows that runs appended to it."""
    rest = tuple(_without(found.series, _appended(runs, path)))
    left = Counter({one["model"]: one.failed for one in rest})
    failures = tuple(one for one in found.failures if left[one.model] >= one.count)
    return replace(found, sources=found.sources if rest or not runs else (), series=rest, failures=failures)


def _appended(runs: Iterable[StoredRun], path: str) -> Counter[tuple[str, str, float | None]]:
    """Return the rows that runs appended to a results file, as `_key` has them, and how often."""
    rows = (run.record.rows for run in runs)
    return Counter(
        _key(of_row(cells, "")) for one in rows if one is not None and one.path == path for cells in one.cells
    )


def _key(entry: Entry) -> tuple[str, str, float | None]:
    """Return model, metric and value of a row; without a number how it ended in place of the metric."""
    if entry.sample is not None:
        return entry.dimensions["model"], entry.dimensions["metric"], entry.sample.value
    skipped = Status.SKIPPED.value
    return entry.dimensions["model"], skipped if entry.status == skipped else Status.FAILURE.value, None


def _without(series: Iterable[Series], rows: Counter[tuple[str, str, float | None]]) -> Iterator[Series]:
    """Yield what is left of series without rows that are counted: a run's row is not a second result."""
    for one in series:
        left = [
            place for place, value in enumerate(one.values) if not _take(rows, (one["model"], one["metric"], value))
        ]
        samples = tuple(one.samples[place] for place in left) if one.samples else ()
        rest = replace(
            one,
            values=tuple(one.values[place] for place in left),
            samples=samples,
            facts=merged_facts(sample.facts for sample in samples) if samples else one.facts,
            failed=one.failed - _taken(rows, (one["model"], Status.FAILURE.value, None), one.failed),
            skipped=one.skipped - _taken(rows, (one["model"], Status.SKIPPED.value, None), one.skipped),
        )
        if rest.values or rest.failed or rest.skipped:
            yield rest


def _take(rows: Counter[tuple[str, str, float | None]], key: tuple[str, str, float | None]) -> bool:
    return bool(_taken(rows, key, 1))


def _taken(rows: Counter[tuple[str, str, float | None]], key: tuple[str, str, float | None], most: int) -> int:
    """Take rows out of what is counted, and return how many there were."""
    found = min(rows.get(key, 0), most)
    if found:
        rows[key] -= found
    return found


def _nothing(directory: Path, where: Mapping[str, str]) -> UsageProblem:
    place = "this folder" if directory == Path() else str(directory)
    kept = " with " + ", ".join(f"{key}={text}" for key, text in where.items()) if where else ""
    return UsageProblem(f"{place} has no results{kept}", "madlite report html perf.csv   (or a run's id, or --dir DIR)")


_MOST = 5  # of one series


def references_of(published: Sequence[Published], runs: Iterable[StoredRun] = ()) -> References:
    """Return a function that gives a series the published numbers it can be compared with, the nearest first.

    Of a series of stored runs more is known than its dimensions: the GPU's full name, the image's release.
    """
    of_model: dict[str, list[Reference]] = {}
    for one in published:
        of_model.setdefault(model_key(one.reference.model), []).append(one.reference)
    origins = {id(one.reference): "" if one.from_plugin else f" in {one.origin}" for one in published}
    known = {run.folder.name: run for run in trusted(runs)}

    def marks(series: Series) -> Sequence[ReferenceMark]:
        if not of_model:
            return ()
        run = next((known[sample.run] for sample in reversed(series.samples) if sample.run in known), None)
        measured = of_record(run.record)[0] if run is not None else of_series(series)
        references = of_model.get(model_key(measured.model), ())
        found = matching(references, **asdict(measured), metric=series["metric"])
        return tuple(_mark(one, origins[id(one.reference)]) for one in found[:_MOST])

    return marks


def _mark(match: Match, origin: str) -> ReferenceMark:
    one = match.reference
    label = ", ".join(filter(None, (f"{one.source}{origin}", one.date)))
    return ReferenceMark(value=one.value, label=label, differences=match.differences, url=one.url)
