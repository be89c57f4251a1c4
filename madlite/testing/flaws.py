"""What the kit finds, one sentence each; how it calls code under test: for how long, and with what it does noted."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar

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
CALL_LIMIT_S = 5.0  # of this process's time for one question to a backend
_WAIT_FACTOR = 4  # times as long may a wait be: the machine may have more to do
T = TypeVar("T")


def attempt(call: Callable[..., T], *given: Any) -> tuple[T | None, str]:
    """Return what code under test returns, and how it failed, "" where it did not."""
    try:
        return call(*given), ""
    except Exception as error:  # noqa: BLE001 - the border to the code under test
        return None, raised(error)


def raised(error: BaseException) -> str:
    """Format an exception in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{place}"


def defects_of(
    check: Callable[[Path], Iterable[Defect]],
    where: str,
    hint: str,
    word: Callable[[Exception], str] = raised,
    parent: str | Path | None = None,
) -> list[Defect]:
    """Return what a check finds in an empty folder of its own, below `parent`; one that cannot go on says so at last.

    `where`, `word` and `hint` are of what stopped it.
    """
    found: list[Defect] = []
    with tempfile.TemporaryDirectory(prefix="madlite_kit_", dir=parent, ignore_cleanup_errors=True) as folder:
        try:
            found.extend(check(Path(folder).resolve()))
        except Exception as error:  # noqa: BLE001 - the border to the code under test
            found.append((where, word(error), hint))
    return found


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


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = re.compile(  # audit events of what touches more than this process's memory
    r"(os|subprocess|pty|socket|tempfile|shutil|urllib)"
    r"\.(?!(listdir|scandir|f?walk|getxattr|listxattr|__new__|gethostname)$)"
)
_lists: list[list[str]] = []  # those that are filled now
_installed: list[bool] = []


@contextmanager
def watch() -> Iterator[list[str]]:
    """Give a list that fills with what any thread does to disk, network, processes and the environment.

    What Python itself does to keep compiled modules is left out.  An audit hook stays for the life of the process;
    outside of `watch` it notes nothing.
    """
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_note)
    notes: list[str] = []
    _lists.append(notes)
    try:
        yield notes
    finally:
        _lists.remove(notes)


def _note(event: str, args: tuple[object, ...]) -> None:
    if not _lists:
        return
    if event == "open":
        flags = args[2] if len(args) > 2 else 0
        is_change = isinstance(flags, int) and bool(flags & _WRITES)
    else:
        is_change = _CHANGES.match(event) is not None
    what = " ".join(map(str, args[:1])) if is_change else "__pycache__"
    if "__pycache__" not in what:
        for notes in _lists:
            notes.append(f"{'writes ' if event == 'open' else event + ' '}{what[:120]}")
