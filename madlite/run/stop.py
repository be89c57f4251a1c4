"""What ends one run before its time: whoever asks for it, the clock, and a silence; each run has a stop of its own."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from madlite.cancellation import Cancellation, Interrupted
from madlite.model import Cause, Chunk, Say, Session, Sink
from madlite.run.watchdog.watchdog import StopReason, Watchdog

_STOP, _HURRY, _END, _LOOK = b"s", b"h", b"e", b"l"
_LONGEST_WAIT_S = 3600.0  # of one select; a longer limit is waited for in turns


class StopControl:
    """Ends one run when it is asked to, when its time is over or when it hangs; the first reason stays.

    What it ends: blocking calls, by `cancellation`, and the session that `guard` watches over.
    """

    def __init__(
        self,
        limit_s: float | None = None,
        grace_s: float = 0.0,
        say: Say = lambda text: None,
        dog: Watchdog | None = None,
    ) -> None:
        self.reason: StopReason | None = None
        self.cancellation = Cancellation()
        self._one = threading.Lock()
        self._heard: tuple[Callable[[StopReason], None], ...] = ()
        self._say = say
        self._dog = dog
        self._limit_s, self._deadline_s = limit_s, limit_s
        self._off_since_s: float | None = None
        self._grace_s = grace_s
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def request(self, reason: StopReason) -> None:
        """Ask for the end, from any thread; asked a second time, nothing waits any more."""
        with self._one:
            first = self.reason is None
            self.reason = reason if first else self.reason
            self._tell(_STOP if first else _HURRY)
            heard = self._heard
        self.cancellation.cancel()
        for one in heard:
            one(reason)

    @contextmanager
    def passing_to(self, heard: Callable[[StopReason], None]) -> Iterator[None]:
        """Pass what is asked for on to one more while the block runs; what was asked for before, too."""
        with self._one:
            self._heard += (heard,)
            asked = self.reason
        try:
            if asked is not None:
                heard(asked)
            yield
        finally:
            with self._one:
                self._heard = tuple(one for one in self._heard if one is not heard)

    def check(self) -> None:
        """Raise Interrupted where the end was asked for."""
        if self.reason is not None:
            raise Interrupted

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
    def following(self, feed: Sink) -> Iterator[Sink]:
        """Let the watchdog follow an action that runs inside; its output goes to `feed` through what this yields."""
        if self._dog is None:
            yield feed
            return
        silence = self._dog.silence

        def heard(chunk: Chunk) -> None:
            with silence.reading():
                feed(chunk)

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
        """Give the pipe back; what is asked for later is noted, and nothing is there to end."""
        with self._one:
            os.close(self._read)
            os.close(self._write)
            self._write = -1

    def _tell(self, word: bytes) -> None:
        if self._write < 0:
            return
        try:
            os.write(self._write, word)
        except BlockingIOError:  # it has been told often enough
            return

    def _watch(self, session: Session) -> None:
        """Wait for words and the clock; stops run in threads of their own, so that a second word is heard."""
        stops: list[threading.Thread] = []
        while _END not in (words := self._hear()):
            if (reason := self._due()) is not None:
                self.reason, words = self.reason or reason, words + _STOP
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

    def _due(self) -> StopReason | None:
        """Return why the run has to end now by the clock or its silence, unless it is ending already."""
        over = self._left_s() == 0.0
        if over:
            self._deadline_s = None
        if self.reason is not None:
            return None
        if over:
            silence = self._dog.silence.told() if self._dog is not None else ""
            text = f"timed out after {self._limit_s:g} s" + (f"; {silence}" if silence else "")
            return StopReason(cause=Cause.TIMEOUT, text=text)
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


def _words(reason: StopReason | None) -> str:
    return (reason.short or reason.text) if reason else ""


def _start(session: Session, grace_s: float) -> threading.Thread:
    thread = threading.Thread(target=session.stop, args=(grace_s,), name="madlite-stop", daemon=True)
    thread.start()
    return thread
