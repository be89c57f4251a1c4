"""Batches in the event log: the runs that one command was asked for, and how far it came.

A run that was started has a folder; one that was not would be lost with a killed madlite, so the batch is in the log
before its first run.  While its madlite lives it holds a lock, `.batch-ID.lock`, which goes with its orderly end.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import Folder, read_plain
from madlite.model import Json
from madlite.plan.inputs import RUNS
from madlite.store.events import (
    BatchEnded,
    Ended,
    Event,
    EventLog,
    JobEvent,
    Requested,
    RequestedRun,
    StudyStarted,
    Submitted,
    append,
    now,
)
from madlite.store.folder import RECORD, exists, is_run, open_runs, real_folders
from madlite.store.locks import is_locked, lock_of, open_locked, remove_locked

_LOCKS = ".batch-*.lock"


def _lock_name(batch_id: str) -> str:
    return f".batch-{batch_id}.lock"


class LoggedBatch:
    """A batch as the event log has it; a command that goes on with it has its `lock`.

    `requested` are all of its runs, `ended` the ids of those that have a row or get none, and `never_started` the
    others that have no folder either.  `inputs` are the files that its runs use with their SHA-256.
    `failed` where its failed runs are to be run again, too.
    """

    def __init__(self, runs: Path, batch_id: str, log: EventLog, lock: int = -1, *, failed: bool = False) -> None:
        self.id, self._lock, self._runs, self.failed = batch_id, lock, runs, failed
        events = tuple(log.about(batch_id))
        asked = [event for event in events if isinstance(event, Requested)]
        first = asked[0] if asked else Requested()  # its line was edited by hand
        self.started, self.command, self.study, self.series = first.at, first.command, first.study, first.series
        self.inputs = first.inputs
        self.last_at = max((event.at for event in events), default="")
        self.requested = tuple({run.id: run for requested in asked for run in requested.runs}.values())
        self.ended = frozenset(event.run for event in events if isinstance(event, Ended))
        self.is_over = any(isinstance(event, BatchEnded) for event in events)
        left = (run for run in self.requested if run.id not in self.ended)
        self.never_started = tuple(run for run in left if not _has_folder(runs, run.id))

    @property
    def is_resumable(self) -> bool:
        """Whether `madlite run --resume` goes on with it: not with a search, which has a --resume of its own."""
        return _is_resumable(self.command)

    @property
    def is_left(self) -> bool:
        """Whether runs of it have no row."""
        return not self.ended.issuperset(requested.id for requested in self.requested)

    @property
    def message(self) -> str:
        """What the next command says of it; "" where all of its runs have a folder."""
        if not self.never_started:
            return ""
        runs = f"{len(self.never_started)} run{'s' if len(self.never_started) > 1 else ''} of an earlier batch"
        return f"{runs} never started: {', '.join(run.card for run in self.never_started)}"

    def close(self) -> None:
        """Release the lock, whose file goes: who goes on with the batch later makes it again."""
        if self._lock >= 0:
            with suppress(OSError), Folder.open(self._runs) as folder:
                folder.remove(_lock_name(self.id))
            os.close(self._lock)
            self._lock = -1


def _is_resumable(command: Sequence[str]) -> bool:
    return tuple(command[:1]) in ((), ("run",), ("scaling",))


class BatchLog:
    """Writes the events of the running command's batch; an error while writing them costs no run.

    Without a workspace nothing is written, and nothing of a job: the side that submitted it has its runs in the log.
    """

    def __init__(self, workspace: Path | None = None, command: Sequence[str] = ()) -> None:
        self._workspace, self._command = workspace, tuple(command)
        self._folder: Folder | None = None
        self._lock = -1
        self._requested: set[str] = set()
        self._begun: set[str] = set()  # and without a row; runs begin and end in their own threads
        self._under_way = False
        self._resumed: LoggedBatch | None = None
        self._carried: tuple[RequestedRun, ...] = ()
        self._notes = Requested()
        self.id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"

    def carry(self, resumed: LoggedBatch, finished: Iterable[RequestedRun]) -> None:
        """Go on with another batch, of which these runs are finished: it ends once the log has all runs of this."""
        self._resumed, self._carried = resumed, tuple(finished)

    def note(self, *, study: str, series: tuple[str, ...], inputs: dict[str, str]) -> None:
        """Name the study that the runs belong to with its series, and the files that they use."""
        self._notes = Requested(study=study, series=series, inputs=inputs)

    def request(self, runs: Iterable[RequestedRun]) -> None:
        """Record runs that are about to begin, in their order; from now on only `close` is an orderly end."""
        every = (*self._carried, *runs)
        if not every:
            return
        self._requested.update(requested.id for requested in every)
        is_first, self._under_way = not self._under_way, True
        if is_first and self._workspace is not None and not self._is_job(self._workspace / RUNS):
            with suppress(OSError):  # the runs report a folder that cannot be written to
                self._open(self._workspace)
        notes, before = self._notes if is_first else Requested(), self._resumed
        written = self._add(
            replace(notes, batch=self.id, runs=every, command=self._command if is_first else (), at=now()),
            *(Ended(run=requested.id, batch=self.id, unrecorded=True) for requested in self._carried),
            *([BatchEnded(batch=before.id)] if before is not None else []),
        )
        if before is not None and self._folder is not None and written:  # else it can be resumed once more
            before.close()
        self._resumed, self._carried = None, ()

    def begin(self, run_id: str) -> None:
        """Note that a run begins; its folder is in the log before it is made."""
        self._begun.add(run_id)

    def end(self, run_id: str) -> None:
        """Record that a run has its row, or gets none."""
        self._begun.discard(run_id)
        has_record = self._folder is not None and exists(self._folder.path / run_id / RECORD)
        self._add(Ended(run=run_id, batch=self.id, unrecorded=not has_record))

    def close(self, *, interrupted: bool = False) -> bool:
        """Record the end, but of one that was interrupted and can be resumed; return whether it is such a one.

        Where the disk took nothing of a run that began, the batch stays unfinished: the next command names the run.
        """
        kept = interrupted and _is_resumable(self._command)
        if self._folder is None or not all(_has_folder(self._folder.path, name) for name in self._begun):
            return False
        if not kept:
            self._add(BatchEnded(batch=self.id))
        remove_locked(self._folder, _lock_name(self.id), self._lock)
        self._lock = -1
        self._folder.close()
        self._folder = None
        return kept

    def __enter__(self) -> BatchLog:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._lock >= 0:  # a bug during the runs: the next command reports what was lost
            os.close(self._lock)
            self._lock = -1
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _is_job(self, runs: Path) -> bool:
        log = EventLog.read(runs)
        of_jobs = {name for submitted in log.of(Submitted) for name in submitted.runs}
        of_jobs.update(job_event.attempt for job_event in log.of(JobEvent))
        return bool(self._requested) and of_jobs.issuperset(self._requested)

    def _open(self, workspace: Path) -> None:
        folder = open_runs(workspace, make=True)
        try:
            self._lock = open_locked(folder, _lock_name(self.id))
        except OSError:
            folder.close()
            raise
        self._folder = folder

    def _add(self, *events: Event) -> bool:
        if self._folder is None:
            return False
        try:
            append(self._folder, *events)
        except OSError:  # a full disk: a run that is not recorded is reported as never started
            return False
        return True


def open_unfinished(workspace: Path) -> LoggedBatch | None:
    """Return the last batch, no search's, that did not come to its end and that no command goes on with."""
    for left in reversed(interrupted_batches(workspace)):
        batch = _claimed(workspace / RUNS, left.id) if left.requested and left.is_resumable else None
        if batch is not None and not batch.is_over:
            return batch
        if batch is not None:
            batch.close()
    return None


def open_last(workspace: Path) -> LoggedBatch:
    """Return the last batch that began in a folder, no search's, whatever became of it: its failed runs are run again.

    Raises:
        UsageProblem: there is none, or another command runs it, or goes on with it.
    """
    runs = workspace / RUNS
    if not (last := _last(EventLog.read(runs))):
        hint = "madlite run --resume --failed --cluster NAME is of the last submission to a cluster"
        raise UsageProblem("--resume --failed: no batch of this machine began in this folder", hint)
    batch = _claimed(runs, last, failed=True)
    if batch is None or _last(EventLog.read(runs)) != last:  # who had the lock until now may have gone on with it
        if batch is not None:
            batch.close()
        raise UsageProblem("--resume --failed: the last batch goes on in another madlite", "madlite runs --watch")
    return batch


def _last(log: EventLog) -> str:
    for name in reversed(_own(log)):
        first = next((event for event in log.about(name) if isinstance(event, Requested)), None)
        if first is not None and _is_resumable(first.command):
            return name
    return ""


def study_to_resume(workspace: Path) -> str:
    """Return the study that `--resume` goes on with, "" for none."""
    left = reversed(interrupted_batches(workspace))
    return next((batch.study for batch in left if batch.requested and batch.is_resumable), "")


def _not_ended(log: EventLog) -> list[str]:
    ended = frozenset(log.ids(BatchEnded))
    return [name for name in _own(log) if name not in ended]


def _own(log: EventLog) -> list[str]:
    """Return the batches that began in this folder: those of a copied one are the original's."""
    here = log.made(log.ids(Requested))
    return [name for name in dict.fromkeys(log.ids(Requested)) if name in here]


def _claimed(runs: Path, batch_id: str, *, failed: bool = False) -> LoggedBatch | None:
    """Return a batch with its lock, as the log has it then; None where another process has it."""
    try:
        with Folder.open(runs) as folder:
            lock = open_locked(folder, _lock_name(batch_id))
            return LoggedBatch(runs, batch_id, EventLog.read(runs), lock, failed=failed)
    except OSError:  # another command goes on with it
        return None


def interrupted_batches(workspace: Path) -> tuple[LoggedBatch, ...]:
    """Return the batches of a workspace whose madlite is gone and that have not ended, oldest first."""
    runs = workspace / RUNS
    log = EventLog.read(runs)
    left = (name for name in _not_ended(log) if not is_locked(runs / _lock_name(name), unknown=True))
    return tuple(LoggedBatch(runs, name, log) for name in left)


def reported_batches(workspace: Path) -> tuple[LoggedBatch, ...]:
    """Return the interrupted batches that the next command reports: those after which no batch of runs began."""
    if not (found := interrupted_batches(workspace)):
        return ()
    log = EventLog.read(workspace / RUNS)
    last = _last(log)
    began = LoggedBatch(workspace / RUNS, last, log).started if last else ""
    return tuple(batch for batch in found if batch.id == last or batch.last_at > began)


def last_batch(workspace: Path, study_id: str) -> LoggedBatch | None:
    """Return the batch of the last command that requested runs of a study; it is the one that says which are left."""
    runs = workspace / RUNS
    log = EventLog.read(runs)
    batches = [requested.batch for requested in log.of(Requested) if requested.study == study_id]
    return LoggedBatch(runs, batches[-1], log) if batches else None


def dead_locks(workspace: Path) -> tuple[Path, ...]:
    """Return the locks of batches whose madlite is gone; who goes on with one makes its lock again."""
    found = (workspace / RUNS).glob(_LOCKS)
    return tuple(path for path in sorted(found) if not is_locked(path, unknown=True))


def is_batch_lock(path: Path) -> bool:
    """Return whether a file is the lock of a batch, by its name."""
    return path.match(_LOCKS)


def is_batch_running(runs: Path) -> bool:
    """Return whether a command is running a batch in a folder of runs, also between two runs."""
    return any(is_locked(runs / _lock_name(name)) for name in _not_ended(EventLog.read(runs)))


def _has_folder(runs: Path, run_id: str) -> bool:
    """Return whether a run has a folder with files of its own."""
    return "/" not in run_id and is_run(runs / run_id)


# The folder of a study in the folder of runs: the caches of its runs while it goes on, and what it came to.
#
# `study-ID` has a lock as long as its madlite lives.  The caches are removed at its end; what a kill left is `clean`'s.


SUMMARY = "study.json"
_LIMIT_BYTES = 16 << 20
_CACHES, _LOCK, _PREFIX = "caches", "study.lock", "study-"
_NAME = re.compile(r"study-(?P<id>\d{8}T\d{6}-[0-9a-f]{6})")


class StudyFolder:
    """The folder of a study that goes on; its caches are there until `close`."""

    def __init__(self, home: Folder, lock: int) -> None:
        self._home, self._lock = home, lock

    @classmethod
    def create(
        cls, workspace: Path, study_id: str, kind: str = "", request: dict[str, Json] | None = None
    ) -> StudyFolder:
        """Make the folder and take its lock; the event log has what was asked for, for a command that resumes it.

        Raises:
            OSError: it cannot be made.
        """
        with open_runs(workspace, make=True) as runs:
            append(runs, StudyStarted(study=study_id, kind=kind, request=request or {}))
            home = runs.below(study_path(workspace, study_id).name, new=True)
        return cls(home, lock_of(home, _LOCK))

    @classmethod
    def reopen(cls, workspace: Path, study_id: str) -> StudyFolder:
        """Take the lock of the folder of a study that was cut off, which is made where there is none.

        Raises:
            BlockingIOError: its madlite lives.
            OSError: it cannot be opened, or was not made in this folder.
        """
        path, is_known = study_path(workspace, study_id), bool(EventLog.read(workspace / RUNS).made([study_id]))
        if not is_known and not exists(path):
            return cls.create(workspace, study_id)
        if not is_known:
            raise PermissionError(errno.EPERM, "it did not begin in this folder", str(path))
        with open_runs(workspace) as runs:
            home = runs.below(path.name, make=True)
        return cls(home, lock_of(home, _LOCK))

    @property
    def path(self) -> Path:
        """Where the folder is."""
        return self._home.path

    def make_caches(self, name: str, folders: Iterable[str], *, empty: bool = False) -> None:
        """Make the caches of a series or a run; `empty` removes what an earlier command left of them.

        Raises:
            OSError: they cannot be made.
        """
        if empty and exists(self.path / _CACHES / name):
            self._home.remove_tree(f"{_CACHES}/{name}")
        for folder in folders:
            self._home.below(f"{_CACHES}/{name}/{folder}", make=True).close()

    def write(self, name: str, text: str) -> str:
        """Write a file of the study; return the error message, "" if none."""
        try:
            self._home.write(name, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            return f"{self.path / name} could not be written: {error.strerror}"
        return ""

    def close(self) -> str:
        """Remove the caches and release the lock; return why something of them stays, "" if nothing does."""
        problem = remove_study(self.path) if self._home.is_in_place() else f"{self.path} was moved away"
        os.close(self._lock)
        self._home.close()
        with suppress(OSError):  # it holds a summary; on NFS the lock's file goes with its descriptor
            self.path.rmdir()
        return problem


def read_summary(workspace: Path, study_id: str) -> bytes:
    """Return what a study came to, as it was written at its end.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    return read_plain(study_path(workspace, study_id) / SUMMARY, links=False, limit_bytes=_LIMIT_BYTES)


def studies_of(workspace: Path, kind: str) -> list[StudyStarted]:
    """Return the studies of a kind that began in this folder and requested a run, the newest last."""
    log = EventLog.read(workspace / RUNS)
    requested = log.made(requested.study for requested in log.of(Requested))
    found = (study for study in log.of(StudyStarted) if study.kind == kind and study.study in requested)
    return sorted(found, key=lambda study: study.study)


def is_running(workspace: Path, study_id: str) -> bool:
    """Return whether the madlite of a study lives."""
    return is_locked(study_path(workspace, study_id) / _LOCK)


def study_path(workspace: Path, study_id: str) -> Path:
    """Return where the folder of a study is."""
    return workspace / RUNS / f"{_PREFIX}{study_id}"


def has_caches(folder: Path) -> bool:
    """Return whether caches are in the folder of a study, of whichever series."""
    return exists(folder / _CACHES)


def caches_path(workspace: Path, study_id: str, name: str) -> Path:
    """Return where the caches of a series or a run of a study are."""
    return study_path(workspace, study_id) / _CACHES / name


def remove_caches(folder: Path) -> str:
    """Remove the caches of a study's folder; return why something of them stays, "" if nothing does.

    A link that a workload laid in their place is removed, and not followed.
    """
    caches = folder / _CACHES
    try:
        if caches.is_symlink():
            caches.unlink()
        elif exists(caches):
            shutil.rmtree(caches)
    except OSError as error:
        return f"{error.filename or caches} stays: {error.strerror or error}"
    return ""


def remove_study(folder: Path) -> str:
    """Remove the caches and the lock of a study's folder; return why something of it stays, "" if nothing does.

    What it came to is kept where it is known.
    """
    problem = remove_caches(folder)
    if not problem:
        with suppress(OSError):
            (folder / _LOCK).unlink(missing_ok=True)
            folder.rmdir()
    return problem


def cut_off_studies(workspace: Path) -> Iterator[tuple[str, Path]]:
    """Yield the ids and folders of the studies whose madlite is gone and that left something; links are skipped."""
    for folder in real_folders(workspace / RUNS):
        found = _NAME.fullmatch(folder.name)
        if found is None or is_locked(folder / _LOCK, unknown=True):
            continue
        if exists(folder / _LOCK) or has_caches(folder):
            yield found["id"], folder
