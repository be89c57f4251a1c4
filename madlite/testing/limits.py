"""How long code under test may work, in this process's own time, and how long it may wait."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

CALL_LIMIT_S = 5.0  # of this process's time for one question to a backend
_PATIENCE = 4  # times as long may a wait be: the machine may have more to do
T = TypeVar("T")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError once this process has worked so long, or four times as long has passed.

    A regular expression is interrupted too, and what sleeps or waits.  Outside of the main thread, where no signal can
    be waited for, nothing is limited; inside of another limit the one that is over first counts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _timer(signal.ITIMER_VIRTUAL, signal.SIGVTALRM, seconds), _wall(_PATIENCE * seconds):
        yield


def answered(call: Callable[..., Iterable[T]], *given: object) -> list[T]:
    """Return all that a member of a backend or a reader answers.

    Raises:
        TimeoutError: it takes longer than any question needs.
    """
    with limited(CALL_LIMIT_S):
        return list(call(*given))


@contextmanager
def _timer(kind: int, number: int, seconds: float) -> Iterator[None]:
    left = signal.getitimer(kind)[0]
    given = min(seconds, left or seconds)
    before = signal.signal(number, _end)
    signal.setitimer(kind, given)
    try:
        yield
    finally:
        used = given - signal.getitimer(kind)[0]
        signal.setitimer(kind, max(left - used, 0.001) if left else 0)
        signal.signal(number, before)


@contextmanager
def _wall(seconds: float) -> Iterator[None]:
    """Limit what passes, unless an alarm of somebody else (of pytest-timeout, say) comes before."""
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    if left and left <= seconds:
        yield
        return
    begin = time.monotonic()
    before = signal.signal(signal.SIGALRM, _end_of_wait)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begin), 0.001) if left else 0)
        signal.signal(signal.SIGALRM, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("it works for too long")


def _end_of_wait(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("it waits for too long")
