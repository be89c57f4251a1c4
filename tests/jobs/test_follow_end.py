"""When following ends: not before what this process fetched has told its plugins."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace

from madlite.batch.collect import Collected
from madlite.jobs import follow, job
from madlite.jobs.follow import Follower
from madlite.model import Result, Status
from madlite.run.stop import Signals


class Followers:
    """Those whose threads are at work for so many more questions."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    def are_busy(self) -> bool:
        self.busy -= 1
        return self.busy >= 0


def followed(busy: int) -> tuple[Follower, Followers]:
    """Return what follows a submission whose runs all have their rows."""
    followers, nothing = Followers(busy), lambda **given: ()
    tracker = SimpleNamespace(
        followers=followers,
        stored=SimpleNamespace(open_runs=()),
        notices=(),
        is_followed=lambda: False,
        **dict.fromkeys(("poll", "collect", "keep_limit", "states", "cancel_left"), nothing),
    )
    screen = SimpleNamespace(say=print, warn=print, states=lambda states: None)
    return Follower([tracker], screen), followers


def test_the_hooks_of_what_this_process_fetched_come_to_their_end(monkeypatch):
    monkeypatch.setattr(follow, "TICK_S", 0.0)
    follower, followers = followed(busy=40)
    assert follower.cancel() == 0
    assert followers.busy < 0, "it was asked until nothing was at work"


def test_a_hook_that_does_not_end_is_not_waited_for_without_an_end(monkeypatch):
    monkeypatch.setattr(follow, "TICK_S", 0.0)
    monkeypatch.setattr(follow, "_HOOKS_S", -1.0)
    follower, followers = followed(busy=40)
    assert follower.cancel() == 0
    assert followers.busy > 30


def test_a_look_that_was_too_early_for_a_row_is_no_last_one_however_long_what_follows_it_takes(monkeypatch):
    clock, over, looks = [0.0], ["a run whose job is over"], []
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Signals, "wait", lambda signals, limit_s: clock.append(clock.pop() + limit_s))
    follower, _ = followed(busy=0)
    (tracker,) = follower.trackers

    def collect() -> tuple[()]:
        looks.append(clock[0])
        if clock[0] >= job.GRACE_S:
            over.clear()
        elif len(looks) == 3:  # the machine is busy with something else
            clock.append(clock.pop() + 100)
        return ()

    tracker.collect, tracker.states = collect, lambda: [SimpleNamespace(word="over")] * len(over)
    assert follower.collect() == 0
    assert not over, looks


def test_the_end_of_a_run_that_cannot_be_noted_is_told_once(monkeypatch):
    """A full disk takes no note of it: each look finds the run again until there is room."""
    monkeypatch.setattr(follow, "TICK_S", 0.0)
    follower, _ = followed(busy=0)
    (tracker,), looks, told = follower.trackers, iter([True, True, False]), []
    result = Result(plan_id="r", status=Status.FAILURE)
    collected = [
        Collected(run_id="r", message="added", result=result),
        Collected(run_id="r", message="collected already"),
    ]
    tracker.collect = lambda: [(collected[0] if not told else collected[1], None)]
    tracker.is_followed = lambda: next(looks)
    follower._screen.ended = lambda done, plan: told.append(done.message)
    assert follower.cancel() == 0
    assert (told, follower.results) == (["added"], [result])


def interrupted_at_each_line() -> None:
    """Wait as who follows jobs does, and be interrupted at each line that is run for that."""

    def interrupt(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        if event == "line":
            signal.raise_signal(signal.SIGINT)
        return interrupt

    with Signals() as signals:
        sys.settrace(interrupt)
        signals.wait(0.01)
        sys.settrace(None)
    os._exit(len(signals.received) > 1)


def test_a_signal_may_come_at_any_moment_of_a_wait():
    waiting = multiprocessing.get_context("fork").Process(target=interrupted_at_each_line)
    waiting.start()
    waiting.join(60)
    waiting.kill()
    waiting.join()
    assert waiting.exitcode == 1
