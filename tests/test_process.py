"""Subprocesses: output, limits, and nothing left behind."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from madlite import process
from madlite.errors import UsageProblem
from madlite.process import call_within, capture, kill_group
from tests.waiting import wait_until


def test_output_and_exit_code():
    done = capture(["bash", "-c", "echo out; echo err >&2; exit 3"], limit_s=60)
    assert (done.stdout, done.stderr, done.code, done.ok) == ("out\n", "err\n", 3, False)


def test_a_command_that_is_not_there_is_127():
    done = capture(["/no/such/tool"], limit_s=60)
    assert done.code == 127 and "No such file" in done.stderr


def past_its_limit(script):
    """Return what became of a script that says when it has started, which a busy machine may need more time for."""
    for limit_s in (0.5, 5, 60):
        done = capture(["bash", "-c", script], limit_s=limit_s)
        if done.stdout:
            break
    assert done.timed_out and not done.ok and done.stdout == "started\n"
    return done


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.host
def test_past_its_limit_a_command_and_its_children_are_gone(tmp_path):
    past_its_limit(f"sleep 300 & echo $! > {tmp_path}/child; echo started; wait")
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: gone(child))


@pytest.mark.host
def test_a_child_that_left_the_group_cannot_hold_us(tmp_path):
    past_its_limit(f"setsid sleep 300 & echo $! > {tmp_path}/child; echo started; sleep 300")
    os.kill(int((tmp_path / "child").read_text()), 9)


@pytest.mark.host
def test_a_command_that_prints_without_an_end_is_ended():
    done = capture(["yes"], limit_s=60)
    assert (done.ok, done.timed_out, done.code) == (False, False, -9)
    assert "more than 64 MiB" in done.stderr and len(done.stdout) <= 64 << 20


def test_an_interrupt_leaves_no_command_behind(monkeypatch):
    started = []

    class Interrupted(process.subprocess.Popen):
        def communicate(self, *args, **kwargs):
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(process.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        capture(["sleep", "300"], limit_s=60)
    assert started[0].wait(60) == -9
    assert not kill_group(started[0].pid, 9)  # nothing of it is left


def test_noise_is_text_all_the_same():
    assert capture(["printf", "\\377\\000x"], limit_s=60).stdout.endswith("x")


def _forever() -> int:
    while True:
        pass


def test_a_call_in_a_process_of_its_own_returns_and_raises_as_it_would_here():
    assert call_within(60, lambda: {"n": (1, 2)}) == {"n": (1, 2)}
    with pytest.raises(UsageProblem) as raised:
        call_within(60, lambda: check_workers("many"))
    assert raised.value.hint == "name a number"


def check_workers(text: str) -> int:
    raise UsageProblem(f"{text} is no number", "name a number")


def test_a_call_that_does_not_end_or_dies_is_said_to():
    with pytest.raises(TimeoutError):
        call_within(0.2, _forever)
    with pytest.raises(ChildProcessError):
        call_within(60, lambda: os.kill(os.getpid(), signal.SIGKILL))
