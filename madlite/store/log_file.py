"""A log file of limited size: its beginning and its end are stored, and a line gives the size of the gap.

The first half of the limit is written to the file itself, the head.  Later output goes to files beside it, parts of
the tail, of which the oldest is removed when a new one begins; on closing they are joined to the head.  So the disk
never holds more than the limit, and a killed run's log can be read: the head, and the parts (madlite/reports/log.py).
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from madlite.files import Folder, write_all
from madlite.plan.fields import size_words

_SHARES = 32  # of a limit: 16 are the head's, 15 the tail's, and one is for the part that is being joined
_MOST_PARTS = 15
_PIECE_BYTES = 1 << 20
_FLAGS = os.O_RDWR | os.O_APPEND
_LINE_BYTES = 1 << 16  # in which the tail's first complete line is searched
LEFT_OUT = re.compile(rb"\n?\[madlite: (\d+) bytes left out here\]\n")


def left_out_line(count: int, after: bytes) -> bytes:
    """Return the line that stands in place of `count` omitted bytes; `after` is the byte before it."""
    return b"%s[madlite: %d bytes left out here]\n" % (b"" if after[-1:] in (b"", b"\n") else b"\n", count)


def part_name(log: str, head: int, at: int) -> str:
    """Return the name of a part: of which log, how large its head is, and how many bytes came before the part."""
    return f".{log}.tail-{head}-{at}"


@dataclass(slots=True)
class _Part:
    """A part of the tail, open for reading too: its name may be another file's by the time that it is joined."""

    name: str
    fd: int
    at: int
    size: int = 0


class LogFile:
    """One file of a log, open for reading too; parts of its tail lie in the folder `parts_folder` while it is open.

    Every method but `read` raises an OSError for a full disk; later writes are possible.
    """

    def __init__(self, fd: int, name: str, parts_folder: Folder, *, limit_bytes: int = 0) -> None:
        self.left_out = 0  # bytes, set by `close`
        self._at_line_start = True
        self.fd, self._name, self._parts_folder = fd, name, parts_folder
        self._limit = limit_bytes
        self._room = limit_bytes // 2 if limit_bytes else sys.maxsize
        self._head: int | None = None  # its size, once it is full
        self._at = 0  # bytes of the output so far, from then on
        self._parts: deque[_Part] = deque()

    def write(self, data: bytes) -> None:
        """Add output."""
        self._at_line_start = data.endswith(b"\n")
        if len(data) <= self._room:
            self._room -= len(data)
            write_all(self.fd, data)
        else:
            self._write_beyond(data)

    def write_line(self, line: bytes) -> None:
        """Add a line; it begins a new one where the output before it has no line end."""
        self.write(line if self._at_line_start else b"\n" + line)

    def read(self) -> Iterator[bytes]:
        """Yield the content that the file would have if it were closed now."""
        yield from _pieces(self.fd, 0, os.fstat(self.fd).st_size)
        skip, line = self._gap()
        yield line
        for part in self._parts:
            yield from _pieces(part.fd, skip, part.size)
            skip = 0

    def close(self) -> None:
        """Join the tail to the head, part by part, and close all files; parts that do not fit on the disk stay."""
        try:
            skip, line = self._gap()
            write_all(self.fd, line)
            while self._parts:
                for data in _pieces(self._parts[0].fd, skip, self._parts[0].size):
                    write_all(self.fd, data)
                self._drop()
                skip = 0
        finally:
            for part in self._parts:
                os.close(part.fd)
            os.close(self.fd)

    @property
    def note(self) -> str:
        """What is missing in the closed file; "" where all of the output is in it."""
        if not self.left_out:
            return ""
        return (
            f"{self._name} has the beginning and the end of what was printed: {self.left_out:,} bytes between "
            f"them are left out (--log-limit {size_words(self._limit)})"
        )

    def _write_beyond(self, data: bytes) -> None:
        """Add output that does not all fit into the head."""
        if self._head is None:
            end = self._head_end(data)
            self._room = -1
            try:
                write_all(self.fd, data[:end])
            finally:
                self._head = self._at = os.fstat(self.fd).st_size
            data = data[end:]
        share, size = self._limit // _SHARES, len(data)
        if size > _MOST_PARTS * share:  # the parts so far are outside of the limit
            self._drop_all()
            self._at += size - _MOST_PARTS * share
        rest = memoryview(data)[max(0, size - _MOST_PARTS * share) :]
        while rest:
            part = self._last_part(share)
            piece = rest[: share - part.size]
            try:
                write_all(part.fd, piece)
            except OSError:  # a full disk: a part of it may be written
                part.size = os.fstat(part.fd).st_size
                self._at = part.at + part.size
                raise
            part.size += len(piece)
            self._at += len(piece)
            rest = rest[len(piece) :]

    def _head_end(self, data: bytes) -> int:
        """Return how many bytes of the output belong to the head, up to a line end where there is one."""
        if end := data.rfind(b"\n", 0, self._room) + 1:
            return end
        size = os.fstat(self.fd).st_size
        ended = self._room <= self._limit // _SHARES and size > 0 and os.pread(self.fd, 1, size - 1) == b"\n"
        return 0 if ended else self._room

    def _last_part(self, share: int) -> _Part:
        """Return the last part, a new one where that is full."""
        if not self._parts or self._parts[-1].size >= share:
            if len(self._parts) == _MOST_PARTS:
                self._drop()
            name = part_name(self._name, self._head or 0, self._at)
            self._parts.append(_Part(name=name, fd=self._parts_folder.create(name, _FLAGS), at=self._at))
        return self._parts[-1]

    def _drop_all(self) -> None:
        while self._parts:
            self._drop()

    def _drop(self) -> None:
        part = self._parts.popleft()
        os.close(part.fd)
        self._parts_folder.remove(part.name)

    def _gap(self) -> tuple[int, bytes]:
        """Return how many bytes of the oldest part are an incomplete line, and the line for the gap before it."""
        first = self._parts[0] if self._parts else None
        if first is None or self._head is None or first.at == self._head:
            return 0, b""
        skip = os.pread(first.fd, _LINE_BYTES, 0).find(b"\n") + 1
        self.left_out = first.at + skip - self._head
        return skip, left_out_line(self.left_out, os.pread(self.fd, 1, max(0, self._head - 1)))


def _pieces(fd: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end and (data := os.pread(fd, min(_PIECE_BYTES, end - begin), begin)):
        yield data
        begin += len(data)
