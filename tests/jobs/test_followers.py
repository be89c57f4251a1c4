"""What follows jobs: so many at a time, one for each run, and no more than a few attempts."""

from __future__ import annotations

import threading

import pytest

from madlite.errors import UsageProblem
from madlite.jobs import followers
from madlite.jobs.followers import Followers
from madlite.plan.submission import OUTPUT, JobRun
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "madlite_runs/jobs-x"
    (made / OUTPUT).mkdir(parents=True)
    return made


@pytest.fixture
def followed(monkeypatch):
    """Return what lets the runs go on that are being followed, by their ids in the order in which they began."""
    begun: dict[str, threading.Event] = {}

    def follow_run(folder, run, runtime, environ, screen):
        begun[run.id] = going = threading.Event()
        going.wait(60)

    monkeypatch.setattr(followers, "follow_run", follow_run)
    yield begun
    for going in begun.values():
        going.set()


def runs(count: int) -> list[JobRun]:
    return [JobRun(id=f"run-{number}", card="a", number=number) for number in range(1, count + 1)]


def test_so_many_run_at_a_time_and_the_others_follow_whatever_became_of_their_runs(folder, followed, monkeypatch):
    monkeypatch.setattr(followers, "_MOST", 2)
    mine, waiting = Followers(), runs(5)

    def name_all() -> list[str]:
        for run in waiting:
            if run.id not in followed:  # those that have begun may be settled, and nobody names them again
                mine.follow(folder, f"job-{run.number}", run, None, {})
        return list(followed)

    for count in (2, 3, 4, 5):
        wait_until(lambda count=count: len(name_all()) == count, "the next one")
        assert len([going for going in followed.values() if not going.is_set()]) == 2
        next(going for going in followed.values() if not going.is_set()).set()
    for going in followed.values():
        going.set()
    wait_until(lambda: not mine.are_busy(), "their ends")
    assert sorted(followed) == [run.id for run in waiting]


def test_nobody_else_follows_the_same_run_meanwhile(folder, followed):
    (run,), first, other = runs(1), Followers(), Followers()
    first.follow(folder, "job", run, None, {})
    wait_until(lambda: followed, "the first one")
    other.follow(folder, "job", run, None, {})
    assert not other.are_busy() and not other.gave_up("job")
    followed.pop(run.id).set()
    wait_until(lambda: not first.are_busy(), "its end")
    other.follow(folder, "job", run, None, {})
    wait_until(lambda: run.id in followed, "the other one")


@pytest.mark.parametrize(
    ("error", "line"),
    [(UsageProblem("the plan is gone"), "error: the plan is gone"), (OSError("x"), "error: OSError: x")],
)
def test_what_ends_without_a_result_is_tried_again_a_few_times_and_its_output_says_why(
    folder, monkeypatch, error, line
):
    def follow_run(*given):
        raise error

    monkeypatch.setattr(followers, "follow_run", follow_run)
    (run,), mine = runs(1), Followers()

    def gave_up() -> bool:
        mine.follow(folder, "job", run, None, {})
        return mine.gave_up("job")

    wait_until(gave_up, "the last attempt")
    assert (folder / OUTPUT / "1.out").read_text().splitlines() == [line] * 3


def test_a_run_that_has_its_result_is_not_followed(folder, followed):
    (run,), mine = runs(1), Followers()
    home = folder.parent / run.id
    home.mkdir()
    (home / "result.json").touch()
    mine.follow(folder, "job", run, None, {})
    assert not mine.are_busy() and not followed


def test_a_run_that_ended_while_its_lock_was_waited_for_is_not_followed(folder, followed, monkeypatch):
    (run,), mine = runs(1), Followers()
    home = folder.parent / run.id

    real = followers.open_locked

    def open_locked(*args):
        home.mkdir()
        (home / "record.json").touch()
        return real(*args)

    monkeypatch.setattr(followers, "open_locked", open_locked)
    mine.follow(folder, "job", run, None, {})
    assert not mine.are_busy() and not followed and not mine.gave_up("job")


def test_where_no_further_thread_may_begin_another_one_may_follow_the_run(folder, followed, monkeypatch):
    (run,), mine = runs(1), Followers()

    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        mine.follow(folder, "job", run, None, {})
    assert not mine.are_busy() and not mine.gave_up("job")
    Followers().follow(folder, "job", run, None, {})
    wait_until(lambda: run.id in followed, "the other one")
