"""What the kit finds, one sentence each; how it calls code under test: for how long, and with which arguments."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from madlite.model import Value


class Flaw(Value, frozen=True, kw_only=False):
    """One thing that is wrong: what and where, and what to do about it."""

    check: str
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}" + (f" ({self.hint})" if self.hint else "")


CALL_LIMIT_S = 5.0  # of this process's time for one question to a backend
_WAIT_FACTOR = 4  # times as long may a wait be: the machine may have more to do
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
    works = _timer(signal.ITIMER_VIRTUAL, signal.SIGVTALRM, seconds, "it works for too long")
    with works, _timer(signal.ITIMER_REAL, signal.SIGALRM, _WAIT_FACTOR * seconds, "it waits for too long"):
        yield


def answered(call: Callable[..., Iterable[T]], *given: object) -> list[T]:
    """Return all that a member of a backend or a reader answers.

    Raises:
        TimeoutError: it takes longer than any question needs.
    """
    with limited(CALL_LIMIT_S):
        return list(call(*given))


@contextmanager
def _timer(kind: int, number: int, seconds: float, what: str) -> Iterator[None]:
    """Limit what a timer counts, unless that of somebody else (of pytest-timeout, say) comes before."""
    left = signal.getitimer(kind)[0]
    if left and left <= seconds:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(what)

    before = signal.signal(number, end)
    signal.setitimer(kind, seconds)
    try:
        yield
    finally:
        used = seconds - signal.getitimer(kind)[0]
        signal.setitimer(kind, max(left - used, 0.001) if left else 0)
        signal.signal(number, before)


def signatures(thing: object, protocol: type, where: str) -> Iterator[Flaw]:
    """Yield which methods of a protocol are missing, or do not take so many arguments, which the words name."""
    for member, method in vars(protocol).items():
        if member.startswith("_") or not inspect.isfunction(method):
            continue
        words = list(inspect.signature(method).parameters)[1:]
        wanted = f"{member}(self, {', '.join(words)})"
        found = getattr(thing, member, None)
        if not callable(found):
            yield Flaw("members", where, f"it has no method {member}", f"def {wanted}")
        elif inspect.iscoroutinefunction(found):
            yield Flaw("members", where, f"{member} is a coroutine", f"def {wanted}, not async")
        elif not _takes(found, len(words)):
            yield Flaw("members", where, f"{member} does not take {', '.join(words)}", f"def {wanted}")


def _takes(found: Any, count: int) -> bool:
    try:
        inspect.signature(found).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin that shows no signature
        return True
    return True
