"""Whether a file has the content that the hub names: a blob's name is the hash of its bytes."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from pathlib import Path

from madlite.assets.locks import Stopped
from madlite.assets.names import SHA256
from madlite.assets.parts import Part
from madlite.safe_read import open_named

_CHUNK_BYTES = 1 << 20
_SHA1 = re.compile(r"[0-9a-f]{40}")


class Digest:
    """Hears the bytes of a file of `size` bytes in their order, and says whether `name` is theirs.

    The hub names large files by their SHA-256, small ones as git does (SHA-1 of a header and the content); a proxy that
    keeps copies may name them by the SHA-1 of the content alone.  A name that is none of these says nothing.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._begin()

    def follow(self, file: Path | Part, count: int, stop: threading.Event) -> None:
        """Have heard the first `count` bytes of a file, and nothing else.

        Raises:
            OSError: it cannot be read.
            Stopped: `stop` was set.
        """
        if self._count == count:
            return
        self._begin()
        if not self._hashes:
            return
        with file.open("rb") if isinstance(file, Part) else os.fdopen(open_named(file), "rb") as opened:
            while data := opened.read(min(_CHUNK_BYTES, count - self._count)):
                if stop.is_set():
                    raise Stopped
                self.hear(data)

    def hear(self, data: bytes) -> None:
        """Take the next bytes."""
        self._count += len(data)
        for one in self._hashes:
            one.update(data)

    def fits(self) -> bool:
        """Say whether the bytes are those that the name means, as far as it tells."""
        return not self._hashes or self._name in [one.hexdigest() for one in self._hashes]

    def _begin(self) -> None:
        self._count = 0
        self._hashes = []
        if SHA256.fullmatch(self._name):
            self._hashes = [hashlib.sha256()]
        elif _SHA1.fullmatch(self._name):
            header = b"blob %d\0" % self._size
            self._hashes = [hashlib.sha1(data, usedforsecurity=False) for data in (header, b"")]


def is_sound(file: Path, name: str, size: int, stop: threading.Event) -> bool:
    """Say whether a file on the disk has the content that its blob's name means.

    Raises:
        OSError: it cannot be read.
        Stopped: `stop` was set.
    """
    digest = Digest(name, size)
    digest.follow(file, size, stop)
    return digest.fits()
