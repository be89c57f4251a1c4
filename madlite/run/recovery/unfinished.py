"""What earlier commands left undone: said by the next command, listed and dealt with by `clean`."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Row, Runtime, Value
from madlite.plan.inputs import RUNS
from madlite.results.batch_journal import interrupted_batches
from madlite.results.header import STANDARD_COLUMNS
from madlite.results.integrity import Integrity
from madlite.results.pending import are_in_file, rows_path
from madlite.results.perfcsv import append_rows, is_results_file, left_out_text
from madlite.results.rebuild import NO_ROW
from madlite.results.record import VERSION, Record, record_json
from madlite.results.stored import load_result, read_record, uncollected
from madlite.run.recovery.leftovers import Leftover, Leftovers, find_leftovers
from madlite.workspace.folder import RunFolder, exists, is_alive, planted, real_folders, unfinished
from madlite.workspace.journal import RUN_JOURNAL, RunEntry, RunJournal, RunRows, now, own_folders, read, read_run

# RunRows that perf.csv did not take when their run ended: the next run appends them, each once.


def runs_with_pending_rows(workspace: Path) -> Iterator[Path]:
    """Yield the folders of runs that have a record, and rows that perf.csv did not take, the oldest first.

    Folders that madlite did not make are none: what is in them may be anybody's.
    """
    waiting = [folder for folder in real_folders(workspace / RUNS) if exists(folder / RUN_JOURNAL)]
    own = own_folders(workspace / RUNS) if waiting else frozenset()
    for folder in waiting:
        if folder.name in own and not is_alive(folder) and read_run(folder).cleaned is None:
            record = read_record(folder)
            if record is not None and record.rows is not None and not record.rows.appended:
                yield folder


def appended_rows(workspace: Path) -> list[RunRows]:
    """Return the rows that runs are known to have appended."""
    records = (read_record(folder) for folder in real_folders(workspace / RUNS))
    return [one.rows for one in records if one is not None and one.rows is not None and one.rows.appended]


def append_pending(workspace: Path, output: Path, begin: Sequence[str] = STANDARD_COLUMNS) -> list[str]:
    """Append what earlier runs kept aside, and say so; what still cannot be appended stays where it is.

    Rows go to `output`, the results file of the command at hand, or to a results file of the working folder; a new one
    gets the columns `begin`.
    """
    return [
        told for folder in list(runs_with_pending_rows(workspace)) for told in _add(folder, workspace, output, begin)
    ]


def _add(folder: Path, workspace: Path, output: Path, begin: Sequence[str]) -> Iterator[str]:
    if folder.lstat().st_uid != os.geteuid():  # theirs to add: who owns a folder may have written what is in it
        return
    held = RunFolder.reopen(folder)
    if held is None:  # another command does it, or nobody may
        return
    integrity = None
    try:
        record = read_record(folder)
        if record is None or record.rows is None or record.rows.appended or record.version != VERSION:
            return
        path = _target_of(record.rows, workspace, output)
        if path is None:
            yield _other_file_text(folder, record.rows)
            return
        integrity = Integrity(path, workspace)
        rows, words = append_once(record.rows, held, workspace, path, integrity, begin)
        _update_record(held, replace(record, rows=rows))
        yield f"{folder.name}: {words}"
    except (RecordError, OSError):  # as before: the row stays aside, and that is told
        return
    finally:
        held.close()
        yield from integrity.reports if integrity is not None else ()


def _target_of(rows: RunRows, workspace: Path, output: Path) -> Path | None:
    """Return the file that rows may go to; None where they name another than a command may write to."""
    if rows.path == rows_path(output, workspace):
        return output
    path = workspace / rows.path
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(workspace))
    return path if inside and is_results_file(path) else None


def _other_file_text(folder: Path, rows: RunRows) -> str:
    rows_are, they = ("rows are", "they stay") if len(rows.cells) != 1 else ("row is", "it stays")
    return (
        f"{folder.name}: its {rows_are} for {rows.path}, which is neither this command's results file nor one of this "
        f"folder: {they} in {RUNS}/{folder.name}; madlite run -o {shlex.quote(rows.path)} … takes what is for that file"
    )


def append_once(
    rows: RunRows, held: RunFolder, workspace: Path, path: Path, integrity: Integrity, begin: Sequence[str]
) -> tuple[RunRows, str]:
    """Append rows of an open run folder that are not in their file, and say so; a new file gets the columns `begin`.

    They can be there: an earlier try was killed before its record said so, or the file was made again.

    Raises:
        RecordError, OSError: they are not in the file.
    """
    tried = read_run(held.path).rows
    tried = tried if tried is not None and tried.path == rows.path else None
    there = are_in_file(tried, workspace, appended_rows(workspace)) if tried is not None else False
    if there is None:
        raise RecordError(f"{rows.path} cannot be read", "")
    is_in, was_added = ("row is", "row was") if len(rows.cells) == 1 else ("rows are", "rows were")
    if there and tried is not None:
        return replace(tried, appended=True, kept=""), f"its {is_in} in {rows.path}"
    noted, words = [rows], [f"its {was_added} added to {rows.path}"]

    def leave_out(columns: tuple[str, ...]) -> None:
        noted.append(rows.without(columns))
        words.append(left_out_text(rows.path, columns))

    def before_write(size: int, columns: tuple[str, ...]) -> None:
        noted.append(replace(noted[-1], at=now(), offset=size, columns=columns, kept=""))
        if held.note(RunEntry(at=noted[-1].at, rows=noted[-1])):  # a row that is not noted could be appended twice
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    append_rows(
        path,
        [Row(cells=cells) for cells in rows.cells],
        strict_header=rows.strict_header,
        before_write=before_write,
        leave_out=leave_out,
        target=Path(os.path.realpath(path)),
        integrity=integrity,
        begin=begin,
    )
    return replace(noted[-1], appended=True), "; ".join(words)


def _update_record(held: RunFolder, record: Record) -> None:
    """Have the record say where the rows are; until it does, the note of them stays."""
    if not held.write_record(record_json(record)):
        held.end_journal()


IN_FILE, UNKNOWN = "its row is in {path}", "whether its row is in {path} cannot be seen"
_PERF = "perf.csv"
_COMES, _IS_THERE = "the next madlite run adds it", "the next madlite run notes that"


class IncompleteRun(Value, frozen=True):
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


def find_incomplete(workspace: Path) -> tuple[IncompleteRun, ...]:
    """Return the runs of a workspace that were cut off, or whose rows perf.csv did not take; `clean` ends that."""
    dead = [*unfinished(workspace), *runs_with_pending_rows(workspace)]
    noted = {folder: read_run(folder) for folder in dead}
    # of those that found the file equally large the last alone can have appended to it
    newest = sorted(dead, key=lambda folder: rows.at if (rows := noted[folder].rows) else "", reverse=True)
    ordered = sorted(newest, key=lambda folder: rows.offset if (rows := noted[folder].rows) else 0)
    known = appended_rows(workspace) if any(one.rows for one in noted.values()) else []
    undone = []
    for folder in ordered:
        rows = noted[folder].rows
        there = are_in_file(rows, workspace, known) if rows is not None else None
        known += [rows] if rows is not None and there else []
        record = read_record(folder)
        undone.append(
            _of_recorded(folder, record, there) if record is not None else _of_cut_off(folder, noted[folder], there)
        )
    return tuple(sorted(undone, key=lambda one: one.folder.name))


def _of_recorded(folder: Path, record: Record, there: bool | None) -> IncompleteRun:
    path = record.rows.path if record.rows is not None else _PERF
    if there:
        return IncompleteRun(folder=folder, row=IN_FILE.format(path=path), recorded=True, there=True)
    kept = f" ({folder.name}/{record.rows.kept})" if record.rows and record.rows.kept else ""
    return IncompleteRun(folder=folder, row=f"{NO_ROW} in {path}{kept}", recorded=True)


def _of_cut_off(folder: Path, noted: RunJournal, there: bool | None) -> IncompleteRun:
    if noted.rows is None:
        return IncompleteRun(folder=folder, row=NO_ROW if noted.complete else UNKNOWN.format(path=_PERF))
    words = UNKNOWN if there is None else IN_FILE if there else NO_ROW
    return IncompleteRun(folder=folder, row=words.format(path=noted.rows.path))


def incomplete_text(undone: Iterable[IncompleteRun]) -> list[str]:
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


def recovery_report(workspace: Path) -> list[str]:
    """Return what the next command says of all that earlier ones left undone."""
    batches = [words for batch in interrupted_batches(workspace) for words in batch.words]
    return [
        *incomplete_text(find_incomplete(workspace)),
        *(f"{words}; madlite clean" for words in batches),
        *uncollected_text(workspace),
        *planted_text(workspace),
    ]


def uncollected_text(workspace: Path) -> list[str]:
    """Return what is said of runs that have ended and whose results no file has yet."""
    names = [folder.name for folder in uncollected(workspace)]
    if not names:
        return []
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    what = "1 run is" if len(names) == 1 else f"{len(names)} runs are"
    return [f"{what} not collected: {', '.join(names[:5])}{more}; madlite collect"]


def planted_text(workspace: Path) -> list[str]:
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
    undone = {str(one.folder): one for one in find_incomplete(workspace)}
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


def _listed(one: IncompleteRun) -> Leftover:
    text = f"{one.row}; {one.comes} unless it is cleaned; {one.folder}"
    return Leftover(kind="run", run_id=one.folder.name, text=text, handle=str(one.folder), row=one.row)
