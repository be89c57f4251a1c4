"""What ends a run before its time: the clock, a silence, Ctrl-C, TERM, and HUP of a dropped connection.

A signal can arrive at any instruction of the main thread, so its handler takes no lock and starts nothing: it sets a
plain attribute and writes one byte to a pipe, which the watch's own thread reads.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import ClassVar

from madlite.errors import ExitCode
from madlite.run.reasons import Reason
from madlite.run.watchdog import Watchdog
from madlite.types import Cause, Say, Session

_SIGNALS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HANGUP,
}
_WORDS = {signal.SIGINT: "interrupted (Ctrl-C)", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_STOP, _HURRY, _END, _LOOK = b"s", b"h", b"e", b"l"
_LONGEST_WAIT_S = 3600.0  # of one select; a longer limit is waited for in turns


class Interrupted(BaseException):
    """Raised in the main thread by a signal while nothing needs to be ended gently, e.g. during a pull."""


class Watch:
    """Ends one session when it is asked to, when its time is over or when it hangs; the first reason stays."""

    def __init__(
        self,
        limit_s: float | None,
        grace_s: float,
        say: Say = lambda text: None,
        dog: Watchdog | None = None,
    ) -> None:
        self.reason: Reason | None = None
        self._say = say
        self._dog = dog
        self._limit_s, self._deadline_s = limit_s, limit_s
        self._off_since_s: float | None = None
        self._grace_s = grace_s
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def request(self, reason: Reason) -> None:
        """Ask for the end; asked a second time, nothing waits any more. Safe in a signal handler."""
        first = self.reason is None
        if first:
            self.reason = reason
        self._tell(_STOP if first else _HURRY)

    @contextmanager
    def guard(self, session: Session) -> Iterator[None]:
        """Watch over the session while the block runs; its limit counts from here."""
        self._deadline_s = None if self._limit_s is None else time.monotonic() + self._limit_s
        thread = threading.Thread(target=self._watch, args=(session,), name="madlite-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._tell(_END)
            thread.join()

    @contextmanager
    def following(self, feed: Callable[[bytes, int], None]) -> Iterator[Callable[[bytes, int], None]]:
        """Let the watchdog follow an action that runs inside; its output goes to `feed` through what this yields."""
        if self._dog is None:
            yield feed
            return
        silence = self._dog.silence

        def heard(chunk: bytes, stream: int) -> None:
            with silence.reading():
                feed(chunk, stream)

        with silence.following():
            self._tell(_LOOK)
            yield heard

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Let the time inside not count against the limit; signals are heard all the same."""
        self._off_since_s = time.monotonic()
        self._tell(_LOOK)
        try:
            yield
        finally:
            if (deadline_s := self._deadline_s) is not None:
                self._deadline_s = deadline_s + time.monotonic() - self._off_since_s
            self._off_since_s = None
            self._tell(_LOOK)

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._read)
        os.close(self._write)

    def _tell(self, word: bytes) -> None:
        try:
            os.write(self._write, word)
        except BlockingIOError:  # it has been told often enough
            return

    def _watch(self, session: Session) -> None:
        """Wait for words and the clock; stops run in threads of their own, so that a second word is heard."""
        stops: list[threading.Thread] = []
        while _END not in (words := self._hear()):
            if (reason := self._due()) is not None:
                self.reason, words = reason, words + _STOP
            if _STOP in words:
                self._say(f"stopping: {_words(self.reason)} (Ctrl-C kills it now)")
                stops.append(_start(session, self._grace_s))
            if _HURRY in words:
                self._say("killing it")
                stops.append(_start(session, 0.0))
            if self._dog is not None and self.reason is not None:
                self._dog.leave()
        for stop in stops:
            stop.join()
        if self._dog is not None:
            self._dog.close()

    def _due(self) -> Reason | None:
        """Return why the run has to end now by the clock or its silence, unless it is ending already."""
        over = self._left_s() == 0.0
        if over:
            self._deadline_s = None
        if self.reason is not None:
            return None
        if over:
            silence = self._dog.silence.told() if self._dog is not None else ""
            text = f"timed out after {self._limit_s:g} s" + (f"; {silence}" if silence else "")
            return Reason(cause=Cause.TIMEOUT, text=text)
        return self._dog.look() if self._dog is not None else None

    def _left_s(self) -> float | None:
        """Return the seconds to the time limit; None without one, and while the time does not count."""
        deadline_s = self._deadline_s
        if deadline_s is None or self._off_since_s is not None:
            return None
        return max(0.0, deadline_s - time.monotonic())

    def _hear(self) -> bytes:
        waits = [_LONGEST_WAIT_S]
        if (left_s := self._left_s()) is not None:
            waits.append(left_s)
        if self._dog is not None and self.reason is None and (wait_s := self._dog.wait_s()) is not None:
            waits.append(wait_s)
        ready, _, _ = select.select([self._read], [], [], min(waits))
        return os.read(self._read, 64) if ready else b""


def _words(reason: Reason | None) -> str:
    return (reason.short or reason.text) if reason else ""


def _start(session: Session, grace_s: float) -> threading.Thread:
    thread = threading.Thread(target=session.stop, args=(grace_s,), name="madlite-stop", daemon=True)
    thread.start()
    return thread


class Signals:
    """Takes INT, TERM and HUP for the time of a batch of runs; an ignored HUP (nohup) stays ignored.

    An ignored INT is taken all the same: that is what a shell leaves its background jobs, and `kill -INT` means us.
    """

    taken: ClassVar[Signals | None] = None  # a process has one set of signals

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
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        Signals.taken = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Signals.taken = None
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        watch = self.watch
        if watch is not None:
            watch.request(self.reason)
        if self._may_raise:
            self._may_raise = False
            raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal raise `Interrupted` inside the block where a batch has taken the signals; else it changes nothing.

    For a runtime that waits before there is a session to stop; who calls this cleans up after it.
    """
    if Signals.taken is None or threading.current_thread() is not threading.main_thread():
        yield
    else:
        with Signals.taken.interruptible():
            yield
