"""How fast training steps come, in wall time: what a silence is compared with."""

from __future__ import annotations

from collections import deque
from statistics import median

from madlite.model import STEPS_APART

KEPT = 64  # reports that the medians are of, the last ones
MOMENT_S = 0.05  # what comes within it came together: the lines of several ranks, or of a buffer


class Pace:
    """Takes each step's number as it comes.

    A report is what comes at one moment: one line or many, of one step or of several since the report before it.  Of
    ranks that tell the same step the first counts.
    """

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None  # the report before the open one: when, and its last step
        self._open: tuple[float, int] | None = None
        self._gaps: deque[tuple[float, int]] = deque(maxlen=KEPT)  # between reports: seconds, and steps

    def step(self, n: int, now_s: float) -> None:
        """Take a step in."""
        began_s, last = self._open or (now_s, n)
        if self._open is None or n < last - STEPS_APART:
            self.pause()
            self._open = (now_s, n)
        elif n > last and now_s - began_s < MOMENT_S:
            self._open = (began_s, n)
        elif n > last:
            self._gaps.extend(self._last_gap())
            self._before, self._open = self._open, (now_s, n)

    def pause(self) -> None:
        """Note that something else than training comes now: the time until the next step is no step's."""
        self._gaps.extend(self._last_gap())
        self._before = self._open = None

    @property
    def known(self) -> int:
        """How many gaps between reports have been seen, of the last ones."""
        return len(self._all())

    @property
    def step_s(self) -> float | None:
        """The median duration of a step; None before there are two reports."""
        gaps = self._all()
        return median(gap_s / steps for gap_s, steps in gaps) if gaps else None

    @property
    def report_s(self) -> float | None:
        """The median time from one report to the next; None before there are two."""
        gaps = self._all()
        return median(gap_s for gap_s, _ in gaps) if gaps else None

    def _all(self) -> list[tuple[float, int]]:
        return [*self._gaps, *self._last_gap()]

    def _last_gap(self) -> list[tuple[float, int]]:
        """Return the gap before the open report, whose last step may still come."""
        if self._before is None or self._open is None:
            return []
        return [(self._open[0] - self._before[0], self._open[1] - self._before[1])]
