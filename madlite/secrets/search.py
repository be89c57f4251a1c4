"""Finds secrets in bytes, whatever a log puts between their characters.

A spelling of ten characters or more is looked for in a text without blanks, line ends, control characters, terminal
escapes, quotes and backslashes: so it is found where a log wraps, colours or indents it, and however a shell, JSON or
YAML quotes it.  Of a shorter one only control characters are looked through, of one of less than six nothing is: there
would be too much that only looks like it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from madlite.secrets.finder import ANCHOR, DIGITS, FEW, Finder, is_of_digits
from madlite.secrets.shapes import Begun, Span

_BLOCK = 4096  # bytes that are counted together
_NEAR = 32  # bytes at the end of data that mostly tell that nothing begins there
_NOISE = 1024  # bytes of what is ignored that may be waited for within a text
_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*(?:[@-~]|\Z)|[()][0-9A-Z]?|\][^\x07\x1b\n]*(?:\x07|\x1b\\|\Z)|[=>78DMEHc])"
)
_NO_COLOUR = re.compile(rb"\x1b(?!\Z|\[[0-9;]*(?:[mK]|\Z))")  # an escape of another kind than logs have by the thousand
_OF_COLOURS = b"\x1b[;0123456789mK"


class Level(NamedTuple):
    """What is looked through for texts of at least `shortest` bytes without it."""

    shortest: int
    ignored: bytes


LEVELS = (Level(10, _CONTROLS + b"\t\n \"'\\"), Level(6, _CONTROLS), Level(4, b""))


class Reading:
    """Data that several searches read: as it is, and without its terminal escapes, for which it can be taken."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.has_escapes = b"\x1b" in data
        # whether all of them are those that logs have by the thousand
        self.has_only_colours = self.has_escapes and not _NO_COLOUR.search(data)
        self._bare: bytes | None = None

    def without_escapes(self) -> bytes:
        """Return the data without them."""
        if self._bare is None:
            self._bare = _ESCAPE.sub(b"", self.data)
        return self._bare


class Search:
    """Finds texts of one level; of `plain` ones already the first character is worth waiting for."""

    def __init__(self, level: Level, texts: Iterable[bytes], plain: Iterable[bytes]) -> None:
        self._ignored = level.ignored
        self._kept = bytes(byte not in level.ignored for byte in range(256))
        self._finder = Finder(texts)
        self._starts, self._plain = _starts(self._finder.texts), _starts(plain)
        self._inner = frozenset(start[-1:] for start in self._starts)

    @cached_property
    def _between_colours(self) -> Callable[[bytes, bytes], bool]:
        return _between_colours(self._finder)

    def spans(self, reading: Reading) -> list[Span]:
        """Return the places of all texts, in no order; they may overlap."""
        if not (self._ignored and reading.has_escapes):
            return self._in(reading.data)
        # most of a coloured log is not read at all: without all that colours are made of it holds no text either
        if reading.has_only_colours and not self._between_colours(reading.data, self._ignored):
            return []
        found = self._finder.find(reading.without_escapes().translate(None, self._ignored))
        return [*self._in(reading.data), *(self._where(found, _blanked(reading.data)) if found else ())]

    def _in(self, data: bytes) -> list[Span]:
        found = self._finder.find(data.translate(None, self._ignored))
        return self._where(found, data) if found else found

    def _where(self, found: list[Span], view: bytes) -> list[Span]:
        """Return where in a view of data is what was found in it without what is ignored."""
        at = self._places(view, {place for start, end in found for place in (start, end - 1)})
        return [(at[start], at[end - 1] + 1) for start, end in found]

    def begun(self, data: bytes) -> Begun:
        """Return where a text may start that is not over.

        Less than four characters are not waited for where a line ends after them, or where they are another spelling's:
        lines would be torn apart where two streams are written to one file.
        """
        kept = held = end = len(data)
        tail = _from(data, end - _NEAR)
        every = self._bare(tail)
        if len(tail) < end and any(len(bare) < 2 * ANCHOR or bare[-ANCHOR:] in self._finder.inner for bare in every):
            tail = _from(data, end - 2 * self._finder.longest - _NOISE)
            every = self._bare(tail)
        for escapes, bare in enumerate(every):
            for rest in self._unfinished(bare):
                at = end - self._reach(_blanked(tail) if escapes else tail, len(rest))
                kept = min(kept, at)
                if len(rest) >= ANCHOR or (rest in self._plain and data.find(b"\n", at) < 0):
                    held = min(held, at)
        return Begun(kept, held)

    def _bare(self, data: bytes) -> list[bytes]:
        """Return data without what is ignored, and without terminal escapes where it has any."""
        bare = [data.translate(None, self._ignored)]
        if self._ignored and b"\x1b" in data:
            bare.append(_ESCAPE.sub(b"", data).translate(None, self._ignored))
        return bare

    def _unfinished(self, bare: bytes) -> list[bytes]:
        """Return the ends of it with which a longer text starts: the longest, or all that are shorter than ANCHOR."""
        if len(bare) >= ANCHOR and bare[-ANCHOR:] in self._finder.inner:
            start = self._finder.begun(bare)
            if start < len(bare):
                return [bare[start:]]
        if bare[-1:] not in self._inner:
            return []
        return [bare[-size:] for size in (3, 2, 1) if bare[-size:] in self._starts and len(bare) >= size]

    def _reach(self, view: bytes, size: int) -> int:
        """Return how far from its end the last bytes that are not ignored go back."""
        at = len(view)
        while size:
            at -= 1
            size -= self._kept[view[at]]
        return len(view) - at

    def _places(self, view: bytes, wanted: set[int]) -> dict[int, int]:
        """Return for places in data without what is ignored where they are with it."""
        found: dict[int, int] = {}
        left, kept = sorted(wanted, reverse=True), 0
        for base in range(0, len(view) if left else 0, _BLOCK):
            block = view[base : base + _BLOCK]
            size = len(block.translate(None, self._ignored))
            if left and left[-1] < kept + size:
                inside = list(compress(range(base, base + len(block)), block.translate(self._kept)))
                while left and left[-1] < kept + size:
                    found[left[-1]] = inside[left[-1] - kept]
                    left.pop()
            kept += size
        return found


def searches(spellings: Iterable[bytes], plain: Iterable[bytes]) -> tuple[Search, ...]:
    """Return what finds these spellings, each on the first level that it is long enough for; `plain` are among them."""
    levels: dict[Level, set[bytes]] = {}
    for level, text in map(_bare, spellings):
        levels.setdefault(level, set()).add(text)
    as_they_stand = {text for _, text in map(_bare, plain)}
    return tuple(
        Search(level, texts, texts & as_they_stand) for level, every in levels.items() for texts in _groups(every)
    )


def _groups(texts: set[bytes]) -> Iterator[set[bytes]]:
    """Yield many texts apart from those that are nothing but digits, for which there is a faster search."""
    digits = {text for text in texts if is_of_digits(text)} if len(texts) > FEW else set()
    yield from filter(None, (texts - digits, digits))


def _bare(spelling: bytes) -> tuple[Level, bytes]:
    """Return on which level a spelling is looked for, and what of it."""
    without = _ESCAPE.sub(b"", spelling)
    bare = ((level, without.translate(None, level.ignored)) for level in LEVELS[:-1])
    return next(((level, text) for level, text in bare if len(text) >= level.shortest), (LEVELS[-1], spelling))


def _between_colours(finder: Finder) -> Callable[[bytes, bytes], bool]:
    """Return what says whether the texts may be in data whose only escapes are colours, among ignored bytes."""
    if finder.digits:
        return lambda data, ignored: finder.digits in data.translate(DIGITS, ignored + b"\x1b[;mK")
    bare = {text.translate(None, _OF_COLOURS) for text in finder.texts}
    if min(map(len, bare)) <= ANCHOR:
        return lambda data, ignored: True
    found = Finder(bare)
    return lambda data, ignored: found.may_be_in(data.translate(None, ignored + _OF_COLOURS))


def _starts(texts: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(text[:size] for text in texts for size in range(1, ANCHOR))


def _from(data: bytes, at: int) -> bytes:
    """Return data from a place on, or from the terminal escape on that it may be in."""
    if at <= 0:
        return data
    escape = data.rfind(b"\x1b", max(0, at - _NEAR), at)
    return data[escape if escape >= 0 else at :]


def _blanked(data: bytes) -> bytes:
    """Return data with zeros for its terminal escapes, so that the rest is where it was."""
    return _ESCAPE.sub(lambda found: bytes(len(found[0])), data)
