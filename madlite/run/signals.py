"""INT, TERM and HUP for the time of a command: its main thread hears them while other threads work.

A signal can arrive at any instruction of the main thread, so its handler takes no lock and starts nothing; the system
may hand it to any thread, which wakes no other one.  So the interpreter itself writes the signal's number to a pipe
(`signal.set_wakeup_fd`), which the main thread waits for.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import FrameType, TracebackType
from typing import TypeAlias, TypeVar

from madlite.cancellation import Cancellation, Interrupted
from madlite.errors import ExitCode
from madlite.model import Cause
from madlite.run.watchdog.watchdog import StopReason

_SIGNALS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HANGUP,
}
_WORDS = {signal.SIGINT: "interrupted (Ctrl-C)", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_DONE = b"\0"  # no signal has this number
_T = TypeVar("_T")
Heard: TypeAlias = Callable[[StopReason], None]


class Signals:
    """Takes INT, TERM and HUP and passes them on as reasons to stop; an ignored HUP (nohup) stays ignored.

    An ignored INT is taken all the same: that is what a shell leaves its background jobs, and `kill -INT` means us.
    Outside the main thread no signal can be taken, and none is.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # the first one
        self._heard: tuple[Heard, ...] = ()
        self._one = threading.Lock()
        self._before: dict[int, object] = {}
        self._read, self._write = -1, -1
        self._woken_before: int | None = None  # what the interpreter wrote to before

    @property
    def exit_code(self) -> ExitCode | None:
        """The exit code of the signal that came, if one did."""
        return _SIGNALS[signal.Signals(self.received)] if self.received is not None else None

    @property
    def reason(self) -> StopReason:
        """The signal in words."""
        return StopReason(cause=Cause.INTERRUPTED, text=_WORDS[signal.Signals(self.received or signal.SIGINT)])

    def watch_over(self, work: Callable[[], _T]) -> _T:
        """Run `work` in another thread and return what it returns, passing on the signals that come meanwhile.

        Raises:
            BaseException: what `work` raised.
        """
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)
            finally:
                with suppress(BlockingIOError):  # a full pipe wakes it all the same
                    os.write(self._write, _DONE)

        thread = threading.Thread(target=copy_context().run, args=(run,), name="madlite-work", daemon=True)
        thread.start()
        while not done.done():
            self._pass_on(self._next())
        thread.join()  # it writes to the pipe last
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

    @contextmanager
    def passing_to(self, heard: Heard) -> Iterator[None]:
        """Pass signals on to one more while the block runs; one that has come already, too."""
        with self._one:
            self._heard += (heard,)
            late = self.received is not None
        try:
            if late:
                heard(self.reason)
            yield
        finally:
            with self._one:
                self._heard = tuple(one for one in self._heard if one is not heard)

    def raise_if_received(self) -> None:
        """Raise Interrupted once a signal has come."""
        if self.received is not None:
            raise Interrupted

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
            self._woken_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._woken_before is not None:
            signal.set_wakeup_fd(self._woken_before)
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]
        os.close(self._read)
        os.close(self._write)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number

    def _next(self) -> bytes:
        select.select([self._read], [], [])
        with suppress(BlockingIOError):
            return os.read(self._read, 64)
        return b""

    def _pass_on(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in self._before:
                continue
            self.received = self.received or number
            with self._one:
                heard = self._heard
            for one in heard:
                one(self.reason)
