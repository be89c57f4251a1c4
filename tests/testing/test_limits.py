"""How long code under test may take: by its processor time, whatever else the machine does."""

from __future__ import annotations

import re
import threading
import time

import pytest

from madlite.testing.flaws import limited

pytestmark = pytest.mark.host  # waits, and works for a while


def work(seconds):
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < seconds:
        pass


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: work(30), "it works for too long"),
        (lambda: re.search(r"(\S+\s*)+!$", "a" * 60), "it works for too long"),
    ],
    ids=["a loop", "a regular expression"],
)
def test_what_takes_too_long_is_interrupted(call, what):
    begun_s = time.thread_time()
    with pytest.raises(TimeoutError, match=what), limited(0.05):
        call()
    assert time.thread_time() - begun_s < 20


def test_work_that_a_busy_machine_holds_up_is_not_interrupted():
    is_over = threading.Event()
    others = [threading.Thread(target=lambda: [None for _ in iter(is_over.is_set, True)]) for _ in range(8)]
    for other in others:
        other.start()
    begun_s = time.monotonic()
    try:
        with limited(0.2):
            work(0.07)
    finally:
        is_over.set()
        for other in others:
            other.join()
    assert time.monotonic() - begun_s > 0.2


def test_a_limit_within_another_leaves_it_in_force():
    with pytest.raises(TimeoutError), limited(0.1):
        with limited(60):
            pass
        work(30)


def test_in_another_thread_nothing_is_limited():
    found = []

    def take():
        with limited(0.01):
            work(0.1)
        found.append("done")

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert found == ["done"]
