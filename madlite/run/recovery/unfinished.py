"""What earlier commands left undone: said by the next command, listed and dealt with by `clean`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Runtime, Value
from madlite.plan.make import RUNS
from madlite.results.batch_journal import interrupted_batches
from madlite.results.intent import Rows, are_there, has_none, read_intent
from madlite.results.rebuild import NO_ROW
from madlite.results.record import Record
from madlite.results.result_file import load_result, uncollected
from madlite.results.stored import read_record
from madlite.run.recovery.kept import appended, kept_aside
from madlite.run.recovery.leftovers import Leftover, Leftovers, find_leftovers
from madlite.workspace.folder import planted, unfinished
from madlite.workspace.journal import read

IN_FILE, UNKNOWN = "its row is in {path}", "whether its row is in {path} cannot be seen"
_PERF = "perf.csv"
_COMES, _IS_THERE = "the next madlite run adds it", "the next madlite run notes that"


class Undone(Value, frozen=True):
    """A run without a truthful end: its folder, and in words what became of its row.

    `recorded` where the run itself came to its end, and only its row was not where it belongs; `there` where it is by
    now, and the record does not say so.
    """

    folder: Path
    row: str
    recorded: bool = False
    there: bool = False

    @property
    def comes(self) -> str:
        """What becomes of the row of a run that came to its end."""
        return _IS_THERE if self.there else _COMES


def find_undone(workspace: Path) -> tuple[Undone, ...]:
    """Return the runs of a workspace that were cut off, or whose rows perf.csv did not take; `clean` ends that."""
    dead = [*unfinished(workspace), *kept_aside(workspace)]
    intents = {folder: read_intent(folder) for folder in dead}
    # of those that found the file equally large the last alone can have appended to it
    newest = sorted(dead, key=lambda folder: found.at if (found := intents[folder]) else "", reverse=True)
    ordered = sorted(newest, key=lambda folder: found.offset if (found := intents[folder]) else 0)
    known = appended(workspace) if any(intents.values()) else []
    undone = []
    for folder in ordered:
        rows = intents[folder]
        there = are_there(rows, workspace, known) if rows is not None else None
        known += [rows] if rows is not None and there else []
        record = read_record(folder)
        undone.append(_of_recorded(folder, record, there) if record is not None else _of_cut_off(folder, rows, there))
    return tuple(sorted(undone, key=lambda one: one.folder.name))


def _of_recorded(folder: Path, record: Record, there: bool | None) -> Undone:
    path = record.rows.path if record.rows is not None else _PERF
    if there:
        return Undone(folder=folder, row=IN_FILE.format(path=path), recorded=True, there=True)
    kept = f" ({folder.name}/{record.rows.kept})" if record.rows and record.rows.kept else ""
    return Undone(folder=folder, row=f"{NO_ROW} in {path}{kept}", recorded=True)


def _of_cut_off(folder: Path, rows: Rows | None, there: bool | None) -> Undone:
    if rows is None:
        return Undone(folder=folder, row=NO_ROW if has_none(folder) else UNKNOWN.format(path=_PERF))
    words = UNKNOWN if there is None else IN_FILE if there else NO_ROW
    return Undone(folder=folder, row=words.format(path=rows.path))


def words_of(undone: Iterable[Undone]) -> list[str]:
    """Return what the next command says of runs that were cut off."""
    told = tuple(undone)
    cut = [one for one in told if not one.recorded]
    lines = [f"{one.folder.name}: {one.row}; {one.comes}" for one in told if one.recorded]
    if cut:
        names = ", ".join(f"{one.folder.name} ({one.row})" for one in cut[:5])
        more = f", and {len(cut) - 5} more" if len(cut) > 5 else ""
        were = "runs were" if len(cut) > 1 else "run was"
        lines.append(f"{len(cut)} earlier {were} cut off: {names}{more}; madlite clean")
    return lines


def say_undone(workspace: Path) -> list[str]:
    """Return what the next command says of all that earlier ones left undone."""
    batches = [words for batch in interrupted_batches(workspace) for words in batch.words]
    return [
        *words_of(find_undone(workspace)),
        *(f"{words}; madlite clean" for words in batches),
        *uncollected_words(workspace),
        *planted_words(workspace),
    ]


def uncollected_words(workspace: Path) -> list[str]:
    """Return what is said of runs that have ended and whose results no file has yet."""
    names = [folder.name for folder in uncollected(workspace)]
    if not names:
        return []
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    what = "1 run is" if len(names) == 1 else f"{len(names)} runs are"
    return [f"{what} not collected: {', '.join(names[:5])}{more}; madlite collect"]


def planted_words(workspace: Path) -> list[str]:
    """Return what is said of folders that look like runs and that madlite did not make."""
    found = [f"{RUNS}/{folder.name}" for folder in planted(workspace)]
    if not found:
        return []
    why = "(not in the journal of this folder, or moved there): left alone"
    if len(found) == 1 and not _is_noted(workspace, found[0]):
        one = found[0]
        return [f"{one} looks like a run that madlite did not make {why}; rm -r {shlex.quote(one)} removes it"]
    names = ", ".join(found[:5]) + (f", and {len(found) - 5} more" if len(found) > 5 else "")
    look = "look like runs" if len(found) > 1 else "looks like a run"
    return [f"{names} {look} that madlite did not make {why}, no row of it is taken"]


def _is_noted(workspace: Path, folder: str) -> bool:
    """Say whether the journal knows a run of this name: its folder may be a copy, and have the only row there is."""
    return any(entry.run == Path(folder).name for entry in read(workspace / RUNS))


def find_all(
    workspace: Path, environ: Mapping[str, str], runtimes: Mapping[str, Runtime] = MappingProxyType({})
) -> Leftovers:
    """Return everything that `clean` deals with; of each run, what became of its row."""
    found = find_leftovers(workspace, environ, runtimes)
    undone = {str(one.folder): one for one in find_undone(workspace)}
    listed = [
        replace(one, text=f"unfinished, {undone[one.handle].row}, {one.handle}", row=undone[one.handle].row)
        if one.kind == "run" and one.handle in undone
        else one
        for one in found.leftovers
    ]
    kept = [_listed(one) for one in undone.values() if one.recorded]
    return replace(found, leftovers=(*listed, *kept, *_uncollectable(workspace)))


def _uncollectable(workspace: Path) -> Iterator[Leftover]:
    """Yield the runs whose results cannot be collected, as what else wrote there leaves them."""
    for folder in uncollected(workspace):
        try:
            load_result(folder)
        except RecordError as problem:
            text = f"{NO_ROW}, and its result cannot be collected: {problem.message}; {folder}"
            yield Leftover(kind="run", run_id=folder.name, text=text, handle=str(folder), row=NO_ROW)


def _listed(one: Undone) -> Leftover:
    text = f"{one.row}; {one.comes} unless it is cleaned; {one.folder}"
    return Leftover(kind="run", run_id=one.folder.name, text=text, handle=str(one.folder), row=one.row)
