"""`--settle`: each run begins with GPUs about as hot as those that the first run of the command began with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event

from madlite.errors import UsageProblem
from madlite.model import GpuStart, Say, Settling

NEAR_C = 2.0  # above the first run's start: sensors count in whole degrees, and cooling ends slowly
LEAST_C, MOST_C = 10.0, 110.0  # what a user may wait for
FIRST = "first"
UNKNOWN = "--settle has no effect: nothing here reports the temperature of the run's GPUs"


class Settle:
    """Waits before each run, for `limit_s` at most, until the hottest of its GPUs has cooled down.

    `target_c` is the temperature to wait for; None takes the first run's own start, and `NEAR_C` above it.
    """

    def __init__(
        self, target_c: float | None = None, limit_s: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target_c, self._limit_s, self._clock = target_c, limit_s, clock
        self._said_unknown = False

    def unknown(self) -> str:
        """Return that no temperature is known, the first time; "" after it."""
        said, self._said_unknown = self._said_unknown, True
        return "" if said else UNKNOWN

    def wait(
        self, read: Callable[[], Sequence[GpuStart]], interval_s: Callable[[], float], over: Event, say: Say
    ) -> tuple[tuple[GpuStart, ...], Settling | None]:
        """Return the last reading, and what was waited for: None where no temperature is known.

        `over` ends the wait, `say` is told how it goes.
        """
        began_s = self._clock()
        starts = tuple(read())
        first_c = now_c = hottest(starts)
        if first_c is None or now_c is None:
            return starts, None
        if self._target_c is None:
            self._target_c = first_c + NEAR_C
        while now_c > self._target_c and self._clock() - began_s < self._limit_s and not over.is_set():
            say(f"cooling down: {now_c:.0f} °C, until {self._target_c:.0f} °C")
            over.wait(min(interval_s(), self._limit_s - (self._clock() - began_s)))
            if (read_c := hottest(again := tuple(read()))) is None:
                break
            starts, now_c = again, read_c
        return starts, Settling(
            target_c=self._target_c,
            waited_s=round(self._clock() - began_s, 3),
            from_c=first_c,
            to_c=now_c,
            reached=now_c <= self._target_c,
        )


def make_settle(text: str, limit_s: float) -> Settle:
    """Return what waits as the option --settle says: `first`, which it has without a value, or a temperature.

    Raises:
        UsageProblem: it is neither.
    """
    if text == FIRST:
        return Settle(limit_s=limit_s)
    try:
        target_c = float(text)
    except ValueError:
        target_c = 0.0
    if not LEAST_C <= target_c <= MOST_C:
        what = f"--settle {text}: it is no temperature of {LEAST_C:.0f} to {MOST_C:.0f} °C"
        raise UsageProblem(
            what, "--settle=45, or --settle as the last word for the temperature at the first run's start"
        )
    return Settle(target_c, limit_s)


def hottest(starts: Sequence[GpuStart]) -> float | None:
    """Return the temperature of the hottest GPU; None where none reports one."""
    return max((one.temperature_c for one in starts if one.temperature_c is not None), default=None)


def settling_text(settling: Settling) -> str:
    """Return what a run waited for as a sentence; "" where it began at once, as it should."""
    waited = f"{settling.waited_s:.0f} s for the GPUs to cool down from {settling.from_c:.0f} °C"
    if not settling.reached:
        return f"waited {waited}, and they began at {settling.to_c:.0f} °C, not {settling.target_c:.0f} °C (--settle)"
    if settling.from_c <= settling.target_c:
        return ""
    return f"waited {waited} to {settling.to_c:.0f} °C (--settle)"
