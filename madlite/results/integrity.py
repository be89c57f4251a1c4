"""Whether a results file still is what madlite left of it: bytes that it writes are noted, and looked at again.

A stamp that fits (inode, size, time of the last change) costs no reading.  Where it does not, the file is compared
piece by piece with what was noted.  Files outside of the working folder are looked after where a journal of madlite
lies beside them: others have other writers.
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

_PIECE_BYTES, _TAIL_BYTES = 1 << 20, 1 << 16
_REMOVED = "it was removed, or another file is in its place"
_REWRITTEN = "rows that madlite wrote are changed or gone"
_log = logging.getLogger(__name__)


class Integrity:
    """What is noted of one results file of a working folder; callers of its methods hold its lock.

    What cannot be noted is logged and costs no row; on a full disk a row waits until its bytes can be noted.
    """

    def __init__(self, target: Path, workspace: Path) -> None:
        self._workspace = _home_of(target, workspace)
        self.name = rows_path(target, self._workspace)
        self.reports: list[str] = []  # what something else did to the file
        self._kept = not Path(self.name).is_absolute()

    def check(self, fd: int, *, is_new: bool = False) -> None:
        """Look whether something else changed the open file since the last entry; tell and note it."""
        if not self._kept or self._is_untouched(fd):
            return
        entries = self._entries()
        words = _change(fd, entries, is_new) if entries else ""
        if words:
            self.reports.append(_sentence(self.name, entries[-1].at, journal.now(), words))
            self._add(Entry(at=journal.now(), file=self.name, changed=words))
        self.note_state(fd)

    def note_write(self, start: int, data: bytes) -> None:
        """Note bytes that are about to be written from `start` on, and will be the last ones of the file.

        Raises:
            OSError: there is no space for the note; bytes without one would later be told as something else's.
        """
        digest = hashlib.sha256(data).hexdigest()
        self._add(Entry(at=journal.now(), file=self.name, start=start, size=len(data), sha256=digest), must=True)

    def note_replacement(self, fd: int, *, rebuilt: bool = False) -> None:
        """Note an open file that is about to take the place of this one.

        Raises:
            OSError: there is no space for the note.
        """
        size = os.fstat(fd).st_size
        digest = _hash(fd, 0, size)
        self._add(Entry(at=journal.now(), file=self.name, size=size, sha256=digest, rebuilt=rebuilt), must=True)

    def note_written(self, fd: int, size: int = -1) -> None:
        """Note the state of the file after what was intended; not if it has not the `size` that it should have then."""
        if size in (-1, os.fstat(fd).st_size):
            self._add(Entry(at=journal.now(), file=self.name, stamp=_stamp(fd)))

    def changes(self, locked: int | None = None) -> tuple[str, ...]:
        """Return what something else did to the file since it was made again or acknowledged; nothing is noted.

        `locked` is the file where the caller holds its lock.
        """
        if not self._kept or not self._entries():
            return ()
        # nobody appends meanwhile, so that journal and file are of one moment
        with self._still() if locked is None else nullcontext(locked) as fd:
            entries = self._entries()
            words = _change(fd, entries, fd is None) if fd is None or not self._is_untouched(fd) else ""
        told: list[str] = []
        for before, entry in pairwise(entries):
            told = [] if entry.rebuilt or entry.known else told
            told += [_sentence(self.name, before.at, entry.at, entry.changed)] if entry.changed else []
        told += [_sentence(self.name, entries[-1].at, journal.now(), words)] if words else []
        earlier = f" (and {len(told) - 1} times before, since it was first written or made again)" if told[1:] else ""
        return (told[-1] + earlier,) if told else ()

    def acknowledge(self) -> None:
        """Note the file as it is, so that what something else did to it is not told again."""
        with self._still() as fd:
            if fd is not None:
                self.note_state(fd, known=True)
            else:
                self._add(
                    Entry(at=journal.now(), file=self.name, size=0, sha256=hashlib.sha256().hexdigest(), known=True)
                )

    @contextmanager
    def _still(self) -> Iterator[int | None]:
        """Yield the file while no madlite appends to it; None where there is none."""
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
                if _is_at(path, fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def note_state(self, fd: int, *, known: bool = False) -> None:
        """Note the whole file as it is, after what was intended could not be written, or as `known` to the user."""
        size, stamp = os.fstat(fd).st_size, _stamp(fd)
        whole = Entry(at=journal.now(), file=self.name, size=size, sha256=_hash(fd, 0, size), stamp=stamp, known=known)
        self._add(whole)

    def _is_untouched(self, fd: int) -> bool:
        """Say whether the file is as the last entry has it, as far as its stamp tells."""
        last = self._entries(_TAIL_BYTES)[-1:]
        return bool(last) and last[0].stamp == _stamp(fd)

    def _entries(self, tail_bytes: int = 0) -> list[Entry]:
        return [entry for entry in journal.read(self._workspace / RUNS, tail_bytes) if entry.file == self.name]

    def _add(self, entry: Entry, *, must: bool = False) -> None:
        if not self._kept:
            return
        try:
            with open_runs(self._workspace) as runs:
                journal.add(runs, entry)
        except OSError as error:
            if must and error.errno in NO_SPACE:
                raise
            _log.debug("%s: %s", journal.JOURNAL, error)


def changed_files(workspace: Path) -> list[tuple[Integrity, str]]:
    """Return the results files of a working folder that something else changed, each with what is told of it."""
    names = dict.fromkeys(entry.file for entry in journal.read(workspace / RUNS) if entry.file)
    inside = (name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts)
    files = [Integrity(workspace / name, workspace) for name in inside]
    return [(file, words) for file in files for words in file.changes()]


def _home_of(target: Path, workspace: Path) -> Path:
    """Return the folder in whose journal a file is noted: for one outside of the workspace the folder that has it."""
    beside = Path(os.path.realpath(target)).parent
    inside = beside.is_relative_to(os.path.realpath(workspace))
    return beside if not inside and (beside / RUNS / journal.JOURNAL).exists() else workspace


def _change(fd: int | None, entries: Sequence[Entry], is_new: bool) -> str:
    """Return what something else did to an open file, in words; "" where it is what was noted.

    What was intended last may not have been written: madlite was killed, or the disk was full.
    """
    written = [entry for entry in entries if entry.size >= 0]
    if fd is None or is_new:
        return _REMOVED if any(piece.size > 0 for piece in _pieces(written)) else ""
    size = os.fstat(fd).st_size
    found = [_compare(fd, size, _pieces(written))]
    if entries[-1].stamp is None and entries[-1].size >= 0 and not entries[-1].changed:
        found.append(_compare(fd, size, _pieces(written[:-1])))
        if found[-1] is not None and 0 < found[-1] < written[-1].size:
            return ""  # a part of it was
    if 0 in found:
        return ""
    more = [rest for rest in found if rest is not None]
    added = "1 byte was" if more[:1] == [1] else f"{more[0] if more else 0:,} bytes were"
    return f"{added} added at its end" if more else _REWRITTEN


def _pieces(written: Sequence[Entry]) -> list[Entry]:
    """Return the entries that make up the file, each after the other: what a later one begins before is gone."""
    pieces: list[Entry] = []
    for entry in written:
        while pieces and entry.start < pieces[-1].start + pieces[-1].size:
            pieces.pop()
        pieces.append(entry)
    return pieces


def _compare(fd: int, size: int, pieces: Sequence[Entry]) -> int | None:
    """Return how many bytes follow what was noted, None where that is not all there."""
    end = 0
    for piece in pieces:
        if piece.start != end or piece.start + piece.size > size:
            return None
        if piece.size and _hash(fd, piece.start, piece.size) != piece.sha256:
            return None
        end += piece.size
    return size - end


def _is_at(path: Path, fd: int) -> bool:
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


def _sentence(name: str, before: str, at: str, words: str) -> str:
    return f"{name} was changed by something else between {before[:19]} and {at[:19]} (UTC): {words}"
