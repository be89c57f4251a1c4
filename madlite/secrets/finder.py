"""Finds many texts in bytes, most of which hold none of them.

So what tells that is fast: a search for few texts one by one, of many for the rarest four characters of each, and of
hexadecimal digits first for so many of them together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

ANCHOR = 4  # characters by which a text is looked for; none is shorter
FEW = 16  # texts, up to which they are looked for one by one
_HEAD = 32  # characters of a text that are looked for then
_LARGE = 1 << 15  # bytes of texts, up to which a table of their pieces is worth its memory
_BEGIN = 128  # characters of a text among which the rarest are chosen
# bytes of real logs by how common they are
_COMMON = b" -.[me01rato2n]:il_ps6duc3/ykgh54NF=8fb7IO(G)UEBD9v,wPTzx'|R\"AqSLCMW%j*><+#`{H}VK?YX@&J~QZ!^"
_RANKS = bytes(_COMMON.find(byte) % 256 for byte in range(256))
# all digits made one, for a search for many of them together
DIGITS = bytes(0x30 if byte in b"0123456789abcdefABCDEF" else 0x20 for byte in range(256))


class Finder:
    """Finds texts of ANCHOR bytes or more.

    `texts` are they, the longest first; where all are nothing but hexadecimal digits, `digits` are as many zeros as the
    shortest has bytes.  What a search needs is made when it is needed first: many a text has nothing to be found.
    """

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.texts = sorted(texts, key=len, reverse=True)
        self.longest = len(self.texts[0])
        self.digits = b"0" * len(self.texts[-1]) if all(map(is_of_digits, self.texts)) else b""
        self._few = tuple({text[:_HEAD] for text in self.texts})

    @cached_property
    def inner(self) -> frozenset[bytes] | bytes:
        """What holds the pieces of ANCHOR bytes that any text has before its last byte: of few all of them."""
        every = b"\n".join(text[:-1] for text in self.texts)
        return every if len(every) > _LARGE else frozenset(every[at : at + ANCHOR] for at in range(len(every)))

    @cached_property
    def _table(self) -> dict[bytes, dict[int, list[bytes]]]:
        """The texts by what is looked for of them, and where in them that is."""
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

    def may_be_in(self, data: bytes) -> bool:
        """Say whether it is worth looking closer."""
        if self.digits and self.digits not in data.translate(DIGITS):
            return False
        if len(self._few) <= FEW:
            for text in self._few:  # noqa: SIM110 - lines come one by one, and a generator takes longer
                if text in data:
                    return True
            return False
        return self._anchor.search(data) is not None

    def find(self, data: bytes) -> list[tuple[int, int]]:
        """Return where texts are, in no order; most of those that overlap as one."""
        found = self._anchor.search(data) if self.may_be_in(data) else None
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


def is_of_digits(text: bytes) -> bool:
    """Say whether a text has nothing but hexadecimal digits."""
    return text.translate(DIGITS).isdigit()


def _rarest(text: bytes) -> int:
    """Return where the four characters of a text begin that the fewest places of a log look like."""
    ranks = text[: min(len(text) - ANCHOR + 1, _BEGIN)].translate(_RANKS)
    return ranks.index(max(ranks))


def _any_of(texts: Iterable[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, texts)))
