"""Rows that perf.csv did not take when their run ended: the next run appends them, each once."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Row, to_json
from madlite.plan.make import RUNS
from madlite.results.header import STANDARD_COLUMNS
from madlite.results.integrity import Integrity
from madlite.results.intent import Rows, are_there, now, read_intent, rows_path
from madlite.results.perfcsv import append_rows, is_results_file, left_out_words
from madlite.results.record import VERSION, Record, record_json
from madlite.results.stored import read_record
from madlite.workspace.folder import CLEANED, ROWS, RunFolder, is_alive, is_there, real_folders
from madlite.workspace.journal import own_folders


def kept_aside(workspace: Path) -> Iterator[Path]:
    """Yield the folders of runs that have a record, and rows that perf.csv did not take, the oldest first.

    Folders that madlite did not make are none: what is in them may be anybody's.
    """
    waiting = [folder for folder in real_folders(workspace / RUNS) if is_there(folder / ROWS)]
    own = own_folders(workspace / RUNS) if waiting else frozenset()
    for folder in waiting:
        if folder.name in own and not is_there(folder / CLEANED) and not is_alive(folder):
            record = read_record(folder)
            if record is not None and record.rows is not None and not record.rows.appended:
                yield folder


def appended(workspace: Path) -> list[Rows]:
    """Return the rows that runs are known to have appended."""
    records = (read_record(folder) for folder in real_folders(workspace / RUNS))
    return [one.rows for one in records if one is not None and one.rows is not None and one.rows.appended]


def add_kept(workspace: Path, output: Path, begin: Sequence[str] = STANDARD_COLUMNS) -> list[str]:
    """Append what earlier runs kept aside, and say so; what still cannot be appended stays where it is.

    Rows go to `output`, the results file of the command at hand, or to a results file of the working folder; a new one
    gets the columns `begin`.
    """
    return [told for folder in list(kept_aside(workspace)) for told in _add(folder, workspace, output, begin)]


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
        path = _path_of(record.rows, workspace, output)
        if path is None:
            yield _elsewhere(folder, record.rows)
            return
        integrity = Integrity(path, workspace)
        rows, words = append_once(record.rows, held, workspace, path, integrity, begin)
        _note(held, replace(record, rows=rows))
        yield f"{folder.name}: {words}"
    except (RecordError, OSError):  # as before: the row stays aside, and that is told
        return
    finally:
        held.close()
        yield from integrity.told if integrity is not None else ()


def _path_of(rows: Rows, workspace: Path, output: Path) -> Path | None:
    """Return the file that rows may go to; None where they name another than a command may write to."""
    if rows.path == rows_path(output, workspace):
        return output
    path = workspace / rows.path
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(workspace))
    return path if inside and is_results_file(path) else None


def _elsewhere(folder: Path, rows: Rows) -> str:
    rows_are, they = ("rows are", "they stay") if len(rows.cells) != 1 else ("row is", "it stays")
    return (
        f"{folder.name}: its {rows_are} for {rows.path}, which is neither this command's results file nor one of this "
        f"folder: {they} in {RUNS}/{folder.name}; madlite run -o {shlex.quote(rows.path)} … takes what is for that file"
    )


def append_once(
    rows: Rows, held: RunFolder, workspace: Path, path: Path, integrity: Integrity, begin: Sequence[str]
) -> tuple[Rows, str]:
    """Append rows of an open run folder that are not in their file, and say so; a new file gets the columns `begin`.

    They can be there: an earlier try was killed before its record said so, or the file was made again.

    Raises:
        RecordError, OSError: they are not in the file.
    """
    tried = read_intent(held.path)
    tried = tried if tried is not None and tried.path == rows.path else None
    there = are_there(tried, workspace, appended(workspace)) if tried is not None else False
    if there is None:
        raise RecordError(f"{rows.path} cannot be read", "")
    is_in, was_added = ("row is", "row was") if len(rows.cells) == 1 else ("rows are", "rows were")
    if there and tried is not None:
        return replace(tried, appended=True, kept=""), f"its {is_in} in {rows.path}"
    noted, words = [rows], [f"its {was_added} added to {rows.path}"]

    def leave_out(columns: tuple[str, ...]) -> None:
        noted.append(rows.without(columns))
        words.append(left_out_words(rows.path, columns))

    def intend(size: int, columns: tuple[str, ...]) -> None:
        noted.append(replace(noted[-1], at=now(), offset=size, columns=columns, kept=""))
        if held.put(ROWS, to_json(noted[-1])):  # a row that is not noted could be appended twice
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    append_rows(
        path,
        [Row(cells=cells) for cells in rows.cells],
        strict_header=rows.strict_header,
        intend=intend,
        leave_out=leave_out,
        target=Path(os.path.realpath(path)),
        integrity=integrity,
        begin=begin,
    )
    return replace(noted[-1], appended=True), "; ".join(words)


def _note(held: RunFolder, record: Record) -> None:
    """Have the record say where the rows are; until it does, the note of them stays."""
    if not held.put_record(record_json(record)):
        held.remove(ROWS)
        held.note(b"")
