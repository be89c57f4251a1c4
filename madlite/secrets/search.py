"""Finds secrets in bytes, whatever a log puts between their characters.

A spelling of ten characters or more is searched for in a text without blanks, line ends, control characters, terminal
escapes, quotes and backslashes: so it is found where a log wraps, colours or indents it, and however a shell, JSON or
YAML quotes it.  Of a shorter one only control characters are looked through, of one of less than six nothing is: there
would be too much that only looks like it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from madlite.secrets.shapes import Begun, Span

# Finds many texts in bytes, most of which hold none of them.
#
# So they are searched for by the rarest four characters of each.

ANCHOR = 4  # characters by which a text is searched for; none is shorter
_BEGIN = 128  # characters of a text among which the rarest are chosen
# bytes of real logs by how common they are
_COMMON = b" -.[me01rato2n]:il_ps6duc3/ykgh54NF=8fb7IO(G)UEBD9v,wPTzx'|R\"AqSLCMW%j*><+#`{H}VK?YX@&J~QZ!^"
_RANKS = bytes(_COMMON.find(byte) % 256 for byte in range(256))


class Finder:
    """Finds texts of ANCHOR bytes or more.

    `texts` are they, the longest first.  What a search needs is made when it is first used.
    """

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.texts = sorted(texts, key=len, reverse=True)
        self.longest = len(self.texts[0])

    @cached_property
    def inner(self) -> bytes:
        """The texts without their last bytes: what a text that goes on may have at the end of data."""
        return b"\n".join(text[:-1] for text in self.texts)

    @cached_property
    def _table(self) -> dict[bytes, dict[int, list[bytes]]]:
        """The texts by what is searched for of them, and where in them that is."""
        table: dict[bytes, dict[int, list[bytes]]] = {}
        for text in self.texts:
            at = _rarest(text)
            table.setdefault(text[at : at + ANCHOR], {}).setdefault(at, []).append(text)
        return table

    @cached_property
    def _anchor(self) -> re.Pattern[bytes]:
        return _any_of(self._table)

    @cached_property
    def _heads(self) -> dict[bytes, list[bytes]]:
        heads: dict[bytes, list[bytes]] = {}
        for text in self.texts:
            heads.setdefault(text[:ANCHOR], []).append(text)
        return heads

    @cached_property
    def _head(self) -> re.Pattern[bytes]:
        return _any_of(self._heads)

    def find(self, data: bytes) -> list[tuple[int, int]]:
        """Return where texts are, in no order; most of those that overlap as one."""
        found = self._anchor.search(data)
        places: list[tuple[int, int]] = []
        first = last = 0
        while found:
            at = found.start()
            for before, texts in self._table[found[0]].items():
                start = at - before
                text = next((text for text in texts if data.startswith(text, start)), None) if start >= 0 else None
                if text is None:
                    continue
                if not first <= start < last:
                    places += [(first, last)] if last else []
                    first, last = start, 0
                last = max(last, start + len(text))
            found = self._anchor.search(data, at + 1)
        return [*places, (first, last)] if last else []

    def begun(self, data: bytes) -> int:
        """Return from where on the end of the data starts a longer text; its length if nowhere."""
        end = len(data)
        found = self._head.search(data, max(0, end - self.longest + 1))
        while found:
            rest = data[found.start() :]
            if any(len(text) > len(rest) and text.startswith(rest) for text in self._heads[found[0]]):
                return found.start()
            found = self._head.search(data, found.start() + 1)
        return end


def _rarest(text: bytes) -> int:
    """Return where the four characters of a text begin that the fewest places of a log look like."""
    ranks = text[: min(len(text) - ANCHOR + 1, _BEGIN)].translate(_RANKS)
    return ranks.index(max(ranks))


def _any_of(texts: Iterable[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, texts)))


_BLOCK = 4096  # bytes that are counted together
_NEAR = 32  # bytes at the end of data that mostly tell that nothing begins there
_NOISE = 1024  # bytes of what is ignored that may be waited for within a text
_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n")
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*(?:[@-~]|\Z)|[()][0-9A-Z]?|\][^\x07\x1b\n]*(?:\x07|\x1b\\|\Z)|[=>78DMEHc])"
)


class Level(NamedTuple):
    """What is looked through for texts of at least `shortest` bytes without it."""

    shortest: int
    ignored: bytes


LEVELS = (Level(10, _CONTROLS + b"\t\n \"'\\"), Level(6, _CONTROLS), Level(4, b""))


class SecretReading:
    """Data that several searches read: as it is, and without its terminal escapes, for which it can be taken."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.has_escapes = b"\x1b" in data

    @cached_property
    def without_escapes(self) -> bytes:
        """The data without them."""
        return _ESCAPE.sub(b"", self.data)


class Search:
    """Finds texts of one level; of `plain` ones already the first character is worth waiting for."""

    def __init__(self, level: Level, texts: Iterable[bytes], plain: Iterable[bytes]) -> None:
        self._ignored = level.ignored
        self._is_read = bytes(byte not in level.ignored for byte in range(256))
        self._finder = Finder(texts)
        self._starts, self._plain = _starts(self._finder.texts), _starts(plain)
        self._inner = frozenset(start[-1:] for start in self._starts)

    def spans(self, reading: SecretReading) -> list[Span]:
        """Return the places of all texts, in no order; they may overlap."""
        if not (self._ignored and reading.has_escapes):
            return self._in(reading.data)
        found = self._finder.find(reading.without_escapes.translate(None, self._ignored))
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
                at = end - self._span_of_last(_blanked(tail) if escapes else tail, len(rest))
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

    def _span_of_last(self, view: bytes, size: int) -> int:
        """Return how far from its end the last bytes that are not ignored go back."""
        at = len(view)
        while size:
            at -= 1
            size -= self._is_read[view[at]]
        return len(view) - at

    def _places(self, view: bytes, wanted: set[int]) -> dict[int, int]:
        """Return for places in data without what is ignored where they are with it."""
        found: dict[int, int] = {}
        left, kept = sorted(wanted, reverse=True), 0
        for base in range(0, len(view) if left else 0, _BLOCK):
            block = view[base : base + _BLOCK]
            size = len(block.translate(None, self._ignored))
            if left and left[-1] < kept + size:
                inside = list(compress(range(base, base + len(block)), block.translate(self._is_read)))
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
    return tuple(Search(level, texts, texts & as_they_stand) for level, texts in levels.items())


def _bare(spelling: bytes) -> tuple[Level, bytes]:
    """Return on which level a spelling is searched for, and what of it."""
    without = _ESCAPE.sub(b"", spelling)
    bare = ((level, without.translate(None, level.ignored)) for level in LEVELS[:-1])
    return next(((level, text) for level, text in bare if len(text) >= level.shortest), (LEVELS[-1], spelling))


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
