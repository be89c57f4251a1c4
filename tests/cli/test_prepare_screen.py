"""What a person reads while things are fetched."""

from __future__ import annotations

from madlite.cli.build import PrepareLines
from madlite.errors import ExitCode
from madlite.run.prepare import Prepared
from tests.rows import each_row


class Screen:
    def __init__(self):
        self.lines, self.texts = [], []

    def begin(self, lines, size):
        self.lines += lines

    def end(self, lines):
        self.lines += lines

    def advance(self, done, text):
        self.texts.append(text)


@each_row(
    ("by_runs", "told"),
    [
        ((), "everything is here"),
        (("dataset squad", "dataset x"), "everything is here, but for what each run fetches: dataset squad, dataset x"),
    ],
)
def test_everything_is_here_is_not_said_of_what_each_run_fetches(by_runs, told):
    screen = Screen()
    done = Prepared(failed=(), left=(), exit_code=ExitCode.OK, by_runs=by_runs)
    PrepareLines(screen, str).total(done)
    assert screen.lines == [told]


def test_only_the_progress_line_of_a_terminal_says_how_long_it_takes():
    screen = Screen()
    PrepareLines(screen, str, clock=lambda: 10.0).requirement_advanced(50 << 20, 100 << 20)
    assert screen.texts == ["50.0 MiB of 100 MiB, 5.0 MiB/s"]
