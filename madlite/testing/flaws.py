"""What the kit finds, one sentence each; how it calls code under test, and for how long."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from madlite.backends.loader import raised
from madlite.model import Value


class Flaw(Value, frozen=True, kw_only=False):
    """One thing that is wrong: what and where, and what to do about it."""

    check: str
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}" + (f" ({self.hint})" if self.hint else "")


Defect: TypeAlias = tuple[str, str, str]
"""What a check yields of a flaw: where, what, hint."""
CALL_LIMIT_S = 5.0  # for one question to a backend
T = TypeVar("T")


def attempt(call: Callable[..., T], *given: Any) -> tuple[T | None, str]:
    """Return what code under test returns, and how it failed, "" where it did not."""
    try:
        return call(*given), ""
    except Exception as error:  # noqa: BLE001 - the border to the code under test
        return None, raised(error)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError once this thread has worked so long, in processor time: a busy machine makes nothing too slow.

    A regular expression is interrupted too.  Outside of the main thread, where no signal can be waited for, nothing is
    limited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begun_s = time.thread_time()

    def look(number: int, frame: FrameType | None) -> None:
        if time.thread_time() - begun_s >= seconds:
            raise TimeoutError("it works for too long")

    before = signal.signal(signal.SIGPROF, look)
    tick_s = max(seconds / 4, 0.05)
    left = signal.setitimer(signal.ITIMER_PROF, tick_s, tick_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, *left)
        signal.signal(signal.SIGPROF, before)


def answered(call: Callable[..., Iterable[T]], *given: object) -> list[T]:
    """Return all that a member of a backend or a reader answers.

    Raises:
        TimeoutError: it takes longer than any question needs.
    """
    with limited(CALL_LIMIT_S):
        return list(call(*given))
