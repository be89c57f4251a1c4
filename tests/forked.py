"""Processes forked from the tests' own, which has imported everything: what is killed, or works beside others."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def start_forked(work: Callable[[], object]) -> int:
    """Call in a process of its own, and return its number; an exception is printed there."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever happens: never back into the parent's tests
        traceback.print_exc()
    finally:
        os._exit(code)


def end_of(pid: int) -> int:
    """Wait for a forked process, and return its exit code, below 0 for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_killed(work: Callable[[], object]) -> None:
    """Call what is to be killed in the end, in a process of its own."""
    assert end_of(start_forked(work)) == -signal.SIGKILL


def kill_this_process(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
