"""A blocking call ends when the stop of its run comes, whatever it waits for."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from madlite import cancellation
from madlite.cancellation import Cancellation, Interrupted, check, interruptible, when_stopped

LONG_S = 240.0


def test_a_call_returns_and_raises_what_its_work_does():
    assert Cancellation().call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        Cancellation().call(lambda: 1 // 0)


def test_a_call_that_waits_for_ever_is_left(monkeypatch):
    monkeypatch.setattr(cancellation, "UNWIND_S", 0.1)
    own, begun, never = Cancellation(), threading.Event(), threading.Event()

    def work():
        begun.set()
        never.wait()

    threading.Thread(target=lambda: begun.wait(LONG_S) and own.cancel()).start()
    with pytest.raises(Interrupted):
        own.call(work)
    with pytest.raises(Interrupted):
        own.call(lambda: pytest.fail("nothing begins after a stop"))
    never.set()


def test_what_is_left_ends_at_its_next_check_and_before_its_caller_goes_on():
    own, ended = Cancellation(), []

    def work():
        own.cancel()
        try:
            check()
        finally:
            ended.append(True)

    with pytest.raises(Interrupted):
        own.call(work)
    assert ended == [True]


def test_what_a_call_named_is_called_when_the_stop_comes_or_at_once():
    own, closed, late = Cancellation(), threading.Event(), []

    def work():
        threading.Thread(target=own.cancel).start()
        with when_stopped(closed.set):
            assert closed.wait(LONG_S)
        with when_stopped(lambda: late.append(1)):
            late.append(2)
        return "done in time"

    with suppress(Interrupted):  # it may see the end first
        assert own.call(work) == "done in time"
    assert closed.is_set() and late == [1, 2]


def test_a_second_stop_does_not_wait_for_what_is_left(monkeypatch):
    monkeypatch.setattr(cancellation, "UNWIND_S", 10**6)
    own, never = Cancellation(), threading.Event()

    def work():
        own.cancel()
        own.cancel()
        never.wait()

    with pytest.raises(Interrupted):
        own.call(work)
    never.set()


def test_only_the_thread_and_the_time_of_a_run_are_its_own():
    own, elsewhere = Cancellation(), []
    own.cancel()
    check()  # in no call
    with own.scope():
        with pytest.raises(Interrupted):
            interruptible(lambda: 1)
        thread = threading.Thread(target=lambda: elsewhere.append(interruptible(lambda: 2)))
        thread.start()
        thread.join(LONG_S)
    assert elsewhere == [2] and interruptible(lambda: 3) == 3


def test_a_call_within_a_call_is_one():
    own = Cancellation()
    with own.scope():
        assert interruptible(lambda: (threading.get_ident(), interruptible(threading.get_ident)))
        outer, inner = interruptible(lambda: (threading.get_ident(), interruptible(threading.get_ident)))
    assert outer == inner
