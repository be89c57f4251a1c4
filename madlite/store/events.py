"""The event log of a folder of runs, `events.jsonl`: what was requested, started and ended, a line of JSON each.

All of what one command knows of the work of earlier ones is a query over this file, and over the folders of the runs:
a run that was started and has no record was cut off, a batch that was requested and has not ended is unfinished.

A line is one of the kinds of `Event`, tagged with `event`; its third key is what it is about.  Lines are appended
under the one lock of the file; a line that a kill or a full disk cut off is skipped.  On a shared folder only the side
that submits jobs writes here: a run inside a job has its own folder.

The log says in which folder it was begun, by the folder's inode.  What a copied or moved log says of runs, batches,
submissions and studies before that stays known, and is not continued: their processes and jobs are the original's.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from madlite.files import Folder, append_lines
from madlite.model import FileName, Json, Value, json_line
from madlite.store.locks import acquire

EVENTS = "events.jsonl"
_HEAD_BYTES = 256  # in which the first line is
_LOG = logging.getLogger(__name__)


def now(timespec: Literal["microseconds", "seconds"] = "microseconds") -> str:
    """Return the time as events have it, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec=timespec)


class Event(Value, frozen=True, omit_defaults=True, tag_field="event"):
    """One line; `at` is when, in UTC."""

    at: str = msgspec.field(default_factory=now)


class LogBegan(Event, frozen=True, omit_defaults=True, tag="log"):
    """What follows was written in the folder of this inode."""

    inode: str = ""


class RequestedRun(Value, frozen=True, omit_defaults=True):
    """A run of a batch; `digest` is equal where its plan is, as `plan_digest` has it.

    `varied` are the values of its point in a study, without secrets.  `after` is the run that failed before, where this
    is to be the next attempt of it.
    """

    id: str
    card: str
    digest: str = ""
    varied: dict[str, str] = {}
    after: FileName = ""


class Requested(Event, frozen=True, omit_defaults=True, tag="requested"):
    """Runs that a command is about to run as one batch; a study requests more of them as it goes on.

    The first event of a batch has its `command`.  `study` is the study that its runs belong to, `series` its series as
    `batch.runner.series_of` has them, and `inputs` the files of the working folder that the runs use, with their
    SHA-256.
    """

    batch: FileName = ""
    runs: tuple[RequestedRun, ...] = ()
    command: tuple[str, ...] = ()
    study: str = ""
    series: tuple[str, ...] = ()
    inputs: dict[str, str] = {}


class Started(Event, frozen=True, omit_defaults=True, tag="started"):
    """A run's folder is about to be made; `file` is the results file that its rows are to go to."""

    run: FileName = ""
    file: str = ""


class Ended(Event, frozen=True, omit_defaults=True, tag="ended"):
    """A run of a batch has its rows, or gets none; `unrecorded` where it has no record by then."""

    run: FileName = ""
    batch: FileName = ""
    unrecorded: bool = False


class BatchEnded(Event, frozen=True, omit_defaults=True, tag="batch_ended"):
    """A batch came to its end, or another one goes on with its runs; one that was interrupted has not ended."""

    batch: FileName = ""


class Submitted(Event, frozen=True, omit_defaults=True, tag="submitted"):
    """The jobs of these runs are about to be submitted to a cluster; the submission has a folder.

    `after` has by the ids of runs that are next attempts the runs that failed before.
    """

    submission: FileName = ""
    runs: tuple[FileName, ...] = ()
    after: dict[FileName, FileName] = {}


class JobEvent(Event, frozen=True, omit_defaults=True, tag="job"):
    """What became of a `script` of a submission: `job` is its id, "" where it is about to be submitted.

    `refused` is why a script has no job, or no further one.  `attempt` is the id of the script's run where the job is a
    further attempt of it.
    """

    submission: FileName = ""
    script: int = 0
    job: str = ""
    refused: str = ""
    attempt: FileName = ""


class JobEnded(Event, frozen=True, omit_defaults=True, tag="job_ended"):
    """A run of a submission came to its end, `how` says to which."""

    submission: FileName = ""
    run: FileName = ""
    how: str = ""


class StudyStarted(Event, frozen=True, omit_defaults=True, tag="study_started"):
    """A study of a `kind` that has a folder; `request` is what was asked for, which a command that resumes it needs."""

    study: FileName = ""
    kind: str = ""
    request: dict[str, Json] = {}


class RunImported(Event, frozen=True, omit_defaults=True, tag="imported"):
    """A run is about to be taken in from the archive `origin`, where it had the id `archived_id`.

    It is its first id where it had been imported before.
    """

    run: FileName = ""
    origin: str = ""
    archived_id: str = ""


class RunPruned(Event, frozen=True, omit_defaults=True, tag="pruned"):
    """The files of a run are about to be removed, or with `folder` all of it.

    Then the results file `rows_in` has the `rows` of it that are in no record any more.
    """

    run: FileName = ""
    folder: bool = False
    rows: int = 0
    rows_in: str = ""


class RebuildStarted(Event, frozen=True, omit_defaults=True, tag="rebuild_started"):
    """A results file is about to be rebuilt from the records: offsets in it that were recorded earlier are void."""

    file: str = ""


_Kind = TypeVar("_Kind", bound=Event)
_DECODER = msgspec.json.Decoder(reduce(or_, Event.__subclasses__()))


def append(runs: Folder, *events: Event, durable: bool = False) -> None:
    """Append events; with `durable` they are on the disk when this returns.

    Raises:
        OSError: they were not written; nothing of them stays.
    """
    fd = runs.open_file(EVENTS, os.O_RDWR | os.O_APPEND)
    try:
        with suppress(OSError):  # a file system without locks: only NFS loses a line of two writers then
            acquire(fd, None)
        inode = str(os.fstat(runs.fd).st_ino)
        begin = () if _inode_of(fd, os.fstat(fd).st_size, inode) else (LogBegan(inode=inode),)
        if append_lines(fd, b"".join(map(json_line, (*begin, *events))), EVENTS):
            _LOG.warning("%s: its last line was cut off by a kill or a full disk, and is skipped", runs.path / EVENTS)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _inode_of(fd: int, size: int, inode: str) -> bool:
    """Return whether the log's last `LogBegan` is of this inode: mostly the first line is the only one."""
    if _last_inode(os.pread(fd, _HEAD_BYTES, 0)) == inode:
        return True
    return _last_inode(os.pread(fd, size, 0)) == inode


def _last_inode(data: bytes) -> str:
    found = _ids_of(LogBegan, data)
    return found[-1] if found else ""


class EventLog:
    """The events of a folder of runs as they are at this moment; only lines that are asked for are decoded."""

    def __init__(self, data: bytes = b"", inode: str = "") -> None:
        self._data = data[: data.rfind(b"\n") + 1]
        begun = self._data.rfind(b'{"event":"log"')
        here = begun >= 0 and _last_inode(self._data[begun : begun + _HEAD_BYTES]) == inode
        self._here = self._data[begun:] if here else b""

    @classmethod
    def read(cls, runs: Path) -> EventLog:
        """Return the log of a folder of runs, an empty one where there is none that can be read."""
        try:
            with Folder.open(runs) as folder:
                fd = folder.open_file(EVENTS, os.O_RDONLY, make=False)
                with os.fdopen(fd, "rb") as file:
                    return cls(file.read(), str(os.fstat(folder.fd).st_ino))
        except OSError:
            return cls()

    def __bool__(self) -> bool:
        return bool(self._data)

    def of(self, kind: type[_Kind]) -> Iterator[_Kind]:
        """Yield the events of a kind, in their order."""
        tag = f'{{"event":"{kind.__struct_config__.tag}"'.encode()
        yield from (event for event in _decoded(_lines_with(self._data, tag)) if isinstance(event, kind))

    def about(self, name: str) -> Iterator[Event]:
        """Yield the events that name a run, batch, submission or study, in their order."""
        yield from _decoded(_lines_with(self._data, msgspec.json.encode(name)))

    def ids(self, kind: type[Event]) -> list[str]:
        """Return what the events of a kind are about, in their order; much faster than decoding them."""
        return _ids_of(kind, self._data)

    def own_runs(self) -> frozenset[str]:
        """Return the ids of the runs that began in this folder, or were imported into it."""
        found = {*_ids_of(Started, self._here), *_ids_of(RunImported, self._here)}
        here = EventLog(self._here)
        found.update(name for kind in (Submitted, JobEvent) for event in here.of(kind) for name in _runs_of(event))
        return frozenset(found)

    def settled_runs(self) -> frozenset[str]:
        """Return the runs that have their rows and record for certain: no command looks for what is left of them."""
        of_jobs = (job_ended.run for job_ended in self.of(JobEnded))
        settled = frozenset((*self.ids(Ended), *of_jobs))
        unrecorded = _decoded(_lines_with(self._data, b'"unrecorded":true'))
        return settled.difference(event.run for event in unrecorded if isinstance(event, Ended))

    def runs_of_jobs(self) -> dict[str, str]:
        """Return the submission of each run that jobs of a cluster have: those that have not come to their end."""
        events: tuple[Submitted | JobEvent, ...] = (*self.of(Submitted), *self.of(JobEvent))
        found = {name: event.submission for event in events for name in _runs_of(event)}
        return {name: found[name] for name in found.keys() - {ended.run for ended in self.of(JobEnded)}}

    def has_own(self, run_id: str, *kinds: type[Event]) -> bool:
        """Return whether a run is one of `own_runs`, by events of these kinds or of any; the others are not read."""
        events = EventLog(self._here).about(run_id)
        return any(run_id in _runs_of(event) for event in events if isinstance(event, kinds or Event))

    def failed_before(self, run_id: str) -> str:
        """Return the run that failed, and that a run of a submission is to be the next attempt of; "" for none."""
        asked = (event for event in self.about(run_id) if isinstance(event, Submitted))
        return next((event.after[run_id] for event in asked if run_id in event.after), "")

    def made(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the ids of batches, submissions and studies that began in this folder."""
        kinds = (Requested, Submitted, StudyStarted)
        return frozenset(names) & {name for kind in kinds for name in _ids_of(kind, self._here)}


def _runs_of(event: Event) -> tuple[str, ...]:
    """Return the runs that an event makes runs of its folder."""
    if isinstance(event, Started | RunImported):
        return (event.run,)
    if isinstance(event, JobEvent):
        return (event.attempt,) if event.attempt else ()
    return event.runs if isinstance(event, Submitted) else ()


def _ids_of(kind: type[Event], data: bytes) -> list[str]:
    tag = str(kind.__struct_config__.tag)
    # quotes in texts are escaped, so this is a line's beginning alone
    pattern = rb'\{"event":"%s","at":"[^"]*","[a-z_]+":("[^"\\]*(?:\\.[^"\\]*)*")' % tag.encode()
    return [_text(found) for found in re.findall(pattern, data)]


def _text(quoted: bytes) -> str:
    return str(msgspec.json.decode(quoted)) if b"\\" in quoted else quoted[1:-1].decode("utf-8", "replace")


def _lines_with(data: bytes, text: bytes) -> Iterator[bytes]:
    at = data.find(text)
    while at >= 0:
        end = data.find(b"\n", at)
        yield data[data.rfind(b"\n", 0, at) + 1 : end]
        at = data.find(text, end)


def _decoded(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # cut off, or a newer madlite's kind
            yield _DECODER.decode(line)


def is_own(folder: Path, *kinds: type[Event]) -> bool:
    """Return whether the folder of a run is one that madlite made where it is, as `EventLog.has_own`."""
    return EventLog.read(folder.parent).has_own(folder.name, *kinds)
