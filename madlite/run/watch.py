"""What ends a run before its time: the clock, Ctrl-C, TERM, and HUP of a dropped connection."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from madlite.errors import ExitCode
from madlite.types import Cause, Session, Value

_SIGNALS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HANGUP,
}
_WORDS = {signal.SIGINT: "interrupted (Ctrl-C)", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Reason(Value, frozen=True):
    """Why a run was ended."""

    cause: Cause
    text: str


class Interrupted(BaseException):
    """Raised in the main thread by a signal while nothing needs to be ended gently, e.g. during a pull."""


class Watch:
    """Ends one session when it is asked to or when its time is over; the first reason stays."""

    def __init__(self, limit_s: float | None, grace_s: float) -> None:
        self.reason: Reason | None = None
        self._limit_s = limit_s
        self._grace_s = grace_s
        self._wake = threading.Event()
        self._session: Session | None = None
        self._over = False

    def request(self, reason: Reason) -> None:
        """Ask for the end; asked a second time, nothing waits any more. Safe in a signal handler."""
        if self.reason is None:
            self.reason = reason
            self._wake.set()
        elif self._session is not None:
            threading.Thread(target=self._session.stop, args=(0.0,), daemon=True).start()

    @contextmanager
    def guard(self, session: Session) -> Iterator[None]:
        """Watch over the session while the block runs."""
        self._session = session
        thread = threading.Thread(target=self._wait, name="madlite-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over = True
            self._wake.set()
            thread.join()
            self._session = None

    def _wait(self) -> None:
        if not self._wake.wait(self._limit_s) and self._limit_s is not None:
            self.reason = Reason(cause=Cause.TIMEOUT, text=f"timed out after {self._limit_s:g} s")
        if self.reason is not None and self._session is not None and not self._over:
            self._session.stop(self._grace_s)


class Signals:
    """Takes INT, TERM and HUP for the time of a batch of runs; an ignored HUP (nohup) stays ignored."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.watch: Watch | None = None
        self._may_raise = False
        self._before: dict[int, object] = {}

    @property
    def exit_code(self) -> ExitCode | None:
        """The exit code of the signal that came, if one did."""
        return _SIGNALS[signal.Signals(self.received)] if self.received is not None else None

    @property
    def reason(self) -> Reason:
        """The signal in words."""
        return Reason(cause=Cause.INTERRUPTED, text=_WORDS[signal.Signals(self.received or signal.SIGINT)])

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise `Interrupted` inside the block; it also does when one has come already."""
        self._may_raise = True
        try:
            if self.received is not None:
                raise Interrupted
            yield
        finally:
            self._may_raise = False

    def __enter__(self) -> Signals:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        if first:
            self.received = number
        if self.watch is not None:
            self.watch.request(self.reason)
        if self._may_raise:
            self._may_raise = False
            raise Interrupted
