"""Slow or hung: what is looked at before a run is stopped, and who has the last word."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from madlite.model import Cause, Chunk, Quantity, ResultRule, Step
from madlite.model.results import StopReason
from madlite.run.stop import StopControl
from madlite.run.watchdog import (
    HANG_PROBE_LIMIT_S,
    STOPPED,
    HangReport,
    SilenceNote,
    StallDetector,
    Watchdog,
    hang_hint,
)
from tests.factories import make_plan
from tests.rows import each_row
from tests.run.test_stop import LONG_S, FakeSession
from tests.waiting import wait_until

FOUND = HangReport(
    notes=("2 of 2 processes stopped",),
    location="stacks in here/",
    evidence="rank 1 in next_batch (data.py:3)",
    outliers="rank 1",
)


class Dog:
    """A watchdog on a clock that the test moves, whose inquiry waits for the test."""

    def __init__(self, folder, **limits: float) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.said: list[str] = []
        self.through = threading.Event()
        self.asked: list[threading.Event] = []
        self.fails = False
        self.silence = StallDetector(
            make_plan(folder, result_rule=ResultRule(kind="steps"), **limits), lambda: self.now
        )
        self.dog = Watchdog(
            self.silence, self.probe_hang, tell=self.told.append, say=self.said.append, now=lambda: self.now
        )
        self.action = self.silence.following()
        self.action.__enter__()

    def probe_hang(self, cancelled: threading.Event) -> HangReport:
        self.asked.append(cancelled)
        self.through.wait(LONG_S)
        if self.fails:
            raise OSError("no such thing")
        return FOUND

    def step(self, n: int, after_s: float = 2.0) -> None:
        self.now += after_s
        with self.silence.reading():
            self.silence.note(Step(n=n, values={Quantity.LOSS: 1.0}))

    def check(self, after_s: float = 0.0) -> StopReason | None:
        """Look after a time of regular looks, as the watch does."""
        end = self.now + after_s
        while self.now < end:
            self.now = min(end, self.now + (self.dog.wait_s() or 1.0))
        return self.dog.check()

    def finish(self) -> None:
        self.through.set()
        for thread in threading.enumerate():
            if thread.name == "madlite-hang-probe":
                thread.join(LONG_S)


@pytest.fixture
def dog(tmp_path):
    dog = Dog(tmp_path)
    for n in range(1, 41):
        dog.step(n)
    yield dog
    dog.finish()


def test_a_slow_step_is_told_of_and_stops_nothing(dog):
    assert dog.check(45) is None and dog.told == ["no step for 45 s after step 40 (median 2.0 s)"]
    dog.step(41)
    assert dog.check(5) is None and dog.asked == []


def test_a_hang_is_looked_at_before_it_is_the_reason(dog):
    assert dog.check(300) is None
    assert dog.said == ["no step for 300 s after step 40 (steps took 2.0 s): looking at its processes"]
    assert dog.check(1) is None, "the inquiry goes on"
    dog.finish()
    reason = dog.check(11)
    assert (reason.cause, reason.evidence) == (Cause.HANG, FOUND.evidence)
    assert reason.text == (
        "no step for 312 s after step 40 (steps took 2.0 s): hung; 2 of 2 processes stopped; stacks in here/"
    )
    assert reason.hint == "look where rank 1 stands; --silence-limit SECONDS waits longer"


def test_a_stopped_process_is_what_the_hint_names_and_no_longer_limit():
    quiet = SilenceNote(text="no step", hung=True, option="--silence-limit")
    stopped = f"4 of 9 processes {STOPPED} (pid 812, 813, 814, 815, …)"
    hint = hang_hint(quiet, HangReport(notes=("1 of 9 processes waiting", stopped), outliers="rank 1"))
    assert hint.startswith("who stopped them: ") and "kill -CONT" in hint and "--silence-limit" not in hint


def test_before_the_first_step_the_other_option_is_named(tmp_path):
    dog = Dog(tmp_path)
    dog.through.set()
    dog.check(1800)
    dog.finish()
    assert dog.check(1).hint.endswith("; --start-silence-limit SECONDS waits longer")


@each_row(
    ("outliers", "hint"),
    [("", ""), ("it", "look where it stands; "), ("ranks 1, 3", "look where ranks 1, 3 stand; ")]
    + [("4 of 9 ranks", "look where 4 of 9 ranks stand; ")],
)
def test_the_ranks_to_look_at_are_named_where_some_stand_apart(outliers, hint):
    quiet = SilenceNote(text="no step", hung=True, option="--silence-limit")
    assert hang_hint(quiet, HangReport(outliers=outliers)) == f"{hint}--silence-limit SECONDS waits longer"
    if outliers.startswith("rank"):
        on_node = hang_hint(quiet, HangReport(outliers=outliers, node="1 (n2)"))
        assert on_node.startswith(f"look where {outliers} on node 1 (n2) stand; ")


def test_a_run_that_goes_on_meanwhile_is_not_stopped(dog):
    dog.check(300)
    dog.step(41)
    dog.finish()
    assert dog.check() is None and dog.said[-1] == "it goes on"
    dog.through.clear()
    assert dog.check(400) is None
    wait_until(lambda: len(dog.asked) == 2, "the next hang is looked at again: that")


def test_an_inquiry_that_fails_or_hangs_itself_delays_the_stop_and_no_more(dog, caplog):
    dog.fails = True
    dog.check(300)
    dog.finish()
    reason = dog.check()
    assert reason.cause is Cause.HANG and reason.evidence == "" and "no such thing" in caplog.text


def test_an_inquiry_that_hangs_is_not_waited_for(dog):
    dog.check(300)
    wait_until(lambda: dog.asked)
    assert dog.check(HANG_PROBE_LIMIT_S - 1) is None
    reason = dog.check(2)
    assert reason.cause is Cause.HANG and "here/" not in reason.text
    assert dog.asked[0].is_set(), "it is told to end"


def test_there_is_nothing_to_look_at_between_actions(dog):
    dog.action.__exit__(None, None, None)
    assert dog.dog.wait_s() is None and dog.dog.check() is None
    dog.dog.close()


class Hanging:
    """A watch over a session whose action is silent; its limit is over at once, where the test has no other."""

    def __init__(self, folder, probe_hang, limit_s: float | None = None, silence_s: float = 0.02) -> None:
        plan = make_plan(folder, result_rule=ResultRule(kind="steps"), start_silence_s=silence_s)
        self.said: list[str] = []
        dog = Watchdog(StallDetector(plan), probe_hang, say=self.said.append)
        self.watch, self.session = StopControl(limit_s, 5.0, self.said.append, dog), FakeSession()

    def run(self, meanwhile=lambda: None) -> StopReason | None:
        with self.watch.guard(self.session), self.watch.following(lambda chunk: None) as feed:
            feed(Chunk(data=b"begun\n"))
            meanwhile()
            assert self.session.over.wait(LONG_S)
        return self.watch.reason


def test_the_watch_stops_a_run_that_hangs_as_gently_as_at_its_time_limit(tmp_path):
    hanging = Hanging(tmp_path, lambda cancelled: FOUND)
    assert hanging.run().cause is Cause.HANG and hanging.session.stops == [5.0]
    looking, stopping = hanging.said
    assert looking.endswith(": looking at its processes"), "what was said once is not said again"
    assert stopping == "stopping: it hangs; press Ctrl-C to kill it at once"


def test_a_stop_by_ctrl_c_names_the_next_one(tmp_path):
    hanging = Hanging(tmp_path, lambda cancelled: FOUND, silence_s=3600.0)  # else it may be stopped for that first
    hanging.run(lambda: hanging.watch.request(StopReason(cause=Cause.INTERRUPTED, text="interrupted (Ctrl-C)")))
    assert hanging.said[-1] == "stopping after Ctrl-C; press Ctrl-C again to kill it at once"


@each_row("by", [Cause.INTERRUPTED, Cause.TIMEOUT])
def test_ctrl_c_and_the_clock_win_while_the_evidence_is_collected_and_call_it_off(tmp_path, by):
    asked, called_off = threading.Event(), threading.Event()

    def probe_hang(cancelled: threading.Event) -> HangReport:
        asked.set()
        if cancelled.wait(LONG_S):
            called_off.set()
        return FOUND

    def interrupt() -> None:
        assert asked.wait(LONG_S)
        if by is Cause.INTERRUPTED:
            hanging.watch.request(StopReason(cause=by, text="interrupted (Ctrl-C)"))
        clock.close()

    hanging, clock = Hanging(tmp_path, probe_hang, limit_s=0.01 if by is Cause.TIMEOUT else None), ExitStack()
    clock.enter_context(hanging.watch.paused_limit())  # which begins to count when it is looked at
    assert hanging.run(interrupt).cause is by
    assert hanging.session.stops == [5.0] and called_off.wait(LONG_S)


def test_a_run_that_ends_by_itself_while_it_is_looked_at_has_no_reason(tmp_path):
    asked = threading.Event()

    def probe_hang(cancelled: threading.Event) -> HangReport:
        asked.set()
        cancelled.wait(LONG_S)
        return FOUND

    hanging = Hanging(tmp_path, probe_hang)

    def end() -> None:
        assert asked.wait(LONG_S)
        hanging.session.over.set()

    assert hanging.run(end) is None and hanging.session.stops == []


def test_a_time_limit_names_the_silence_that_it_ended(tmp_path):
    plan = make_plan(tmp_path, result_rule=ResultRule(kind="steps"))
    now = [0.0]
    silence = StallDetector(plan, lambda: now[0])
    watch, session = StopControl(0.05, 1.0, watchdog=Watchdog(silence, lambda cancelled: FOUND)), FakeSession()
    clock = ExitStack()
    clock.enter_context(watch.paused_limit())
    with watch.guard(session), watch.following(lambda chunk: None):
        now[0] = 250.0
        clock.close()
        assert session.over.wait(LONG_S)
    assert watch.reason.text == "timed out after 0.05 s; no output for 250 s before the first step"
