"""Results in the folders of runs, also of those cut off → rows of perf.csv, side files and records, each once.

The rows in the run's journal → perf.csv → the journal, appended → the side files → record.json; then the journal is
removed.  A kill in between leaves a run that is not collected: the next attempt continues there.
Of a run whose madlite was killed the result is made from what its folder has; rows that it had already are its result.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from madlite.batch.leftovers import appended_rows, remove_run_files, target_of
from madlite.errors import RecordError, inline_hint
from madlite.measure.performance import make_metric
from madlite.model import Cause, Diagnosis, Result, Status, Value
from madlite.model.results import Attempt
from madlite.perfcsv.append import RunAppend, append_runs, cut_torn, left_out_text, make_folder
from madlite.perfcsv.recorded import are_in_file, count_written
from madlite.perfcsv.rows import STANDARD_COLUMNS
from madlite.perfcsv.side_files import RunOutput, leave_entries, make_result, read_entries, write_entries, write_waiting
from madlite.plan.inputs import RUNS
from madlite.secrets import Redactor
from madlite.store.events import EVENTS, EventLog, now
from madlite.store.folder import (
    HANDLE,
    LOG,
    RECORD,
    RESULT,
    RunEntry,
    RunFolder,
    RunRows,
    RunStart,
    exists,
    has_record,
    has_result,
    is_alive,
    other_host,
    read_progress,
    read_run,
    rows_path,
    uncollected,
    unfinished,
)
from madlite.store.record import RunResult, load_result, read_plan, read_record, record_json, result_of

_MOST_AT_ONCE = 1000  # runs whose rows are written together


class Collected(Value, frozen=True):
    """The outcome of collecting one run: a message, and the result where it is collected now.

    `failed` where it should have been, and was not; `busy` where that is so as another process has the run now.
    """

    run_id: str
    message: str
    result: Result | None = None
    failed: bool = False
    busy: bool = False
    warnings: tuple[str, ...] = ()


_T = TypeVar("_T")
_Rows: TypeAlias = tuple[Path, RunAppend]
Writing: TypeAlias = Generator[_Rows, tuple[RunRows, tuple[str, ...]], _T]
"""What is done with one run to its end: it yields a results file and the rows that go there, and gets them back as they
are in it, with the columns for which that has no room.  So those of many runs are written together."""


def write_together(
    runs: Iterable[Writing[_T]], begin: Sequence[str], noted: Mapping[Writing[_T], str] = {}
) -> list[_T | Exception]:
    """Do what is done with runs, with the rows for a file in one write; return what came of each, or why nothing did.

    A new file gets the columns `begin`.  Those that an earlier command `noted` last are looked at first: what a file
    has of equal rows is theirs.
    """
    left, done = iter(runs), dict[Writing[_T], _T | Exception]()
    # each has a folder and a lock open
    while some := [*islice(left, max(1, min(_MOST_AT_ONCE, getrlimit(RLIMIT_NOFILE)[0] // 4)))]:
        tried: dict[Path, list[tuple[Writing[_T], RunAppend]]] = {}
        done |= dict.fromkeys(some, RecordError(""))  # until it is known; they stay in this order
        newest = sorted(some, key=lambda run: noted.get(run, ""), reverse=True)
        found = {run: _go_on(run, partial(next, run), done) for run in newest}
        for run in some:
            if (rows := found[run]) is not None:
                tried.setdefault(rows[0], []).append((run, rows[1]))
        for output, several in tried.items():
            for run, step in _append(output, several, begin):
                _go_on(run, step, done)
    return [*done.values()]


def _append(
    output: Path, several: Sequence[tuple[Writing[_T], RunAppend]], begin: Sequence[str]
) -> Iterator[tuple[Writing[_T], Callable[[], _Rows]]]:
    """Append the rows of runs together, where that fails those of each alone; yield the runs with what follows."""
    size = output.stat().st_size if output.exists() else 0
    try:
        make_folder(output)  # that of a file that the run named can be gone
        target = Path(os.path.realpath(output))
        added = append_runs(output, [rows for _, rows in several], target=target, begin=begin)
        yield from ((run, partial(run.send, rows)) for (run, _), rows in zip(several, added, strict=True))
    except (RecordError, OSError) as problem:
        # columns that the file does not take may be one run's; but none is tried again that may be there in part
        if len(several) > 1 and output.exists() and output.stat().st_size == size:
            yield from chain.from_iterable(_append(output, [one], begin) for one in several)
        else:
            yield from ((run, partial(run.throw, problem)) for run, _ in several)


def write_alone(run: Writing[_T], begin: Sequence[str]) -> _T:
    """Do what is done with a run, and return what came of it.

    Raises:
        RecordError, OSError: nothing did.
    """
    (done,) = write_together([run], begin)
    if isinstance(done, Exception):
        raise done
    return done


def _go_on(run: Writing[_T], step: Callable[[], _Rows], done: dict[Writing[_T], _T | Exception]) -> _Rows | None:
    """Return what a run has to write next; where it comes to its end, that is `done`."""
    try:
        return step()
    except StopIteration as end:
        done[run] = end.value
    except (RecordError, OSError) as problem:
        done[run] = problem
    return None


def collect_all(
    folders: Iterable[Path],
    workspace: Path,
    output: Path,
    begin: Sequence[str] = STANDARD_COLUMNS,
    running: Mapping[str, str] | None = None,
    *,
    named: bool = False,
) -> list[Collected]:
    """Write rows and records of runs, the rows of a file together; return the outcome of each, in their order.

    Rows go to `output`, or where `named` is set to the results file that their run names; a new file has the columns
    `begin`.  Runs that were cut off get theirs where it is known what is still `running`, as text by the run's id: that
    is reported, for nothing judges it any more.  The entries of the side files wait: the caller has them written at the
    end, by `write_waiting`.
    """
    own, every = EventLog.read(workspace / RUNS).own_runs(), [*folders]
    still = [None if running is None else running.get(folder.name, "") for folder in every]
    runs = [_collect(folder, own, workspace, output, still[n], named=named) for n, folder in enumerate(every)]
    before = (read_run(folder).rows for folder in every)
    noted = {run: rows.at for run, rows in zip(runs, before, strict=True) if rows is not None}
    done = write_together(runs, begin, noted)
    return [_outcome(folder, found) for folder, found in zip(every, done, strict=True)]


def _outcome(folder: Path, found: Collected | Exception) -> Collected:
    """Return the outcome of collecting a run, also where it cannot be: it stays as it is."""
    if isinstance(found, Collected):
        return found
    if isinstance(found, BlockingIOError):
        text = "not collected: it is still running, or another command is collecting it"
        return Collected(run_id=folder.name, message=text, failed=True, busy=True)
    what = getattr(found, "strerror", "") or str(found)
    if isinstance(found, RecordError):
        what = found.message + (f" ({inline_hint(found.hint)})" if found.hint else "")
    return Collected(run_id=folder.name, message=f"not collected: {what}", failed=True)


def named_file(folder: Path, workspace: Path, output: Path) -> Path | None:
    """Return the results file that a run names; None where it names none, or a command may not write to it.

    It may be the first run of its file, which then is not there yet.
    """
    named = read_run(folder).file
    return target_of(named, workspace, output) if named else None


def cut_off_runs(workspace: Path, *, every: bool = False, of_other_hosts: bool = False) -> tuple[Path, ...]:
    """Return the folders of this user's runs that were cut off and whose rows a results file waits for, oldest first.

    With `every` also those that name no results file, as with --no-rows, and those of which no row can be made.  Those
    of other hosts may be running there, with a lock that cannot be seen here.
    """
    own = (path for path in unfinished(workspace) if path.lstat().st_uid == os.geteuid())
    here = (path for path in own if of_other_hosts or not other_host(path))
    return tuple(path for path in here if every or (read_run(path).file and has_known_result(path)))


def of_other_hosts(workspace: Path) -> dict[str, str]:
    """Return by id, as a sentence, the runs without a madlite here that began on another host."""
    return {
        path.name: f"it began on {host} and may be running there; madlite runs collect {path.name} adds its FAILURE row"
        for path in unfinished(workspace)
        if (host := other_host(path))
    }


def row_elsewhere(folder: Path, workspace: Path, output: Path) -> str:
    """Return, as a sentence, for which file the row of a run is that a command may not write to; "" if it may."""
    name = read_run(folder).file
    if not name or named_file(folder, workspace, output) is not None:
        return ""
    is_inside = Path(os.path.realpath(workspace / name)).is_relative_to(os.path.realpath(workspace))
    what = "which is no results file" if is_inside else "which lies outside of this folder"
    return f"its row is for {name}, {what}; madlite runs collect {folder.name} -o {shlex.quote(name)} adds it"


_MOST_TOLD = 5


def recover(
    workspace: Path,
    output: Path,
    begin: Sequence[str] = STANDARD_COLUMNS,
    running: Mapping[str, str] | None = None,
    leave: Collection[Path] = (),
) -> list[str]:
    """Write what runs came to whose madlite was killed, amid them or after their end; return messages, of many a few.

    Their rows go to the results files that they name: `output`, or one of the working folder.  Those in the folders
    `leave` are tried again.
    """
    every = collect_all(cut_off_runs(workspace), workspace, output, begin, running or {}, named=True)
    # then those whose next attempt was cut off: it has its record by now, and took their place
    ended = (path for path in uncollected(workspace) if path not in leave and named_file(path, workspace, output))
    every += collect_all(ended, workspace, output, begin, named=True)
    done = [item for item in every if item.result is not None or (item.failed and not item.busy)]
    messages = [f"{name}: {text}" for name, text in of_other_hosts(workspace).items()]
    messages += [cut_off_text(collected) for collected in done[:_MOST_TOLD]]
    if len(done) > _MOST_TOLD:
        without = sum(1 for collected in done[_MOST_TOLD:] if collected.failed)
        but = f", but for {without}" if without else ""
        messages.append(f"{len(done) - _MOST_TOLD} more runs were left without rows: these were added{but}")
    reports = dict.fromkeys(text for collected in done for text in collected.warnings)
    return [*messages, *reports, *(write_waiting(workspace) if done else ())]


def cut_off_text(collected: Collected) -> str:
    """Return what became of a run that had no row, as a line."""
    result = collected.result
    cause = f" [{result.code}]" if result is not None and result.status is Status.FAILURE else ""
    status = f"{result.status.value}{cause}, " if result is not None else ""
    return f"{collected.run_id}: {status}{collected.message}"


def _collect(
    folder: Path, own: Collection[str], workspace: Path, output: Path, running: str | None, *, named: bool
) -> Writing[Collected]:
    """Collect one run.

    Raises:
        RecordError, OSError: it cannot be collected; it stays as it is.
    """
    why = _why_not(folder, own, cut_off=running is not None)
    if not why and named and (elsewhere := row_elsewhere(folder, workspace, output)):
        why = f"it was cut off, and {elsewhere}"
    if why:
        raise RecordError(why)
    if exists(folder / RECORD):
        return _already(folder)
    path = (named_file(folder, workspace, output) if named else None) or output
    with closing(RunFolder.reopen(folder)) as run_folder:
        if exists(folder / RECORD):  # by now
            if not read_run(folder).at:  # made right here: the run's own was removed at its end
                run_folder.end_journal()
            return _already(folder)
        if running is None or has_result(folder):
            return (yield from _write(load_result(folder), run_folder, workspace, path))
        found = _result_of_cut_off(run_folder)
        done = yield from _write(found, run_folder, workspace, path, keep_journal=bool(running))
        if not running:
            remove_run_files(folder)
    return replace(done, message="; ".join(filter(None, ("it was cut off", done.message, running))))


def _why_not(folder: Path, own: Collection[str], *, cut_off: bool) -> str:
    """Return why a command may not collect a run, "" where it may; one that was `cut_off` where that is wanted."""
    if folder.name not in own:
        return f"it did not begin in this folder: it is not in {RUNS}/{EVENTS}"
    if exists(folder / RECORD):
        return ""
    if folder.lstat().st_uid != os.geteuid():  # an owner can write anything into a folder: the run is theirs to collect
        return "it is another user's"
    if exists(folder / RESULT):
        return ""
    if cut_off:
        return "" if has_known_result(folder) else _NO_ROW
    return "it is still running" if is_alive(folder) else f"it was cut off: it has no {RESULT} (madlite clean)"


def collect_open(
    result: RunResult, run_folder: RunFolder, workspace: Path, output: Path, begin: Sequence[str]
) -> Collected:
    """Collect one run whose folder is open; its rows go to the results file that it names, else to `output`.

    Raises:
        RecordError, OSError: its rows are not there, or another command has them.
    """
    if run_folder.is_taken():
        raise RecordError("another command took the run for cut off, and has its row")
    path = named_file(run_folder.path, workspace, output) or output
    return write_alone(_write(result, run_folder, workspace, path), begin)


def replaced_by(folder: Path) -> str:
    """Return the attempt that has taken a run's place: one that has a result by now; "" where there is none."""
    following = read_run(folder).next
    if not following:
        return ""
    place = folder.parent / following
    return following if has_record(place) or has_result(place) else ""


def attempts_of(folder: Path) -> tuple[Path, ...]:
    """Return the folders of a run's attempts that are there, the first one's first."""
    found: list[Path] = []
    while exists(folder) and folder not in found:
        found.append(folder)
        record = read_record(folder)
        attempt = record.attempt if record is not None else None
        following = attempt.next if attempt is not None else read_run(folder).next
        if not following:
            break
        folder = folder.parent / following
    return tuple(found)


def _already(folder: Path) -> Collected:
    record = read_record(folder)
    rows = record.rows if record is not None else None
    return Collected(run_id=folder.name, message=f"collected already{f', its rows are in {rows.path}' if rows else ''}")


def _write(
    result: RunResult, run_folder: RunFolder, workspace: Path, output: Path, *, keep_journal: bool = False
) -> Writing[Collected]:
    """Write what a result has, except what an earlier attempt has written; the caller holds the run's lock.

    With `keep_journal` the run may have something running, which `clean` looks for by that.

    Raises:
        RecordError, OSError: its rows are not there.
    """
    record, message = result.record, "it has no row"
    warnings: list[str] = []
    if replaced := replaced_by(run_folder.path):
        attempt = replace(record.attempt or Attempt(), next=replaced)
        record, message = replace(record, rows=None, attempt=attempt), f"no row: it was tried again as {replaced}"
    elif read_run(run_folder.path).next:
        record = replace(record, attempt=replace(record.attempt or Attempt(), given_up=True))
    if record.rows is not None:
        is_first = read_run(run_folder.path).rows is None
        rows, message = yield from append_once(record.rows, run_folder, workspace, output)
        record = replace(record, rows=rows)
        if result.entries is not None:
            entries = result.entries
            warnings += leave_entries(workspace, entries) if is_first else write_entries(workspace, entries, again=True)
    if problem := run_folder.write_record(record_json(record)):
        return Collected(run_id=record.id, message=f"{message}, but {problem}", failed=True)
    if not keep_journal:
        run_folder.end_journal()
    return Collected(run_id=record.id, message=message, result=result_of(record), warnings=tuple(warnings))


def append_once(rows: RunRows, run_folder: RunFolder, workspace: Path, output: Path) -> Writing[tuple[RunRows, str]]:
    """Append rows of an open run folder unless a file has them, and return them and a message.

    They can be there: an earlier attempt, perhaps for another file, was killed before it wrote its record, or the file
    was rebuilt.

    Raises:
        RecordError, OSError: they are not in the file, or that cannot be seen.
    """
    earlier, named = read_run(run_folder.path).rows, replace(rows, path=rows_path(output, workspace))
    begun = earlier if earlier is not None and earlier.path == named.path and not earlier.appended else None
    if begun is not None and output.exists():
        with suppress(RecordError):  # then the file is none that has them, or takes them
            cut_torn(output, begun.cells, begun.offset)
    others = appended_rows(workspace, earlier.at) if earlier is not None and not earlier.appended else []
    are_there = earlier is not None and (earlier.appended or are_in_file(earlier, workspace, others))
    if earlier is not None and are_there is None:
        raise RecordError(f"whether its rows are in {earlier.path} cannot be seen", "")
    if earlier is not None and are_there:
        done = replace(earlier, appended=True)
        if not earlier.appended:
            run_folder.note(RunEntry(at=now(), rows=done))
        return done, f"its {'row is' if len(rows.cells) == 1 else 'rows are'} in {done.path}"
    # a kill amid the write left the first ones: the others join them
    written = count_written(begun, workspace, others) if begun is not None else 0
    problem = ""

    def note(tried: RunRows) -> RunRows | None:
        nonlocal problem
        tried = replace(tried, offset=begun.offset if begun is not None and written else tried.offset)
        problem = run_folder.note(RunEntry(at=tried.at, rows=tried))
        return None if problem else tried  # a row without an entry could be appended twice

    done, omitted = yield output, RunAppend(named, note, written)
    if problem:
        place = f"{RUNS}/{run_folder.path.name}"
        raise RecordError(f"{place}: {problem}", f"df -h {place}; ls -l {place}")
    run_folder.note(RunEntry(at=now(), rows=done))
    added = f"its {'row was' if len(rows.cells) == 1 else 'rows were'} added to {done.path}"
    return done, "; ".join([added, *([left_out_text(done.path, omitted)] if omitted else [])])


_HINT = "madlite run --resume runs it again"
_NO_ROW = "it was cut off, and its plan or its row is not known: no row can be made (madlite clean lists it)"


def has_known_result(folder: Path) -> bool:
    """Return whether enough is known of a run that was cut off for its row."""
    noted = read_run(folder)
    is_known = noted.rows is not None or noted.complete  # else it may have a row that nobody knows of
    if not noted.file and os.path.lexists(folder / RESULT):
        return False  # with --no-rows it may be its result, whose line in the journal is missing
    return is_known and noted.cleaned is None and read_plan(folder) is not None


def _result_of_cut_off(run_folder: RunFolder) -> RunResult:
    """Return what is known of a run that was cut off, once its journal has that the row to come is not its own.

    Raises:
        RecordError: what is known is not enough, or the journal takes nothing.
    """
    folder = run_folder.path
    noted, plan = read_run(folder), read_plan(folder)
    if plan is None or not has_known_result(folder):
        raise RecordError(_NO_ROW)
    if problem := "" if noted.rows is not None else run_folder.note(RunEntry(at=now(), interrupted=True)):
        raise RecordError(problem)  # else a later command would take the row for the run's own
    plan = replace(plan, id=folder.name, folder=folder, workspace=folder.parent.parent)
    start = noted.start or RunStart()
    own = None if noted.interrupted else noted.rows  # made before the kill
    result = result_of_rows(own, folder.name) if own is not None else _interrupted(folder, start)
    progress = read_progress(folder)
    started = progress.started if progress is not None and progress.started else noted.at[:19] + "+00:00"
    result = replace(result, attempt=start.attempt, started=started, durations_s=_durations_s(folder, started))
    entries = read_entries(noted.entries.encode())
    output = RunOutput(rows=own.cells, entries=entries) if own is not None else None
    return make_result(plan, result, start, Redactor().text, output)  # masked is what looks like a secret


def _interrupted(folder: Path, start: RunStart) -> Result:
    return Result(
        plan_id=folder.name,
        status=Status.FAILURE,
        cause=Cause.INTERRUPTED,
        reason=f"madlite was killed before the run had ended{_last_known(folder)}",
        diagnosis=Diagnosis(cause=Cause.INTERRUPTED.value, hint=_HINT if start.command[:1] == ("run",) else ""),
    )


def _last_known(folder: Path) -> str:
    progress = read_progress(folder)
    if progress is None or not progress.doing:
        return ""
    of = f" of {progress.steps}" if progress.steps is not None else ""
    step = f", step {progress.step}{of}" if progress.step is not None else ""
    return f" (last seen: {progress.doing}{step})"


def result_of_rows(rows: RunRows, run_id: str) -> Result:
    """Return the result that rows show, which were made before the kill."""
    known = {status.value: status for status in Status}
    statuses = [known.get(cells.get("status", ""), Status.FAILURE) for cells in rows.cells]
    metrics = tuple(
        replace(make_metric(number, cells.get("metric", "")), text=number, status=status, cause=Cause.NONE)
        for cells, status in zip(rows.cells, statuses, strict=True)
        if (number := cells.get("performance", ""))
    )
    status = next((status for status in statuses if status is not Status.SUCCESS), Status.SUCCESS)
    why = "madlite was killed after the run had its row: the record has what the row says"
    reason = "" if status is Status.SUCCESS else why
    return Result(plan_id=run_id, status=status, metrics=metrics, reason=reason, findings=(why,))


def _durations_s(folder: Path, started: str) -> dict[str, float]:
    """Return how long the run and its session went on, as far as its log and the handle of the session show."""
    found = {"total": 0.0}
    with suppress(OSError, ValueError):
        end_s = (folder / LOG).lstat().st_mtime
        found["total"] = max(0.0, round(end_s - datetime.fromisoformat(started).timestamp(), 3))
        found["run"] = max(0.0, round(end_s - (folder / HANDLE).lstat().st_mtime, 3))
    return found
