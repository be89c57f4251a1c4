"""What makes a blocking call end: a stop that comes while something waits for an engine, a download or a process.

Nothing can raise in a thread that waits for a socket, so such a call runs in a thread of its own, and who made the call
leaves it when the stop comes.  What is left behind ends at its next `check`, or by what it named with `when_stopped`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from typing import TypeVar

UNWIND_S = 1.0  # for a call that is left to end by itself, and remove what it made
_POLL_S = 0.1
_T = TypeVar("_T")


def in_thread(work: Callable[[], _T], name: str) -> Future[_T]:
    """Return the future result of `work`, called in a daemon thread: one that hangs can be left behind."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


class Interrupted(BaseException):
    """Raised where a blocking call was left, because a stop was requested."""


class Cancellation:
    """The stop of one run or command, as its blocking calls hear it: requested once, from any thread."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._hurried = threading.Event()
        self._ends: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Ask for the stop; asked a second time, nothing is waited for any more."""
        if self.asked.is_set():
            self._hurried.set()
        with self._lock:
            self.asked.set()
            ends = list(self._ends)
        for end in ends:
            end()

    @contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Have `end` called, from the thread that asks, when the stop comes inside the block; at once if it has."""
        with self._lock:
            late = self.asked.is_set()
            self._ends.append(end)
        try:
            if late:
                end()
            yield
        finally:
            with self._lock:
                self._ends.remove(end)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Let `interruptible` inside the block, in this thread, end on this stop."""
        before = _OF_RUN.set(self)
        try:
            yield
        finally:
            _OF_RUN.reset(before)

    def call(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns, from a thread of its own.

        Raises:
            Interrupted: the stop came before or meanwhile; `work` had a second to end by itself.
        """
        if self.asked.is_set():
            raise Interrupted
        context = copy_context()
        context.run(_IN_CALL.set, self)
        done = in_thread(lambda: context.run(work), "madlite-call")
        while not wait([done], _POLL_S).done:
            if self.asked.is_set():
                self._leave(done)
                raise Interrupted
        return done.result()

    def _leave(self, done: Future[_T]) -> None:
        left_s = UNWIND_S
        while left_s > 0 and not self._hurried.is_set() and not wait([done], _POLL_S).done:
            left_s -= _POLL_S
        with suppress(BaseException):  # its failure means nothing any more
            done.exception(timeout=0)


_OF_RUN: ContextVar[Cancellation | None] = ContextVar("cancellation of the run", default=None)
_IN_CALL: ContextVar[Cancellation | None] = ContextVar("cancellation of the call", default=None)


def interruptible(work: Callable[[], _T]) -> _T:
    """Return what `work` returns; where a run's stop is heard, it ends the wait for it.

    For a runtime that waits before there is a session to stop; who calls this cleans up after it.

    Raises:
        Interrupted: the stop came; `work` may still be on its way.
    """
    own = _OF_RUN.get()
    return work() if own is None or _IN_CALL.get() is not None else own.call(work)


@contextmanager
def when_stopped(end: Callable[[], object]) -> Iterator[None]:
    """Have `end` called, from another thread, when the call that this thread makes is left inside the block."""
    own = _IN_CALL.get()
    with nullcontext() if own is None else own.ending(end):
        yield


def check() -> None:
    """Raise Interrupted in a call that was left."""
    own = _IN_CALL.get()
    if own is not None and own.asked.is_set():
        raise Interrupted


# One action at a time in a session, and the requests of other threads to end it.

STOPPED = 130  # the exit code of an action that was not started, because its session had been stopped


class ActionGate:
    """Who is running, and what was asked of it.

    `end_requested` holds for the action, `closed` for the whole session: nothing starts any more.  `hurried` ends all
    grace, and `abandoned` lets the runner return whatever its process does.
    """

    def __init__(self) -> None:
        self.end_requested = threading.Event()
        self.closed = threading.Event()
        self.hurried = threading.Event()
        self.abandoned = threading.Event()
        self._over = threading.Event()
        self._over.set()
        self._lock_stop = threading.Lock()
        self._runner = 0

    @contextmanager
    def take(self, limit_s: float | None, end: Callable[[], None]) -> Iterator[threading.Event]:
        """Run an action inside; after `limit_s` it is ended, and the event is set if this is why."""
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            end()

        timer = threading.Timer(limit_s or 0.0, expire)
        timer.daemon = True
        if limit_s is not None:
            timer.start()
        try:
            with self._lock_stop:  # one that is under way must not hit the next action
                self.end_requested.clear()
                self.hurried.clear()
                self._over.clear()
            self._runner = threading.get_ident()
            yield expired
        finally:
            self._runner = 0
            self._over.set()
            if limit_s is not None:
                timer.cancel()
                timer.join()

    @contextmanager
    def ending(self, grace_s: float) -> Iterator[None]:
        """Let one thread at a time end the action; who has no grace hurries the one before."""
        if grace_s <= 0:
            self.hurried.set()
        with self._lock_stop:
            self.end_requested.set()
            yield

    def end_until_over(self, end: Callable[[], None], limit_s: float) -> bool:
        """End the action, and once more what was only being started meanwhile; False if something still runs."""
        for wait_s in (limit_s / 5, limit_s):
            end()
            # the runner's own thread cannot wait for itself
            if self._runner == threading.get_ident() or self._over.wait(wait_s):
                return True
        return False

    def wait_while(self, runs: Callable[[], bool], limit_s: float) -> None:
        """Wait for what was asked to end, for its grace; hurried no longer."""
        for _ in range(int(limit_s / _POLL_S) + 1):
            if not runs() or self.hurried.wait(_POLL_S):
                return

    def wait_over(self, limit_s: float) -> bool:
        """Wait until nothing runs; False if something still does."""
        return self._over.wait(limit_s)
