"""What follows jobs: so many at a time, one for each run, and no more than a few attempts."""

from __future__ import annotations

import subprocess

import pytest

from madlite.plan.submission import OUTPUT, JobRun
from madlite.platforms.kubernetes import scheduler as kubernetes
from madlite.platforms.kubernetes.scheduler import Followers
from tests.waiting import wait_until

pytestmark = pytest.mark.host


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "madlite_runs/jobs-x"
    (made / OUTPUT).mkdir(parents=True)
    return made


def runs(count: int) -> list[JobRun]:
    return [JobRun(id=f"run-{number}", card="a", number=number) for number in range(1, count + 1)]


def test_so_many_run_at_a_time_and_the_others_follow_whatever_became_of_their_runs(folder, monkeypatch):
    monkeypatch.setattr(kubernetes, "_MOST", 2)
    started: list[str] = []

    def start(folder, run, environ, lock):
        started.append(run.id)
        assert len([one for one in processes if one.poll() is None]) < 2
        process = subprocess.Popen(["sleep", "0.2"], pass_fds=[lock])
        processes.append(process)
        return process

    processes: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(kubernetes, "_start", start)
    mine, waiting = Followers(), runs(5)

    def all_started() -> bool:
        for run in waiting:
            if run.id not in started:  # those that have begun may be settled, and nobody names them again
                mine.follow(folder, f"job-{run.number}", run, {})
        return len(started) == 5

    wait_until(all_started, "the last one")
    wait_until(lambda: not mine.are_busy(), "their ends")
    assert sorted(started) == [run.id for run in waiting]


def test_two_processes_do_not_follow_the_same_run(folder, monkeypatch):
    started = []

    def start(folder, run, environ, lock):
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock]))
        return started[-1]

    monkeypatch.setattr(kubernetes, "_start", start)
    (run,), first, other = runs(1), Followers(), Followers()
    first.follow(folder, "job", run, {})
    other.follow(folder, "job", run, {})
    assert len(started) == 1
    started[0].stdin.close()
    started[0].wait()
    other.follow(folder, "job", run, {})
    assert len(started) == 2
    started[1].stdin.close()
    started[1].wait()


def test_what_ends_without_a_result_is_tried_again_a_few_times(folder, monkeypatch):
    monkeypatch.setattr(kubernetes, "_start", lambda *given: subprocess.Popen(["false"]))
    (run,), mine = runs(1), Followers()

    def gave_up() -> bool:
        mine.follow(folder, "job", run, {})
        return mine.gave_up("job")

    wait_until(gave_up, "the last attempt")
