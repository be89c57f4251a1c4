"""One action at a time in a session, and the requests of other threads to end it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turn:
    """Whose turn it is; `given_up` tells the runner to return whatever its process does, `hurried` ends all grace."""

    def __init__(self) -> None:
        self.asked_to_end = threading.Event()
        self.hurried = threading.Event()
        self.given_up = threading.Event()
        self._over = threading.Event()
        self._over.set()
        self._one_stop = threading.Lock()
        self._runner = 0

    @contextmanager
    def take(self, limit_s: float | None, stop: Callable[[float], None], grace_s: float) -> Iterator[threading.Event]:
        """Run an action inside; after `limit_s` it is stopped, and the event says that this is what ended it."""
        expired = threading.Event()
        timer = threading.Timer(limit_s or 0.0, lambda: (expired.set(), stop(grace_s)))
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
    def stopping(self, grace_s: float) -> Iterator[None]:
        """Let one thread at a time end the action; who has no grace hurries the one before."""
        if grace_s <= 0:
            self.hurried.set()
        with self._one_stop:
            self.asked_to_end.set()
            yield

    def wait_over(self, limit_s: float) -> bool:
        """Wait until nothing runs; True at once for the runner's own thread, which cannot wait for itself."""
        return self._runner == threading.get_ident() or self._over.wait(limit_s)

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
