"""Colour of statuses: on a terminal alone, not where NO_COLOR is set, and never of what a workload wrote."""

from __future__ import annotations

import os
import pty
import re
from pathlib import Path

import pytest

from madlite.cli import main as frame
from madlite.cli.screens import LiveScreen, PlainScreen
from madlite.cli.terminal import coloured, has_colour
from madlite.errors import ExitCode
from madlite.model import Cause, Metric, Result, Status
from madlite.run.screen import RunOutcome
from tests import commands
from tests.cli.stored_runs import good, store
from tests.factories import make_plan
from tests.rows import each_row

GREEN, RED, YELLOW = "\x1b[32m", "\x1b[31m", "\x1b[33m"
LOG = Path(__file__).parents[1] / "data/logs/torchtitan-0.2.2-debugmodel-cpu-1rank.log"


@pytest.fixture(autouse=True)
def colours(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@each_row(
    ("line", "begins"),
    [
        ("  SUCCESS tiny 5 tok", f"  {GREEN}SUCCESS\x1b[0m tiny"),
        ("  SUCCESS (suspect) tiny", f"  {YELLOW}SUCCESS (suspect)\x1b[0m tiny"),
        ("FAILURE tiny [timeout]", f"{RED}FAILURE\x1b[0m tiny"),
        ("        suspect: ranks differ", f"        {YELLOW}suspect\x1b[0m: ranks"),
        ("  SUCCESSFUL_tag", "  SUCCESSFUL_tag"),
        ("  SUCCESS-1 x", "  SUCCESS-1 x"),
        ("  > FAILURE of a log", "  > FAILURE of a log"),
        ("  note: SUCCESS", "  note: SUCCESS"),
        ("", ""),
    ],
)
def test_the_first_word_of_a_line_is_coloured_where_it_is_a_status(line, begins):
    assert coloured(line).startswith(begins) and re.sub(r"\x1b\[\d*m", "", coloured(line)) == line
    assert begins != line or coloured(line) == line


@each_row(("env", "on"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)])
def test_colour_is_a_matter_of_the_terminal_and_of_its_user(monkeypatch, env, on):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert has_colour(True) is on and has_colour(False) is False


class Terminal:
    """A sink that people read, as far as a screen can know."""

    encoding = "utf-8"

    def __init__(self, is_terminal: bool = True) -> None:
        self.text, self._is_terminal = "", is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        raise OSError


@pytest.fixture
def results(tmp_path):
    plan = make_plan(tmp_path)
    number = (Metric(metric="tok", text="5", status=Status.SUCCESS),)
    sound = Result(plan_id="1", status=Status.SUCCESS, metrics=number)
    doubted = Result(plan_id="2", status=Status.SUCCESS, metrics=number, suspect=("ranks differ",))
    failed = Result(
        plan_id="3", status=Status.FAILURE, cause=Cause.EXIT_CODE, reason="exit code 1", evidence="SUCCESS \x1b[32m"
    )
    return plan, (sound, doubted, failed)


@each_row("screen_of", [lambda sink: PlainScreen(sink, live=False), LiveScreen])
def test_a_run_s_end_is_coloured_on_a_terminal_and_nowhere_else(results, screen_of, monkeypatch):
    plan, ended = results
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def shown(is_terminal: bool) -> str:
        sink = Terminal(is_terminal)
        screen = screen_of(sink)
        for result in ended:
            screen.finished(plan, result)
        screen.total(RunOutcome(results=ended, not_started=(), exit_code=ExitCode.RUN_FAILED), Path("perf.csv"))
        return sink.text

    text = shown(True)
    for part in (
        f"{GREEN}SUCCESS\x1b[0m tiny",
        f"{YELLOW}SUCCESS (suspect)\x1b[0m tiny",
        f"{YELLOW}suspect\x1b[0m: ranks differ",
        f"{RED}FAILURE\x1b[0m tiny",
        "> SUCCESS  [32m",
        f"1 {GREEN}SUCCESS\x1b[0m, 1 {YELLOW}SUCCESS (suspect)\x1b[0m, 1 {RED}FAILURE\x1b[0m",
    ):
        assert part in text
    monkeypatch.setenv("NO_COLOR", "1")
    without = shown(True)
    assert "\x1b[3" not in without and "1 SUCCESS, 1 SUCCESS (suspect), 1 FAILURE" in without
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in shown(False)


def on_a_terminal(cwd: Path, *words: str, **env: str) -> str:
    """Return what a command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    done = commands.start(words, cwd, {**os.environ, **env}, stdout=theirs)
    os.close(theirs)
    text = b""
    with open(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                piece = terminal.read(4096)
            except OSError:  # Linux: the other end is closed
                break
            if not piece:
                break
            text += piece
    done.wait()
    return text.decode()


@pytest.mark.host
@each_row(
    ("words", "status"),
    [(["runs"], "SUCCESS (suspect)"), (["show", "last"], "SUCCESS (suspect)"), (["parse", str(LOG)], "SUCCESS")],
)
def test_commands_colour_what_a_terminal_shows_and_nothing_in_a_pipe(tmp_path, words, status):
    store(tmp_path, "20260102T030405-SUCCESS-000001", good("x", suspect=("ranks differ",)))
    colour = YELLOW if "suspect" in status else GREEN
    text = on_a_terminal(tmp_path, *words)
    assert f"{colour}{status}\x1b[0m" in text and text.count("\x1b[0m") <= 2
    assert "\x1b" not in on_a_terminal(tmp_path, *words, NO_COLOR="1")
    piped = commands.run(words, tmp_path, os.environ)
    assert "\x1b" not in piped.stdout and status in piped.stdout


def test_each_command_names_one_that_is_next():
    theirs = {"init", "plugin", "tune", "dashboard"}  # which name it themselves, or go on until they are ended
    assert set(frame.COMMANDS) - set(frame._NEXT) == theirs
    for text in (text for texts in frame._NEXT.values() for text in texts.values()):
        assert set(re.findall(r"madlite (\w+)", text)) <= set(frame.COMMANDS), text


@pytest.mark.host
def test_a_terminal_is_told_the_next_command_and_a_pipe_is_not(tmp_path):
    store(tmp_path, "20260102T030405-SUCCESS-000001", good("x"))
    assert on_a_terminal(tmp_path, "runs").splitlines()[-1].startswith("next: madlite show last")
    told = on_a_terminal(tmp_path, "explain", "demo_hf_lora_tiny").splitlines()[-1]
    assert told == "next: madlite run --tags demo_hf_lora_tiny"
    for words in (["runs", "--json"], ["runs", "--status", "nonsense"]):
        assert "next:" not in on_a_terminal(tmp_path, *words), words
    piped = commands.run(["runs"], tmp_path, os.environ)
    assert "next:" not in piped.stdout + piped.stderr
