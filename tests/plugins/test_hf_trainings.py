"""Real trainings by transformers 4.57 and 5.23 on a CPU: several in one log, stopped early, resumed, killed."""

from __future__ import annotations

import pytest

from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Observation, Verdict, judge, judge_line
from madlite.model import Cause, Exit, Quantity, Status
from madlite_plugins.hf.final_figures import figures_of, same_training
from madlite_plugins.hf.reader import HuggingFaceReader
from tests.measure.checks.runs import LOGS, script_plan, texts
from tests.monitors import monitored
from tests.rows import each_row

V4 = "hf-trainer-transformers4.57-cpu-"
DONE = Observation(exit=Exit(code=0, duration_s=1e6))


def text_of(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


def foreign(text: str) -> tuple[LogMonitor, Verdict]:
    log = monitored([HuggingFaceReader()], text)
    return log, judge_line(log)


def of_script(text: str, **rule: str) -> Verdict:
    """Return the verdict of a card's own script with this output."""
    log = monitored([], text, script_reader=HuggingFaceReader(), outputs=LOGS / "nowhere")
    return judge(script_plan(**(rule or {"kind": "performance_line"})), DONE, log)


def number(verdict: Verdict) -> str:
    (metric,) = verdict.metrics
    return metric.text


@each_row(
    ("name", "samples_per_s", "trainings", "steps"),
    [
        ("two", "7.192", 2, range(1, 13)),
        ("two-silent", "5.703", 2, []),
        ("crash-again", "5.594", 2, range(1, 41)),
        ("whole10", "5.551", 1, [*range(10, 91, 10), 95]),
        ("eval", "5.999", 1, range(5, 61, 5)),
    ],
)
def test_the_last_training_counts_and_steps_are_the_trainer_s_own(name, samples_per_s, trainings, steps):
    log, verdict = foreign(text_of(V4 + name))
    assert (verdict.status, verdict.suspect, number(verdict)) == (Status.SUCCESS, (), samples_per_s)
    assert log.trainings == trainings and list(log.steps.numbers()) == list(steps)
    noted = [one for one in verdict.findings if f"the log has {trainings} trainings" in one]
    assert bool(noted) == (trainings > 1)
    assert number(of_script(text_of(V4 + name))) == samples_per_s


@each_row(("name", "printed", "done", "of", "first"), [("early1", 82.551, 45, 300, 1), ("resume", 9.806, 30, 60, 35)])
def test_figures_of_steps_that_were_not_done_are_computed(name, printed, done, of, first):
    log, verdict = foreign(text_of(V4 + name))
    assert log.summary["train_samples_per_second"] == str(printed)
    assert float(number(verdict)) == pytest.approx(printed * done / of, rel=1e-4)
    assert next(log.steps.numbers()) == first and verdict.suspect == ()
    assert any(f"the framework's own summary, of other steps, reports {printed}" in one for one in verdict.findings)
    assert number(of_script(text_of(V4 + name))) == number(verdict)
    assert texts(of_script(text_of(V4 + name)))["summary"].startswith("it is of other steps")


@each_row("name", ["early1-notqdm", "early10-notqdm", "resume-notqdm"])
def test_figures_of_which_the_log_shows_no_steps_are_doubted(name):
    log, verdict = foreign(text_of(V4 + name))
    assert len(verdict.suspect) == 1 and "the framework's own summary is of" in verdict.suspect[0]
    assert max(log.steps.numbers()) < 50, "no step is made up"
    assert of_script(text_of(V4 + name)).suspect == verdict.suspect


def test_a_last_training_without_its_end_fails_a_run_and_is_doubted_in_a_foreign_log():
    text = text_of(V4 + "two-killed")
    log, verdict = foreign(text)
    assert verdict.suspect == ("the last of 2 trainings has no end mark, and the one before has",)
    assert any("the result of the last one that came to its end" in one for one in verdict.findings)
    assert max(log.steps.numbers()) == 11
    failed = of_script(text)
    assert (failed.status, failed.cause, failed.metrics) == (Status.FAILURE, Cause.INCOMPLETE, ())
    # of which training a script's own number is only the script knows
    verdict = of_script(text_of(V4 + "two-killed") + "\nperformance: 5 tokens_per_second\n")
    assert (verdict.status, number(verdict), verdict.suspect) == (Status.SUCCESS, "5", ())
    assert verdict.findings == (
        "the log has 2 trainings one after another: only the script knows to which of them the result belongs",
    )
    # of several results nothing is said
    verdict = of_script(text_of(V4 + "two"), kind="multiple_results", file="r.csv")
    assert not [one for one in verdict.findings if "trainings" in one]


def loss(value: float, epoch: float) -> str:
    return f"{{'loss': {value}, 'grad_norm': 0.5, 'learning_rate': 0.001, 'epoch': {epoch}}}\n"


def bar(done: int, length: int = 50, rate: str = "100.00it/s") -> str:
    return f" 9%|#    | {done}/{length} [00:00<00:01, {rate}]\n"


def test_the_bar_after_a_line_tells_its_step_and_the_one_before_lags():
    text = bar(0) + "".join(bar(n - 3) + loss(3.0, n / 100) + bar(n) for n in range(10, 51, 10))
    assert list(foreign(text)[0].steps.numbers()) == [10, 20, 30, 40, 50]
    # bars say nothing of lines that come in blocks
    text = bar(0) + bar(20) + bar(40) + "".join(loss(3.0, n / 100) for n in range(1, 41)) + bar(45)
    log, _ = foreign(text)
    assert list(log.steps.numbers()) == list(range(1, 41))
    assert list(log.steps.curve(Quantity.LOSS).values) == [3.0] * 40
    # the bar of a training is none of the next one's
    first = "".join(bar(n, 100) + loss(3.0 - n / 100, n / 50) for n in range(10, 101, 10)) + rows(100, 100)
    log, verdict = foreign(bar(0, 100) + first + bar(100, 100) + rows(50, 10))
    assert (log.trainings, number(verdict), verdict.suspect) == (2, "16.0", ())


def test_figures_are_compared_by_their_digits():
    told = {"train_runtime": "6.3335", "train_samples_per_second": "157.89", "train_steps_per_second": "78.945"}
    assert figures_of(told, 85) == ({"train_samples_per_second": "26.8413", "train_steps_per_second": "13.4207"}, "")
    assert figures_of(told, 500) == ({}, "") == figures_of(told, 499)
    assert figures_of({}, 500) == ({}, None)
    quoted = {"train_runtime": "6.334", "train_loss": "6.155", "epoch": "0.04"}
    assert same_training({**told, "train_loss": "6.155432168175192", "epoch": "0.0425"}, quoted)
    assert not same_training({**quoted, "train_loss": "6.31"}, quoted)
    # later versions count what was done
    log, verdict = foreign(text_of("hf-trainer-transformers5.23-cpu-early1"))
    assert (number(verdict), verdict.suspect, max(log.steps.numbers())) == ("5.346", (), 45)


def rows(steps: int, every: int, rate: float = 2.0, batch: int = 8) -> str:
    """Return the log of a Trainer without a bar."""
    lines = [loss(3.0 - n / steps, 2 * n / steps) for n in range(every, steps + 1, every)]
    seconds = steps / rate
    end = f"{{'train_runtime': {seconds}, 'train_samples_per_second': {rate * batch}, "
    return "".join([*lines, f"{end}'train_steps_per_second': {rate}, 'train_loss': 2.5, 'epoch': 2.0}}\n"])


@each_row("length", [10, 37, 300, 4096])
def test_a_bar_that_is_no_training_s_says_nothing_of_its_steps(length):
    """A script reads its data with a tqdm of its own."""
    text = bar(0, length) + bar(length // 2, length) + bar(length, length) + rows(100, 10)
    for log, verdict in (foreign(text), (None, of_script(text))):
        assert (verdict.status, verdict.suspect, number(verdict)) == (Status.SUCCESS, (), "16.0")
        assert log is None or log.training.computed == {}
    behind = rows(100, 10) + bar(0, length) + bar(length, length)
    assert number(foreign(behind)[1]) == "16.0" and not foreign(behind)[1].suspect
