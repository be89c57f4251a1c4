"""A run's log as it is read: from its start or its last lines on, to its end or as long as the run goes on."""

from __future__ import annotations

import codecs
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from madlite.errors import UsageProblem
from madlite.reports.log_parts import LogParts
from madlite.safe_read import open_regular
from madlite.workspace.folder import LOG, is_alive

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
            lives = follow and is_alive(folder)  # asked before reading: what it writes last is read after it
            yield from log.new()
            if not lives:
                return
            wait(POLL_S)
    finally:
        os.close(fd)


def plain_text(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the log without what steers a terminal; each state of a progress bar is a line of its own."""
    decoder, held = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for chunk in chunks:
        text = held + decoder.decode(chunk)
        cut = _whole(text)
        text, held = text[:cut], text[cut:]
        yield _plain(text)
    yield _plain(held + decoder.decode(b"", final=True))


def _whole(text: str) -> int:
    """Return up to where a text can be shown: an escape sequence or a line's end may go on in the next chunk."""
    begun = text.rfind("\x1b", max(0, len(text) - _LONGEST_ESCAPE))
    if begun >= 0 and _ESCAPE.match(text, begun) is None:
        return begun
    return len(text) - text.endswith("\r")


def _plain(text: str) -> bytes:
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    if not text.replace("\n", "").isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)
    return text.encode("utf-8", "replace")


def _open(folder: Path, follow: bool, wait: Callable[[float], None]) -> int:
    while True:
        try:
            return open_regular(folder / LOG)
        except FileNotFoundError:
            if not (follow and is_alive(folder)):
                raise UsageProblem(f"run {folder.name} has no log: it was not started, or it was removed", "") from None
            wait(POLL_S)
        except OSError as error:
            raise UsageProblem(f"the log of run {folder.name} cannot be read: {error.strerror}") from error
