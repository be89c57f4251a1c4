"""What a user names as one side of a comparison → its series: files, folders, runs, baselines, filters."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem, nearest_words, one_hint
from madlite.model import Value
from madlite.plan.inputs import RUNS
from madlite.reports.baselines import baseline_names, load_baseline
from madlite.reports.index import RunFilter, RunIndex, open_index
from madlite.reports.results_files import LEFT_OUT, Appended, read_results
from madlite.reports.runs import BACK, LAST, StoredRun, appended_to, find_named, names_with, open_run
from madlite.reports.series import (
    Entry,
    Failure,
    Series,
    group,
    joined_by_key,
    matches,
    merged_facts,
    of_record,
    values_of,
)
from madlite.reports.series_key import FACTS, as_dimensions, record_facts
from madlite.store.folder import is_run
from madlite.text import counted

PUBLISHED = "published"
PERF_CSV = "perf.csv"
HISTORY_RUNS = 200  # the newest, from which the noise of a series is learned
_MOST_STORED = 2000  # runs of which a report has curves and causes
_RESULTS_NAME = re.compile(r"[^./\0][^/\0]*\.csv")


class Side(Value, frozen=True):
    """One side of a comparison: how it is called, its series, the ids of its runs where they are known.

    `failures` are those of rows without a run whose cause a column of their file names.
    """

    label: str
    series: tuple[Series, ...]
    runs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()


def read_side(name: str, index: RunIndex, where: Mapping[str, str], *, paths: bool = True) -> Side:
    """Return what a name stands for: a file, a folder, a run, a study or batch, a baseline, or `KEY=VALUE`.

    `index` is that of the runs of the working folder, which need not have any; `where` keeps results with these
    dimensions, columns or facts.  Without `paths` no folder can be named, and of files only a results file beside the
    runs, by its name, that is no link.

    Raises:
        UsageProblem: nothing is named so, or it has no results.
    """
    return _read(name, find_source(name, index, paths=paths), index, where, links=paths)


def _read(name: str, source: Source, index: RunIndex, where: Mapping[str, str], *, links: bool = True) -> Side:
    found = _of_source(name, source, index, where, links)
    if not found.series:
        raise no_results(name, where, found.notes)
    return found


def no_results(name: str, where: Mapping[str, str], notes: Sequence[str] = ()) -> UsageProblem:
    """Return that what is named so has no results, or none with these values, and what could not be read."""
    kept = " with " + ", ".join(f"{key}={text}" for key, text in where.items()) if where else ""
    unread = f": {'; '.join(notes)}" if notes else ""
    what = "this folder" if Path(name) == Path() else name
    return UsageProblem(f"{what} has no results{kept}{unread}", "madlite runs lists the runs of this folder")


class Source(Value, frozen=True):
    """What a name stands for: runs, all runs of a folder, results files, or a baseline; `where` is a filter that it is.

    Of a working folder, which has both, the files count where its runs have no results.
    """

    runs: tuple[StoredRun, ...] = ()
    all_of: Path | None = None
    files: tuple[Path, ...] = ()
    baseline: str = ""
    where: dict[str, str] = {}


def find_source(name: str, index: RunIndex, *, paths: bool = True) -> Source:
    """Return what a name stands for, as `read_side` reads it; no file is read yet.

    Raises:
        UsageProblem: nothing is named so, or several runs are.
    """
    runs = index.folder
    if found := _file_source(name, runs, paths=paths):
        return found
    if name in baseline_names(runs):
        return Source(baseline=name)
    key, _, text = name.partition("=")
    if key == "study" and (group := _group(text, index)):  # study=last, too
        return Source(runs=tuple(group))
    if text and key:
        return Source(all_of=runs, where={key: text})
    if chosen := _chosen_runs(name, index):
        return Source(runs=tuple(chosen))
    raise _unknown(name, index)


def _file_source(name: str, runs: Path, *, paths: bool) -> Source | None:
    """Return the file or folder of this name; None where there is none, and for a blank name."""
    path = Path(name) if paths else runs.parent / name
    if not name.strip() or not (paths or _RESULTS_NAME.fullmatch(name)) or not os.path.lexists(path):
        return None
    if not path.is_dir() or not paths:
        return Source(files=(path,))
    return Source(runs=(open_run(path),)) if _is_run_folder(path) else _folder(path)


def is_baseline(name: str, runs: Path) -> bool:
    """Return whether a name stands for a baseline: a file that is called so comes first."""
    return not Path(name).exists() and name in baseline_names(runs)


def _is_run_folder(folder: Path) -> bool:
    """Return whether a folder is a run's, and not a working folder in which somebody saved a plan as plan.json."""
    return is_run(folder) and not (folder / RUNS).is_dir()


def _folder(folder: Path) -> Source:
    """Return a folder's runs, and perf.csv or else every results file in it."""
    perf = folder / PERF_CSV
    files = (perf,) if perf.is_file() else tuple(sorted(folder.glob("*.csv")))
    return Source(all_of=folder if folder.name == RUNS else folder / RUNS, files=files)


def _of_source(name: str, source: Source, index: RunIndex, where: Mapping[str, str], links: bool) -> Side:
    """Return the results of what is named so; all runs of a folder, or those with a value, by its index."""
    if source.all_of is not None:
        with _index_of(source.all_of, index) as own:
            found = _of_all_runs(name, own, {**where, **source.where})
        return found if found.series or source.where else _of_files(name, source.files, where)
    if source.baseline:
        return _of_baseline(index.folder, source.baseline, where)
    if source.files:
        return _of_file(source.files[0], where, appended_results, links=links)
    return of_runs(name, source.runs, where)


@contextmanager
def _index_of(folder: Path, index: RunIndex) -> Iterator[RunIndex]:
    if folder == index.folder:
        yield index
        return
    with open_index(folder) as own:
        yield own


def read_columns(path: Path, column: str, where: Mapping[str, str]) -> list[Side]:
    """Return one side for each value of a column of a results file, in the order of the file.

    Raises:
        UsageProblem: the file cannot be read, or has no such column.
    """
    found, notes = read_results(path, where=where, by=column)
    named = {value: f"{column}={value or '(blank)'}" for value in found}
    return [Side(label=named[value], series=group(part), notes=notes) for value, part in found.items()]


def of_runs(label: str, runs: Iterable[StoredRun], where: Mapping[str, str]) -> Side:
    """Return the results of runs; those that are not over, or whose records cannot be read, have none."""
    entries: list[Entry] = []
    used: list[str] = []
    notes: list[str] = []
    for run in finished(runs, notes):
        facts = record_facts(run.record) if where else {}
        found = [entry for entry in of_record(run.record, str(run.folder)) if matches(entry.key, facts, where)]
        entries += found
        used += [run.folder.name] if found else []
    return Side(label=label, series=group(entries), runs=tuple(used), notes=tuple(notes))


def finished(runs: Iterable[StoredRun], notes: list[str]) -> Iterator[StoredRun]:
    """Yield the runs that are over; add to `notes` those whose records cannot be read."""
    for run in runs:
        if run.problem:
            notes.append(f"{run.folder.name}: {run.problem}")
        elif run.is_over:
            yield run


def _of_all_runs(label: str, index: RunIndex, where: Mapping[str, str]) -> Side:
    """Return what `of_runs` does of all runs of a folder, without reading the records that the index knows."""
    series, used = index.results(where)
    notes = tuple(f"{run.folder.name}: {run.problem}" for run in index.problems())
    return Side(label=label, series=series, runs=used, notes=notes)


def newest_side(base: Side, index: RunIndex, where: Mapping[str, str]) -> Side:
    """Return what a base is compared with where nothing is named: of each series the newest batch or study.

    The runs of the base are none of it, nor what it has no series like.

    Raises:
        UsageProblem: there are no such runs.
    """
    models = {(series["model"], series["metric"]) for series in base.series}
    groups = {
        run.folder.name: (run.record.study.id if run.record.study else "") or run.record.batch for run in index.runs()
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
    if not series:
        raise UsageProblem(
            f"no run of {index.folder} is like {base.label} and none of it",
            f"madlite compare {base.label} NEW: name what is new",
        )
    of = dict.fromkeys(groups.get(name) or name for name in ids)
    named = ", ".join(list(of)[:3]) + (f" and {len(of) - 3} more" if len(of) > 3 else "")
    told = f"{named}: {counted(len(ids), 'run')}" if ids else "none of its runs has a number"
    return Side(label=f"the newest batch or study ({told})", series=series, runs=ids)


def _of_file(path: Path, where: Mapping[str, str], appended: Callable[[Path], Appended], *, links: bool = True) -> Side:
    found, notes = read_results(path, where=where, appended=appended(path), links=links)
    entries = found.get("", [])
    ids = dict.fromkeys(entry.sample.run for entry in entries if entry.sample.run)
    causes = Counter((entry.key, entry.cause) for entry in entries if entry.is_failure)
    failures = tuple(Failure.of_key(key, count, cause) for (key, cause), count in causes.items() if cause)
    return Side(label=str(path), series=group(entries), runs=tuple(ids), notes=notes, failures=failures)


def appended_results(path: Path) -> Appended:
    """Yield the rows that runs beside a file appended to it, and the results that they are; causes are the runs'."""
    for folder, record, rows in appended_to(path):
        yield from zip(rows, (replace(entry, cause="") for entry in of_record(record, str(folder))), strict=True)


def _left_out(path: Path) -> Appended:
    """Yield the rows that runs beside a file appended to it, none of which is a second result."""
    yield from ((cells, LEFT_OUT) for _, _, rows in appended_to(path) for cells in rows)


def _of_files(
    label: str, files: Iterable[Path], where: Mapping[str, str], appended: Callable[[Path], Appended] = appended_results
) -> Side:
    """Return the results of a folder's files; what of them is no results file is noted."""
    parts: list[Side] = []
    for file in files:
        try:
            parts.append(_of_file(file, where, appended))
        except UsageProblem as problem:
            parts.append(Side(label="", series=(), notes=(problem.message,)))
    return _joined(label, parts)


def _joined(label: str, parts: Sequence[Side]) -> Side:
    """Return the results of several sides as one."""
    return Side(
        label=label,
        series=joined_by_key(series for side in parts for series in side.series),
        runs=tuple(dict.fromkeys(run for side in parts for run in side.runs)),
        notes=tuple(dict.fromkeys(note for side in parts for note in side.notes)),
        failures=tuple(failure for side in parts for failure in side.failures),
    )


def _of_baseline(runs: Path, name: str, where: Mapping[str, str]) -> Side:
    found = load_baseline(runs, name)
    kept = tuple(series for series in found.series if _has(series, where))
    return Side(label=f"baseline {name}", series=kept, runs=found.runs)


def _has(series: Series, where: Mapping[str, str]) -> bool:
    """Return whether a series of a baseline has these dimensions, or any of its runs these facts."""
    dimensions = as_dimensions(series.key)
    names = ((name, FACTS.get(name, name), text) for name, text in where.items())
    return all(text in (dimensions.get(name), *series.facts.get(fact, ())) for name, fact, text in names)


def _chosen_runs(name: str, index: RunIndex) -> list[StoredRun]:
    """Return the runs that a name stands for: one, or those of a study or batch.

    Raises:
        UsageProblem: it may be several.
    """
    try:
        folder = find_named(index.folder, name, index.ids())
    except UsageProblem:
        if not BACK.fullmatch(name) and (group := _group(name, index)):
            return group
        raise
    group = [] if name.startswith(LAST) else _group(name, index)
    if folder is not None and any(run.folder.name != folder.name for run in group):
        what = f"'{name}' is part of the id of run {folder.name}, and of that of batch or study {group[0].record.batch}"
        raise UsageProblem(what, "name more of it")
    return group if folder is None else [open_run(folder)]


def _group(name: str, index: RunIndex) -> list[StoredRun]:
    """Return the runs of the study or batch that a name stands for, as for `madlite runs --of`; none without any.

    Raises:
        UsageProblem: it stands for several.
    """
    return index.opened(index.ids(RunFilter(of=index.named_by(name, alone=True)))) if name else []


def _unknown(name: str, index: RunIndex) -> UsageProblem:
    if name == PUBLISHED:
        return UsageProblem(f"{name!r} can only be BASE of madlite compare", "madlite compare published last")
    known = [*baseline_names(index.folder), *index.ids(), *_csv_files(), LAST]
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
    return (
        replace(series, values=values_of(kept), samples=kept, facts=merged_facts(sample.facts for sample in kept))
        if kept
        else None
    )


def run_history(index: RunIndex, without: Iterable[str]) -> Callable[[Series], Sequence[float]]:
    """Return what gives a series the numbers of a folder's earlier runs, the oldest first, which are read once."""
    left_out = frozenset(without)

    @cache
    def read() -> dict[tuple[str, ...], tuple[float, ...]]:
        opened = index.opened([name for name in index.ids(limit=HISTORY_RUNS) if name not in left_out])
        # the series of a bisect goes to and fro between what is good and what is bad
        steady = (run for run in opened if run.record.study is None or run.record.study.kind != "bisect")
        return {series.key: series.values for series in of_runs("history", steady, {}).series}

    return lambda series: read().get(series.key, ())


# What is named for a report: with the runs, which have step curves and causes of failures.


def collect(
    names: Sequence[str], directory: Path, index: RunIndex, where: Mapping[str, str]
) -> tuple[Side, tuple[StoredRun, ...]]:
    """Return the results that are named, by default those of a working folder, and their runs, of many the newest.

    Raises:
        UsageProblem: a name stands for nothing, or has no results.
    """
    if not names:
        return _of_working_folder(directory, index, where)
    parts: list[Side] = []
    runs: dict[Path, StoredRun] = {}
    for name in names:
        source = find_source(name, index)
        parts.append(_read(name, source, index, where))
        runs |= {run.folder: run for run in _runs_of(source, parts[-1], index)}
    return _joined(", ".join(side.label for side in parts), parts), tuple(runs.values())


def _of_working_folder(
    directory: Path, index: RunIndex, where: Mapping[str, str]
) -> tuple[Side, tuple[StoredRun, ...]]:
    """Return the results of a folder's runs, and of the rows of perf.csv that none of them appended."""
    own = _of_all_runs("", index, where)
    files = [file for file in _folder(directory).files if file.name == PERF_CSV or not own.series]
    found = _joined(str(directory), (own, _of_files("", files, where, _left_out)))
    if not found.series:
        raise no_results(str(directory), where, found.notes)
    return found, tuple(index.opened(own.runs[-_MOST_STORED:]))


def _runs_of(source: Source, side: Side, index: RunIndex) -> Iterable[StoredRun]:
    """Return the runs of a side, of a results file those that appended to it."""
    if source.all_of is not None:
        with _index_of(source.all_of, index) as own:
            return own.opened(side.runs[-_MOST_STORED:])
    found = source.runs or [open_run(folder) for file in source.files for folder, _, _ in appended_to(file)]
    wanted = {*side.runs}
    return (run for run in found if run.folder.name in wanted)
