"""What a rank said before it ended by itself, as with `sys.exit("why")`: no traceback and no rule tells of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from madlite.measure.grammar import EXCEPTION, MARK, is_warning, rank_in, shape_of, without_label
from madlite.measure.telling import looks_like_error

_NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
# with these torchrun begins to tell: what comes after is none of its ranks' words
_LAUNCHER = re.compile(r"ChildFailedError|failed \(exitcode|Sending process \d+ closing signal")
_LOGGED = re.compile(r"\b(?:INFO|DEBUG)\b|^\s*[-=*_#~+]{5,}\s*$|^\s*\S*%\|")  # a logger's usual words, rulers, bars
_LAST = 5  # of its lines one that looks like an error is its message


def last_words(lines: Sequence[str], rank: int | None) -> str:
    """Return the message of a rank that ended by itself, "" where none of the last lines can be one.

    Lines that name no rank can be of any.  What is said again and again, numbers apart, is no message.
    """
    end = next((n for n, line in enumerate(lines) if _LAUNCHER.search(line)), len(lines))
    said = [(rank_in(line), without_label(line)) for line in _without_tracebacks(lines[:end])]
    usual = Counter(_shape(text) for _, text in said)
    own = [text for whose, text in said if whose is not None and whose == rank]
    words = [text.strip() for text in own or [text for whose, text in said if whose is None] if not _is_logged(text)]
    errors = [text for text in words[-_LAST:] if looks_like_error(text)]
    told = errors[-1:] or words[-1:]
    return next((text for text in told if usual[_shape(text)] == 1 or errors), "")


def _without_tracebacks(lines: Iterable[str]) -> Iterable[str]:
    """Yield the lines that are of no traceback."""
    begun: set[str] = set()  # labels of tracebacks whose exception has not come
    for line in lines:
        text = without_label(line)
        label = shape_of(line[: len(line) - len(text)]).rstrip()  # of a frame the label takes a blank with it
        if MARK in text:
            begun.add(label)
        elif label not in begun:
            yield line
        elif EXCEPTION.match(text):
            begun.discard(label)


def _is_logged(text: str) -> bool:
    return not text.strip() or is_warning(text) or _LOGGED.search(text) is not None


def _shape(text: str) -> str:
    return _NUMBERS.sub("0", text.strip())
