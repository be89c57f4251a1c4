"""One action at a time in a session, and the requests of other threads to end it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPED = 130  # the exit code of an action that was not started, because its session had been stopped


class ActionGate:
    """Who is running, and what was asked of it.

    `asked_to_end` holds for the action, `closed` for the whole session: nothing starts any more.  `hurried` ends all
    grace, and `given_up` lets the runner return whatever its process does.
    """

    def __init__(self) -> None:
        self.asked_to_end = threading.Event()
        self.closed = threading.Event()
        self.hurried = threading.Event()
        self.given_up = threading.Event()
        self._over = threading.Event()
        self._over.set()
        self._one_stop = threading.Lock()
        self._runner = 0

    @contextmanager
    def take(self, limit_s: float | None, end: Callable[[], None]) -> Iterator[threading.Event]:
        """Run an action inside; after `limit_s` it is ended, and the event says that this is why."""
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            end()

        timer = threading.Timer(limit_s or 0.0, expire)
        timer.daemon = True
        if limit_s is not None:
            timer.start()
        try:
            with self._running():
                yield expired
        finally:
            if limit_s is not None:
                timer.cancel()
                timer.join()

    @contextmanager
    def ending(self, grace_s: float) -> Iterator[None]:
        """Let one thread at a time end the action; who has no grace hurries the one before."""
        if grace_s <= 0:
            self.hurried.set()
        with self._one_stop:
            self.asked_to_end.set()
            yield

    def end_until_over(self, end: Callable[[], None], limit_s: float) -> bool:
        """End the action, and once more what was only being started meanwhile; False if something still runs."""
        for wait_s in (limit_s / 5, limit_s):
            end()
            # the runner's own thread cannot wait for itself
            if self._runner == threading.get_ident() or self._over.wait(wait_s):
                return True
        return False

    def wait_over(self, limit_s: float) -> bool:
        """Wait until nothing runs; False if something still does."""
        return self._over.wait(limit_s)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._one_stop:  # one that is under way must not hit the next action
            self.asked_to_end.clear()
            self.hurried.clear()
            self._over.clear()
        self._runner = threading.get_ident()
        try:
            yield
        finally:
            self._runner = 0
            self._over.set()
