"""A log with several trainings whose reader tells them apart: what is kept is the last one's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite.measure.follow import Follower
from madlite.measure.verdict import Asked, judge_steps
from madlite.types import Ended, Event, Line, Phase, Quantity, ResultRule, Status, Step, Summary

RULE = ResultRule(kind="steps", headline=Quantity.LOSS, headline_metric="loss")


class Reader:
    """Reads `begin`, `end`, `failed`, `mean <text>` and `<step> <loss>`."""

    def feed(self, line: Line) -> Iterable[Event]:
        word, _, rest = line.text.partition(" ")
        if word == "begin":
            return [Phase(name="training", begins=True)]
        if word in ("end", "failed"):
            return [Ended(marker=word, code=int(word == "failed"))]
        if word == "mean":
            return [Summary(values={"mean": rest})]
        return [Step(n=int(word), values={Quantity.LOSS: float(rest)})]

    def finish(self, outputs: Path) -> Iterable[Event]:
        return ()


def follow(*texts: str) -> Follower:
    log = Follower([Reader()])
    log.feed("".join(f"{text}\n" for text in texts).encode())
    log.finish()
    return log


def test_steps_figures_and_a_loss_of_the_training_before_are_gone():
    log = follow("1 9.0", "2 nan", "9 9.0", "mean 9", "end", "begin", *(f"{n} 0.5" for n in range(1, 9)))
    assert (log.trainings, log.nan_loss, log.summary, log.ended, log.restarted_at) == (2, "", {}, False, None)
    verdict = judge_steps(Asked(rule=RULE, warmup_steps=2), log)
    assert verdict.status is Status.SUCCESS and verdict.window.max == 0.5


def test_a_training_that_failed_before_does_not_fail_the_one_after_it():
    assert follow("1 9.0", "failed", "begin", "1 0.5").launcher_line == ""
    assert follow("1 9.0", "begin", "1 0.5", "failed").launcher_line == "failed"


def test_a_last_training_without_a_step_has_no_result():
    verdict = judge_steps(Asked(rule=RULE), follow(*(f"{n} 0.5" for n in range(1, 20)), "begin", "failed"))
    assert verdict.reason == "the log has no training step" and verdict.evidence == "failed"


def test_a_phase_that_begins_nothing_changes_nothing():
    class Compiling(Reader):
        def feed(self, line: Line) -> Iterable[Event]:
            return [Phase(name="compile")] if line.text == "begin" else super().feed(line)

    log = Follower([Compiling()])
    log.feed(b"1 0.5\nbegin\n2 0.5\n")
    assert log.trainings == 1 and [step.n for step in log.steps] == [1, 2]
