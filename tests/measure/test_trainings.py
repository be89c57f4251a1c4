"""A log with several trainings whose reader tells them apart: what is kept is the last one's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from madlite import without_label
from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Expected, Observation, judge_steps
from madlite.model import (
    Cause,
    EffectiveConfig,
    Ended,
    Event,
    Exit,
    Line,
    Phase,
    Quantity,
    ResultRule,
    Status,
    Step,
    StopReason,
    Summary,
)
from tests.monitors import monitored
from tests.rows import each_row

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


def follow(*texts: str) -> LogMonitor:
    return monitored([Reader()], texts)


def test_the_last_training_counts_whatever_the_one_before_was():
    # steps figures and a loss of the training before are gone
    log = follow("1 9.0", "2 nan", "9 9.0", "mean 9", "end", "begin", *(f"{n} 0.5" for n in range(1, 9)))
    assert (log.trainings, log.nan_loss, log.summary, log.ended, log.restarted_at) == (2, "", {}, False, None)
    verdict = judge_steps(Expected(rule=RULE, warmup_steps=2), log)
    assert verdict.status is Status.SUCCESS and verdict.window.max == 0.5
    # a training that failed before does not fail the one after it
    assert follow("1 9.0", "failed", "begin", "1 0.5").failures.launcher_line == ""
    assert follow("1 9.0", "begin", "1 0.5", "failed").failures.launcher_line == "failed"
    # a whole training after another is the one that counts
    for first in (50, 30, 100):
        log = follow(*trained(1, first, 9.0), "end", *trained(1, 30, 0.5), "end")
        verdict = judged(log, 30)
        assert (verdict.status, log.trainings, log.restarted_at) == (Status.SUCCESS, 2, None)
        assert (verdict.window.first_step, verdict.window.last_step, verdict.window.max) == (6, 30, 0.5)
        assert "the log has 2 trainings one after another: this is the last one's result" in verdict.findings
        assert "step 30 of 30, in the last of 2 trainings" in [one.text for one in verdict.checks]

    # where the log says how many steps no end mark is needed
    class Asking(Reader):
        def feed(self, line: Line) -> Iterable[Event]:
            return [EffectiveConfig(values={"steps": "30"})] if line.text == "begin" else super().feed(line)

    log = LogMonitor([Asking()])
    log.feed("\n".join(["begin", *trained(1, 30, 9.0), *trained(1, 30, 0.5), ""]).encode())
    assert (log.trainings, judged(log, 30).window.max) == (2, 0.5)


def test_a_last_training_that_is_not_whole_is_no_result():
    # a last training without a step has no result
    verdict = judge_steps(Expected(rule=RULE), follow(*(f"{n} 0.5" for n in range(1, 20)), "begin", "failed"))
    assert verdict.reason == "the last of 2 trainings has no step" and verdict.evidence == "failed"
    # a second training that stops early is incomplete
    log = follow(*trained(1, 30, 9.0), "end", *trained(1, 20, 0.5))
    assert judged(log, 30).reason == "step 20 was the last of 30 asked for"
    # It was started again from its begin: nobody says why, and a loss that is not finite may be why
    log = follow(*trained(1, 12, 9.0), "13 nan", *trained(1, 30, 0.5), "end")
    assert (log.trainings, log.restarted_at) == (1, 1) and log.nan_loss == "13 nan"
    # steps above those asked for are no result
    within = judged(follow(*trained(1, 60, 0.5), "end"), 50)
    assert (within.status, within.window.last_step) == (Status.SUCCESS, 50)
    above = judged(follow(*trained(1001, 1050, 0.5), "end"), 50)
    assert above.reason == "the log has no training step up to the 50 asked for: its steps begin with 1001"


def trained(first: int, last: int, loss: float) -> list[str]:
    return [f"{n} {loss}" for n in range(first, last + 1)]


def judged(log: LogMonitor, steps: int | None = None):
    return judge_steps(Expected(rule=RULE, steps=steps), log)


@each_row("first", [2, 4, 5, 6, 7, 12, 29])
def test_of_a_training_started_again_from_its_first_step_all_steps_are_the_last_ones(first):
    verdict = judged(follow(*trained(1, first, 9.0), *trained(1, 30, 0.5), "end"), 30)
    assert (verdict.status, verdict.suspect, verdict.window.max) == (Status.SUCCESS, (), 0.5)
    again = [text for text in verdict.findings if "started again from step 1: all steps are those since" in text]
    assert bool(again) == (first > 6)


@each_row(("first", "again"), [(12, 2), (30, 1), (29, 3)])
def test_steps_of_two_trainings_are_doubted(first, again):
    """It went on from a checkpoint, or the first came as far as the last: the steps may be those of two ranks."""
    verdict = judged(follow(*trained(1, first, 9.0), *trained(again, 30, 0.5)))
    assert any("the steps went back" in text for text in verdict.suspect), verdict


def test_other_steps_of_the_training_before_are_doubted():
    every_third, every_sixth = (
        [f"{n} {loss}" for n in range(0, last, by)] for last, by, loss in ((30, 3, 9.0), (60, 6, 0.5))
    )
    verdict = judged(follow(*every_third, *every_sixth))
    assert any("the steps went back" in text for text in verdict.suspect)
    # steps of a longer training before are not mixed in though nothing tells its end
    verdict = judged(follow(*trained(1, 100, 9.0), *trained(1, 30, 0.5)))
    assert (verdict.window.last_step, verdict.window.max) == (30, 0.5)


@each_row("block", [1, 2, 3, 5, 10])
def test_steps_of_two_ranks_without_a_label_are_no_second_training(block):
    blocks = [(n, min(n + block - 1, 10)) for n in range(1, 11, block)]
    log = follow(*(text for begin, end in blocks for loss in (9.0, 8.0) for text in trained(begin, end, loss)))
    assert log.is_mixed or any("went back" in text for text in judged(log).suspect)


def ranks_of(log: LogMonitor) -> Counter[int | None]:
    """Return how many steps each rank reported."""
    return Counter(step.rank for step in log.steps)


def test_several_ranks_begin_again_together():
    class Ranked(Reader):
        def feed(self, line: Line) -> Iterable[Event]:
            (event,) = super().feed(line)
            return [replace(event, rank=rank) for rank in (0, 1)] if isinstance(event, Step) else [event]

    log = LogMonitor([Ranked()])
    log.feed("\n".join([*trained(1, 30, 9.0), "end", *trained(1, 30, 0.5), "end", ""]).encode())
    assert (log.trainings, ranks_of(log), judged(log, 30).window.max) == (2, {0: 30, 1: 30}, 0.5)
    # logs of ranks one after another are one training's
    ranks = [["start", *trained(1, 30, 9.0), "end"] for _ in range(3)]
    log = follow_starts(*(f"[rank{rank}]: {text}" for rank, texts in enumerate(ranks) for text in texts))
    assert (log.trainings, ranks_of(log)) == (1, {0: 30, 1: 30, 2: 30})
    # a script's own trainings are not told apart
    log = LogMonitor([], script_reader=Reader())
    log.feed("\n".join([*trained(1, 30, 9.0), "31 nan", "end", *trained(1, 30, 0.5), "end", ""]).encode())
    assert log.trainings == 1 and log.nan_loss == "31 nan"


class Starting(Reader):
    """Reads `start` too, of whatever rank."""

    def feed(self, line: Line) -> Iterable[Event]:
        text = without_label(line)
        if text == "start":
            return [Phase(name="setup", starts=True)]
        found = super().feed(replace(line, text=text))
        return [replace(event, rank=line.rank) if isinstance(event, Step) else event for event in found]


def follow_starts(*texts: str) -> LogMonitor:
    return monitored([Starting()], texts)


def test_a_start_after_an_end_is_another_training_s():
    # a start after an end is another training's though no step of it came
    first = ("start", *trained(1, 30, 9.0), "end")
    for rest in (["start"], ["start", "start"], ["start", "end"]):
        log = follow_starts(*first, *rest)
        verdict = judged(log, 30)
        assert (verdict.status, verdict.cause, log.trainings) == (Status.FAILURE, Cause.INCOMPLETE, 2)
        assert verdict.reason == "the last of 2 trainings has no step"
    # a start after an end from a checkpoint has steps of its own
    log = follow_starts("start", *trained(1, 30, 9.0), "end", "start", *trained(31, 60, 0.5), "end")
    verdict = judged(log, 60)
    assert (log.trainings, verdict.window.first_step, verdict.window.max) == (2, 36, 0.5)
    # a start before any end is the same training's
    assert follow_starts("start", "start", *trained(1, 30, 9.0), "end").trainings == 1
    again = follow_starts("start", *trained(1, 12, 9.0), "start", *trained(11, 30, 0.5), "end")
    assert (again.trainings, again.steps.reach()) == (1, (1, 30))

    # a phase that begins nothing changes nothing
    class Compiling(Reader):
        def feed(self, line: Line) -> Iterable[Event]:
            return [Phase(name="compile")] if line.text == "begin" else super().feed(line)

    log = LogMonitor([Compiling()])
    log.feed(b"1 0.5\nbegin\n2 0.5\n")
    assert log.trainings == 1 and [step.n for step in log.steps] == [1, 2]


@each_row(
    ("first", "again", "parts"), [(40, 31, "steps 1 to 40, then 31 to 60"), (40, 41, "steps 1 to 40, then 41 to 60")]
)
def test_a_training_that_went_on_from_a_checkpoint_is_measured_from_there(first, again, parts):
    """A log that a requeued job went on with: each step counts once, and the number is the last part's."""
    log = follow_starts("start", *trained(1, first, 9.0), "start", *trained(again, 60, 0.5), "end")
    verdict = judge_steps(Expected(rule=RULE, warmup_steps=5, steps=60), log)
    (doubt,) = verdict.suspect
    assert f"measured in parts: {parts}, and the number is of the last part alone" in doubt
    assert log.steps.count() == 60 and verdict.window.max == 0.5
    assert (verdict.window.first_step, verdict.window.last_step) == (again + 5, 60)


def test_one_that_until_ended_is_measured_in_parts_too():
    log = follow_starts("start", *trained(1, 40, 9.0), "start", *trained(31, 60, 0.5))
    stop = StopReason(cause=Cause.NONE, text="--until 1 % ended the run")
    seen = Observation(exit=Exit(code=0, duration_s=9.0), stop=stop)
    verdict = judge_steps(Expected(rule=RULE, warmup_steps=5, steps=100), log, observed=seen)
    assert (verdict.status, verdict.window.first_step) == (Status.SUCCESS, 36)
    assert "measured in parts: steps 1 to 40, then 31 to 60" in verdict.suspect[0]


def test_logs_of_ranks_one_after_another_are_no_parts():
    """Cut off before their ends: nothing was started again, and the number is of all ranks' steps."""
    ranks = [[f"[rank{rank}]: {text}" for text in trained(1, 30, loss)] for rank, loss in ((0, 0.5), (1, 0.7))]
    log = follow_starts(*ranks[0], *ranks[1])
    verdict = judge_steps(Expected(rule=RULE, warmup_steps=5), log)
    assert log.restarted_at is None and verdict.window.median == 0.6
    assert not any("in parts" in text for text in (*verdict.suspect, *verdict.findings))
    # where they were started again, they were
    again = [f"[rank{rank}]: {text}" for rank in (0, 1) for text in (*trained(1, 30, 9.0), *trained(21, 40, 0.5))]
    log = follow_starts(*again)
    assert (log.restarted_at, judged(log).window.max) == (21, 0.5)


def test_a_last_part_that_is_no_longer_than_the_warm_up_has_no_number():
    log = follow_starts("start", *trained(1, 57, 9.0), "start", *trained(56, 60, 0.5), "end")
    verdict = judge_steps(Expected(rule=RULE, warmup_steps=5, steps=60), log)
    assert (verdict.status, verdict.cause) == (Status.FAILURE, Cause.NO_METRIC)
    assert verdict.reason == "no step is left after 5 steps of warm-up (the last was step 60)"


def test_a_log_of_the_later_part_alone_says_so():
    log = follow(*trained(41, 60, 0.5), "end")
    verdict = judge_steps(Expected(rule=RULE, warmup_steps=5, steps=60), log)
    assert (verdict.status, verdict.window.first_step) == (Status.SUCCESS, 46)
    assert "measured in parts: the log begins with step 41, and has none of steps 1 to 40" in verdict.findings
    # lines of ten steps each that begin in the middle of ten tell of no other part
    assert not any(
        "measured in parts" in text for text in judged(follow("5 0.5", "15 0.5", "25 0.5", "35 0.5")).findings
    )
    # ranks whose start lines come apart are no restart, nor is another start line before a few steps are done
    log = follow_starts("start", "1 0.5", "start", *trained(2, 20, 0.5), "end")
    assert log.restarted_at is None and judged(log, 20).suspect == ()
