"""Which runs can be removed by age or size, and their removal: the record stays, unless the folder goes too."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.batch.leftovers import find_running
from madlite.errors import RecordError
from madlite.files import REMOVED, Folder
from madlite.model import Runtime, Value
from madlite.perfcsv.recorded import RowsInFile
from madlite.reports.baselines import baseline_runs
from madlite.reports.runs import CUT_OFF, StoredRun, list_runs, utc_time, why_not_over
from madlite.store.events import RunPruned, append
from madlite.store.folder import (
    CONTEXT,
    LOCK,
    PLAN,
    RECORD,
    RESULT,
    RUN_JOURNAL,
    RunFolder,
    RunRows,
    open_runs,
    read_run,
)
from madlite.store.record import NotedRuns, Record, rows_here

_STAY = frozenset((RECORD, PLAN, CONTEXT, LOCK, RUN_JOURNAL, RESULT))
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system


class Rules(Value, frozen=True):
    """Which runs are meant: those to which all of this applies.

    `max_size` is how many bytes all runs of the folder may have together, the oldest go until they have.  With
    `folders` the record goes too.
    """

    older_than_s: float | None = None
    keep_last: int | None = None
    max_size: int | None = None
    folders: bool = False


class Prunable(Value, frozen=True):
    """A run that the rules mean: what its removal frees, how old it is, and why it stays, "" where it goes."""

    run: StoredRun
    bytes: int
    age_s: float
    why: str = ""


def find_prunable(
    runs: Path, rules: Rules, environ: Mapping[str, str], runtimes: Mapping[str, Runtime], now: datetime | None = None
) -> tuple[list[Prunable], tuple[str, ...]]:
    """Return the runs that the rules mean, the oldest first, and notes on what could not be inspected.

    Nothing is removed.

    Raises:
        UsageProblem: a baseline cannot be read: it may name a run.
    """
    every = list_runs(runs)
    at = now or datetime.now(timezone.utc)
    chosen = every[: len(every) - (rules.keep_last or 0)]
    if rules.older_than_s is not None:
        chosen = tuple(run for run in chosen if _age_s(run, at) > rules.older_than_s)
    if not chosen:
        return [], ()
    found = find_running(runs.parent, environ, runtimes)
    busy = {os.path.realpath(leftover.folder): leftover.kind for leftover in found.leftovers if leftover.folder}
    why = _Reasons(runs, rules, busy).why
    meant = [Prunable(run=run, bytes=_freed(run, rules), age_s=_age_s(run, at), why=why(run)) for run in chosen]
    if rules.max_size is not None:
        everything = sum(_size(run.folder, lambda name: True) for run in every)
        meant = list(_until_small_enough(meant, everything, rules.max_size))
    notes = found.notes if any(run.record.containerised for run in chosen) else ()
    return [prunable for prunable in meant if prunable.bytes or rules.folders], notes


def _age_s(run: StoredRun, now: datetime) -> float:
    """Return how long ago a run ended, or where that is unknown, began."""
    then = utc_time(run.record.ended) or utc_time(run.when)
    return (now - then).total_seconds() if then is not None else 0.0


def _until_small_enough(meant: Sequence[Prunable], everything: int, most: int) -> Iterator[Prunable]:
    """Yield the oldest runs until what is left is no more than `most` bytes; of those on the way that stay, too."""
    for prunable in meant:
        if everything <= most:
            return
        everything -= 0 if prunable.why else prunable.bytes
        yield prunable


class _Reasons:
    """Says why a run must not be removed; what needs a whole file to be read is read once."""

    def __init__(self, runs: Path, rules: Rules, busy: Mapping[str, str]) -> None:
        self._runs, self._rules, self._busy = runs, rules, busy
        self._noted, self._rows = NotedRuns(runs), RowsInFile(runs.parent)
        self._baselines: Collection[str] = baseline_runs(runs)

    def why(self, run: StoredRun) -> str:
        """Return why a run stays; "" where it can go."""
        return self._of_state(run) or self._of_use(run) or self._of_rows(run)

    def _of_state(self, run: StoredRun) -> str:
        if run.state == CUT_OFF:
            return "it was cut off: madlite clean --yes comes first" if read_run(run.folder).cleaned is None else ""
        if why := why_not_over(run):
            return why
        return "" if run.collected else "it is not collected: madlite runs collect comes first"

    def _of_use(self, run: StoredRun) -> str:
        if run.folder.name in self._baselines:
            return "a baseline names it"
        if kind := self._busy.get(os.path.realpath(run.folder)):
            return f"its {kind} is still there; madlite clean lists it"
        owner = run.folder.lstat().st_uid if run.folder.exists() else os.geteuid()
        return "" if os.geteuid() in (0, owner) else f"it is another user's (uid {owner})"

    def _of_rows(self, run: StoredRun) -> str:
        rows = _rows_of(run, self._noted)
        if rows is None or not self._rules.folders:
            return ""
        try:
            is_there = self._rows.has(rows)
        except RecordError as problem:
            return f"its record may be the only copy of its rows: {rows.path}: {problem.message}"
        return "" if is_there else f"its record is the only copy of its rows: {rows.path} does not have them"


def _rows_of(run: StoredRun, noted: NotedRuns) -> RunRows | None:
    if run.state == CUT_OFF:
        return read_run(run.folder).rows
    return rows_here(run.folder, run.record, noted)


# What goes: everything but a few small files, or the folder.


def _goes(record: Record, rules: Rules) -> Callable[[str], bool]:
    """Return which names of a run's folder go."""
    if rules.folders:
        return lambda name: True
    stay = _STAY | {file.path for file in record.files if file.sha256}
    return lambda name: name not in stay


def _freed(run: StoredRun, rules: Rules) -> int:
    return _size(run.folder, _goes(run.record, rules))


def _size(folder: Path, goes: Callable[[str], bool]) -> int:
    """Return how many bytes on the disk the files of a folder have whose first name `goes`; links count themselves."""
    total, seen, pending = 0, set(), [folder]
    while pending:
        place = pending.pop()
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if place == folder and not goes(entry.name):
                    continue
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    pending.append(place / entry.name)
                elif facts.st_nlink == 1 or (facts.st_dev, facts.st_ino) not in seen:
                    seen.add((facts.st_dev, facts.st_ino))
                    total += facts.st_blocks * _BLOCK_BYTES
    return total


def prune(prunable: Prunable, rules: Rules) -> str:
    """Remove what goes of one run; return why something stays, "" where all of it is gone.

    The event log has it first: a kill in between leaves a run that is known to be pruned.
    """
    folder = prunable.run.folder
    try:
        with closing(RunFolder.reopen(folder)) as run_folder, open_runs(folder.parent.parent) as runs:
            _note(prunable, rules, runs)
            if rules.folders:
                gone = f"{REMOVED}{secrets.token_hex(4)}"
                runs.rename(folder.name, gone)
                runs.remove_tree(gone)
                return ""
            return _empty(run_folder.files, _goes(prunable.run.record, rules))
    except BlockingIOError:
        return "a madlite process has locked the run by now"
    except OSError as error:
        return _words(error)


def _note(prunable: Prunable, rules: Rules, runs: Folder) -> None:
    event = RunPruned(run=prunable.run.folder.name, folder=rules.folders)
    if rules.folders and (rows := _rows_of(prunable.run, NotedRuns(runs.path))) is not None:
        event = replace(event, rows=len(rows.cells), rows_in=rows.path)
    append(runs, event)


def _empty(home: Folder, goes: Callable[[str], bool]) -> str:
    """Remove the names of an open folder that go; return the first reason why one stays."""
    problems = []
    for name in os.listdir(home.fd):  # noqa: PTH208 - of the open folder
        if goes(name):
            try:
                home.remove_tree(name)
            except OSError as error:
                problems.append(_words(error))
    return problems[0] if problems else ""


def _words(error: OSError) -> str:
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    return f"{error.strerror or error}{f': {name}' if name else ''}"
