"""What a user names for a report → its series, stored runs and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Reference
from madlite.perfcsv.pending import rows_path
from madlite.plan.inputs import RUNS
from madlite.reports.page.run_details import failures_of, trusted
from madlite.reports.page.values import ReferenceMark, References
from madlite.reports.references import Match, Published, counts_same, matches_of, model_key, of_record, of_series
from madlite.reports.results_files import LEFT_OUT, Appended, Read, read_results
from madlite.reports.runs import StoredRun, appended_to, list_runs, open_run
from madlite.reports.series import Failure, Series, joined_by_key
from madlite.reports.sides import Side, appended_results, joined_reads, no_results, of_runs, read_side

PERF_CSV = "perf.csv"
_CAUSE = "cause"  # the column that `--add-column cause` makes


def collect(names: Sequence[str], directory: Path, where: Mapping[str, str]) -> Side:
    """Return the results that are named; without a name the runs of a working folder, and perf.csv beside them.

    Its `failures` are all whose cause is known, of runs and of files.

    Raises:
        UsageProblem: a name stands for nothing, or there are no results.
    """
    parts = [_named(name, directory / RUNS, where) for name in names] if names else list(_of_folder(directory, where))
    stored = {run.folder: run for side in parts for run in side.stored}
    found = Side(
        label=", ".join(side.label for side in parts if side.label),
        series=joined_by_key(series for side in parts for series in side.series),
        runs=tuple(folder.name for folder in stored),
        stored=tuple(stored.values()),
        failures=tuple(dict.fromkeys(failure for side in parts for failure in side.failures)),
        notes=tuple(dict.fromkeys(note for side in parts for note in side.notes)),
    )
    if not found.series and not found.stored:
        raise no_results(str(directory), where, hint="madlite report html perf.csv   (or a run's id, or --dir DIR)")
    return found


def _named(name: str, runs: Path, where: Mapping[str, str]) -> Side:
    if Path(name).is_file():
        return _of_file(Path(name), where)
    side = read_side(name, runs, where)
    return replace(side, failures=failures_of(side.stored))


def _of_file(path: Path, where: Mapping[str, str]) -> Side:
    """Return the results of a results file, with what the runs beside it that appended its rows know of them."""
    found = _of_rows(path, where, partial(appended_results, path))
    if not found.runs:
        return found
    beside = (open_run(folder) for folder, _, _ in appended_to(path))
    runs = of_runs(str(path), beside, where).stored
    named = failures_of(runs)
    told = {(failure.cause, failure.model) for failure in named}
    others = tuple(failure for failure in found.failures if (failure.cause, failure.model) not in told)
    return replace(found, stored=runs, failures=(*named, *others))


def _of_rows(path: Path, where: Mapping[str, str], appended: Callable[[], Appended]) -> Side:
    """Return the results of a results file, its failures by their causes where it has a column of them."""
    try:
        reads = read_results(path, where=where, by=_CAUSE, appended=appended)
    except UsageProblem:
        reads = read_results(path, where=where, appended=appended)
    return replace(joined_reads(str(path), reads.values()), failures=tuple(_failures(reads)))


def _failures(reads: Mapping[str, Read]) -> Iterator[Failure]:
    for cause, read in reads.items():
        for one_series in read.series:
            if cause and one_series.failed:
                yield Failure(
                    cause=cause,
                    model=one_series["model"],
                    device=one_series["device"],
                    precision=one_series["precision"],
                    count=one_series.failed,
                )


def _of_folder(directory: Path, where: Mapping[str, str]) -> Iterator[Side]:
    """Yield the runs of a working folder, and what perf.csv has beyond the rows that they appended."""
    runs = list_runs(directory / RUNS) if (directory / RUNS).is_dir() else ()
    if runs:
        side = of_runs(str(directory / RUNS), runs, where)
        # those that are not over are counted, and have no results
        yield replace(side, stored=side.stored if where else runs, failures=failures_of(side.stored))
    file = directory / PERF_CSV
    if file.is_file():
        try:
            rest = _of_rows(file, where, partial(_left_out, runs, rows_path(file, directory)))
        except UsageProblem as problem:
            if not runs:
                raise
            rest = Side(label="", series=(), notes=(problem.message,))
        yield rest if rest.series or not runs else replace(rest, label="")


def _left_out(runs: Sequence[StoredRun], path: str) -> Appended:
    """Yield the rows that runs appended to a results file: none of them is a second result."""
    for rows in (run.record.rows for run in runs):
        if rows is not None and rows.path == path:
            yield from ((cells, LEFT_OUT) for cells in rows.cells)


_MOST = 5  # of one series


def references_of(published: Sequence[Published], runs: Iterable[StoredRun] = ()) -> References:
    """Return a function that gives a series the published numbers it can be compared with, the nearest first.

    Of a series of stored runs more is known than its dimensions: the GPU's full name, the image's release.
    """
    of_model: dict[str, list[Reference]] = {}
    for reference in published:
        of_model.setdefault(model_key(reference.reference.model), []).append(reference.reference)
    origins = {
        id(reference.reference): "" if reference.from_plugin else f" in {reference.origin}" for reference in published
    }
    known = {run.folder.name: run for run in trusted(runs)}

    def marks(series: Series) -> Sequence[ReferenceMark]:
        if not of_model:
            return ()
        run = next((known[sample.run] for sample in reversed(series.samples) if sample.run in known), None)
        measured = of_record(run.record)[0] if run is not None else of_series(series)
        references = of_model.get(model_key(measured.model), ())
        found = matches_of(
            (reference for reference in references if counts_same(reference, series["metric"], "")), measured
        )
        return tuple(_mark(match, origins[id(match.reference)]) for match in found[:_MOST])

    return marks


def _mark(match: Match, origin: str) -> ReferenceMark:
    reference = match.reference
    label = ", ".join(filter(None, (f"{reference.source}{origin}", reference.date)))
    return ReferenceMark(value=reference.value, label=label, differences=match.differences, url=reference.url)
