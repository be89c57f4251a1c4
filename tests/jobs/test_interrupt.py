"""Ctrl-C while jobs are followed: in a terminal, which is a real one here, and without one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.jobs.test_real_slurm import Site
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
RUN = ("run", "--cluster", "lab", "--tags", "a", "--set", "env.SLEEP=600")
OTHERS = {"enter": "\n", "leave": "leave\n", "end of input": "\x04"}
QUESTION = "leave them running, or cancel them"


@pytest.fixture
def site(tmp_path, slurm):
    made = Site(tmp_path, slurm)
    yield made
    made.call("cluster", "cancel", made.submission())


class Terminal:
    """A command on a terminal of its own: what is typed there sends signals as a user's keys do."""

    def __init__(self, site: Site, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.shown = ""
        self.started = subprocess.Popen(
            [sys.executable, "-m", "madlite", *words],
            cwd=site.folder,
            env={**site.environ, "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def shows(self, pattern: str) -> bool:
        """Read what is shown by now, and return whether the pattern is in it."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # nobody has the other end any more
                break
            self.shown += data.decode()
        return re.search(pattern, self.shown) is not None

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        wait_until(lambda: self.shows("$^") or self.started.poll() is not None, "the command's end")
        self.shows("")
        return self.started.returncode

    def hang_up(self) -> None:
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.started.kill()
        self.started.wait()
        if self._master >= 0:
            os.close(self._master)


@contextmanager
def following(site: Site, *words: str) -> Iterator[Terminal]:
    """Yield the terminal of a command that follows a job which runs."""
    terminal = Terminal(site, *(words or RUN))
    try:
        wait_until(lambda: terminal.shows("1 running"), "the job runs")
        yield terminal
    finally:
        terminal.close()


def test_ctrl_c_asks_and_cancel_ends_the_jobs_with_their_rows(site):
    with following(site) as terminal:
        terminal.type("\x03")
        wait_until(lambda: terminal.shows(QUESTION), "the question")
        assert site.jobs() != []
        terminal.type("what\n")
        wait_until(lambda: terminal.shows("'what' is not one of"), "the question is asked again")
        terminal.type("cancel\n")
        assert terminal.end() == 130, terminal.shown
    assert [(row["model"], row["status"]) for row in site.rows()] == [("a", "FAILURE")]
    wait_until(lambda: site.jobs() == [], "the job is over")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("\x03", id="ctrl-c"),
        *(pytest.param(text, id=name, marks=pytest.mark.full) for name, text in OTHERS.items()),
    ],
)
def test_ctrl_c_leaves_the_jobs_where_nobody_cancels_them(site, answer):
    with following(site) as terminal:
        terminal.type("\x03")
        wait_until(lambda: terminal.shows(QUESTION), "the question")
        terminal.type(answer)
        assert terminal.end() == 130, terminal.shown
        assert "madlite cluster attach " + site.submission() in terminal.shown
        assert "Traceback" not in terminal.shown and "cancelled" not in terminal.shown
    assert site.rows() == [] and len(site.jobs()) == 1


def test_a_terminal_that_is_closed_leaves_the_jobs_also_in_the_middle_of_the_question(site):
    with following(site) as terminal:
        terminal.hang_up()
        assert terminal.started.wait(240) == 129
    with following(site, "cluster", "attach") as terminal:
        terminal.type("\x03")
        wait_until(lambda: terminal.shows(QUESTION), "the question")
        terminal.hang_up()
        assert terminal.started.wait(240) == 130
    assert site.rows() == [] and len(site.jobs()) == 1


@pytest.mark.full
@pytest.mark.parametrize(("option", "rows"), [("leave", 0), ("cancel", 1)])
def test_what_the_option_says_is_not_asked(site, option, rows):
    with following(site, *RUN, "--on-interrupt", option) as terminal:
        terminal.type("\x03")
        assert terminal.end() == 130, terminal.shown
        assert QUESTION not in terminal.shown
    assert len(site.rows()) == rows
    wait_until(lambda: len(site.jobs()) == 1 - rows, "the job is over")


def test_a_reader_of_the_output_that_goes_away_ends_nothing(site):
    started = site.start("run", "--cluster", "lab", "--tags", "a", "--set", "env.SLEEP=5")
    assert started.stdout is not None and "job" in started.stdout.readline()
    started.stdout.close()
    assert started.wait(280) == 0
    assert [row["status"] for row in site.rows()] == ["SUCCESS"]


def test_without_a_terminal_ctrl_c_cancels_and_the_option_leaves_at_term(site):
    left = site.start(*RUN, "--on-interrupt", "leave")
    wait_until(lambda: [*site.folder.glob("madlite_runs/2*-a-*/progress.json")], "the run")
    os.kill(left.pid, signal.SIGTERM)
    out, _ = left.communicate(timeout=280)
    assert left.returncode == 143, out
    assert site.rows() == [] and len(site.jobs()) == 1
    attached = site.start("cluster", "attach")
    wait_until(lambda: attached.stdout is not None and "running" in attached.stdout.readline(), "attached")
    os.kill(attached.pid, signal.SIGINT)
    out, _ = attached.communicate(timeout=280)
    assert attached.returncode == 130, out
    assert [row["status"] for row in site.rows()] == ["FAILURE"]
