"""What ends a run before its time: a signal, the clock, a hang; signals are the batch's, each run has its own stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Literal, TypeAlias, TypeVar

from madlite.cancellation import Cancellation, Interrupted, in_thread
from madlite.errors import ExitCode
from madlite.model import Cause, Chunk, Say, Session, Sink
from madlite.model.results import StopReason
from madlite.run.watchdog import Watchdog

_Command = Literal["stop", "kill", "end", "wake"]
_LONGEST_WAIT_S = 3600.0  # of one wait; a longer limit is waited for in turns


class StopControl:
    """Ends one run when it is asked to, when its time is over or when it hangs; the first reason stays.

    What it ends: blocking calls, by `cancellation`, and the session that `guard` watches over.
    """

    def __init__(
        self,
        limit_s: float | None = None,
        grace_s: float = 0.0,
        say: Say = lambda text: None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.reason: StopReason | None = None
        self.cancellation = Cancellation()
        self._lock = threading.Lock()
        self._say = say
        self._watchdog = watchdog
        self._limit_s, self._deadline_s = limit_s, limit_s
        self._off_since_s: float | None = None
        self._grace_s = grace_s
        self._commands: SimpleQueue[_Command] = SimpleQueue()  # to the thread that watches over a session

    def request(self, reason: StopReason) -> None:
        """Ask for the end, from any thread; asked a second time, nothing waits any more."""
        with self._lock:
            self._commands.put("stop" if self.reason is None else "kill")
            self.reason = self.reason or reason
        if reason.cause is not Cause.NONE:  # a run whose steps are enough comes to its result
            self.cancellation.cancel()

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
            self._commands.put("end")
            thread.join()

    @contextmanager
    def following(self, feed: Sink) -> Iterator[Sink]:
        """Let the watchdog follow an action that runs inside; its output goes to `feed` through what this yields."""
        if self._watchdog is None:
            yield feed
            return
        stall_detector = self._watchdog.stall_detector

        def listener(chunk: Chunk) -> None:
            with stall_detector.reading():
                feed(chunk)

        with stall_detector.following():
            self._commands.put("wake")
            yield listener

    @contextmanager
    def paused_limit(self) -> Iterator[None]:
        """Let the time inside not count against the limit; signals are handled all the same."""
        self._off_since_s = time.monotonic()
        self._commands.put("wake")
        try:
            yield
        finally:
            if (deadline_s := self._deadline_s) is not None:
                self._deadline_s = deadline_s + time.monotonic() - self._off_since_s
            self._off_since_s = None
            self._commands.put("wake")

    def _watch(self, session: Session) -> None:
        """Wait for commands and the clock; stops run in threads of their own, so that a second command is read."""
        stops: list[threading.Thread] = []
        while (command := self._receive()) != "end":
            if (reason := self._due()) is not None:
                with self._lock:
                    self.reason = self.reason or reason
                self._commands.put("stop")
            if command == "stop":
                self._say(_stopping_text(self.reason))
                stops.append(_start(session, self._grace_s))
            elif command == "kill":
                self._say("killing it")
                stops.append(_start(session, 0.0))
            if self._watchdog is not None and self.reason is not None:
                self._watchdog.cancel_probe()
        for stop in stops:
            stop.join()
        if self._watchdog is not None:
            self._watchdog.close()

    def _due(self) -> StopReason | None:
        """Return why the run has to end now by the clock or its silence, unless it is ending already."""
        over = self._left_s() == 0.0
        if over:
            self._deadline_s = None
        if self.reason is not None:
            return None
        if over:
            silent = self._watchdog.stall_detector.description() if self._watchdog is not None else ""
            text = f"timed out after {self._limit_s:g} s" + (f"; {silent}" if silent else "")
            return StopReason(cause=Cause.TIMEOUT, text=text)
        return self._watchdog.check() if self._watchdog is not None else None

    def _left_s(self) -> float | None:
        """Return the seconds to the time limit; None without one, and while the time does not count."""
        deadline_s = self._deadline_s
        if deadline_s is None or self._off_since_s is not None:
            return None
        return max(0.0, deadline_s - time.monotonic())

    def _receive(self) -> _Command:
        """Return the next command, "wake" where it is time to look at the clock."""
        waits = [_LONGEST_WAIT_S]
        if (left_s := self._left_s()) is not None:
            waits.append(left_s)
        if self._watchdog is not None and self.reason is None and (wait_s := self._watchdog.wait_s()) is not None:
            waits.append(wait_s)
        try:
            return self._commands.get(timeout=min(waits))
        except Empty:
            return "wake"


def _stopping_text(reason: StopReason | None) -> str:
    """Return why a run is being stopped, and what kills it at once."""
    text = (reason.short or reason.text) if reason else ""
    if text == _SIGNAL_TEXTS[signal.SIGINT]:
        return "stopping after Ctrl-C; press Ctrl-C again to kill it at once"
    return f"stopping: {text}; press Ctrl-C to kill it at once"


def _start(session: Session, grace_s: float) -> threading.Thread:
    thread = threading.Thread(target=session.stop, args=(grace_s,), name="madlite-stop", daemon=True)
    thread.start()
    return thread


# INT, TERM and HUP for the time of a command: its main thread passes them on while other threads work.
#
# A signal can arrive at any instruction of the main thread, so its handler takes no lock and starts nothing.  The
# system may hand it to any thread, which wakes no other one: so the main thread looks again after a moment.

_SIGNALS = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED, signal.SIGHUP: ExitCode.HANGUP}
_SIGNAL_TEXTS = {signal.SIGINT: "interrupted (Ctrl-C)", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_LOOK_S = 0.1  # between two looks at the signals that came
Listener: TypeAlias = Callable[[StopReason], None]
_T = TypeVar("_T")


class Signals:
    """Takes INT, TERM and HUP and passes them on as reasons to stop; an ignored HUP (nohup) stays ignored.

    An ignored INT is taken all the same: that is what a shell leaves its background jobs, and `kill -INT` means us.
    Outside the main thread no signal can be taken, and none is.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._numbers: SimpleQueue[int] = SimpleQueue()  # of the signals that were not passed on; a handler may put
        self._is_forwarded = False  # whether a signal was passed on
        self._lock = threading.Lock()  # held while listeners are read: each gets a signal once
        self._listeners: tuple[Listener, ...] = ()
        self._before: dict[int, object] = {}

    @property
    def exit_code(self) -> ExitCode | None:
        """The exit code of the signal that came, if one did."""
        return _SIGNALS[signal.Signals(self.received[0])] if self.received else None

    @property
    def reason(self) -> StopReason:
        """The first signal as a reason to stop."""
        return StopReason(cause=Cause.INTERRUPTED, text=_SIGNAL_TEXTS[signal.Signals(self.received[0])])

    def watch_over(self, work: Callable[[], _T]) -> _T:
        """Run `work` in another thread and return what it returns, passing on the signals that come meanwhile.

        Those that came before and were not passed on are, before it starts.

        Raises:
            BaseException: what `work` raised.
        """
        self._forward()
        done = in_thread(partial(copy_context().run, work), "madlite-work")
        while not wait([done], _LOOK_S).done:
            self._forward()
        return done.result()

    def watch_calls(self, work: Callable[[], _T]) -> _T:
        """Run `work` as `watch_over` does; a signal ends it as it ends a blocking call.

        Raises:
            Interrupted: a signal came before its end.
            BaseException: what `work` raised.
        """
        own = Cancellation()
        with self.passing_to(lambda reason: own.cancel()):
            return self.watch_over(lambda: own.call(work))

    def wait(self, limit_s: float) -> None:
        """Wait so long, or until a signal comes that was not passed on: it is then left to who waits."""
        with suppress(Empty):
            self._numbers.get(timeout=limit_s)

    @contextmanager
    def passing_to(self, listener: Listener) -> Iterator[None]:
        """Pass signals on to one more listener while the block runs.

        One that came before is passed on at once, or where nobody has got it yet, by the next `watch_over`.
        """
        with self._lock:
            self._listeners += (listener,)
            is_late = self._is_forwarded
        try:
            if is_late:
                listener(self.reason)
            yield
        finally:
            with self._lock:
                self._listeners = tuple(item for item in self._listeners if item is not listener)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        self._numbers.put(number)

    def _forward(self) -> None:
        while not self._numbers.empty():
            self._numbers.get()
            with self._lock:
                self._is_forwarded = True
                listeners = self._listeners
            for listener in listeners:
                listener(self.reason)
