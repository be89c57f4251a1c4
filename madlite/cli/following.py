"""Submitted runs that are followed to their rows, or cancelled, and the signals that end that."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.attached import summary_text
from madlite.cli.terminal import echo_on
from madlite.errors import ExitCode

if TYPE_CHECKING:
    from madlite.cli.attached import Attached
    from madlite.jobs.submission import OpenSubmission, Stored

_TICK_S = 1.0  # between two looks at the folders of runs
_READ_S = 0.5  # of waiting for an answer, before signals are looked for
_CANCEL_S = 300.0  # how long the ends of cancelled jobs are waited for
_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED, signal.SIGHUP: ExitCode.HANGUP}


class _Stop:
    """The signals that came while jobs are followed; one that comes while the user is asked ends the question."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.asks = False
        self._came = threading.Event()

    @contextmanager
    def handled(self) -> Iterator[None]:
        before = {}
        for number in _CODES:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        self._came.set()
        if self.asks:
            raise KeyboardInterrupt

    def wait(self, limit_s: float) -> None:
        """Wait so long, or until a signal comes."""
        self._came.wait(limit_s)
        self._came.clear()

    def __call__(self) -> bool:
        return bool(self.received)


def follow(attached: Attached, *opened: OpenSubmission, detach: bool = False) -> int:
    """Submit what has no job yet, and follow all to their rows; return the exit code."""
    from madlite.jobs.schedulers import Unreachable
    from madlite.jobs.submit import submit_all

    stop = _Stop()
    with stop.handled():
        for one in attached.settlings:
            own = next((each for each in opened if each.path == one.stored.folder), None)
            if own is not None:
                one.reload()  # another command may have submitted it before the lock was this one's
                with suppress(Unreachable):
                    one.find_jobs()  # an earlier command may have been cut off before it noted a job
                one.stored = submit_all(own, one.stored, one.scheduler, setup.warn, sleep=stop.wait, stopped=stop)
            _print_jobs(one.stored)
        attached.recall()
        if detach and not stop():
            attached.settle()  # what was refused has its row
            attached.finish()
            if attached.has_left:
                echo_on("madlite jobs shows how far they are, madlite attach follows them, madlite collect writes rows")
            return int(ExitCode.RUN_FAILED) if attached.has_unsubmitted else attached.exit_code()
        return _follow(attached, stop)


def _print_jobs(stored: Stored) -> None:
    jobs = [state.job for state in stored.scripts.values() if state.job]
    count = len(stored.submission.runs)
    runs = f"{count} run{'s' if count > 1 else ''}"
    if jobs:
        echo_on(f"submission {stored.submission.id}: {runs}, job{'s' if len(jobs) > 1 else ''} {' '.join(jobs)}")


class _Course:
    """Looks at results often and asks the schedulers seldom; after `cancel` for a limited time."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached
        self._asked_s, self._deadline_s = float("-inf"), float("inf")
        self._ends = False  # whether the jobs are to be ended, and not all clusters have taken that

    @property
    def is_late(self) -> bool:
        """Whether what was cancelled takes too long."""
        return time.monotonic() > self._deadline_s

    def cancel(self) -> None:
        """End the jobs."""
        self._deadline_s = time.monotonic() + _CANCEL_S
        self._ends = True
        self._ask()

    def turn(self) -> None:
        """Ask where it is time, write the rows of what is over, and tell what has changed."""
        from madlite.jobs.outcomes import POLL_S

        if time.monotonic() - self._asked_s >= POLL_S:
            self._ask()
        self._attached.settle()
        self._attached.show()

    def _ask(self) -> None:
        self._asked_s = time.monotonic()
        if self._ends:
            self._ends = not _cancel(self._attached)
        else:
            self._attached.poll()


def _follow(attached: Attached, stop: _Stop, *, cancel: bool = False) -> int:
    """Follow runs to their rows, with `cancel` after their jobs were ended; return the exit code."""
    attached.follows = not cancel
    course = _Course(attached)
    if cancel:
        course.cancel()
    first: int | None = None
    while attached.is_open or (stop.received and first is None):
        if stop.received and first is None:
            first = stop.received[0]
            if cancel or not _cancels(attached.on_interrupt, first, stop):
                break
            course.cancel()
        elif len(stop.received) > 1 or course.is_late:
            break
        course.turn()
        if attached.is_open:
            stop.wait(_TICK_S)
    return _end(attached, first, cancelled=cancel)


def _end(attached: Attached, number: int | None, *, cancelled: bool) -> int:
    """Name what is open; return the exit code of a signal, of what is left, or of the runs, where these were wanted."""
    attached.finish()
    if attached.has_left:
        _say_left(attached)
    if number is not None:
        return int(_CODES[signal.Signals(number)])
    if attached.has_left:
        return int(ExitCode.RUN_FAILED)
    return int(ExitCode.OK) if cancelled else attached.exit_code()


def _cancels(on_interrupt: str, number: int, stop: _Stop) -> bool:
    """Return whether a signal ends the jobs, as the option, the terminal or its user has it."""
    if on_interrupt:
        return on_interrupt == "cancel"
    if number == signal.SIGHUP:
        return False
    if number != signal.SIGINT or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return len(stop.received) == 1 and _is_asked_to_cancel(stop)


def _is_asked_to_cancel(stop: _Stop) -> bool:
    """Ask whether to end the jobs; another signal and an end of the input leave them running."""
    stop.asks = True
    try:
        with _interrupted_reads():
            answer = click.prompt(
                "\nthe jobs go on: leave them running, or cancel them",
                type=click.Choice(["leave", "cancel"]),
                default="leave",
            )
    except (KeyboardInterrupt, click.Abort):
        return False
    finally:
        stop.asks = False
    return bool(answer == "cancel")


@contextmanager
def _interrupted_reads() -> Iterator[None]:
    """Interrupt what reads the terminal now and then: a signal that came just before the read is handled then."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, _READ_S, _READ_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _cancel(attached: Attached) -> bool:
    """End the jobs, say what is waited for, and return whether the clusters took it."""
    from madlite.jobs.schedulers import Unreachable

    try:
        attached.cancel()
    except Unreachable as problem:
        setup.warn(f"{problem.message}: it is asked again")
        return False
    count = sum(len(one.stored.open_runs) for one in attached.settlings)
    of = f"{count} run{'s' if count > 1 else ''}"
    echo_on(f"the jobs of {of} are cancelled; waiting for their results or the jobs' ends, at most {_CANCEL_S:g} s")
    return True


def settle_now(attached: Attached) -> None:
    """Write the rows of what is over now, and name what goes on."""
    from madlite.jobs.follow import GRACE_S

    attached.poll()
    attached.settle()
    until_s = time.monotonic() + GRACE_S + _TICK_S
    # its files may be seen here a moment later, and what fetches them takes as long as it takes
    while attached.is_fetching or (attached.has_ended() and time.monotonic() < until_s):
        time.sleep(_TICK_S)
        attached.settle()
    attached.finish()
    for one in attached.settlings:
        if one.stored.open_runs:
            echo_on(f"submission {one.stored.submission.id}: {summary_text(one.states())}; madlite jobs lists them")


def cancel_and_collect(attached: Attached) -> int:
    """End the jobs, write the rows of their runs, and return 0 where all have come to their end."""
    stop = _Stop()
    with stop.handled():
        return _follow(attached, stop, cancel=True)


def _say_left(attached: Attached) -> None:
    ids = " ".join(one.stored.submission.id for one in attached.settlings if one.stored.open_runs)
    if ids:
        echo_on(f"what is open stays so; madlite attach {ids} follows it, madlite collect writes rows of what is over")
