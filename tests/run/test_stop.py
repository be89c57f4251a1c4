"""What ends a run: the clock and signals; the first reason stays, a second request stops waiting."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from madlite.cancellation import Interrupted
from madlite.model import Cause
from madlite.model.results import StopReason
from madlite.run.stop import StopControl
from tests.waiting import wait_until

LONG_S = 60.0  # longer than a busy machine takes for anything here


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
        self.over.wait(LONG_S)


def test_the_clock_ends_a_run():
    stop, session = StopControl(0.01, 5.0), FakeSession()
    with stop.guard(session):
        assert session.over.wait(LONG_S)
    assert stop.reason.cause is Cause.TIMEOUT and session.stops == [5.0]


def test_time_off_the_clock_does_not_count_against_the_limit():
    stop, session, clock = StopControl(0.05, 5.0), FakeSession(), ExitStack()
    clock.enter_context(stop.paused_limit())  # before the first moment of the limit
    with stop.guard(session):
        assert not session.over.wait(0.15), "it is over long ago, but for the time that does not count"
        clock.close()
        assert session.over.wait(LONG_S)
    assert stop.reason.cause is Cause.TIMEOUT and stop.reason.text == "timed out after 0.05 s"


def test_off_the_clock_a_run_without_a_limit_has_none_and_a_signal_is_heard():
    stop, session = StopControl(None, 5.0), FakeSession()
    with stop.guard(session), stop.paused_limit():
        stop.request(StopReason(cause=Cause.INTERRUPTED, text="first"))
        assert session.over.wait(LONG_S)
    assert session.stops == [5.0]


def test_a_run_that_ends_by_itself_is_not_stopped():
    stop, session = StopControl(None, 5.0), FakeSession()
    with stop.guard(session):
        pass
    assert stop.reason is None and session.stops == []


def test_the_first_reason_stays_and_the_second_request_hurries():
    stop, session = StopControl(None, 1000.0), FakeSession(stubborn=True)
    with stop.guard(session):
        stop.request(StopReason(cause=Cause.INTERRUPTED, text="first"))
        wait_until(lambda: session.stops)
        stop.request(StopReason(cause=Cause.TIMEOUT, text="second"))
        assert session.over.wait(LONG_S)
    assert stop.reason.text == "first" and session.stops == [1000.0, 0.0]


def test_a_stop_that_came_before_the_session_ends_it():
    stop, session = StopControl(None, 5.0), FakeSession()
    stop.request(StopReason(cause=Cause.INTERRUPTED, text="early"))
    with pytest.raises(Interrupted):
        stop.check()
    with stop.guard(session):
        assert session.over.wait(LONG_S)
    assert stop.reason.text == "early" and session.stops == [5.0]


def test_a_stop_of_a_run_that_is_over_ends_nothing():
    stop = StopControl()
    stop.request(StopReason(cause=Cause.INTERRUPTED, text="late"))
    assert stop.reason.text == "late"
