"""The journal of a batch: the runs that one command was asked for, on the disk while it is running.

A run that has begun has a folder; one that has not would be lost with a killed madlite.  The file is locked as long as
its madlite lives, grows by a line per run that begins and ends, and is removed at an orderly end, which reports on the
screen what never started.  Its lines are JSON: the command, `asked`, then `began` and `ended` with a run's id.  Of the
last batch that was ended before all of its runs had begun it is kept as `.interrupted.jsonl`, for `--resume`, which
goes on only with a batch whose id is in the journal of the folder of runs: its command is run.
"""

from __future__ import annotations

import fcntl
import fnmatch
import logging
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock
from types import TracebackType

import msgspec
from msgspec.structs import replace

from madlite.files import Folder, half_made, read_regular
from madlite.model import Value, json_line
from madlite.plan.inputs import RUNS
from madlite.store.folder import LOCK, PLAN, RECORD, exists, open_runs
from madlite.store.journal import JOURNAL, add, made_entry, made_here, read
from madlite.store.locks import acquire, is_locked

_LOG = logging.getLogger(__name__)
_LIMIT_BYTES = 64 << 20
_INTERRUPTED = ".interrupted.jsonl"
_GLOB, _GLOB_BEGUN = "batch-*.jsonl", ".batch-*.jsonl.[0-9]*"  # and one that is being created, by its process


class RequestedRun(Value, frozen=True, omit_defaults=True):
    """A run of a batch; `digest` is equal where its plan is, as `plan_digest` has it."""

    id: str
    card: str
    digest: str = ""


class _Line(Value, frozen=True, omit_defaults=True):
    id: str = ""
    started: str = ""
    command: tuple[str, ...] = ()
    madlite: str = ""
    study: str = ""
    series: tuple[str, ...] = ()  # of the study, as `series_of` has them
    inputs: dict[str, str] = {}  # files of the working folder that its runs use → SHA-256
    requested: tuple[RequestedRun, ...] | None = msgspec.field(name="asked", default=None)
    began: str = ""
    ended: str = ""


class InterruptedBatch(Value, frozen=True):
    """A batch whose madlite is gone: runs that have neither a row nor a folder, and whether they were begun.

    `planned` is False where it ended before its runs were planned: only `command` is known then.  `requested` are all
    of its runs.  `is_own` where it is in the journal of the folder of runs, by its `id`.
    """

    path: Path
    id: str
    started: str
    command: tuple[str, ...]
    planned: bool
    never_started: tuple[RequestedRun, ...] = ()
    begun: tuple[RequestedRun, ...] = ()
    requested: tuple[RequestedRun, ...] = ()
    is_own: bool = False

    @property
    def is_of_run(self) -> bool:
        """Whether it is one of `madlite run`."""
        return _is_of_run(self.command)

    @property
    def is_resumable(self) -> bool:
        """Whether `madlite run --resume` goes on with it."""
        return self.is_of_run and self.is_own

    @property
    def messages(self) -> tuple[str, ...]:
        """The warnings that the next command shows."""
        if not self.planned:
            return (f"an earlier command was cut off before it began: {' '.join(('madlite', *self.command))}",)
        messages = []
        if self.never_started:
            runs = f"{len(self.never_started)} run{'s' if len(self.never_started) > 1 else ''} of an earlier batch"
            messages.append(f"{runs} never started: {_names(self.never_started)}")
        if self.begun:
            messages.append(f"cut off without a row, of an earlier batch: {_names(self.begun)}")
        return tuple(messages)


def _is_of_run(command: Sequence[str]) -> bool:
    """Return whether a batch is one of `madlite run`: a study that another command makes is not resumed by that."""
    return tuple(command[:1]) in ((), ("run",))


class BatchJournal:
    """The file of the running command; an error while writing it costs no run.

    Without a workspace nothing is written.
    """

    def __init__(self, workspace: Path | None = None, command: Sequence[str] = ()) -> None:
        self._runs = (workspace or Path()) / RUNS
        self._is_of_run = _is_of_run(command)
        self._made = False
        self._fd: int | None = None
        self._end = 0  # of the lines
        self._lock = Lock()  # guards it: runs begin and end in their own threads
        self._folder: Folder | None = None
        self._requested: dict[str, RequestedRun] = {}
        self._open_runs: dict[str, RequestedRun] = {}  # begun, and without a row
        self._under_way = False
        self._resumed: UnfinishedBatch | None = None
        self._carried: tuple[RequestedRun, ...] = ()
        self.id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        self._path = self._runs / _file_name(self.id)
        with suppress(OSError):  # the runs report a folder that cannot be written to
            if workspace is not None:
                self._open(command)

    def request(self, runs: Iterable[RequestedRun]) -> None:
        """Record the runs, in their order; from now on only `close` is an orderly end."""
        if not self._under_way and self._folder is not None:
            with suppress(OSError):  # a full disk: it is not resumed
                add(self._folder, made_entry(_file_name(self.id)))
        self._under_way = True
        every = (*self._carried, *runs)
        self._requested = {one.id: one for one in every}
        self._add(_Line(requested=every))
        for one in self._carried:
            self._add(_Line(ended=one.id))
        if self._resumed is not None and self._folder is not None:
            self._resumed.replace(self._folder)
            self._resumed = None
        self._reserve(
            [*(line for one in every for line in (_Line(began=one.id), _Line(ended=one.id))), _Line(requested=())]
        )

    def carry(self, resumed: UnfinishedBatch, finished: Iterable[RequestedRun]) -> None:
        """Go on with another batch, of which these runs are finished: its file is removed once this has all runs."""
        self._resumed, self._carried = resumed, tuple(finished)

    def note(self, *, study: str, series: tuple[str, ...], inputs: dict[str, str]) -> None:
        """Record the study that the runs belong to with its series, and the files that they use."""
        self._add(_Line(study=study, series=series, inputs=inputs))

    def begin(self, run_id: str) -> None:
        """Record that a run begins."""
        self._open_runs[run_id] = self._requested.get(run_id, RequestedRun(id=run_id, card=""))
        self._add(_Line(began=run_id))

    def end(self, run_id: str) -> None:
        """Record that a run has its row, or gets none."""
        self._open_runs.pop(run_id, None)
        self._add(_Line(ended=run_id))

    def close(self, *, interrupted: bool = False) -> bool:
        """Remove the file: all runs have ended, or were reported as never started; return whether it is kept.

        It stays where it is the only trace of a run, which has neither a row nor a folder on the disk.  Of a batch
        of `madlite run` that was `interrupted` it is kept under another name, in the place of an earlier one.
        """
        if self._fd is None:
            return False
        lost = tuple(one for one in self._open_runs.values() if not _has_folder(self._runs, one.id))
        kept = interrupted and self._is_of_run and not lost and self._keep()
        if not kept:
            self._add(_Line(requested=lost))  # a file that cannot be removed lists only these
        if not lost and self._folder is not None:
            self._folder.remove(self._path.name)
        os.close(self._fd)
        self._fd = None
        if self._folder is not None:
            if self._made:
                self._unmake(self._folder)
            self._folder.close()
        return kept

    def _keep(self) -> bool:
        """Keep the file for `--resume`; return whether that was possible."""
        try:
            if self._folder is not None:
                self._folder.rename(self._path.name, _INTERRUPTED)
        except OSError:
            return False
        return True

    def __enter__(self) -> BatchJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._under_way:
            self.close()
        elif self._fd is not None:  # a bug during the runs: the next command reports what was lost
            os.close(self._fd)
            self._fd = None

    def _open(self, command: Sequence[str]) -> None:
        self._made = not os.path.lexists(self._runs)
        self._folder = open_runs(self._runs.parent, make=True)
        # visible before it is locked, it would look like the file of a command that was cut off
        beside = half_made(self._path.name)
        self._fd = self._folder.create(beside, os.O_RDWR)
        acquire(self._fd)
        from madlite import __version__

        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        self._add(_Line(id=self.id, started=now, command=tuple(command), madlite=__version__))
        self._folder.rename(beside, self._path.name)

    def _add(self, line: _Line) -> None:
        if self._fd is None:
            return
        data = json_line(line)
        with self._lock, suppress(OSError):  # a full disk: a run that is not recorded is reported as never started
            if os.pwrite(self._fd, data, self._end) == len(data):
                self._end += len(data)

    def _reserve(self, lines: Iterable[_Line]) -> None:
        """Allocate the space of later lines, so that they fit when the disk is full."""
        if self._fd is not None:
            with suppress(OSError):
                os.pwrite(self._fd, b" " * sum(map(len, map(json_line, lines))), self._end)

    def _unmake(self, runs: Folder) -> None:
        """Remove the folder where nothing ran: wrong usage leaves the working folder as it was."""
        with suppress(OSError):
            names = {*os.listdir(runs.fd)}  # noqa: PTH208 - of the open folder
            if names <= {".gitignore", JOURNAL} and {one.made for one in read(self._runs)} <= {self._path.name}:
                for name in names:
                    runs.remove(name)
                self._runs.rmdir()


class UnfinishedBatch:
    """A batch that was cut off or interrupted, while another command goes on with it: its file is locked.

    `requested` are all of its runs, `ended` the ids of those that have a row or get none, `inputs` the files that its
    runs use with their SHA-256.
    """

    def __init__(self, path: Path, fd: int) -> None:
        lines = _lines(path)
        self.path, self._fd = path, fd
        self.id = _first_id(lines)
        self.started = next((line.started for line in lines if line.started), "")
        self.command = next((line.command for line in lines if line.command), ())
        self.madlite = next((line.madlite for line in lines if line.madlite), "")
        self.study = next((line.study for line in lines if line.study), "")
        self.series = next((line.series for line in lines if line.series), ())
        self.inputs = next((line.inputs for line in lines if line.inputs), {})
        every = {one.id: one for line in lines for one in line.requested or ()}
        self.requested = tuple(every.values())
        self.ended = frozenset(line.ended for line in lines if line.ended)

    @property
    def why_foreign(self) -> str:
        """Why it is not resumed where it is not in the journal of the folder."""
        why = "is not in the journal of this folder (copied or unpacked here, or of an earlier madlite), so not resumed"
        return f"{RUNS}/{self.path.name} {why}"

    def replace(self, runs: Folder) -> None:
        """Remove the file: another one has all that it had."""
        runs.remove(self.path.name)
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_unfinished(workspace: Path) -> tuple[UnfinishedBatch | None, tuple[UnfinishedBatch, ...]]:
    """Return the last batch of `madlite run` that did not come to its end and that no command goes on with.

    Second are those that are not in the journal of the folder, oldest first: closed, and named in a warning where there
    is one to go on with.
    """
    runs = workspace / RUNS
    found = [one for path in (*dead_files(workspace), runs / _INTERRUPTED) if (one := _claimed(path))]
    fitting = [one for one in found if one.requested and _is_of_run(one.command)]
    own = made_here(runs, (_file_name(one.id) for one in fitting))
    last = max((one for one in fitting if _file_name(one.id) in own), key=lambda one: one.started, default=None)
    foreign = sorted((one for one in fitting if _file_name(one.id) not in own), key=lambda one: one.started)
    for one in foreign if last is not None else ():
        _LOG.warning("%s", one.why_foreign)
    for one in found:
        if one is not last:
            one.close()
    return last, tuple(foreign)


def _claimed(path: Path) -> UnfinishedBatch | None:
    try:
        with Folder.open(path.parent) as folder:
            fd = folder.open_file(path.name, os.O_RDWR, make=False)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), path.lstat()):
            return UnfinishedBatch(path, fd)
    except OSError:  # another command goes on with it, or has
        pass
    os.close(fd)
    return None


def acknowledge(path: Path, *, look: bool = False) -> bool:
    """Keep the file of a batch that was cut off for `--resume` alone; return whether it is one with runs that are left.

    It takes the place of an earlier one; a later one that is kept stays.  With `look` nothing is changed.
    """
    if not (fnmatch.fnmatch(path.name, _GLOB) and (batch := _claimed(path))):
        return False
    kept = path.with_name(_INTERRUPTED)
    try:
        lines = _lines(kept) if exists(kept) else ()
        own = made_here(path.parent, map(_file_name, (batch.id, _first_id(lines))))  # others are not resumed
        is_left = not batch.ended.issuperset(one.id for one in batch.requested)
        if not (_is_of_run(batch.command) and is_left and _file_name(batch.id) in own):
            return False
        newer = _file_name(_first_id(lines)) in own and any(line.started > batch.started for line in lines)
        if not newer and not look:
            with Folder.open(path.parent) as runs:
                runs.rename(path.name, _INTERRUPTED)
        return not newer
    finally:
        batch.close()


def requested_cards(runs: Path) -> dict[str, str]:
    """Return the cards of runs that have no record yet, by id: of running commands and of those that were cut off."""
    found = (one for one in map(_interrupted, sorted(_matching(runs, _GLOB))) if one is not None)
    return {run.id: run.card for one in found for run in one.requested}


def interrupted_batches(workspace: Path) -> tuple[InterruptedBatch, ...]:
    """Return the batches of a workspace whose madlite is gone and with unfinished runs, oldest first."""
    read = (_interrupted(path) for path in dead_files(workspace))
    found = [one for one in read if one is not None and one.messages]
    own = made_here(workspace / RUNS, (_file_name(one.id) for one in found))
    return tuple(replace(one, is_own=_file_name(one.id) in own) for one in found)


def dead_files(workspace: Path) -> tuple[Path, ...]:
    """Return the files of batches whose madlite is gone, with or without unfinished runs.

    Links are skipped, and so are files that another user's permissions hide.
    """
    runs = workspace / RUNS
    begun = (path for path in _matching(runs, _GLOB_BEGUN) if not exists(Path("/proc", path.suffix[1:]), shut=True))
    found = sorted((*begun, *_matching(runs, _GLOB)), key=lambda path: path.name.lstrip("."))
    dead = [path for path in found if not is_locked(path, unknown=True)]
    return tuple(path for path in dead if exists(path))  # not one that ended orderly meanwhile


def is_batch_running(runs: Path) -> bool:
    """Return whether a command is running a batch in a folder of runs, also between two runs."""
    return any(is_locked(path) for path in _matching(runs, _GLOB))


def _matching(runs: Path, pattern: str) -> list[Path]:
    """Return what `glob` does, in a tenth of its time where there are 100,000 runs."""
    try:
        return [runs / name for name in fnmatch.filter(os.listdir(runs), pattern)]  # noqa: PTH208 - names alone
    except OSError:
        return []


def _lines(path: Path) -> list[_Line]:
    """Return the lines of a batch's file; OSError where it cannot be read."""
    decoded = map(_line, read_regular(path, _LIMIT_BYTES).splitlines())
    return [line for line in decoded if line is not None]


def _interrupted(path: Path) -> InterruptedBatch | None:
    try:
        lines = _lines(path)
    except OSError:
        return None
    requested = [line.requested for line in lines if line.requested is not None]
    every = requested[-1] if requested else ()
    done = {line.ended for line in lines}
    begun = {line.began for line in lines}
    left = [one for one in every if one.id not in done and not _has_folder(path.parent, one.id)]
    return InterruptedBatch(
        path=path,
        id=_first_id(lines),
        started=next((line.started for line in lines if line.started), ""),
        command=next((line.command for line in lines if line.command), ()),
        planned=bool(requested),
        never_started=tuple(one for one in left if one.id not in begun),
        begun=tuple(one for one in left if one.id in begun),
        requested=every,
    )


def _first_id(lines: Iterable[_Line]) -> str:
    return next((line.id for line in lines if line.id), "")


def _file_name(batch_id: str) -> str:
    return f"batch-{batch_id}.jsonl"


def _line(text: bytes) -> _Line | None:
    try:
        return msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # cut off by a full disk, or by a kill


def _has_folder(runs: Path, run_id: str) -> bool:
    """Return whether a run has a folder with files of its own."""
    return "/" not in run_id and any(exists(runs / run_id / name, shut=True) for name in (LOCK, PLAN, RECORD))


def _names(runs: Iterable[RequestedRun]) -> str:
    return ", ".join(one.card for one in runs)
