"""Signals are heard by the main thread while other threads work; each becomes a reason to stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from madlite.cancellation import Interrupted, interruptible
from madlite.errors import ExitCode
from madlite.model import Cause
from madlite.run.stop import Signals
from tests.rows import each_row

LONG_S = 120.0


@each_row(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGHUP, ExitCode.HANGUP)],
)
def test_a_signal_is_passed_on_as_a_reason_while_work_goes_on(number, code):
    before, heard = signal.getsignal(number), threading.Event()
    reasons = []

    def note(reason):
        reasons.append(reason)
        heard.set()

    def work():
        os.kill(os.getpid(), number)
        return heard.wait(LONG_S)

    with Signals() as signals, signals.passing_to(note):
        assert signals.watch_over(work) is True
    assert signals.exit_code is code and [reason.cause for reason in reasons] == [Cause.INTERRUPTED]
    assert signal.getsignal(number) is before


def test_a_second_signal_is_passed_on_too_and_the_first_one_gives_the_exit_code():
    twice, reasons = threading.Event(), []

    def note(reason):
        reasons.append(reason.text)
        os.kill(os.getpid(), signal.SIGTERM) if len(reasons) == 1 else twice.set()

    def work():
        os.kill(os.getpid(), signal.SIGINT)
        return twice.wait(LONG_S)

    with Signals() as signals, signals.passing_to(note):
        assert signals.watch_over(work)
    assert signals.exit_code is ExitCode.INTERRUPTED and reasons == ["interrupted (Ctrl-C)"] * 2


def test_a_signal_before_the_listener_is_passed_on_once_and_before_the_work():
    reasons = []
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with signals.passing_to(reasons.append):
            signals.watch_over(lambda: reasons.append("work"))
            assert [getattr(reason, "text", reason) for reason in reasons] == ["terminated", "work"]
            signals.watch_over(lambda: None)
    assert signals.received == [signal.SIGTERM] and signals.exit_code is ExitCode.TERMINATED
    assert len(reasons) == 2, "a second one would kill at once"


def test_who_listens_late_gets_what_was_passed_on_before():
    early, late = [], []
    with Signals() as signals, signals.passing_to(early.append):
        os.kill(os.getpid(), signal.SIGTERM)
        signals.watch_over(lambda: None)
        with signals.passing_to(late.append):
            signals.watch_over(lambda: None)
    assert [reason.text for reason in early] == [reason.text for reason in late] == ["terminated"]


def test_what_the_work_raises_is_raised():
    with Signals() as signals, pytest.raises(ZeroDivisionError):
        signals.watch_over(lambda: 1 // 0)


def test_a_signal_ends_a_blocking_call_of_a_command():
    def work():
        os.kill(os.getpid(), signal.SIGINT)
        return interruptible(threading.Event().wait)

    with Signals() as signals, pytest.raises(Interrupted):
        signals.watch_calls(work)
    assert signals.exit_code is ExitCode.INTERRUPTED


def test_outside_the_main_thread_nothing_is_taken_and_all_works():
    before, told = signal.getsignal(signal.SIGINT), []

    def elsewhere():
        with Signals() as signals:
            told.append((signals.watch_over(lambda: 7), signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(LONG_S)
    assert told == [(7, True)]


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
            assert signals.received == []
    finally:
        signal.signal(signal.SIGHUP, before)
