"""What the readers of pretraining logs share: whose a number in a line is, and how many steps a line covers."""

from __future__ import annotations

import re

from madlite import Line

_LABEL = re.compile(r"\[(?:rank|default)[-_]?(\d{1,9})(?:/(\d{1,9}))?\]")


def rank_before(line: Line, end: int) -> int | None:
    """Return the rank whose label is the last before character `end`: ranks share a line where their writes met."""
    found = _label_before(line, end)
    return int(found[1]) if found else line.rank


def world_before(line: Line, end: int) -> int:
    """Return how many ranks that label says there are, 0 where it does not."""
    found = _label_before(line, end)
    return int(found[2] or 0) if found else 0


def _label_before(line: Line, end: int) -> re.Match[str] | None:
    at = max(line.text.rfind("[rank", 0, end), line.text.rfind("[default", 0, end))
    return _LABEL.match(line.text, at) if at >= 0 else None


class Spans:
    """Tells how many steps a log line covers: its trainer's log interval, else the steps since the rank's last line.

    A rank whose steps go back was started again from a checkpoint; then, as at its first line, the steps before are
    not known, and the line covers as many as lines usually did, where its step is a multiple of that, else one.
    """

    def __init__(self) -> None:
        self.interval = 0  # what the trainer reports; 0 where it reports nothing
        self._usual = 0
        self._last: dict[int | None, tuple[int, int]] = {}

    def of(self, n: int, rank: int | None) -> int:
        """Return the span of the line of step `n`; a line that is there twice has the same span twice."""
        if self.interval:
            return self.interval if n % self.interval == 0 else 1
        last, span = self._last.get(rank, (0, 0))
        if last and n > last:
            span = self._usual = n - last
        elif n != last or not span:
            span = self._usual if self._usual and n and n % self._usual == 0 else 1
        self._last[rank] = (n, span)
        return span
