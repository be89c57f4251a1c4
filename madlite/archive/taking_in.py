"""The runs of an archive → folders of a folder of runs: each whole or not at all, and never over another one.

Everything is extracted into a folder beside the runs and checked there; then each run is renamed into its place, after
an entry in the journal of the folder of runs: it is none that madlite did not make, and where it came from is known.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from madlite.archive.manifest import Manifest, PackedRun
from madlite.archive.unpack import Limits, unpack
from madlite.errors import RecordError, UsageProblem
from madlite.files import shown
from madlite.model import Value
from madlite.plan.inputs import RUNS
from madlite.results.header import STANDARD_COLUMNS
from madlite.results.stored import LIMIT_BYTES, NotedRuns, load_record, read_record
from madlite.run.collect import append_rows_of
from madlite.run.recovery.leftovers import IMPORTED
from madlite.safe_files import Folder, check_plain, open_plain
from madlite.workspace import journal
from madlite.workspace.folder import LOCK, RECORD, RunFolder, check_runs_folder, open_runs
from madlite.workspace.journal import RunEntry, RunRows, read_run

_LOCK = ".import.lock"
_CHUNK_BYTES = 1 << 20


class TakenIn(Value, frozen=True):
    """The outcome of one run of an archive: a message; `refused` where another run of its id is here."""

    run: PackedRun
    words: str
    is_new: bool = False
    refused: bool = False
    warnings: tuple[str, ...] = ()


def take_in(file: Path, workspace: Path, limits: Limits) -> tuple[TakenIn, ...]:
    """Take the runs of an archive into a working folder.

    Raises:
        UsageProblem: the archive cannot be read to its end, is not as its manifest has it, or has what no archive of
            runs has; nothing of it is left.
    """
    check_runs_folder(workspace)
    made = not os.path.lexists(workspace / RUNS)
    taken: tuple[TakenIn, ...] = ()
    try:
        with open_runs(workspace, make=True) as runs, _alone(runs), _folder_beside(runs) as beside:
            manifest = _unpacked(file, beside, limits)
            taken = tuple(_take(run, beside, runs, shown(Path(file.name))) for run in manifest.runs)
    except OSError as error:
        raise UsageProblem(f"{shown(file)} cannot be taken in: {error.strerror or error}", f"ls -ld {RUNS}") from error
    finally:
        if made and not any(one.is_new for one in taken):
            _unmake(workspace / RUNS)
    return taken


def _unpacked(file: Path, beside: Folder, limits: Limits) -> Manifest:
    """Extract an archive, and check that it is what its manifest says, and each record the run's.

    Raises:
        UsageProblem: it is not.
    """
    found = unpack(file, beside, limits)
    if found.mismatches:
        raise UsageProblem.of_all(
            (f"{one.name[:200]} of {shown(file)} is not as it was packed: {one.recorded}, found {one.found}", "")
            for one in found.mismatches[:5]
        )
    for run in found.manifest.runs:
        try:
            record = load_record(beside.path / run.id)
        except RecordError as problem:
            what = f"run {run.id} of {shown(file)}: {problem.message}"
            raise UsageProblem(what, "pip install --upgrade madlite") from None
        if record is None or record.id != run.id:
            what = f"its {RECORD} is of run {record.id if record is not None else '-'}"
            raise UsageProblem(f"run {run.id} of {shown(file)}: {what}", "")
    return found.manifest


def _take(run: PackedRun, beside: Folder, runs: Folder, origin: str) -> TakenIn:
    """Rename one run into its place, unless there is one of its id."""
    if runs.holds(run.id):
        other = next(_other_files(run, runs), "")
        if not other:
            return TakenIn(run=run, words="already here")
        words = f"not taken in: a run of this id is here with another content ({other})"
        return TakenIn(run=run, words=words, refused=True)
    with beside.below(run.id) as home:
        os.close(home.open_file(LOCK))
        record = home.read(RECORD, LIMIT_BYTES)
        journal.add(runs, journal.import_entry(home, run.id, record, origin, run.doubt))
    os.rename(run.id, run.id, src_dir_fd=beside.fd, dst_dir_fd=runs.fd)
    return TakenIn(run=run, words="taken in", is_new=True)


def _other_files(run: PackedRun, runs: Folder) -> Iterator[str]:
    """Yield the files of a run that are here with another content.

    One that was masked for the archive is other here where its run is this folder's own, and one can be pruned.
    """
    record = next(file for file in run.files if file.path == RECORD)
    for file in (record, *run.files):
        digest = _digest(runs, f"{run.id}/{file.path}")
        gone = digest is None and file is not record
        if not (gone or digest == file.sha256 or (file.masked and digest is not None)):
            yield file.path


def _digest(runs: Folder, name: str) -> str | None:
    """Return the SHA-256 of a plain file; None where there is none that can be read."""
    try:
        with runs.parent_of(name) as (folder, last):
            fd = open_plain(folder, last, os.O_RDONLY, make=False)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file, suppress(OSError):
        check_plain(fd, name)
        digest = hashlib.sha256()
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
        return digest.hexdigest()
    return None


@contextmanager
def _alone(runs: Folder) -> Iterator[None]:
    """Hold the lock of imports, and remove what a killed one left."""
    lock = runs.open_lock(_LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in os.listdir(runs.fd):  # noqa: PTH208 - of the open folder
            if name.startswith(IMPORTED):
                runs.remove_tree(name)
        yield
    finally:
        os.close(lock)


@contextmanager
def _folder_beside(runs: Folder) -> Iterator[Folder]:
    name = f"{IMPORTED}{threading.get_native_id()}"
    try:
        with runs.below(name, new=True) as beside:
            yield beside
    finally:
        with suppress(OSError):
            runs.remove_tree(name)


def _unmake(runs: Path) -> None:
    """Remove the folder of runs where nothing was taken in: the working folder is as it was."""
    for name in (".gitignore", _LOCK):
        with suppress(OSError):
            (runs / name).unlink()
    with suppress(OSError):
        runs.rmdir()


# The rows of imported runs, each once.


def append_imported(
    taken: Sequence[TakenIn], workspace: Path, output: Path, begin: Sequence[str] = STANDARD_COLUMNS
) -> Iterator[TakenIn]:
    """Append the rows of runs that were imported into a results file, in the order in which they first were.

    A run of the folder's own has its rows already.
    """
    noted = NotedRuns(workspace / RUNS)
    for one in sorted(taken, key=lambda one: _first_append(one, workspace)):
        if one.refused or not noted.origin(one.run.id):
            yield one if one.refused else replace(one, words=f"{one.words}, its rows are this folder's own")
            continue
        try:
            yield _appended(one, workspace, output, begin, noted.rows_of_pruned.get(one.run.id, ""))
        except (RecordError, OSError) as problem:
            why = problem.message if isinstance(problem, RecordError) else problem.strerror or str(problem)
            yield replace(one, words=f"{one.words}, its rows are not appended: {why}", refused=True)


def _first_append(one: TakenIn, workspace: Path) -> tuple[str, str]:
    """Return when a run's rows were first appended, and its start, which has whole seconds."""
    record = read_record(workspace / RUNS / one.run.id)
    return (record.rows.at if record is not None and record.rows is not None else ""), one.run.started


def _appended(one: TakenIn, workspace: Path, output: Path, begin: Sequence[str], earlier: str) -> TakenIn:
    """Append the rows of a run, unless its journal or the file `earlier` has them, "" for none."""
    folder = workspace / RUNS / one.run.id
    record = load_record(folder)
    if record is None or record.rows is None:
        return replace(one, words=f"{one.words}, it has no row")
    rows = replace(record.rows, path="", appended=False, kept="", at="", offset=0, columns=())
    run_folder = RunFolder.reopen(folder)
    if run_folder is None:
        raise RecordError("another command has locked the run, or its folder is another user's")
    try:
        if earlier and read_run(folder).rows is None:  # its journal went with its folder when that was pruned
            _note_attempt(replace(rows, path=earlier), run_folder)
        _, words, warnings = append_rows_of(rows, run_folder, workspace, output, begin)
    finally:
        run_folder.close()
    return replace(one, words=f"{one.words}, {words}", warnings=tuple(warnings))


def _note_attempt(rows: RunRows, run_folder: RunFolder) -> None:
    """Note rows that their file had, and has unless they were removed: they are looked for before they are appended."""
    if problem := run_folder.note(RunEntry(at=journal.now(), rows=rows)):
        raise RecordError(problem)
