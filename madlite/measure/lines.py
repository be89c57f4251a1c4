"""Bytes of a log → clean lines: decoded, without terminal escapes, split where a progress bar returns its carriage."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator

from madlite.types import Line

LONGEST = 64 * 1024  # characters; a longer line is cut into pieces, so that noise cannot fill the memory
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RANK = re.compile(r"\[(?:rank|default)[-_]?(\d+)(?:/\d+)?\]")


class LineSplitter:
    """Splits one stream; `now` gives the seconds since the start of the run."""

    def __init__(self, now: Callable[[], float] = lambda: float("nan"), node: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._now = now
        self._node = node

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines that the chunk completes."""
        yield from self._split(self._decoder.decode(chunk))

    def flush(self) -> Iterator[Line]:
        """Yield the last line, which nothing ended."""
        yield from self._split(self._decoder.decode(b"", final=True) + "\n")

    def _split(self, text: str) -> Iterator[Line]:
        parts = (self._rest + text).replace("\r", "\n").split("\n")
        self._rest = parts.pop()
        while len(self._rest) > LONGEST:
            parts.append(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]
        t_s = self._now()
        for part in parts:
            clean = clean_text(part)
            if clean.strip():
                yield Line(text=clean, t_s=t_s, node=self._node, rank=rank_of(clean))


def clean_text(text: str) -> str:
    """Return the text without terminal escapes (ECMA-48 control sequences and operating system commands)."""
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def rank_of(text: str) -> int | None:
    """Return the rank that a launcher's prefix names: torchrun's `[rank0]:`, Primus's `[rank-0/8]`."""
    found = _RANK.search(text, 0, 200) if "rank" in text[:200] or "default" in text[:200] else None
    return int(found[1]) if found else None
