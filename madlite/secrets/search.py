"""Finds many texts in bytes, most of which hold none of them: by the rarest four characters of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from madlite.secrets.patterns import Begun, Span

ANCHOR = 4  # characters by which a text is searched for; none is shorter
_BEGIN = 128  # characters of a text among which the rarest are chosen
# bytes of real logs by how common they are
_COMMON = b" -.[me01rato2n]:il_ps6duc3/ykgh54NF=8fb7IO(G)UEBD9v,wPTzx'|R\"AqSLCMW%j*><+#`{H}VK?YX@&J~QZ!^"
_RANKS = bytes(_COMMON.find(byte) % 256 for byte in range(256))


class Search:
    """Finds texts of ANCHOR bytes or more; of `plain` ones already the first character is worth waiting for.

    What a search needs is made when it is first used.
    """

    def __init__(self, texts: Iterable[bytes], plain: Iterable[bytes]) -> None:
        self._texts = sorted(texts, key=len, reverse=True)
        self._plain = tuple(plain)

    def spans(self, data: bytes) -> list[Span]:
        """Return where texts are, in no order; most of those that overlap as one."""
        found = self._anchor.search(data)
        places: list[Span] = []
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

    def begun(self, data: bytes) -> Begun:
        """Return where a text may start that is not over.

        Less than four characters are not waited for where a line ends in them, or where they are another spelling's:
        lines would be torn apart where two streams are written to one file.
        """
        end = len(data)
        if data[-ANCHOR:] in self._inner and (at := self._start(data)) < end:
            return Begun(at, at)
        rests = [data[-size:] for size in range(1, ANCHOR) if data[-size:] in self._starts]
        waited = [rest for rest in rests if rest in self._plain_starts and b"\n" not in rest]
        return Begun(end - max(map(len, rests), default=0), end - max(map(len, waited), default=0))

    def _start(self, data: bytes) -> int:
        """Return from where on the end of the data starts a longer text; its length if nowhere."""
        end = len(data)
        found = self._head.search(data, max(0, end - len(self._texts[0]) + 1))
        while found:
            rest = data[found.start() :]
            if any(len(text) > len(rest) and text.startswith(rest) for text in self._heads[found[0]]):
                return found.start()
            found = self._head.search(data, found.start() + 1)
        return end

    @cached_property
    def _inner(self) -> bytes:
        """The texts without their last bytes: what a text that goes on may have at the end of data."""
        return b"\n".join(text[:-1] for text in self._texts)

    @cached_property
    def _starts(self) -> frozenset[bytes]:
        return _starts(self._texts)

    @cached_property
    def _plain_starts(self) -> frozenset[bytes]:
        return _starts(self._plain)

    @cached_property
    def _table(self) -> dict[bytes, dict[int, list[bytes]]]:
        """The texts by what is searched for of them, and where in them that is."""
        table: dict[bytes, dict[int, list[bytes]]] = {}
        for text in self._texts:
            at = _rarest(text)
            table.setdefault(text[at : at + ANCHOR], {}).setdefault(at, []).append(text)
        return table

    @cached_property
    def _anchor(self) -> re.Pattern[bytes]:
        return _any_of(self._table)

    @cached_property
    def _heads(self) -> dict[bytes, list[bytes]]:
        heads: dict[bytes, list[bytes]] = {}
        for text in self._texts:
            heads.setdefault(text[:ANCHOR], []).append(text)
        return heads

    @cached_property
    def _head(self) -> re.Pattern[bytes]:
        return _any_of(self._heads)


def _rarest(text: bytes) -> int:
    """Return where the four characters of a text begin that the fewest places of a log look like."""
    ranks = text[: min(len(text) - ANCHOR + 1, _BEGIN)].translate(_RANKS)
    return ranks.index(max(ranks))


def _any_of(texts: Iterable[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, texts)))


def _starts(texts: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(text[:size] for text in texts for size in range(1, ANCHOR))
