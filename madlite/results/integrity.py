"""Detects changes of a results file by another program: bytes that madlite writes are recorded and compared.

A matching stamp (inode, size, ctime) avoids reading the file.  Where it does not match, the file is compared piece by
piece with the journal.  Files outside of the working folder are tracked where a journal of madlite lies beside them:
others have other writers.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path

from madlite.plan.inputs import RUNS
from madlite.results.pending import rows_path
from madlite.safe_files import NO_SPACE
from madlite.workspace import journal
from madlite.workspace.folder import open_runs
from madlite.workspace.journal import Entry, Stamp

_PIECE_BYTES, _TAILS_BYTES = 1 << 20, (1 << 11, 1 << 16)
_REMOVED = "it was removed, or another file is in its place"
_REWRITTEN = "rows that madlite wrote are changed or gone"
_log = logging.getLogger(__name__)


class Integrity:
    """The journal entries of one results file of a working folder; callers of its methods hold its lock.

    An entry that cannot be written is logged and costs no row; on a full disk a row is pending until its bytes can be
    recorded.
    """

    def __init__(self, target: Path, workspace: Path) -> None:
        self._workspace = _journal_folder(target, workspace)
        self.name = rows_path(target, self._workspace)
        self.reports: list[str] = []  # changes by another program
        self._tracked = not Path(self.name).is_absolute()

    def check(self, fd: int, *, is_new: bool = False) -> None:
        """Check whether another program changed the open file since the last entry; report and record it."""
        if not self._tracked or self._is_untouched(fd):
            return
        entries = self._entries()
        change = _change(fd, entries, is_new) if entries else ""
        if change:
            self.reports.append(_report(self.name, entries[-1].at, journal.now(), change))
            self._add(Entry(at=journal.now(), file=self.name, changed=change))
        self.note_state(fd)

    def note_write(self, start: int, data: bytes) -> None:
        """Record bytes that are about to be written from `start` on, and will be the last ones of the file.

        Raises:
            OSError: there is no space for the entry; bytes without one would later be reported as a change.
        """
        digest = hashlib.sha256(data).hexdigest()
        self._add(Entry(at=journal.now(), file=self.name, start=start, size=len(data), sha256=digest), required=True)

    def note_replacement(self, fd: int, *, rebuilt: bool = False) -> None:
        """Record an open file that is about to replace this one.

        Raises:
            OSError: there is no space for the entry.
        """
        size = os.fstat(fd).st_size
        digest = _hash(fd, 0, size)
        self._add(Entry(at=journal.now(), file=self.name, size=size, sha256=digest, rebuilt=rebuilt), required=True)

    def note_written(self, fd: int, size: int = -1) -> None:
        """Record the state of the file after a write, unless it has not the `size` that is expected then."""
        if size in (-1, os.fstat(fd).st_size):
            self._add(Entry(at=journal.now(), file=self.name, stamp=_stamp(fd)))

    def changes(self, locked: int | None = None) -> tuple[str, ...]:
        """Return the change by another program since the file was rebuilt or acknowledged; nothing is recorded.

        `locked` is the file where the caller holds its lock.
        """
        if not self._tracked or not self._entries():
            return ()
        # nobody appends meanwhile, so that journal and file are consistent
        with self._locked_shared() if locked is None else nullcontext(locked) as fd:
            entries = self._entries()
            change = _change(fd, entries, fd is None) if fd is None or not self._is_untouched(fd) else ""
        reports: list[str] = []
        for before, entry in pairwise(entries):
            reports = [] if entry.rebuilt or entry.acknowledged else reports
            reports += [_report(self.name, before.at, entry.at, entry.changed)] if entry.changed else []
        reports += [_report(self.name, entries[-1].at, journal.now(), change)] if change else []
        earlier = (
            f" (and {len(reports) - 1} times before, since it was first written or rebuilt)" if reports[1:] else ""
        )
        return (reports[-1] + earlier,) if reports else ()

    def acknowledge(self) -> None:
        """Record the file as it is, so that changes so far are not reported again."""
        with self._locked_shared() as fd:
            if fd is not None:
                self.note_state(fd, acknowledged=True)
            else:
                self._add(
                    Entry(
                        at=journal.now(), file=self.name, size=0, sha256=hashlib.sha256().hexdigest(), acknowledged=True
                    )
                )

    @contextmanager
    def _locked_shared(self) -> Iterator[int | None]:
        """Yield the file under a shared lock, so that no madlite appends to it; None where there is none."""
        path = self._workspace / self.name
        while True:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                yield None
                return
            try:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(fd, fcntl.LOCK_SH)
                if _names_file(path, fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def note_state(self, fd: int, *, acknowledged: bool = False) -> None:
        """Record the whole file as it is, after a failed write, or as `acknowledged` by the user."""
        size, stamp = os.fstat(fd).st_size, _stamp(fd)
        whole = Entry(
            at=journal.now(),
            file=self.name,
            size=size,
            sha256=_hash(fd, 0, size),
            stamp=stamp,
            acknowledged=acknowledged,
        )
        self._add(whole)

    def _is_untouched(self, fd: int) -> bool:
        """Return whether the file has the stamp of the last entry."""
        for tail_bytes in _TAILS_BYTES:  # the last entry is near the end, unless many others write there
            if last := self._entries(tail_bytes)[-1:]:
                return last[0].stamp == _stamp(fd)
        return False

    def _entries(self, tail_bytes: int = 0) -> list[Entry]:
        return [entry for entry in journal.read(self._workspace / RUNS, tail_bytes) if entry.file == self.name]

    def _add(self, entry: Entry, *, required: bool = False) -> None:
        if not self._tracked:
            return
        try:
            with open_runs(self._workspace) as runs:
                journal.add(runs, entry)
        except OSError as error:
            if required and error.errno in NO_SPACE:
                raise
            _log.debug("%s: %s", journal.JOURNAL, error)


def changed_files(workspace: Path) -> list[tuple[Integrity, str]]:
    """Return the results files of a working folder that another program changed, each with its report."""
    names = dict.fromkeys(entry.file for entry in journal.read(workspace / RUNS) if entry.file)
    inside = (name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts)
    files = [Integrity(workspace / name, workspace) for name in inside]
    return [(file, change) for file in files for change in file.changes()]


def _journal_folder(target: Path, workspace: Path) -> Path:
    """Return the folder whose journal has a file: for one outside of the workspace its own folder."""
    beside = Path(os.path.realpath(target)).parent
    inside = beside.is_relative_to(os.path.realpath(workspace))
    return beside if not inside and (beside / RUNS / journal.JOURNAL).exists() else workspace


def _change(fd: int | None, entries: Sequence[Entry], is_new: bool) -> str:
    """Return a description of what another program did to an open file; "" where it is as recorded.

    The last recorded write may not have been done: madlite was killed, or the disk was full.
    """
    written = [entry for entry in entries if entry.size >= 0]
    if fd is None or is_new:
        return _REMOVED if any(piece.size > 0 for piece in _pieces(written)) else ""
    size = os.fstat(fd).st_size
    found = [_compare(fd, size, _pieces(written))]
    if entries[-1].stamp is None and entries[-1].size >= 0 and not entries[-1].changed:
        found.append(_compare(fd, size, _pieces(written[:-1])))
        if found[-1] is not None and 0 < found[-1] < written[-1].size:
            return ""  # a part of it was written
    if 0 in found:
        return ""
    more = [rest for rest in found if rest is not None]
    added = "1 byte was" if more[:1] == [1] else f"{more[0] if more else 0:,} bytes were"
    return f"{added} added at its end" if more else _REWRITTEN


def _pieces(written: Sequence[Entry]) -> list[Entry]:
    """Return the entries that make up the file, in order: a later one replaces those behind its start."""
    pieces: list[Entry] = []
    for entry in written:
        while pieces and entry.start < pieces[-1].start + pieces[-1].size:
            pieces.pop()
        pieces.append(entry)
    return pieces


def _compare(fd: int, size: int, pieces: Sequence[Entry]) -> int | None:
    """Return how many bytes follow the recorded ones, None where those are not all there."""
    end = 0
    for piece in pieces:
        if piece.start != end or piece.start + piece.size > size:
            return None
        if piece.size and _hash(fd, piece.start, piece.size) != piece.sha256:
            return None
        end += piece.size
    return size - end


def _names_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False


def _hash(fd: int, start: int, size: int) -> str:
    digest, end = hashlib.sha256(), start + size
    while start < end and (piece := os.pread(fd, min(_PIECE_BYTES, end - start), start)):
        digest.update(piece)
        start += len(piece)
    return digest.hexdigest()


def _stamp(fd: int) -> Stamp:
    return Stamp.of(os.fstat(fd))


def _report(name: str, before: str, at: str, change: str) -> str:
    return f"{name} was changed by another program between {before[:19]} and {at[:19]} (UTC): {change}"
