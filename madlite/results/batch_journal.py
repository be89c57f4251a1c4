"""What one command was asked to run, kept on the disk while it goes on.

A run that has begun has a folder, one that has not would be lost with a killed madlite.  The file is locked as long as
its madlite lives, grows by a line per run that begins and ends, and goes with an orderly end, which names on the screen
what never started.  Its lines are JSON: the command, `asked`, then `began` and `ended` with a run's id.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

import msgspec

from madlite.model import Value, json_line
from madlite.plan.inputs import RUNS
from madlite.safe_files import Folder, half_made
from madlite.safe_read import read_regular
from madlite.workspace.folder import LOCK, PLAN, RECORD, acquire, exists, is_locked, open_runs

_LIMIT_BYTES = 64 << 20
_GLOB, _GLOB_BEGUN = "batch-*.jsonl", ".batch-*.jsonl.[0-9]*"  # and what becomes one, by its process


class RequestedRun(Value, frozen=True):
    """A run that was asked for."""

    id: str
    card: str


class _Line(Value, frozen=True, omit_defaults=True):
    started: str = ""
    command: tuple[str, ...] = ()
    asked: tuple[RequestedRun, ...] | None = None
    began: str = ""
    ended: str = ""


class InterruptedBatch(Value, frozen=True):
    """A batch whose madlite is gone: runs that have neither a row nor a folder, and whether they were begun.

    `planned` is False where it ended before its runs were known: `command` alone says what was asked.  `asked` are all
    of its runs.
    """

    path: Path
    started: str
    command: tuple[str, ...]
    planned: bool
    never_started: tuple[RequestedRun, ...] = ()
    begun: tuple[RequestedRun, ...] = ()
    asked: tuple[RequestedRun, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What is to be said of it."""
        if not self.planned:
            return (f"an earlier command was cut off before it began: {' '.join(('madlite', *self.command))}",)
        told = []
        if self.never_started:
            runs = f"{len(self.never_started)} run{'s' if len(self.never_started) > 1 else ''} of an earlier batch"
            told.append(f"{runs} never started: {_names(self.never_started)}")
        if self.begun:
            told.append(f"cut off without a row, of an earlier batch: {_names(self.begun)}")
        return tuple(told)


class BatchJournal:
    """The file of the command that runs now; what keeps it from being written costs no run.

    Without a workspace nothing is written.
    """

    def __init__(self, workspace: Path | None = None, command: Sequence[str] = ()) -> None:
        self._runs = (workspace or Path()) / RUNS
        self._made = False
        self._fd: int | None = None
        self._end = 0  # of the lines
        self._folder: Folder | None = None
        self._asked: dict[str, RequestedRun] = {}
        self._open_runs: dict[str, RequestedRun] = {}  # begun, and without a row
        self._under_way = False
        self.id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        self._path = self._runs / f"batch-{self.id}.jsonl"
        with suppress(OSError):  # a folder that cannot be written to is told of by the runs
            if workspace is not None:
                self._open(command)

    def request(self, runs: Iterable[RequestedRun]) -> None:
        """Note what is to run, in this order; from now on only `close` is an orderly end."""
        self._under_way = True
        every = tuple(runs)
        self._asked = {one.id: one for one in every}
        self._add(_Line(asked=every))
        self._reserve(
            [*(line for one in every for line in (_Line(began=one.id), _Line(ended=one.id))), _Line(asked=())]
        )

    def begin(self, run_id: str) -> None:
        """Note that a run begins."""
        self._open_runs[run_id] = self._asked.get(run_id, RequestedRun(id=run_id, card=""))
        self._add(_Line(began=run_id))

    def end(self, run_id: str) -> None:
        """Note that a run has its row, or is to have none."""
        self._open_runs.pop(run_id, None)
        self._add(_Line(ended=run_id))

    def close(self) -> None:
        """Take the file away: all that was asked for has ended, or was named as never started.

        It stays where nothing else tells of a run: the disk took neither its row nor its folder.
        """
        if self._fd is None:
            return
        lost = tuple(one for one in self._open_runs.values() if not _has_folder(self._runs, one.id))
        self._add(_Line(asked=lost))  # where it cannot be removed, it says what is open
        if not lost and self._folder is not None:
            self._folder.remove(self._path.name)
        os.close(self._fd)
        self._fd = None
        if self._folder is not None:
            if self._made:
                self._unmake(self._folder)
            self._folder.close()

    def __enter__(self) -> BatchJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._under_way:
            self.close()
        elif self._fd is not None:  # a bug, in the middle of it: the next command tells what was lost
            os.close(self._fd)
            self._fd = None

    def _open(self, command: Sequence[str]) -> None:
        self._made = not os.path.lexists(self._runs)
        self._folder = open_runs(self._runs.parent, make=True)
        # seen before it is held, it would look like that of a command that was cut off
        beside = half_made(self._path.name)
        self._fd = self._folder.create(beside, os.O_RDWR)
        acquire(self._fd)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._add(_Line(started=now, command=tuple(command)))
        self._folder.rename(beside, self._path.name)

    def _add(self, line: _Line) -> None:
        if self._fd is None:
            return
        data = json_line(line)
        with suppress(OSError):  # a full disk: what is not noted is reported as never started
            if os.pwrite(self._fd, data, self._end) == len(data):
                self._end += len(data)

    def _reserve(self, lines: Iterable[_Line]) -> None:
        """Take the space of later lines from the disk, so that they fit when the disk is full."""
        if self._fd is not None:
            with suppress(OSError):
                os.pwrite(self._fd, b" " * sum(map(len, map(json_line, lines))), self._end)

    def _unmake(self, runs: Folder) -> None:
        """Take the folder away where nothing ran: wrong usage leaves a folder as it was."""
        with suppress(OSError):
            if os.listdir(runs.fd) == [".gitignore"]:  # noqa: PTH208 - of the open folder
                runs.remove(".gitignore")
                self._runs.rmdir()


def requested_cards(runs: Path) -> dict[str, str]:
    """Return the cards of runs that have no record yet, by id: what commands that go on or were cut off asked for."""
    found = (one for one in map(_interrupted, sorted(runs.glob(_GLOB))) if one is not None)
    return {asked.id: asked.card for one in found for asked in one.asked}


def interrupted_batches(workspace: Path) -> tuple[InterruptedBatch, ...]:
    """Return the batches of a workspace whose madlite is gone and that left something undone, oldest first."""
    found = (_interrupted(path) for path in dead_files(workspace))
    return tuple(one for one in found if one is not None and one.words)


def dead_files(workspace: Path) -> tuple[Path, ...]:
    """Return the files of batches whose madlite is gone, whether they left something undone or not.

    Links are none, and neither is what another user keeps from us.
    """
    runs = workspace / RUNS
    begun = (path for path in runs.glob(_GLOB_BEGUN) if not exists(Path("/proc", path.suffix[1:]), shut=True))
    found = sorted((*begun, *runs.glob(_GLOB)), key=lambda path: path.name.lstrip("."))
    dead = [path for path in found if not is_locked(path, unknown=True)]
    return tuple(path for path in dead if exists(path))  # not one that ended orderly meanwhile


def is_batch_running(runs: Path) -> bool:
    """Say whether a command still has runs to do in a folder of runs, also between two of them."""
    return any(is_locked(path) for path in runs.glob(_GLOB))


def _interrupted(path: Path) -> InterruptedBatch | None:
    try:
        lines = [_line(text) for text in read_regular(path, _LIMIT_BYTES).splitlines()]
    except OSError:
        return None
    said = [line for line in lines if line is not None]
    asked = [line.asked for line in said if line.asked is not None]
    every = asked[-1] if asked else ()
    done = {line.ended for line in said}
    begun = {line.began for line in said}
    left = [one for one in every if one.id not in done and not _has_folder(path.parent, one.id)]
    return InterruptedBatch(
        path=path,
        started=next((line.started for line in said if line.started), ""),
        command=next((line.command for line in said if line.command), ()),
        planned=bool(asked),
        never_started=tuple(one for one in left if one.id not in begun),
        begun=tuple(one for one in left if one.id in begun),
        asked=every,
    )


def _line(text: bytes) -> _Line | None:
    try:
        return msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # cut off by a full disk, or by a kill


def _has_folder(runs: Path, run_id: str) -> bool:
    """Say whether a run's own folder tells of it."""
    return "/" not in run_id and any(exists(runs / run_id / name, shut=True) for name in (LOCK, PLAN, RECORD))


def _names(runs: Iterable[RequestedRun]) -> str:
    return ", ".join(one.card for one in runs)
