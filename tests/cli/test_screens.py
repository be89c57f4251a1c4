"""Screens: what is told, and that a full or closed pipe never waits."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from madlite.cli.screens import LiveScreen, PlainScreen, Sink
from madlite.errors import ExitCode
from madlite.model import Cause, ImageUsed, Metric, Quantity, Result, Status, Step, Traits, Window
from madlite.plan.make import make_plan
from madlite.run.screen import RunOutcome
from tests.plan.conftest import given  # noqa: F401 - a fixture


@pytest.fixture
def plan(given):  # noqa: F811
    return msgspec.structs.replace(make_plan(given()), blocked=None)


@pytest.fixture
def pipe():
    """A sink and a function that returns all it wrote."""
    read, write = os.pipe()
    sink = Sink(write)

    def said() -> str:
        sink.close()
        os.close(write)
        with open(read, "rb") as file:
            return file.read().decode()

    return sink, said


def step(n: int, t_s: float = 0.0) -> Step:
    return Step(n=n, t_s=t_s, values={Quantity.TOKENS_PER_S_PER_GPU: 1234.5, Quantity.LOSS: 2.345678})


def success(plan) -> Result:
    window = Window(
        quantity=Quantity.TOKENS_PER_S_PER_GPU,
        n=45, first_step=6, last_step=50, dropped=5, median=1234.5, mean=1230, std=12.3, cv=0.01, min=1, max=2,
    )  # fmt: skip
    metric = Metric(metric="tokens_per_s_per_gpu", text="1234.5", status=Status.SUCCESS)
    return Result(plan_id=plan.id, status=Status.SUCCESS, window=window, metrics=(metric,), durations_s={"total": 75})


def test_a_pipe_gets_plain_lines_and_few_steps(plan, pipe):
    sink, said = pipe
    now = [0.0]
    screen = PlainScreen(sink, live=False, clock=lambda: now[0])
    screen.started(plan, 1, 2)
    for n in range(1, 12):
        now[0] = float(n)
        screen.step(plan, step(n))
    screen.output(b"not shown", 1)
    screen.finished(plan, success(plan))
    text = said()
    assert "[1/2] Running model tiny · tiny · pretrain · BF16 · docker · 8xMI300X" in text
    assert [line.split()[1] for line in text.splitlines() if " step " in line] == ["5/50", "10/50"]
    assert "step 5/50  1,234 tokens/s/GPU  loss 2.346" in text
    assert "SUCCESS tiny  1234.5 tokens_per_s_per_gpu (median of 45 steps, 6 to 50, CV 1.00 %)" in text
    assert "took 1 min 15 s" in text and "\x1b" not in text and "not shown" not in text


def test_live_output_passes_bytes_on(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=True)
    screen.output("ü raw\n".encode(), 1)
    assert said() == "ü raw\n"


def test_a_failure_shows_reason_and_deciding_line_without_its_escapes(plan, pipe):
    sink, said = pipe
    result = Result(
        plan_id=plan.id, status=Status.FAILURE, cause=Cause.EXIT_CODE, reason="exit code 3", evidence="\x1b[31mboom\x07"
    )
    PlainScreen(sink, live=False).finished(plan, result)
    text = said()
    assert "FAILURE tiny [exit_code] exit code 3" in text and "> " in text and "boom" in text and "\x1b" not in text


@pytest.mark.parametrize("screen_of", [lambda sink: PlainScreen(sink, live=False), LiveScreen])
def test_a_results_label_is_one_line_and_steers_nothing(plan, pipe, screen_of):
    sink, said = pipe
    label = 'a\n\x1b]0;owned\x07"q", x\r\u2028\udcff'
    metric = Metric(label=label, metric="tok\x1b[2J/s", text="5", status=Status.SUCCESS)
    screen = screen_of(sink)
    screen.finished(plan, Result(plan_id=plan.id, status=Status.SUCCESS, metrics=(metric,)))
    screen.warn("no row: \x1b[2Jboth\nlines")
    lines = said().strip("\n").split("\n")
    assert 'SUCCESS tiny  a  ]0;owned "q", x    5 tok [2J/s' in lines[0]
    assert lines[1].startswith("warning: no row:  [2Jboth lines") and len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_a_terminal_shows_step_speed_loss_and_time_left(plan, pipe, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    sink, said = pipe
    screen = LiveScreen(sink)
    screen.started(msgspec.structs.replace(plan, notes=("[red]odd[/red]",)), 1, 1)
    screen.phase("pulling [x/y]: 10 %")
    screen.step(plan, step(7))
    screen._progress.refresh()
    screen.finished(plan, success(plan))
    text = said()
    assert "step 7/50" in text and "1,234 tokens/s/GPU" in text and "left" in text
    assert "[red]odd[/red]" in text, "nothing a card says is taken for markup"
    assert "SUCCESS tiny" in text


def test_a_terminal_shows_a_row_for_each_run_one_for_all_and_what_they_wait_for(plan, pipe, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    sink, said = pipe
    screen = LiveScreen(sink)
    one, two = (msgspec.structs.replace(plan, id=name) for name in ("r1", "r2"))
    screen.waiting("GPU 0: run x of user y")
    screen._progress.refresh()
    screen.waiting("")
    screen.started(one, 1, 3)
    screen.phase("pulling x", "r1")
    screen.started(two, 2, 3)
    rows = [task.description for task in screen._progress.tasks]
    assert rows == ["[1/3] tiny pulling x", "[2/3] tiny starting"], "whatever they do, and the first one, too"
    for position, run in enumerate((one, two), 1):
        screen.step(run, step(position))
    screen.overall(1, 3, 3700)
    assert len(screen._progress.tasks) == 3
    *_, left = screen._progress.columns
    lefts = [left.render(task).plain for task in screen._progress.tasks]
    assert [text.split(" ")[0] for text in lefts] == ["left", "left", ""], "of all runs only the estimate that is told"
    screen._progress.refresh()
    screen.finished(one, success(one))
    screen.finished(two, success(two))
    screen.overall(3, 3, None)
    assert not screen._progress.tasks
    text = said()
    assert "waiting for GPUs: GPU 0: run x of user y" in text
    assert "1 of 3 runs have ended, about 1 h 01 min left, until " in text and "[2/3]" in text


def test_a_pipe_says_now_and_then_how_far_a_batch_is_and_what_it_waits_for(plan, pipe):
    sink, said = pipe
    now = [0.0]
    screen = PlainScreen(sink, live=False, clock=lambda: now[0])
    for ended in range(1, 9):
        screen.waiting(f"GPU {ended}")
        screen.overall(ended, 8, 120.0 if ended > 1 else None)
        now[0] += 2
    lines = said().splitlines()
    assert lines[:2] == ["waiting for GPUs: GPU 1", "1 of 8 runs have ended"]
    assert lines[2] == "waiting for GPUs: GPU 4" and lines[3].startswith(
        "4 of 8 runs have ended, about 2 min 00 s left"
    )
    assert len(lines) == 6


def test_a_full_pipe_never_waits():
    read, write = os.pipe()
    sink = Sink(write)
    for _ in range(20_000):
        sink.put(b"x" * 1000)
    assert sink.dropped_bytes > 0
    sink.close(limit_s=0.1)
    os.close(read)


def test_a_closed_pipe_is_swallowed():
    read, write = os.pipe()
    os.close(read)
    sink = Sink(write)
    for _ in range(10):
        sink.put(b"x")
    sink.close()
    assert not sink._thread.is_alive()
    os.close(write)


def test_a_note_that_is_true_of_the_whole_batch_is_said_once(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=False)
    stale = "the base image was not refreshed"
    noted = msgspec.structs.replace(
        success(plan), findings=("1 more line", stale), image=ImageUsed(ref="x", notes=(stale,))
    )
    for _ in range(3):
        screen.finished(plan, noted)
    text = said()
    assert text.count(f"note: {stale}") == 1 and text.count("note: 1 more line") == 3
    assert text.count("SUCCESS tiny") == 3 and text.count("took ") == 3


def test_a_container_that_is_kept_is_told_with_the_command_that_opens_a_shell_in_it(plan, pipe):
    sink, said = pipe
    kept = msgspec.structs.replace(plan, keep_alive=True, runtime="docker", traits=Traits())
    screen = PlainScreen(sink, live=False)
    screen.finished(kept, success(kept))  # no container was started
    screen.finished(kept, msgspec.structs.replace(success(kept), shell="docker exec -it 0123456789ab bash"))
    text = said()
    assert text.count("docker exec -it") == 1 and "kept: docker exec -it 0123456789ab bash " in text
    assert text.count("madlite clean --kept --yes") == 2


def failed(plan) -> Result:
    return Result(plan_id=plan.id, status=Status.FAILURE, cause=Cause.NETWORK, durations_s={"total": 1})


def test_a_run_that_is_tried_again_keeps_its_prefix_until_it_ends(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=False)
    other, again = (msgspec.structs.replace(plan, id=name) for name in ("other", "again"))
    screen.started(plan, 1, 2)
    screen.started(other, 2, 2)
    screen.retrying(plan, failed(plan), "tried again in 30 s")
    screen.finished(other, success(other))
    screen.started(again, 1, 2)
    screen.logs(again)
    screen.finished(again, failed(again))
    _, begun, *lines = said().splitlines()
    assert begun.startswith("[2/2]") and {line.partition(" ")[0] for line in lines} == {"[1/2]", "[2/2]"}
    assert sum(line.startswith("[1/2]       FAILURE") for line in lines) == 2
    assert sum(line.startswith("[1/2]       log:") for line in lines) == 1


def test_a_wait_that_is_ended_is_told_under_the_run_s_own_prefix(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=False)
    other = msgspec.structs.replace(plan, id="other")
    screen.started(plan, 1, 2)
    screen.started(other, 2, 2)
    screen.retrying(plan, failed(plan), "tried again in 30 s")
    screen.finished(plan, failed(plan))
    screen.finished(other, success(other))
    assert sum(line.startswith("[1/2]       FAILURE") for line in said().splitlines()) == 2


def test_runs_one_after_another_have_no_prefix_however_often_they_are_tried(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=False)
    again = msgspec.structs.replace(plan, id="again")
    screen.started(plan, 1, 2)
    screen.retrying(plan, failed(plan), "tried again in 30 s")
    screen.started(again, 1, 2)
    screen.finished(again, failed(again))
    assert sum(line.startswith("      FAILURE") for line in said().splitlines()) == 2


def test_failures_of_an_earlier_command_of_the_batch_are_named_in_its_totals(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=False)
    screen.failed_before("old", "exit_code")
    screen.finished(plan, success(plan))
    ended = RunOutcome(results=(failed(plan), success(plan)), not_started=(), exit_code=ExitCode.RUN_FAILED)
    screen.total(ended, Path("perf.csv"))
    assert "1 FAILURE, 1 SUCCESS\nfailed: old (exit_code)\n" in said()


def test_a_batch_of_which_one_run_ended_has_totals(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=False)
    screen.finished(plan, failed(plan))
    screen.total(RunOutcome(results=(failed(plan),), not_started=("b",), exit_code=ExitCode.RUN_FAILED), None)
    assert "1 FAILURE\nfailed: tiny (network)\n" in said()


def test_rows_that_are_not_in_the_results_file_are_named(plan, pipe):
    sink, said = pipe
    screen = PlainScreen(sink, live=False)
    screen.logs(plan)
    for _ in range(2):
        screen.finished(plan, success(plan))
    outcome = RunOutcome(results=(), not_started=(), exit_code=ExitCode.OK)
    for aside in ((), ("m",), ("m", "n")):
        screen.total(msgspec.structs.replace(outcome, pending=aside), Path("perf.csv"))
    lines = said().splitlines()
    assert lines[0] == f"      log: madlite_runs/{plan.id}/run.log"
    assert lines[-3:] == ["results: perf.csv", "results: perf.csv, but for m", "no results in perf.csv: m, n"]
