"""What a user names as one side of a comparison → its series: files, folders, runs, baselines, filters."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import MadliteError, UsageProblem, nearest_words, one_hint
from madlite.model import Value
from madlite.plan.inputs import RUNS
from madlite.reports.baselines import baseline_names, load_baseline
from madlite.reports.index import RunFilter, RunIndex
from madlite.reports.page.run_details import failures_of
from madlite.reports.results_files import LEFT_OUT, Appended, read_results
from madlite.reports.runs import (
    BACK,
    LAST,
    StoredRun,
    appended_to,
    find_named,
    list_runs,
    names_with,
    open_run,
    run_names,
)
from madlite.reports.series import Entry, Failure, Series, group, joined_by_key, matches, merged_facts, of_record
from madlite.reports.series_key import FACTS, as_dimensions, record_facts
from madlite.store.folder import is_run, rows_path

BASELINE = "baseline:"
PUBLISHED = "published"
HISTORY_RUNS = 200  # the newest, from which the noise of a series is learned
_MOST_STORED = 500
_RESULTS_NAME = re.compile(r"[^./\0][^/\0]*\.csv")


class Side(Value, frozen=True):
    """One side of a comparison: how it is called, its series, the ids of its runs where they are known.

    `stored` are those of the runs that lie in a folder of runs; `failures` are rows of a file whose cause it names.
    """

    label: str
    series: tuple[Series, ...]
    runs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stored: tuple[StoredRun, ...] = ()
    failures: tuple[Failure, ...] = ()


def read_side(
    name: str, runs: Path, where: Mapping[str, str], *, paths: bool = True, index: RunIndex | None = None
) -> Side:
    """Return what a name stands for: a file, a folder, a run, a study or batch, a baseline, or `KEY=VALUE`.

    `runs` is the folder of runs of the working folder, which need not exist; `where` keeps results with these
    dimensions, columns or facts.  Without `paths` no folder can be named, and of files only a results file beside
    `runs`, by its name, that is no link.  `index` is that of `runs`, where the caller has it up to date; then a side
    by a value has no `stored` runs.

    Raises:
        UsageProblem: nothing is named so, or it has no results.
    """
    if not name.strip():  # which would be this folder
        raise _unknown(name, runs)
    if not paths and _RESULTS_NAME.fullmatch(name) and os.path.lexists(runs.parent / name):
        found = _of_file(runs.parent / name, where, links=False)
    else:
        found = _of_source(name, find_source(name, runs, paths=paths, index=index), runs, where, index)
    if not found.series:
        raise no_results(name, where, found.notes)
    return found


def no_results(
    name: str,
    where: Mapping[str, str],
    notes: Sequence[str] = (),
    hint: str = "madlite runs lists the runs of this folder",
) -> UsageProblem:
    """Return that what is named so has no results, or none with these values, and what could not be read."""
    kept = " with " + ", ".join(f"{key}={text}" for key, text in where.items()) if where else ""
    unread = f": {'; '.join(notes)}" if notes else ""
    return UsageProblem(f"{'this folder' if Path(name) == Path() else name} has no results{kept}{unread}", hint)


class Source(Value, frozen=True):
    """What a name stands for: runs, all runs of a folder, results files, or a baseline; `where` is a filter that it is.

    Of a working folder, which has both, the files count where its runs have no results.
    """

    runs: tuple[StoredRun, ...] = ()
    all_of: Path | None = None
    files: tuple[Path, ...] = ()
    baseline: str = ""
    where: dict[str, str] = {}


def find_source(name: str, runs: Path, *, paths: bool = True, index: RunIndex | None = None) -> Source:
    """Return what a name stands for, as `read_side` reads it; no file is read yet.

    Without `paths` no file or folder can be named.  `index` is that of `runs`, where the caller has it up to date.

    Raises:
        UsageProblem: nothing is named so, or several runs are.
    """
    if name.startswith(BASELINE):
        return Source(baseline=name.removeprefix(BASELINE))
    path = Path(name)
    if paths and path.exists():
        if not path.is_dir():
            return Source(files=(path,))
        return Source(runs=(open_run(path),)) if _is_run_folder(path) else _folder(path)
    if name in baseline_names(runs):
        return Source(baseline=name)
    key, _, text = name.partition("=")
    if key == "study" and runs.is_dir() and (group := _group(text, runs, index)):  # study=last, too
        return Source(runs=tuple(group))
    if text and key:
        return Source(all_of=runs, where={key: text})
    if chosen := _chosen_runs(name, runs, index):
        return Source(runs=tuple(chosen))
    raise _unknown(name, runs)


def is_baseline(name: str, runs: Path) -> bool:
    """Return whether a name stands for a baseline: a file that is called so comes first."""
    return name.startswith(BASELINE) or (not Path(name).exists() and name in baseline_names(runs))


def is_published(name: str) -> bool:
    """Return whether a name stands for published figures: `published`, `published:PART OF A SOURCE`."""
    return name == PUBLISHED or name.startswith(f"{PUBLISHED}:")


def _is_run_folder(folder: Path) -> bool:
    """Return whether a folder is a run's, and not a working folder in which somebody saved a plan as plan.json."""
    return is_run(folder) and not (folder / RUNS).is_dir()


def _folder(folder: Path) -> Source:
    """Return a folder's runs, and perf.csv or else every results file in it."""
    perf = folder / "perf.csv"
    files = (perf,) if perf.is_file() else tuple(sorted(folder.glob("*.csv")))
    return Source(all_of=folder if folder.name == RUNS else folder / RUNS, files=files)


def _of_source(name: str, source: Source, runs: Path, where: Mapping[str, str], index: RunIndex | None) -> Side:
    """Return the results of what is named so; all runs of a folder, or those with a value, by its index."""
    if source.all_of is not None:
        known = index if source.all_of == runs else None
        found = _of_all_runs(name, source.all_of, {**where, **source.where}, known)
        return found if found.series or source.where else _of_files(name, source.files, where)
    if source.baseline:
        return _of_baseline(runs, source.baseline, where)
    return _of_file(source.files[0], where) if source.files else of_runs(name, source.runs, where)


def read_columns(path: Path, column: str, where: Mapping[str, str]) -> list[Side]:
    """Return one side for each value of a column of a results file, in the order of the file.

    Raises:
        UsageProblem: the file cannot be read, or has no such column.
    """
    found, notes = read_results(path, where=where, by=column)
    return [Side(label=f"{column}={value or '(blank)'}", series=part, notes=notes) for value, part in found.items()]


def of_runs(label: str, runs: Iterable[StoredRun], where: Mapping[str, str]) -> Side:
    """Return the results of runs; those that are not over, or whose records cannot be read, have none."""
    entries: list[Entry] = []
    used: list[StoredRun] = []
    notes: list[str] = []
    for run in finished(runs, notes):
        facts = record_facts(run.record) if where else {}
        found = [entry for entry in of_record(run.record, str(run.folder)) if matches(entry.key, facts, where)]
        entries += found
        used += [run] if found else []
    ids = tuple(run.folder.name for run in used)
    return Side(label=label, series=group(entries), runs=ids, notes=tuple(notes), stored=tuple(used))


def finished(runs: Iterable[StoredRun], notes: list[str]) -> Iterator[StoredRun]:
    """Yield the runs that are over; add to `notes` those whose records cannot be read."""
    for run in runs:
        if run.problem:
            notes.append(f"{run.folder.name}: {run.problem}")
        elif run.is_over:
            yield run


@contextmanager
def _up_to_date(runs: Path, index: RunIndex | None) -> Iterator[RunIndex]:
    if index is not None:
        yield index
        return
    with RunIndex(runs) as own:
        own.refresh()
        yield own


def _of_all_runs(label: str, runs: Path, where: Mapping[str, str], given: RunIndex | None = None) -> Side:
    """Return what `of_runs` does of all runs of a folder, without reading the records that the index knows.

    Of many runs the newest are `stored`: more of them are in no page.
    """
    with _up_to_date(runs, given) as index:
        series, used = index.results(where)
        notes = tuple(f"{run.folder.name}: {run.problem}" for run in index.problems())
        stored = () if given is not None else tuple(index.opened(used[-_MOST_STORED:]))
    return Side(label=label, series=series, runs=used, notes=notes, stored=stored)


def newest_side(base: Side, runs: Path, where: Mapping[str, str]) -> Side:
    """Return what a base is compared with where nothing is named: of each series the newest batch or study.

    The runs of the base are none of it, nor what it has no series like.

    Raises:
        UsageProblem: there are no such runs.
    """
    models = {(series["model"], series["metric"]) for series in base.series}
    with _up_to_date(runs, None) as index:
        groups = {
            run.folder.name: (run.record.study.id if run.record.study else "") or run.record.batch
            for run in index.runs()
        }
        found = [(name, entry) for name, entry in index.entries(where) if name not in base.runs]
        newest = {entry.key[:-1]: groups.get(name) or name for name, entry in found}
        kept = [entry for name, entry in found if newest[entry.key[:-1]] == (groups.get(name) or name)]
        series = tuple(
            series
            for series in group(kept)
            if (series["model"], series["metric"]) in models or (not series["metric"] and not series.values)
        )
        ids = tuple(dict.fromkeys(sample.run for each in series for sample in each.samples))
        stored = tuple(index.opened(ids[-_MOST_STORED:]))
    if not series:
        raise UsageProblem(
            f"no run of {runs} is like {base.label} and none of it",
            f"madlite compare {base.label} NEW: name what is new",
        )
    of = dict.fromkeys(groups.get(name) or name for name in ids)
    named = ", ".join(list(of)[:3]) + (f" and {len(of) - 3} more" if len(of) > 3 else "")
    counted = "1 run" if len(ids) == 1 else f"{len(ids)} runs"
    told = f"{named}: {counted}" if ids else "none of its runs has a number"
    return Side(label=f"the newest batch or study ({told})", series=series, runs=ids, stored=stored)


def _of_file(path: Path, where: Mapping[str, str], *, links: bool = True) -> Side:
    found, notes = read_results(path, where=where, appended=partial(appended_results, path), links=links)
    return _joined(str(path), found.values(), notes)


def appended_results(path: Path) -> Appended:
    """Yield the rows that runs beside a file appended to it, and the results that they are."""
    for folder, record, rows in appended_to(path):
        yield from zip(rows, of_record(record, str(folder)), strict=True)


def _of_files(label: str, files: Iterable[Path], where: Mapping[str, str]) -> Side:
    """Return the results of a folder's files; what of them is no results file is noted."""
    parts: list[tuple[Series, ...]] = []
    notes: list[str] = []
    for file in files:
        try:
            side = _of_file(file, where)
        except UsageProblem as problem:
            notes.append(problem.message)
        else:
            parts.append(side.series)
            notes += side.notes
    return _joined(label, parts, notes)


def _joined(label: str, parts: Iterable[Iterable[Series]], notes: Iterable[str]) -> Side:
    """Return the results of several files, or parts of one, as one side."""
    series = joined_by_key(series for part in parts for series in part)
    ids = dict.fromkeys(sample.run for each in series for sample in each.samples if sample.run)
    return Side(label=label, series=series, runs=tuple(ids), notes=tuple(notes))


def _of_baseline(runs: Path, name: str, where: Mapping[str, str]) -> Side:
    found = load_baseline(runs, name)
    kept = tuple(series for series in found.series if _has(series, where))
    return Side(label=f"baseline {name}", series=kept, runs=found.runs)


def _has(series: Series, where: Mapping[str, str]) -> bool:
    """Return whether a series of a baseline has these dimensions, or any of its runs these facts."""
    dimensions = as_dimensions(series.key)
    names = ((name, FACTS.get(name, name), text) for name, text in where.items())
    return all(text in (dimensions.get(name), *series.facts.get(fact, ())) for name, fact, text in names)


def _chosen_runs(name: str, runs: Path, index: RunIndex | None) -> list[StoredRun]:
    """Return the runs that a name stands for: one, or those of a study or batch.

    Raises:
        UsageProblem: it may be several.
    """
    if not runs.is_dir():
        return []
    try:
        folder = find_named(runs, name, index.ids() if index is not None else None)
    except UsageProblem:
        if not BACK.fullmatch(name) and (group := _group(name, runs, index)):
            return group
        raise
    group = [] if name.startswith(LAST) else _group(name, runs, index)
    if folder is not None and any(run.folder.name != folder.name for run in group):
        what = f"'{name}' is part of the id of run {folder.name}, and of that of batch or study {group[0].record.batch}"
        raise UsageProblem(what, "name more of it")
    return group if folder is None else [open_run(folder)]


def _group(name: str, runs: Path, given: RunIndex | None) -> list[StoredRun]:
    """Return the runs of the study or batch that a name stands for, as for `madlite runs --of`; none without any.

    Raises:
        UsageProblem: it stands for several.
    """
    with _up_to_date(runs, given) as index:
        return index.opened(index.ids(RunFilter(of=index.named_by(name, alone=True)))) if name else []


def _unknown(name: str, runs: Path) -> UsageProblem:
    if is_published(name):
        return UsageProblem(f"{name!r} can only be BASE of madlite compare", "madlite compare published last")
    known = [*baseline_names(runs), *(run_names(runs) if runs.is_dir() else ()), *_csv_files(), LAST]
    known = [word for word in known if word != name]  # `last` where nothing ran
    close = nearest_words(name, known, most=1) or names_with(known, name)[-1:]
    hint = "a results file, a folder, a run's id, last, last~1, a baseline, or device=MI300X"
    return UsageProblem(
        f"{name!r} is no file, run, study or baseline", one_hint(f"did you mean {close[0]}?" if close else "", hint)
    )


def _csv_files() -> list[str]:
    try:
        return [entry.name for entry in os.scandir() if entry.name.endswith(".csv")]
    except OSError:
        return []


def without_shared(base: Side, new: Side) -> Side:
    """Return NEW without the runs that BASE has as well, in each series that has others, and with a note of them."""
    both = {*base.runs} & {*new.runs}
    if not both:
        return new
    series = tuple(_without(series, both) or series for series in new.series)
    words = "a change looks smaller than it is" if series == new.series else "where NEW has others, they count for BASE"
    note = f"{len(both)} of the runs {'is' if len(both) == 1 else 'are'} on both sides: {words}"
    return replace(new, series=series, notes=(*new.notes, note))


def _without(series: Series, runs: Collection[str]) -> Series | None:
    """Return a series without the samples of some runs; None where it has no others."""
    kept = tuple(sample for sample in series.samples if sample.run not in runs)
    if len(kept) == len(series.samples):
        return series
    values = tuple(sample.value for sample in kept)
    return (
        replace(series, values=values, samples=kept, facts=merged_facts(sample.facts for sample in kept))
        if kept
        else None
    )


def run_history(
    runs: Path, without: Iterable[str], given: RunIndex | None = None
) -> Callable[[Series], Sequence[float]]:
    """Return what gives a series the numbers of a folder's earlier runs, the oldest first, which are read once."""
    left_out = frozenset(without)

    @cache
    def read() -> dict[tuple[str, ...], tuple[float, ...]]:
        try:
            with _up_to_date(runs, given) as index:
                opened = index.opened([name for name in index.ids(limit=HISTORY_RUNS) if name not in left_out])
        except (MadliteError, OSError):
            return {}
        # the series of a bisect goes to and fro between what is good and what is bad
        steady = (run for run in opened if run.record.study is None or run.record.study.kind != "bisect")
        return {series.key: series.values for series in of_runs("history", steady, {}).series}

    return lambda series: read().get(series.key, ()) if runs.is_dir() else ()


# What is named for a report: with the failures whose cause is known.

PERF_CSV = "perf.csv"
_CAUSE = "cause"  # the column that `--add-column cause` makes


def collect(names: Sequence[str], directory: Path, where: Mapping[str, str]) -> Side:
    """Return the results that are named; without a name the runs of a working folder, and perf.csv beside them.

    Its `failures` are those of rows that no run here appended.

    Raises:
        UsageProblem: a name stands for nothing, or there are no results.
    """
    parts = (
        [
            _of_reported_file(Path(name), where) if Path(name).is_file() else read_side(name, directory / RUNS, where)
            for name in names
        ]
        if names
        else list(_of_working_folder(directory, where))
    )
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


def _of_reported_file(path: Path, where: Mapping[str, str]) -> Side:
    """Return the results of a results file, with what the runs beside it that appended its rows know of them."""
    found = _of_rows(path, where, partial(appended_results, path))
    if not found.runs:
        return found
    beside = (open_run(folder) for folder, _, _ in appended_to(path))
    runs = of_runs(str(path), beside, where).stored
    told = {(failure.cause, failure.model) for failure in failures_of(runs)}
    others = tuple(failure for failure in found.failures if (failure.cause, failure.model) not in told)
    return replace(found, stored=runs, failures=others)


def _of_rows(path: Path, where: Mapping[str, str], appended: Callable[[], Appended]) -> Side:
    """Return the results of a results file, its failures by their causes where it has a column of them."""
    try:
        found, notes = read_results(path, where=where, by=_CAUSE, appended=appended)
    except UsageProblem:
        found, notes = read_results(path, where=where, appended=appended)
    return replace(_joined(str(path), found.values(), notes), failures=tuple(_failures(found)))


def _failures(found: Mapping[str, Iterable[Series]]) -> Iterator[Failure]:
    for cause, part in found.items():
        yield from (Failure.of_series(series, series.failed, cause) for series in part if cause and series.failed)


def _of_working_folder(directory: Path, where: Mapping[str, str]) -> Iterator[Side]:
    """Yield the runs of a working folder, and what perf.csv has beyond the rows that they appended."""
    runs = list_runs(directory / RUNS) if (directory / RUNS).is_dir() else ()
    if runs:
        side = of_runs(str(directory / RUNS), runs, where)
        # those that are not over are counted, and have no results
        yield replace(side, stored=side.stored if where else runs)
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
