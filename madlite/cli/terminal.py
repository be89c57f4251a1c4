"""Text for terminals: no text of a card, a workload or a file may control the terminal.

What is written by madlite itself holds no control character at all.  The workload's own output (`--live-output`) keeps
on a terminal what progress bars and colours need; into a pipe or a file it goes byte for byte.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable

import click

# colours, "erase the line" and "a line up" of progress bars
_HARMLESS = r"\x1b\[[0-9;]{0,40}[mKA]"
_UNSAFE = re.compile(rf"({_HARMLESS})|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PARTIAL = re.compile(r"\x1b(?:\[[0-9;]{0,40})?\Z")


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is, or $COLUMNS where that is set; None in a pipe or a file."""
    import shutil

    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns


# a status as `status_text` writes it, a verdict of `compare`, and the first word of a warning about a result
_STATUS = re.compile(
    r"(?:SUCCESS \(suspect\)|SUCCESS|FAILURE|suspect|improvement|regression|suspicious|failed)(?![\w-])"
)
_IN_COLUMN = re.compile(rf"(?:(?<=  )|^ *)({_STATUS.pattern})")
_COLOURS = {"SUCCESS": "green", "FAILURE": "red", "improvement": "green", "regression": "red", "failed": "red"}
_DOUBT = "yellow"


def has_colour(is_terminal: bool) -> bool:
    """Return whether statuses are coloured: on a terminal that can, unless $NO_COLOR is set (https://no-color.org)."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(line: str) -> str:
    """Return a printable line with the first status in colour that begins it or a column of it."""
    found = _IN_COLUMN.search(line)
    return f"{line[: found.start(1)]}{all_coloured(found[1])}{line[found.end(1) :]}" if found else line


def all_coloured(line: str) -> str:
    """Return a printable line with every status in colour."""
    return _STATUS.sub(lambda found: click.style(found[0], fg=_COLOURS.get(found[0], _DOUBT)), line)


def echo_status(*lines: str) -> None:
    """Print lines as `echo` does, with the status of each in colour on a terminal."""
    colour = coloured if has_colour(sys.stdout.isatty()) else str
    for line in lines:
        click.echo(colour(one_line(without_secrets(line))))


def printable_lines(text: str) -> str:
    r"""Return text of several lines with what cannot be printed spelled out, as in `\x1b`; tabs stay."""
    if text.isprintable():
        return text
    # line by line: few lines of a long text have such a character, and each is a call
    return "\n".join(line if line.isprintable() else "".join(map(_escape, line)) for line in text.split("\n"))


def _escape(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()


def shell_line(words: Iterable[str]) -> str:
    """Return arguments quoted for bash, on one line; what cannot be printed is spelled out, as in `$'a\\x0ab'`."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_for_bash(word)}'" for word in words)


def _for_bash(word: str) -> str:
    return "".join(char if char.isprintable() and char not in "'\\" else _in_bytes(char) for char in word)


def _in_bytes(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def one_line(text: str) -> str:
    r"""Return a text as one line: as `printable_lines`, and ends of lines are spelled out too, as `\n`.

    So whatever has a name in it, of a card, a run or a file that others named, is no line that they made up.
    """
    return printable_lines(text).replace("\n", "\\n")


def echo(*lines: str, err: bool = False) -> None:
    """Print lines, each made printable, without what is a secret by its shape."""
    for line in lines:
        click.echo(one_line(without_secrets(line)), err=err)


def echo_json(value: object) -> None:
    """Print a JSON value, without what is a secret by its shape."""
    click.echo(without_secrets(json.dumps(value, indent=2)))


def echo_lines(text: str) -> None:
    """Print text of several lines as `echo` does one: of madlite's own, or of files that the caller named."""
    click.echo(printable_lines(without_secrets(text)))


def echo_on(text: str, *, err: bool = False) -> None:
    """Print a line as `echo`; where nobody reads them any more they are discarded, and the command goes on."""
    try:
        echo(text, err=err)
    except OSError:  # the terminal was closed, or the reader of a pipe is gone
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2 if err else 1)
        os.close(nothing)


def without_secrets(text: str) -> str:
    """Return text without what is a secret by its shape: for what is printed that others wrote, cards or records."""
    from madlite.secrets import Redactor

    return Redactor().text(text)


def masker() -> Callable[[str], str]:
    """Return what masks the secrets of the environment and of the command line in a text."""
    from madlite.secrets import Redactor, assigned, collect

    return Redactor((*collect(os.environ), *assigned(sys.argv))).text


def mask(text: str) -> str:
    """Mask the secrets of the environment and of the command line."""
    return masker()(text)


class Sanitizer:
    """Filters one output stream of a workload for a terminal: no sequences that clear, retitle, query or reorder."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be shown now; an incomplete escape sequence is buffered, a few characters."""
        text = self._pending + self._decoder.decode(chunk)
        partial = _PARTIAL.search(text, max(0, len(text) - 50))
        cut = partial.start() if partial else len(text)
        self._pending = text[cut:]
        return _UNSAFE.sub(lambda found: found[1] or "", text[:cut]).encode()
