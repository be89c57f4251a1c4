"""`madlite export`: results read as rows, and the formats, which plugins bring, that write them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from madlite.backends.loader import Plugins
from madlite.errors import MadliteError, PluginError, UsageProblem, did_you_mean, nearest_words, one_hint
from madlite.model import QUANTITIES, Cause, Exported, Exporter, ExportOptions, ExportRow, Json, Status, Value
from madlite.perfcsv.append import locked
from madlite.reports.baselines import load_baseline
from madlite.reports.index import RunIndex
from madlite.reports.results_files import ContentKeys, RecordedRows, open_results
from madlite.reports.runs import StoredRun, appended_to, list_runs, named_time, utc_time
from madlite.reports.selectors import Source, find_source, finished, no_results
from madlite.reports.series import Entry, RowParser, direction_of, matches, of_record
from madlite.reports.series_key import as_dimensions
from madlite.store.record import Record
from madlite.text import printable, whole_number

_APPEND = "append"


class Format(Value, frozen=True):
    """One format: what writes it, and the distribution that brought it."""

    exporter: Exporter
    distribution: str

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write rows by a plugin's exporter, an exception as a sentence.

        Raises:
            MadliteError: as `Exporter.write`, or the plugin broke.
        """
        name = self.exporter.name
        self._check(options)
        try:
            done = self.exporter.write(rows, target, options)
        except (MadliteError, BrokenPipeError):  # the reader of our output closed it, which is no mistake
            raise
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            what = f"export to {name} (plugin of {self.distribution}) failed: {type(error).__name__}: {words}"
            raise PluginError(what, "madlite doctor --plugins") from error
        if not isinstance(done, Exported):
            raise PluginError(f"export to {name} (plugin of {self.distribution}) returned no Exported: {done!r:.100}")
        return done

    def _check(self, options: ExportOptions) -> None:
        known = tuple(getattr(self.exporter, "options", ()))
        if options.append and _APPEND not in known:
            what = f"{self.exporter.name} knows no --append"
            raise UsageProblem(what, "a database or tracker has each result once; a page of now is written as a whole")
        names = [name for name in known if name != _APPEND]
        for name in options.values:
            if name not in names:
                has = f"it has {', '.join(names)}" if names else "it has none"
                hint = one_hint(did_you_mean(name, names, most=1), has)
                raise UsageProblem(f"--option {name}: {self.exporter.name} has no such option", hint)


def find_format(name: str, formats: Mapping[str, Format]) -> Format:
    """Return a format by its name.

    Raises:
        UsageProblem: there is none.
    """
    if name not in formats:
        close = nearest_words(name, formats, most=1) or [text for text in formats if text.startswith(name[:4]) and name]
        hint = one_hint(f"did you mean {close[0]}?" if close else "", f"--to {', '.join(formats)}")
        raise UsageProblem(f"'{name}' is no format of an export", hint)
    return formats[name]


def formats_of(plugins: Plugins) -> Mapping[str, Format]:
    """Return the formats of plugins, madlite's own first, by name."""
    return {
        name: Format(exporter=exporter, distribution=plugin.distribution)
        for name, (exporter, plugin) in plugins.exporters().items()
    }


@contextmanager
def rewriting_named(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield what a file holds, and a stream whose bytes take its place after the block; others that append wait.

    Raises:
        UsageProblem: it cannot be written; it is as it was.
        RecordError: it cannot be opened or locked, or is no plain file.
    """
    try:
        with locked(path) as file, os.fdopen(os.dup(file.fd), "rb") as old, file.replaced("export") as new:
            yield old, new
    except OSError as error:
        raise UsageProblem(f"{path} cannot be written: {error.strerror or error}", f"ls -ld {path.parent}") from error


_NUMBERS = ("seq_len", "micro_batch", "global_batch", "gpus", "nodes")
_REMEMBERED = 8192  # texts that are masked once: most rows share theirs


class RowReader:
    """Reads what a command names as rows; `notes` grows by what could not be read.

    `index` is that of the runs of the working folder; `mask` takes secrets out of a text.
    """

    def __init__(self, index: RunIndex, where: Mapping[str, str], mask: Callable[[str], str]) -> None:
        self.notes: list[str] = []
        self._index, self._where = index, where
        self._clean = lru_cache(_REMEMBERED)(lambda text: printable(mask(text)))

    def read(self, names: Sequence[str]) -> Iterator[ExportRow]:
        """Yield the results of each source, one that several have once.

        Raises:
            UsageProblem: nothing is named so, it cannot be read, or it has no results.
        """
        seen: set[bytes] = set()
        for name in names:
            found = False
            for row in self._of_source(find_source(name, self._index)):
                found = True
                if (key := bytes.fromhex(row.key)) not in seen:
                    seen.add(key)
                    yield row
            if not found:
                raise no_results(name, self._where, self.notes)

    def _of_source(self, source: Source) -> Iterator[ExportRow]:
        where = {**self._where, **source.where}
        if source.baseline:
            yield from self._of_baseline(source.baseline, where)
            return
        found = False
        runs = source.runs if source.all_of is None else list_runs(source.all_of) if source.all_of.is_dir() else ()
        for run in finished(runs, self.notes):
            for row in self._of_run(run, where):
                found = True
                yield row
        for file in () if found else source.files:
            try:
                yield from self._of_file(file, where)
            except UsageProblem as problem:
                if source.all_of is None:
                    raise
                self.notes.append(problem.message)

    def _of_run(self, run: StoredRun, where: Mapping[str, str]) -> Iterator[ExportRow]:
        for key, entry in _keyed(run.record, str(run.folder)):
            if matches(entry.key, entry.sample.facts, where):
                yield self._row(key, entry)

    def _of_file(self, path: Path, where: Mapping[str, str]) -> Iterator[ExportRow]:
        """Yield the rows of a file; one that a run beside it appended is that run's result."""
        keys = ContentKeys()
        with open_results(path) as rows:
            known, read = RecordedRows(rows.columns, _appended(path)), RowParser(path, rows.columns)
            for line, texts in rows:
                cells = dict(zip(rows.columns, texts, strict=True))
                if recorded := known.next(texts) if known else None:
                    key, entry = recorded
                else:
                    entry = read(texts, line)
                    key = keys(_content(cells, entry))
                if matches(entry.key, cells, where):
                    yield self._row(key, entry)
        self.notes += rows.notes

    def _of_baseline(self, name: str, where: Mapping[str, str]) -> Iterator[ExportRow]:
        keys = ContentKeys()
        for series in load_baseline(self._index.folder, name).series:
            for sample in series.samples:
                entry = Entry(key=series.key, status="SUCCESS", sample=sample)
                cells = {**as_dimensions(series.key), "performance": repr(sample.value)}
                key = keys(_content(cells, entry))
                if matches(series.key, {}, where):
                    yield self._row(key, entry)

    def _row(self, key: str, entry: Entry) -> ExportRow:
        known: dict[str, Any] = {name: self._clean(text) for name, text in as_dimensions(entry.key).items()}
        numbers = {name: whole_number(known[name]) for name in _NUMBERS}
        odd = {name: known[name] for name in _NUMBERS if known[name] and numbers[name] is None}
        known |= numbers
        metric, about = entry["metric"], entry.sample
        status, cause = _judged(entry)
        return ExportRow(
            key=key,
            **known,
            value=_finite(about.value),
            unit=QUANTITIES[metric].unit if metric in QUANTITIES else "",
            direction=direction_of(metric),
            status=self._clean(status),
            cause=self._clean(cause),
            suspect=self._clean(about.suspect),
            run=self._clean(about.run),
            started=utc_time(about.when) or named_time(about.run),  # an id begins with the time
            steady_cv=_finite(about.steady_cv),
            source=self._clean(about.place),
            facts={self._clean(name): self._clean(text) for name, text in {**about.facts, **odd}.items()},
        )


def _keyed(record: Record, place: str) -> Iterator[tuple[str, Entry]]:
    """Yield the results of a run with their keys."""
    keys = ContentKeys()
    for entry in of_record(record, place):
        yield keys(_of_run_content(record.id, entry)), entry


def _appended(path: Path) -> Iterator[tuple[Mapping[str, str], tuple[str, Entry]]]:
    """Yield the rows that runs beside a file appended to it, and their results with their keys."""
    for folder, record, rows in appended_to(path):
        yield from zip(rows, _keyed(record, str(folder)), strict=True)


def _content(cells: Mapping[str, str], entry: Entry) -> dict[str, Json]:
    """Return what a row's key is made of: its run, or else all it holds."""
    if run := entry.sample.run.strip():
        return _of_run_content(run, entry)
    return {name: text for name, text in cells.items() if text.strip()}


def _of_run_content(run: str, entry: Entry) -> dict[str, Json]:
    return {"run": run, "model": entry["model"], "metric": entry["metric"]}


def _judged(entry: Entry) -> tuple[str, str]:
    """Return status and cause; a success whose number is none, as other tools write it, is a failure."""
    is_wrong = entry.sample.value is None and entry.status == Status.SUCCESS.value and entry["metric"]
    return (Status.FAILURE.value, entry.cause or Cause.BAD_NUMBER.value) if is_wrong else (entry.status, entry.cause)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
