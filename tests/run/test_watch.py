"""What ends a run: the clock and signals; the first reason stays, a second request stops waiting."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack

import pytest

from madlite.errors import ExitCode
from madlite.run.watch import Interrupted, Reason, Signals, Watch, interruptible
from madlite.types import Cause


class FakeSession:
    """A session whose action ends only when it is stopped hard enough."""

    handle = "x"

    def __init__(self, *, stubborn: bool = False) -> None:
        self.stops: list[float] = []
        self.over = threading.Event()
        self.stubborn = stubborn

    def stop(self, grace_s: float) -> None:
        self.stops.append(grace_s)
        if not self.stubborn or grace_s == 0:
            self.over.set()
        self.over.wait(10)


def test_the_clock_ends_a_run():
    watch, session = Watch(0.01, 5.0), FakeSession()
    with watch.guard(session):
        assert session.over.wait(10)
    assert watch.reason.cause is Cause.TIMEOUT and session.stops == [5.0]


def test_time_off_the_clock_does_not_count_against_the_limit():
    watch, session, clock = Watch(0.05, 5.0), FakeSession(), ExitStack()
    clock.enter_context(watch.off_the_clock())  # before the first moment of the limit
    with watch.guard(session):
        assert not session.over.wait(0.15), "it is over long ago, but for the time that does not count"
        clock.close()
        assert session.over.wait(10)
    assert watch.reason.cause is Cause.TIMEOUT and watch.reason.text == "timed out after 0.05 s"


def test_off_the_clock_a_run_without_a_limit_has_none_and_a_signal_is_heard():
    watch, session = Watch(None, 5.0), FakeSession()
    with watch.guard(session), watch.off_the_clock():
        watch.request(Reason(cause=Cause.INTERRUPTED, text="first"))
        assert session.over.wait(10)
    assert session.stops == [5.0]


def test_a_run_that_ends_by_itself_is_not_stopped():
    watch, session = Watch(None, 5.0), FakeSession()
    with watch.guard(session):
        pass
    assert watch.reason is None and session.stops == []


def test_the_first_reason_stays_and_the_second_request_hurries():
    watch, session = Watch(None, 1000.0), FakeSession(stubborn=True)
    with watch.guard(session):
        watch.request(Reason(cause=Cause.INTERRUPTED, text="first"))
        while not session.stops:
            pass
        watch.request(Reason(cause=Cause.TIMEOUT, text="second"))
        assert session.over.wait(10)
    assert watch.reason.text == "first" and session.stops == [1000.0, 0.0]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGHUP, ExitCode.HANGUP)],
)
def test_a_signal_is_noted_and_asks_the_watch(number, code):
    before = signal.getsignal(number)
    with Signals() as signals:
        signals.watch = Watch(None, 1.0)
        os.kill(os.getpid(), number)
        assert signals.exit_code is code and signals.watch.reason.cause is Cause.INTERRUPTED
    assert signal.getsignal(number) is before


def test_a_signal_raises_only_where_it_may():
    with Signals() as signals:
        with pytest.raises(Interrupted), signals.interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("not reached")
        with pytest.raises(Interrupted), signals.interruptible():
            raise AssertionError("one has come already")
        os.kill(os.getpid(), signal.SIGTERM)  # outside of such a block it only counts


def test_a_runtime_can_be_interrupted_where_a_batch_took_the_signals_and_only_in_its_thread():
    elsewhere: list[str] = []

    def wait() -> None:
        with interruptible():
            elsewhere.append("went on")

    with interruptible():
        pass
    with Signals():
        with pytest.raises(Interrupted), interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not reached")
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(10)
    assert elsewhere == ["went on"]
    with interruptible():  # that batch is over
        pass


def test_an_ignored_int_is_taken_all_the_same():
    """A shell leaves it ignored in background jobs, and `kill -INT` means the run."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.exit_code is ExitCode.INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_hup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGHUP, before)
