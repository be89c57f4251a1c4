"""The verdict: what ended a run explains it first, then its exit code, then its numbers."""

from __future__ import annotations

import msgspec
import pytest

from madlite.backends.base import PatternReader
from madlite.backends.step_lines import step_pattern
from madlite.measure.monitor import LogMonitor
from madlite.measure.performance import FileResults, make_metric
from madlite.measure.verdict import Observation, judge
from madlite.model import Cause, Ended, ErrorScan, Exit, FailureRule, ResultRule, Status, Variant
from madlite.model.results import StopReason
from madlite.plan.make import make_plan
from tests.monitors import monitored
from tests.plan.conftest import given  # noqa: F401 - a fixture
from tests.rows import each_row

PATTERN = step_pattern(r"step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>\S+)(?: loss=(?P<loss>\S+))?")
DONE = Exit(code=0, duration_s=1e6)


def follow(text: str, rules=(), error_scan=None) -> LogMonitor:
    return monitored([PatternReader(PATTERN)], text, rules, error_scan=error_scan)


@pytest.fixture
def plan(given):  # noqa: F811
    def make(**changes):
        return msgspec.structs.replace(make_plan(given()), **changes)

    return make


def steps_plan(plan, steps=20):
    return plan(variant=Variant(model="m", steps=steps), result_rule=ResultRule(kind="steps"))


def training(last: int, loss: str = "2.5") -> str:
    return "".join(f"step={n} tps={1000 + n} loss={loss}\n" for n in range(1, last + 1))


def test_a_complete_training_is_a_success(plan):
    verdict = judge(steps_plan(plan), Observation(exit=DONE), follow(training(20)))
    assert verdict.status is Status.SUCCESS
    assert verdict.window.median == 1013  # steps 6 to 20
    (metric,) = verdict.metrics
    assert (metric.metric, metric.text) == ("tokens_per_s_per_gpu", "1013")
    assert metric.columns["num_gpus"] == "8" and metric.columns["device"] == "MI300X"


@each_row(
    ("text", "cause"),
    [
        (training(19), Cause.INCOMPLETE),
        (training(10) + "step=11 tps=5 loss=nan\n" + training(20), Cause.NAN_LOSS),
        (training(20, "inf"), Cause.NAN_LOSS),
        ("".join(f"step={n} tps=1000\n" for n in range(1, 21)), Cause.NAN_LOSS),
        ("nothing\n", Cause.NO_METRIC),
        ("".join(f"step={n} tps=0 loss=1\n" for n in range(1, 21)), Cause.BAD_NUMBER),
    ],
)
def test_exit_code_0_is_not_enough(plan, text, cause):
    verdict = judge(steps_plan(plan), Observation(exit=DONE), follow(text))
    assert (verdict.status, verdict.cause) == (Status.FAILURE, cause) and verdict.reason


class Launched(PatternReader):
    """Reads steps, and what a launcher says of its exit code."""

    def feed(self, line):
        if line.text.startswith("launcher: "):
            return (Ended(marker=line.text, code=int(line.text.split()[-1])),)
        return super().feed(line)


@each_row(("end", "status"), [("0", Status.SUCCESS), ("1", Status.FAILURE), ("-9", Status.FAILURE)])
def test_a_launcher_that_says_it_failed_is_believed_over_exit_code_0(plan, end, status):
    log = LogMonitor([Launched(PATTERN)])
    log.feed(f"{training(20)}launcher: {end}\nthe script goes on\n".encode())
    verdict = judge(steps_plan(plan), Observation(exit=DONE), log)
    assert verdict.status is status
    if status is Status.FAILURE:
        assert (verdict.cause, verdict.evidence, verdict.metrics) == (Cause.EXIT_CODE, f"launcher: {end}", ())


def test_torchrun_s_own_word_on_a_failed_rank_is_believed_over_exit_code_0(plan):
    failed = training(20) + "Traceback (most recent call last):\nOSError: full\nx.ChildFailedError: \n"
    verdict = judge(steps_plan(plan), Observation(exit=DONE), follow(failed))
    assert (verdict.cause, verdict.evidence) == (Cause.EXIT_CODE, "OSError: full")
    again = judge(steps_plan(plan), Observation(exit=DONE), follow(failed + training(20)))
    assert again.status is Status.SUCCESS
    # a traceback alone does not outdo exit code 0
    text = training(20) + "Traceback (most recent call last):\nOSError: a logger's\n"
    assert judge(steps_plan(plan), Observation(exit=DONE), follow(text)).status is Status.SUCCESS
    # the cause is told from torchruns footer
    text = (
        "[rank0]:[rank0]: ValueError: Some arguments are not used: ['--nosuch']\n"
        "E1121 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n  exitcode  : 1 (pid: 7)\n"
    )
    verdict = judge(plan(), Observation(exit=Exit(code=1, duration_s=1.0)), follow(text))
    assert verdict.evidence == "ValueError: Some arguments are not used: ['--nosuch']"
    # a plugins rule explains first
    log = follow("x\nboom 17\nError: y\n", [FailureRule(pattern=r"boom \d+", cause="boom", hint="mind the boom")])
    verdict = judge(plan(), Observation(exit=Exit(code=1, duration_s=1.0)), log)
    assert verdict.evidence == "boom 17" and "(boom); mind the boom" in verdict.reason


def test_steps_before_the_window_are_no_result_and_few_are_told(plan):
    verdict = judge(steps_plan(plan, steps=4), Observation(exit=DONE), follow(training(4)))
    assert (verdict.status, verdict.cause) == (Status.FAILURE, Cause.NO_METRIC)
    verdict = judge(steps_plan(plan, steps=8), Observation(exit=DONE), follow(training(8)))
    assert verdict.status is Status.SUCCESS and "low samples" in verdict.findings[0]
    # a step before the run that fails
    seen = Observation(exit=Exit(code=128, duration_s=1), failed_action="clone")
    verdict = judge(plan(), seen, follow(""))
    assert verdict.cause is Cause.PREPARE and "clone" in verdict.reason
    # who ended the run comes first
    seen = Observation(
        exit=Exit(code=-2, duration_s=1), stop=StopReason(cause=Cause.TIMEOUT, text="timed out after 6 s")
    )
    verdict = judge(plan(), seen, follow("performance: 5 x\n"))
    assert (verdict.cause, verdict.reason, verdict.metrics) == (Cause.TIMEOUT, "timed out after 6 s", ())


SCAN = ErrorScan(patterns=("RuntimeError:", "Traceback"), benign=("expected",))
CAUGHT = "Traceback (most recent call last):\nRuntimeError: boom\nperformance: 5 tok/s\n"


def test_a_number_beside_an_error_pattern_is_a_failure_that_keeps_it(plan):
    verdict = judge(plan(), Observation(exit=DONE), follow(CAUGHT, error_scan=SCAN))
    assert (verdict.status, verdict.cause) == (Status.FAILURE, Cause.ERROR_PATTERN)
    assert "'Traceback', 'RuntimeError:'" in verdict.reason
    assert verdict.evidence == "Traceback (most recent call last): | RuntimeError: boom"
    (metric,) = verdict.metrics
    assert (metric.text, metric.metric, metric.status) == ("5", "tok/s", Status.FAILURE)
    assert "log_error_pattern_scan" in verdict.findings[-1] and "log_error_benign_patterns" in verdict.findings[-1]
    # of several results beside an error pattern none is taken over
    rule = ResultRule(kind="multiple_results", file="r.csv")
    read = FileResults(metrics=(make_metric("5", "tok/s", label="a"), make_metric("6", "tok/s", label="b")))
    verdict = judge(plan(result_rule=rule), Observation(exit=DONE, results=read), follow(CAUGHT, error_scan=SCAN))
    assert (verdict.cause, verdict.metrics) == (Cause.ERROR_PATTERN, ()) and "r.csv" in verdict.reason
    # a failed script has no number even after a result line
    log = follow("performance: 5 x\nValueError: bad\nbye\n")
    verdict = judge(plan(), Observation(exit=Exit(code=3, duration_s=1.0)), log)
    assert (verdict.cause, verdict.metrics) == (Cause.EXIT_CODE, ())
    assert verdict.evidence == "ValueError: bad" and "exit code 3" in verdict.reason
    # multiple results
    rule = ResultRule(kind="multiple_results", file="r.csv")
    good, bad = make_metric("5", "tok/s", label="a"), make_metric("", "tok/s", label="b")
    some = judge(plan(result_rule=rule), Observation(exit=DONE, results=FileResults(metrics=(good, bad))), follow(""))
    assert some.status is Status.SUCCESS and len(some.metrics) == 2 and some.findings
    none = judge(plan(result_rule=rule), Observation(exit=DONE, results=FileResults(metrics=(bad, bad))), follow(""))
    assert (none.status, none.cause) == (Status.FAILURE, Cause.BAD_NUMBER)
    missing = judge(plan(result_rule=rule), Observation(exit=DONE), follow("performance: 5 x\n"))
    assert (missing.cause, missing.metrics) == (Cause.NO_METRIC, ()) and "r.csv" in missing.reason


@each_row(
    ("text", "scan"),
    [
        (CAUGHT, None),
        ("RuntimeError: expected\nperformance: 5 tok/s\n", SCAN),
        ("step=1 tps=9 loss=1\n" + CAUGHT, SCAN),  # a reader knows this log
    ],
)
def test_an_error_pattern_counts_only_where_it_says_something(plan, text, scan):
    assert judge(plan(), Observation(exit=DONE), follow(text, error_scan=scan)).status is Status.SUCCESS


@each_row(("exit_code", "text", "cause"), [(1, CAUGHT, Cause.EXIT_CODE), (0, "RuntimeError: boom\n", Cause.NO_METRIC)])
def test_a_failure_of_its_own_is_told_as_that(plan, exit_code, text, cause):
    verdict = judge(plan(), Observation(exit=Exit(code=exit_code, duration_s=1)), follow(text, error_scan=SCAN))
    assert (verdict.cause, verdict.metrics) == (cause, ())


def test_a_reader_that_raises_is_left_out_and_the_rest_goes_on():
    class Broken:
        def feed(self, line):
            raise RuntimeError("oops")

        def finish(self, outputs):
            return ()

    log = monitored([Broken(), PatternReader(PATTERN)], training(3))
    assert len(log.steps) == 3
