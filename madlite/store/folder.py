"""The folder of one run: the plan, the rendered files, the log, and the record that marks its end.

A folder without `record.json` whose lock is free is a run that was cut off.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from madlite.errors import UsageProblem
from madlite.files import NO_SPACE, Folder, append_lines, kind_of, read_limited, read_plain, write_all
from madlite.model import FileName, RunPlan, Value, json_line
from madlite.model.results import Attempt
from madlite.plan.inputs import RUNS
from madlite.plan.plan_file import secrets_in
from madlite.secrets import collect, masked_json
from madlite.store.events import EVENTS, EventLog, JobEvent, RunImported, Started, Submitted, append, is_own, now
from madlite.store.locks import is_locked, lock_of, locked_file, open_locked

# Checks of paths that another user or a workload can have written to; nothing is opened and nothing raises.


def exists(path: Path, *, shut: bool = False) -> bool:
    """Return whether a path exists; `shut` is the answer where permissions hide it.  Nothing raises."""
    try:
        path.stat()
    except OSError as error:
        return shut and error.errno in (errno.EACCES, errno.EPERM)
    return True


def real_folders(parent: Path, without: Collection[str] = ()) -> Iterator[Path]:
    """Yield the folders in a folder, by name; links are skipped, and an unreadable folder yields none."""
    try:
        with os.scandir(parent) as found:
            others = (entry for entry in found if entry.name not in without)
            names = sorted(entry.name for entry in others if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    yield from (parent / name for name in names)


_LOG = logging.getLogger(__name__)
CHECK_PREFIX, CHECK_REQUEST = "check-", "request.json"  # of a check of a cluster: its folder, and the file it locks
LOCK, HANDLE, PLAN, LOG, RECORD = "lock", "handle", "plan.json", "run.log", "record.json"
STEPS, CONTEXT, RESULT = "steps.jsonl", "context.json", "result.json"
CHECKPOINT = "checkpoint"  # where a workload may keep what the next attempt goes on from
WORK, VIEW = "work", ".view"  # what a container sees of the run's folder, and in place of the folder of runs
_NEW_LOCK = f".{LOCK}"
# room on the disk for a result that nothing but its file tells of; empty where the disk was full
_RESERVED, _RESERVED_BYTES = f".{RESULT}", 256 << 10
_LIMIT_RESULT_BYTES = 256 << 20
_File = TypeVar("_File", bound=Value)


def new_run_id(card_name: str, now: datetime | None = None) -> str:
    """Return an id that sorts by time and is safe as file name, container label and shell word: at most 63 characters.

    Its last eight hexadecimal digits are 1/4096 s, so that runs of one second sort too, and chance.
    """
    slug = re.sub(r"[^A-Za-z0-9]+", "-", card_name).strip("-")[:38] or "run"
    time = now or datetime.now(timezone.utc)
    return f"{time:%Y%m%dT%H%M%S}-{slug}-{time.microsecond * 4096 // 1_000_000:03x}{secrets.randbits(20):05x}"


def check_runs_folder(workspace: Path) -> None:
    """Refuse a working folder in which the folder of runs is not a real folder.

    Raises:
        UsageProblem: it is a file or a link, say.
    """
    runs = workspace / RUNS
    with suppress(FileNotFoundError):
        facts = runs.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            what = f"{runs} is no folder ({kind_of(facts)}), and runs have their folders in one"
            raise UsageProblem(what, f"mv {RUNS} {RUNS}.old")


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's; True where permissions hide its files."""
    return any(exists(folder / name, shut=True) for name in (RECORD, PLAN, LOCK))


class RunFolder:
    """An open run folder; the lock is held until `close`, also through a crash of the interpreter.

    Everything is written through the descriptors of the folders as they were made: a link that a workload puts in the
    place of one of them is not followed.
    """

    def __init__(self, home: Folder, lock: int, work: Folder | None = None) -> None:
        self._home = home
        self._lock = lock
        self._work = work
        self._reserved = -1

    @classmethod
    def create(
        cls,
        plan: RunPlan,
        files: Iterable[tuple[str, bytes]],
        known: Iterable[str] = (),
        begin: RunEntry | None = None,
        *,
        reserve: bool = False,
    ) -> RunFolder:
        """Make the folder, take its lock, and write the plan, `known` secrets masked, and the rendered files.

        Its journal begins with `begin`, which has what the row needs if this process is killed.  `reserve` keeps room
        on the disk for the result, which then can be written however full the disk is by then.

        Raises:
            UsageProblem: the working folder cannot be written to.
        """
        folder = None
        try:
            with ExitStack() as opened:
                runs = opened.enter_context(open_runs(plan.workspace, make=True))
                if not (reserve and _is_of_job(plan, begin)):
                    _note_started(runs, plan.id, begin.file if begin is not None else "")
                home = runs.below(plan.folder.name, new=True)
            # the lock gets its name once it is held: a free one would look like a run that was cut off; and last, as a
            # run that is killed then has what its row needs
            folder = cls(home, open_locked(home, _NEW_LOCK))
            try:
                folder.note(begin or RunEntry(at=now()))
                if reserve:
                    folder._reserve()
                secrets = collect({}, (item.secret for item in secrets_in(plan)))
                folder.write(PLAN, masked_json(plan, (*known, *secrets)).encode())
            finally:
                home.rename(_NEW_LOCK, LOCK)
            folder._fill(plan, files)
        except (OSError, UsageProblem) as error:
            if folder is not None:
                folder.close()
            if isinstance(error, UsageProblem):
                raise
            raise UsageProblem(
                f"the run folder {plan.folder} cannot be made: {error.strerror}", "run madlite in a folder of yours"
            ) from error
        return folder

    @classmethod
    def reopen(cls, path: Path, *, begun: bool = False) -> RunFolder:
        """Open and lock the folder of an earlier run, and open its journal.

        With `begun` it is one that this command made, and could not fill: it may have no journal.

        Raises:
            BlockingIOError: another process has its lock.
            OSError: the folder, its lock or its journal cannot be opened for writing; `strerror` names the file.
        """
        try:
            with open_runs(path.parent.parent) as runs:
                home = runs.below(path.name)
                if begun and not is_own(path):  # the disk was too full to record it
                    _note_started(runs, path.name)
            folder = cls(home, lock_of(home, LOCK))
            try:
                if not begun:
                    os.close(home.open_file(RUN_JOURNAL, os.O_RDWR | os.O_APPEND))  # it can be written to
            except OSError:
                folder.close()
                raise
        except OSError as error:
            where = path / os.fsdecode(error.filename or "")
            raise OSError(error.errno, f"{where}: {error.strerror}") from error
        return folder

    @property
    def path(self) -> Path:
        """Where the folder was made."""
        return self._home.path

    @property
    def work(self) -> Path:
        """The part of it that the workload sees and writes: on the host all of it."""
        return self._work.path if self._work is not None else self._home.path

    @property
    def files(self) -> Folder:
        """The folder by its descriptor, for files that are written piece by piece."""
        return self._home

    def take_checkpoint(self, before: Path) -> str:
        """Take over the checkpoint that the workload of an earlier attempt left; return that as text, "" for none."""
        left = before / self.work.relative_to(self.path) / CHECKPOINT
        try:
            if left.is_symlink() or not left.is_dir():
                return ""
            left.rename(self.work / CHECKPOINT)
        except OSError as error:
            return f"the checkpoint of {before.name} could not be taken over: {error.strerror}"
        return f"the checkpoint of {before.name} is taken over"

    def _fill(self, plan: RunPlan, files: Iterable[tuple[str, bytes]]) -> None:
        """Write the rendered files; a container gets its own copy, and sees nothing else of the folder of runs."""
        if plan.traits.containerised and plan.blocked is None:
            self._work = self._home.below(WORK, make=True)
        for name, data in files:
            for folder in filter(None, (self._home, self._work)):
                _write(folder, name, data)

    def write(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Write one file of the folder atomically, from its pieces: a reader sees the old one or the new one.

        A link that a workload laid in its place is replaced, whatever it names.

        Raises:
            UsageProblem: the name leads out of the folder.
            OSError: it cannot be written.
        """
        _write(self._home, name, data)

    def save(self, name: str, data: bytes | Iterable[bytes]) -> str:
        """Write one file; return the error message, "" if none: a full disk must not cost the verdict."""
        try:
            self.write(name, data)
        except OSError as error:
            return f"{name} could not be written: {error.strerror}"
        return ""

    def note(self, entry: RunEntry) -> str:
        """Add a line to the run's journal; return the error message, "" if none."""
        return add_entry(self._home, entry)

    def is_taken(self) -> bool:
        """Return whether another command, which did not see the lock, took the run for cut off and writes its row."""
        return read_run(self.path).interrupted or has_record(self.path)

    def end_journal(self) -> None:
        """Remove the run's journal, once its record has where its rows are."""
        self._home.remove(RUN_JOURNAL)

    def write_text(self, name: str, text: str) -> str:
        """Write one file of text, as `save` does."""
        return self.save(name, text.encode("utf-8", "backslashreplace"))

    def write_result(self, text: str) -> str:
        """Write the run's result file; return the error message, "" if none."""
        data = text.encode("utf-8", "backslashreplace")
        try:
            if self._reserved >= 0:
                self._write_reserved(data)
            else:
                self.write(RESULT, data)
                self._home.remove(_RESERVED)
        except OSError as error:
            return f"{RESULT} could not be written: {error.strerror}"
        return ""

    def _reserve(self) -> None:
        """Keep room on the disk for the result.

        Raises:
            OSError: there is none.
        """
        self._reserved = self._home.create(_RESERVED)
        try:
            os.posix_fallocate(self._reserved, 0, _RESERVED_BYTES)
        except OSError as error:  # others than a full disk: this file system reserves nothing
            if error.errno in NO_SPACE:
                os.ftruncate(self._reserved, 0)
                raise

    def _write_reserved(self, data: bytes) -> None:
        """Write the result into the room that was kept for it.

        Raises:
            OSError: it is larger, and the disk is full; the file is empty then, which `was_disk_full` finds.
        """
        try:
            os.lseek(self._reserved, 0, os.SEEK_SET)
            write_all(self._reserved, data)
            os.ftruncate(self._reserved, len(data))
            os.fsync(self._reserved)
        except OSError:
            os.ftruncate(self._reserved, 0)
            raise
        self._home.rename(_RESERVED, RESULT)
        os.close(self._reserved)
        self._reserved = -1

    def write_record(self, text: str) -> str:
        """Write the run's record; return the error message, "" if none."""
        return self.write_text(RECORD, text)

    def close(self) -> None:
        """Close the folder, and release the lock."""
        if self._reserved >= 0:
            os.close(self._reserved)
        os.close(self._lock)
        for folder in filter(None, (self._home, self._work)):
            folder.close()


def _is_of_job(plan: RunPlan, begin: RunEntry | None) -> bool:
    """Return whether a run, or the one that it is an attempt of, is a job's: who submits it writes the log."""
    attempt = begin.start.attempt if begin is not None and begin.start is not None else None
    names = [plan.folder.name, *(failed.run for failed in (attempt.earlier if attempt is not None else ()))]
    return any(is_own(plan.folder.with_name(name), Submitted, JobEvent) for name in names)


def _note_started(runs: Folder, run_id: str, file: str = "") -> None:
    """Record a new run in the event log; without it a killed run is not recovered."""
    try:
        append(runs, Started(run=run_id, file=file))
    except OSError as error:
        _LOG.warning("%s/%s cannot be written: %s", RUNS, EVENTS, error.strerror)


def _write(folder: Folder, name: str, data: bytes | Iterable[bytes]) -> None:
    try:
        folder.write(name, data)
    except OSError as error:
        if error.errno == errno.EINVAL and error.filename == name:
            what = f"a file of run {folder.path.name} would be outside of its folder: {name!r}"
            raise UsageProblem(what) from error
        raise


def open_runs(workspace: Path, *, make: bool = False) -> Folder:
    """Open the folder of runs of a working folder; `make` makes it, for those alone who may write there.

    Raises:
        OSError: it cannot be opened or made, or a link or a file is in its place.
    """
    with Folder.open(workspace) as here:
        runs = here.below(RUNS, make=make, private=True)
    if make:
        hide_from_git(runs)
    return runs


def is_alive(folder: Path) -> bool:
    """Return whether a madlite process still holds the run's lock."""
    return is_locked(folder / _NEW_LOCK) or is_locked(folder / LOCK)  # in this order: the one becomes the other


class LeftRun(NamedTuple):
    """A run without a madlite that may have something left to do, as its folder shows it at this moment.

    `cut off`: it has neither a record nor a result; `uncollected`: it has a result and no record; `recorded`: something
    of it may be running, or it was killed right then.
    """

    folder: Path
    state: Literal["cut off", "uncollected", "recorded"]
    journal: RunJournal

    @property
    def may_have_left(self) -> bool:
        """Whether something of it may be running: of one with a record the journal stays then."""
        return self.state != "uncollected"


def left_runs(workspace: Path, *, planted: bool = False) -> tuple[LeftRun, ...]:
    """Return the runs of a folder that have something left to do, the oldest first.

    With `planted` it is those that madlite did not make there: their content is not trusted.
    """
    runs = workspace / RUNS
    unsettled = real_folders(runs, EventLog.read(runs).settled_runs())
    found = [left for path in unsettled if (left := left_run(path)) is not None]
    own = EventLog.read(runs).own_runs() if found else frozenset()  # by now: a run is there before its folder
    return tuple(run for run in found if (run.folder.name in own) is not planted)


def left_run(folder: Path) -> LeftRun | None:
    """Return what is left to do of a run, whoever made its folder; None of one that is over or goes on."""
    if _has(folder, RECORD):
        is_left = exists(folder / RUN_JOURNAL) and not is_alive(folder)  # as few are
        return LeftRun(folder, "recorded", read_run(folder)) if is_left else None
    is_run = exists(folder / PLAN) or exists(folder / LOCK) or exists(folder / RESULT)
    # the lock first: a run that ends between the two checks has its record by then
    if not is_run or is_alive(folder) or _has(folder, RECORD):
        return None
    journal = read_run(folder)  # after a full disk one may have a lock and no plan
    state: Literal["cut off", "uncollected"] = "uncollected" if has_result(folder) else "cut off"
    return LeftRun(folder, state, journal) if journal.cleaned is None else None


def unfinished(workspace: Path) -> tuple[Path, ...]:
    """Return the folders of this folder's runs that were cut off, oldest first."""
    return tuple(run.folder for run in left_runs(workspace) if run.state == "cut off")


def uncollected(workspace: Path) -> tuple[Path, ...]:
    """Return the folders of this folder's runs that have ended and whose results are not collected, oldest first.

    Rows of imported runs, pending where they came from, are added by `import --rows` alone.
    """
    found = [run.folder for run in left_runs(workspace) if run.state == "uncollected"]
    imported = frozenset(EventLog.read(workspace / RUNS).ids(RunImported)) if found else frozenset()
    return tuple(folder for folder in found if folder.name not in imported)


def is_uncollected(folder: Path) -> bool:
    """Return whether a run has ended and its result is not collected, also of one that was imported so."""
    left = left_run(folder)
    return left is not None and left.state == "uncollected"


class _Recorded(Value, frozen=True):
    id: str = ""


class _Result(Value, frozen=True):
    record: _Recorded = _Recorded()


def has_record(folder: Path) -> bool:
    """Return whether a run has its record; a workload may have a file of that name, which does not name the run."""
    found = _read(folder / RECORD, _Recorded)
    return found is not None and found.id == folder.name


def has_result(folder: Path) -> bool:
    """Return whether a run has its result, as `has_record` has it."""
    found = _read(folder / RESULT, _Result)
    return found is not None and found.record.id == folder.name


def _read(path: Path, kind: type[_File], limit_bytes: int = _LIMIT_RESULT_BYTES) -> _File | None:
    try:
        return msgspec.json.decode(read_plain(path, links=False, limit_bytes=limit_bytes), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def was_disk_full(folder: Path) -> bool:
    """Return whether the disk had no room for the result of a run that has none."""
    try:
        return (folder / _RESERVED).lstat().st_size == 0
    except OSError:
        return False


def _has(folder: Path, name: str) -> bool:
    """Return whether a folder has a plain file; a link or a folder of that name is a workload's."""
    try:
        return stat.S_ISREG((folder / name).lstat().st_mode)
    except OSError:
        return False


def hide_from_git(runs: Folder) -> None:
    """Keep the folder of runs out of the checkout's version control."""
    if not runs.holds(".gitignore"):
        runs.write(".gitignore", b"*\n")


# Labels of a run's containers.

RUN_LABEL = "madlite.run"
FOLDER_LABEL = "madlite.folder"
KEPT_LABEL = "madlite.kept"


# `progress.json` in a run's folder: how far the run is, for any process that wants to watch it.
#
# It is written atomically, at most about once a second and at each change of state.  Once there is a record it holds
# nothing more than that: readers use it for the screen alone.

PROGRESS = "progress.json"
_LIMIT_BYTES = 64 << 10


class Progress(Value, frozen=True):
    """Progress of one run.  Times are UTC.

    `doing` is its current phase as text; `speed` is in `unit`, as the training reports it; `left_s` the estimated time
    of the remaining steps.
    """

    version: int = 1
    state: Literal["preparing", "running", "stopping", "ended"] = "preparing"
    doing: str = ""
    step: int | None = None
    steps: int | None = None  # in all, where the plan knows it
    speed: float | None = None
    unit: str = ""
    loss: float | None = None
    left_s: float | None = None
    status: str = ""  # of the verdict, once it has ended
    cause: str = ""
    started: str = ""
    updated: str = ""
    ended: str = ""


class ProgressFile(Progress, frozen=True):
    """What the file has: also the steps so far, as number, speed and loss; of many each second, fourth, … number."""

    points: tuple[tuple[int, float | None, float | None], ...] = ()


def read_progress(folder: Path) -> Progress | None:
    """Return the progress of a run; None where there is no readable file."""
    return _read(folder / PROGRESS, Progress, _LIMIT_BYTES)


def read_points(folder: Path) -> dict[str, dict[int, float]]:
    """Return the steps so far of a run that goes on: speed and loss by number; nothing where there is no such file."""
    found = _read(folder / PROGRESS, ProgressFile, _LIMIT_BYTES) or ProgressFile()
    curves: dict[str, dict[int, float]] = {}
    for n, *values in found.points:
        for name, value in zip((found.unit, "loss"), values, strict=True):
            if name and value is not None:
                curves.setdefault(name, {})[n] = value
    return curves


# Locks between runs of one working folder: of a script's folder and of the file that it writes its results to.


_QUERY_S = 0.2  # a process that tests a lock holds it for less


@contextmanager
def claimed_model_dir(plan: RunPlan) -> Iterator[str]:
    """Lock a folder of the workspace for the plan's script, and yield its name.

    It is the name that MAD's scripts expect, unless another run of this workspace uses it, or it is another user's.

    Raises:
        OSError: the workspace cannot be written to.
    """
    for name in (plan.model_dir, f"{plan.model_dir}_{plan.id[-6:]}"):
        with locked_name(plan.workspace, lock_name(name)) as is_free:
            if is_free:
                yield name
                return
    raise BlockingIOError(f"{plan.model_dir} is in use by other runs")


@contextmanager
def locked_name(workspace: Path, name: str) -> Iterator[bool]:
    """Hold a lock in a working folder's folder of runs; yield whether it was free.

    Raises:
        OSError: the folder of runs cannot be written to.
    """
    with open_runs(workspace, make=True) as runs, ExitStack() as held:
        is_free = True
        try:
            held.enter_context(locked_file(runs, name, _QUERY_S))
        except (BlockingIOError, PermissionError) as error:
            if isinstance(error, PermissionError) and not runs.holds(name):
                raise
            is_free = False  # another run's, or another user's
        yield is_free


def lock_name(name: str) -> str:
    """Return the name, in the folder of runs, of the lock of a folder of the workspace."""
    return f".{name}.lock"


@contextmanager
def locked_results(plan: RunPlan, wait: Callable[[], None]) -> Iterator[None]:
    """Lock the results file that the plan's script writes into the workspace; without one nothing is locked.

    Scripts write it to one place that all runs of a folder share, so runs with the same file name run one at a time.

    Raises:
        OSError: the workspace cannot be written to.
        BaseException: what `wait` raises, which is called while the file is another run's.
    """
    name = plan.result_rule.file.replace("/", "_")
    if plan.result_rule.kind != "multiple_results" or not name:
        yield
        return
    with open_runs(plan.workspace, make=True) as runs, ExitStack() as held:
        while True:
            with suppress(BlockingIOError):
                held.enter_context(locked_file(runs, lock_name(name), _QUERY_S))
                break
            wait()
        yield


# The journal of a run, `journal.jsonl` in its folder, out of reach of its container; it goes once there is a record.
#
# It has what the row of a run needs that is cut off, then the rows that are being appended to a results file, until the
# run's record has where they are, and what `madlite clean` did with a run that was cut off.


RUN_JOURNAL = "journal.jsonl"
_JOURNAL_BYTES = 256 << 20


class RunRows(Value, frozen=True):
    """The rows of one run, cell by cell as they were appended, and to which file.

    `path` is relative to the working folder where the file is below it.  `at` is when, in UTC, `offset` the size that
    the file had, with the rows of other runs that were written together with them before them, and `columns` the
    header, none of a new file.  `appended` is False until they are written.  `strict_header`: they add no columns.
    """

    path: str
    cells: tuple[dict[str, str], ...]
    at: str = ""
    offset: int = 0
    columns: tuple[str, ...] = ()
    appended: bool = False
    strict_header: bool = False

    def without(self, columns: Collection[str]) -> RunRows:
        """Return the rows as they are in a file whose header cannot take some columns."""
        left_out = frozenset(columns)
        cells = tuple({name: text for name, text in cell.items() if name not in left_out} for cell in self.cells)
        return msgspec.structs.replace(self, cells=cells)


def rows_path(perf_csv: Path, workspace: Path) -> str:
    """Return how a results file is named in the records of a working folder."""
    target, home = (Path(os.path.realpath(path)) for path in (perf_csv, workspace))  # also of a loop of links
    return str(target.relative_to(home)) if target.is_relative_to(home) else str(target)


class RunStart(Value, frozen=True, omit_defaults=True):
    """What the row and the record of a run need and its plan does not have: with it the next command can write them.

    `columns` are madlite's own that the row is to have, `left_out` the places of secrets of the context, `host` is the
    machine that it runs on: another one may not see its lock.
    """

    strict_header: bool = False
    columns: tuple[str, ...] = ()
    pipeline: str = ""
    build_number: str = ""
    command: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    attempt: Attempt | None = None
    host: str = ""
    side_files: bool = True  # whether MAD's files beside perf.csv get its part


class RunEntry(Value, frozen=True, omit_defaults=True):
    """One line of a run's journal: its `rows` right before they are appended, or what `clean` did with the run.

    The first line has its `start`, and the results `file` that its rows go to, as `RunRows.path`; none with --no-rows.
    Later ones have the id of the attempt that comes `next`, of a run that is tried again; or before its rows its part
    of the side files, `entries`, as text.  `interrupted`: its madlite was killed, and the rows that follow are a later
    command's.
    """

    at: str = ""
    start: RunStart | None = None
    rows: RunRows | None = None
    cleaned: str | None = None
    file: str = ""
    next: FileName = ""
    entries: str = ""
    interrupted: bool = False


_NOTHING = RunEntry()


class RunJournal(RunEntry, frozen=True):
    """All lines of a run's journal as one, of each field the last value; `at` is when the run's folder was made.

    Without `rows`, `complete` means that the run certainly has none: a journal that could not take the rows is empty.
    """

    complete: bool = False


def add_entry(home: Folder, entry: RunEntry) -> str:
    """Add a line to the journal of a run's folder, whose lock the caller has; return the error message, "" if none.

    A line that was not written leaves the others as they are.  A journal that cannot take its first rows is emptied,
    which needs no space: it must not be read as complete.
    """
    data: bytes | None = None
    fd = -1
    try:
        fd = home.open_file(RUN_JOURNAL, os.O_RDWR | os.O_APPEND)
        data = read_limited(fd, _JOURNAL_BYTES, RUN_JOURNAL)
        if (whole := len(_whole_lines(data))) < len(data):  # an earlier command was killed
            os.ftruncate(fd, whole)
        append_lines(fd, json_line(entry), RUN_JOURNAL)
    except OSError as error:
        is_first = entry.rows is not None and not entry.rows.appended
        if data is not None:  # else nobody knows what it has
            is_emptied = is_first and _content(data).rows is None
            with suppress(OSError):
                os.ftruncate(fd, 0 if is_emptied else len(_whole_lines(data)))
        elif fd < 0 and is_first:  # no descriptor is left, say
            home.remove(RUN_JOURNAL)
        return f"{RUN_JOURNAL} could not be written: {error.strerror}"
    finally:
        if fd >= 0:
            os.close(fd)
    return ""


def read_run(folder: Path) -> RunJournal:
    """Return the content of the journal of a run's folder; empty where there is none, or it cannot be read."""
    try:
        return _content(read_plain(folder / RUN_JOURNAL, links=False, limit_bytes=_JOURNAL_BYTES))
    except OSError:
        return RunJournal()


def other_host(folder: Path) -> str:
    """Return the host on which a run began where it is not this one, "" otherwise."""
    start = read_run(folder).start
    return "" if start is None or start.host == socket.gethostname() else start.host


def _whole_lines(data: bytes) -> bytes:
    """Return what ends with a line's end: a line is written before what it tells of is done, so a torn one is void."""
    return data[: data.rfind(b"\n") + 1]


def _content(data: bytes) -> RunJournal:
    lines = _whole_lines(data).splitlines()
    entries = tuple(_decoded(lines))
    if not entries:
        return RunJournal()
    begun = entries[0].cleaned is None  # else it was emptied, or there was none, before `clean`
    fields: dict[str, Any] = {
        name: value
        for entry in entries
        for name in RunEntry.__struct_fields__
        if (value := getattr(entry, name)) != getattr(_NOTHING, name)
    }
    known = {"at": entries[0].at if begun else "", "complete": begun and len(entries) == len(lines)}
    return RunJournal(**{**fields, **known})


def _decoded(lines: Iterable[bytes]) -> Iterator[RunEntry]:
    decode = msgspec.json.Decoder(RunEntry).decode
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield decode(line)
