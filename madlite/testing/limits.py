"""How long code under test may work, in this process's own time, however busy the machine is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError once this process has worked so long.

    A regular expression is interrupted too.  Outside of the main thread, where no signal can be waited for, nothing
    is limited; inside of another limit the one that is over first counts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left = signal.getitimer(signal.ITIMER_VIRTUAL)[0]
    given = min(seconds, left or seconds)
    before = signal.signal(signal.SIGVTALRM, _end)
    signal.setitimer(signal.ITIMER_VIRTUAL, given)
    try:
        yield
    finally:
        used = given - signal.getitimer(signal.ITIMER_VIRTUAL)[0]
        signal.setitimer(signal.ITIMER_VIRTUAL, max(left - used, 0.001) if left else 0)
        signal.signal(signal.SIGVTALRM, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("it works for too long")
