"""Text on its way to people: nothing that a card, a workload or a file says may steer their terminal.

What is written by madlite itself holds no control character at all.  The workload's own output (`--live-output`) keeps
on a terminal what progress bars and colours need; into a pipe or a file it goes byte for byte.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterable

import click

# colours, "erase the line" and "a line up" of progress bars
_HARMLESS = r"\x1b\[[0-9;]{0,40}[mKA]"
_STEERING = re.compile(rf"({_HARMLESS})|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BEGUN = re.compile(r"\x1b(?:\[[0-9;]{0,40})?\Z")


def printable(text: str) -> str:
    """Keep what a workload said from steering the terminal and from ending a line."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def printable_lines(text: str) -> str:
    r"""Return text of several lines with what cannot be printed spelled out, as in `\x1b`; tabs stay."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()


def shell_line(words: Iterable[str]) -> str:
    """Return words as bash takes them, on one line; what cannot be printed is spelled out, as in `$'a\\x0ab'`."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_for_bash(word)}'" for word in words)


def _for_bash(word: str) -> str:
    return "".join(char if char.isprintable() and char not in "'\\" else _in_bytes(char) for char in word)


def _in_bytes(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def say(text: str, *, err: bool = False) -> None:
    """Print lines, made printable."""
    click.echo(printable_lines(text), err=err)


class Tamer:
    """Lets one stream of a workload through to a terminal, without what clears, titles, copies, asks or turns text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be shown now; an escape sequence that only begins is held, a few characters."""
        text = self._held + self._decoder.decode(chunk)
        begun = _BEGUN.search(text, max(0, len(text) - 50))
        cut = begun.start() if begun else len(text)
        self._held = text[cut:]
        return _STEERING.sub(lambda found: found[1] or "", text[:cut]).encode()
