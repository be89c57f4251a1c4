"""A log as a stream of bytes: a file or a pipe, packed or not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from madlite.errors import UsageProblem
from madlite.files import shown
from madlite.safe_read import open_given

_CHUNK_BYTES = 256 * 1024
_LONGEST_MARK = 6


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


def open_log(path: Path) -> BinaryIO:
    """Open a log.

    Raises:
        UsageProblem: there is no such file, or it cannot be read.
    """
    try:
        return os.fdopen(open_given(path), "rb")
    except FileNotFoundError:
        raise UsageProblem(f"{shown(path)}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageProblem(f"{shown(path)} cannot be read: {_why(error)}") from None


def read_chunks(file: _Readable, name: str) -> Iterator[bytes]:
    """Yield a log's bytes, unpacked where they begin as gzip, xz or bzip2 files do.

    Raises:
        UsageProblem: they cannot be read or unpacked to their end.
    """
    try:
        log = _unpacked(file)
        while chunk := log.read(_CHUNK_BYTES):
            yield chunk
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UsageProblem(f"{name} cannot be read: {_why(error)}") from None


class _Looked:
    """A file whose first bytes were looked at; a pipe cannot go back."""

    def __init__(self, start: bytes, file: _Readable) -> None:
        self._start, self._file = start, file

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, what was looked at first."""
        if not self._start:
            return self._file.read(size)
        end = size if size >= 0 else len(self._start)
        start, self._start = self._start[:end], self._start[end:]
        return start


def _unpacked(file: _Readable) -> _Readable:
    start = file.read(_LONGEST_MARK)
    whole = cast("BinaryIO", _Looked(start, file))  # read is all that unpacking needs
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(whole)
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(whole)
    return bz2.open(whole) if start.startswith(b"BZh") else whole


def _why(error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    return os.strerror(code) if code else str(error)
