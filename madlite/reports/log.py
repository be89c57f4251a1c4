"""Read a run's log: from its start or its last lines, to its end or until the run ends."""

from __future__ import annotations

import codecs
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.files import open_plain
from madlite.model import Value
from madlite.secrets import Redactor
from madlite.store.folder import LOG, is_alive
from madlite.store.log_file import LEFT_OUT, left_out_line

# A run's log wherever its bytes lie: in run.log, and, of one that is over its limit, in parts beside it.
#
# Offsets count bytes that the run printed, not bytes of a file: while a run is active its parts come and go,
# and at its end they are joined to run.log, after a line with the omitted bytes (madlite/store/log_file.py).

_READ_BYTES = 1 << 18
_LONGEST_LINE = 64  # bytes of the line with the omitted bytes
_PART = re.compile(re.escape(f".{LOG}.tail-") + "([0-9]{1,18})-([0-9]{1,18})")


class _LogPiece(Value, frozen=True):
    """A stretch of a file: its first byte is the `at`th that the run printed."""

    fd: int
    begin: int
    size: int
    at: int

    @property
    def end(self) -> int:
        """How much was printed up to its end."""
        return self.at + self.size

    def read(self, at: int, most: int = _READ_BYTES) -> bytes:
        """Return what it has from a place on."""
        skip = at - self.at
        return os.pread(self.fd, min(most, self.size - skip), self.begin + skip)


class LogParts:
    """The log of one run, whose run.log is open as `fd`; each byte is read once."""

    def __init__(self, folder: Path, fd: int) -> None:
        self._folder, self._fd = folder, fd
        self._at = 0
        self._last = b""  # byte that was read
        self._head: int | None = None  # bytes of run.log before the line with the omitted bytes, where known

    def new(self) -> Iterator[bytes]:
        """Yield what has come since the last call."""
        with self._pieces() as pieces:
            for piece in pieces:
                if piece.at > self._at:
                    yield from self._emit(left_out_line(piece.at - self._at, self._last))
                    self._at = piece.at
                while self._at < piece.end and (data := piece.read(self._at)):
                    self._at += len(data)
                    yield from self._emit(data)

    def skip_to_last(self, lines: int) -> None:
        """Read from the last so many lines on."""
        with self._pieces() as pieces:
            self._at = end = pieces[-1].end
            left = lines + (end > 0 and pieces[-1].read(end - 1) == b"\n")
            for piece in reversed(pieces if lines else []):
                place, left = _line_from_end(piece, left)
                self._at = piece.at if place is None else place
                if place is not None:
                    return

    def _emit(self, data: bytes) -> Iterator[bytes]:
        self._last = data[-1:] or self._last
        if data:
            yield data

    @contextmanager
    def _pieces(self) -> Iterator[list[_LogPiece]]:
        """Open the pieces of the log that exist now, in order; at least one, which may be empty."""
        opened: list[int] = []
        try:
            parts = list(self._parts(opened))
            pieces = self._joined(os.fstat(self._fd).st_size)  # after the parts: what is joined meanwhile is in both
            for part in parts:
                if part.end > pieces[-1].end:
                    pieces.append(part)
            yield pieces
        finally:
            for fd in opened:
                os.close(fd)

    def _parts(self, opened: list[int]) -> Iterator[_LogPiece]:
        """Yield the parts that are there, by their places."""
        found = [match for match in map(_PART.fullmatch, self._names()) if match]
        for match in sorted(found, key=lambda match: int(match[2])):
            with suppress(OSError):  # gone meanwhile, or something else has its name
                fd = open_plain(self._folder / match[0], links=False)
                opened.append(fd)
                self._head = int(match[1])
                yield _LogPiece(fd=fd, begin=0, size=os.fstat(fd).st_size, at=int(match[2]))

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self._folder.iterdir()]
        except OSError:
            return []

    def _joined(self, size: int) -> list[_LogPiece]:
        """Return what is in run.log: the head, and of the tail what is joined to it."""
        if self._head is None or size <= self._head:
            return [_LogPiece(fd=self._fd, begin=0, size=size, at=0)]
        head = _LogPiece(fd=self._fd, begin=0, size=self._head, at=0)
        line = LEFT_OUT.match(os.pread(self._fd, _LONGEST_LINE, self._head))
        begin = self._head + (len(line[0]) if line else 0)
        left_out = int(line[1]) if line else 0
        return [head, _LogPiece(fd=self._fd, begin=begin, size=size - begin, at=self._head + left_out)]


def _line_from_end(piece: _LogPiece, left: int) -> tuple[int | None, int]:
    """Return where the `left`th line from the end begins, None where it is before this piece, and how many are left."""
    at = piece.end
    while at > piece.at:
        begin = max(piece.at, at - _READ_BYTES)
        data = piece.read(begin, at - begin)
        if (count := data.count(b"\n")) >= left:
            place = len(data)
            for _ in range(left):
                place = data.rindex(b"\n", 0, place)
            return begin + place + 1, 0
        left, at = left - count, begin
    return None, left


POLL_S = 0.2
# ECMA-48: control sequences, operating system commands and other strings, and the two characters that are one
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])")
_LONGEST_ESCAPE = 4096  # characters; a longer one is shown as text, without its beginning


def read_log(
    folder: Path, *, follow: bool = False, tail: int | None = None, wait: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """Yield the log of a run's folder; with `follow` until the run has ended, with `tail` the last so many lines first.

    Raises:
        UsageProblem: there is none, or it is no plain file.
    """
    fd = _open(folder, follow, wait)
    try:
        log = LogParts(folder, fd)
        if tail is not None:
            log.skip_to_last(tail)
        while True:
            lives = follow and is_alive(folder)  # checked before reading, so that the last output is read too
            yield from log.new()
            if not lives:
                return
            wait(POLL_S)
    finally:
        os.close(fd)


def masked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a log without what is a secret by its shape: an earlier madlite may have written it."""
    redactor = Redactor()
    yield from map(redactor.feed, chunks)
    yield redactor.flush()


def plain_text(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the log without terminal control sequences; each state of a progress bar is a line of its own."""
    decoder, pending = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for chunk in chunks:
        text = pending + decoder.decode(chunk)
        cut = _complete_length(text)
        text, pending = text[:cut], text[cut:]
        yield _plain(text)
    yield _plain(pending + decoder.decode(b"", final=True))


def _complete_length(text: str) -> int:
    """Return the length that can be shown: an escape sequence or a line's end may continue in the next chunk."""
    begin = text.rfind("\x1b", max(0, len(text) - _LONGEST_ESCAPE))
    if begin >= 0 and _ESCAPE.match(text, begin) is None:
        return begin
    return len(text) - text.endswith("\r")


def _plain(text: str) -> bytes:
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    if not text.replace("\n", "").isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)
    return text.encode("utf-8", "replace")


def _open(folder: Path, follow: bool, wait: Callable[[float], None]) -> int:
    while True:
        try:
            return open_plain(folder / LOG, links=False)
        except FileNotFoundError:
            if not (follow and is_alive(folder)):
                raise UsageProblem(f"run {folder.name} has no log: it was not started, or it was removed", "") from None
            wait(POLL_S)
        except OSError as error:
            raise UsageProblem(f"the log of run {folder.name} cannot be read: {error.strerror}") from error
