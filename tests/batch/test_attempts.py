"""Which failures are followed by another attempt, after how long, and with which micro batch."""

from __future__ import annotations

import shutil

import pytest
from msgspec.structs import replace

from madlite.batch.attempts import Attempts, NextAttempt, Standing, next_attempt, smaller
from madlite.model import Cause, Diagnosis, MadMetric, Quantity, ResultRule, Status, Variant
from madlite.model.results import FailedAttempt, Result
from madlite.plan.submission import PlannedRun, RetryPolicy
from madlite.store.folder import RunFolder
from tests.factories import make_plan
from tests.rows import each_row

RETRY = RetryPolicy(retries=3, wait_s=10)
FALLBACK = RetryPolicy(oom_fallback=True)


def failed(diagnosed: str, by: Cause = Cause.EXIT_CODE) -> Result:
    return Result(plan_id="r", status=Status.FAILURE, cause=by, diagnosis=Diagnosis(cause=diagnosed))


def no_chance() -> float:
    return 0.0


@pytest.fixture
def plan(tmp_path):
    rule = ResultRule(kind="steps", mad=(MadMetric(metric="tps", quantity=Quantity.TOKENS_PER_S_PER_GPU),))
    return replace(make_plan(tmp_path), variant=Variant(model="m", micro_batch=8), result_rule=rule)


@each_row("cause", ["network", "preempted", "engine_unreachable"])
def test_what_passes_is_tried_again_after_waits_that_double(plan, cause):
    earlier: tuple[FailedAttempt, ...] = ()
    waits = []
    while (found := next_attempt(RETRY, plan, failed(cause), earlier, no_chance)) is not None:
        waits.append((found.wait_s, found.retry, found.micro_batch))
        earlier = (*earlier, FailedAttempt(run=f"r{len(earlier)}", cause=cause))
    assert waits == [(10, 1, None), (20, 2, None), (40, 3, None)]


@each_row("cause", [cause.value for cause in Cause if cause.value])
def test_no_other_cause_is(plan, cause):
    expected = cause in ("network", "preempted", "engine_unreachable")
    assert (next_attempt(RETRY, plan, failed(cause)) is not None) is expected


@each_row("by", [Cause.TIMEOUT, Cause.HANG, Cause.INTERRUPTED, Cause.INTERNAL])
def test_what_madlite_ended_itself_is_not_whatever_its_log_says(plan, by):
    assert next_attempt(RETRY, plan, failed("network", by)) is None
    assert next_attempt(FALLBACK, plan, failed("gpu_out_of_memory", by)) is None


def test_nor_is_a_success_or_a_run_that_must_not_start(plan):
    from madlite.model import Blocked

    assert next_attempt(RETRY, plan, Result(plan_id="r", status=Status.SUCCESS)) is None
    blocked = replace(plan, blocked=Blocked(status=Status.FAILURE, cause=Cause.ENGINE, reason="no engine"))
    assert next_attempt(RETRY, blocked, failed("engine_unreachable", Cause.ENGINE)) is None


def test_waits_are_spread_and_never_longer_than_ten_minutes(plan):
    many = RetryPolicy(retries=99, wait_s=10)
    earlier = tuple(FailedAttempt(run="r", cause="network") for _ in range(50))
    found = next_attempt(many, plan, failed("network"), earlier, lambda: 1.0)
    assert found is not None and found.wait_s == 750
    assert next_attempt(RetryPolicy(retries=1, wait_s=3600), plan, failed("network"), (), no_chance).wait_s == 3600


def test_out_of_memory_halves_the_micro_batch_down_to_one(plan):
    sizes = []
    while (found := next_attempt(FALLBACK, plan, failed("gpu_out_of_memory"))) is not None:
        assert found.wait_s == 0
        sizes.append(found.micro_batch)
        plan = replace(plan, variant=replace(plan.variant, micro_batch=found.micro_batch))
    assert sizes == [4, 2, 1]
    assert next_attempt(RETRY, plan, failed("gpu_out_of_memory")) is None, "without --oom-fallback never"


def test_fallbacks_are_no_retries(plan):
    both = RetryPolicy(retries=1, wait_s=1, oom_fallback=True)
    earlier = (FailedAttempt(run="a", cause="gpu_out_of_memory", micro_batch=16),)
    assert next_attempt(both, plan, failed("network"), earlier, no_chance) == NextAttempt(wait_s=1, retry=1, retries=1)


def test_a_script_of_the_cards_own_has_no_smaller_one(plan):
    assert smaller(plan) == 4
    assert smaller(replace(plan, result_rule=ResultRule())) is None
    assert smaller(replace(plan, variant=None)) is None


def test_an_attempt_of_a_later_command_has_its_own_retries_and_the_planned_micro_batch(plan):
    run = PlannedRun(plan=plan, backends=(), files=(), runtime=None)
    again = Attempts(plan.id, RetryPolicy(retries=1), None, Standing(failed("network"), plan.variant))
    assert again.first(run) is run and again.attempt_of(run).number == 2
    assert again.next(run, failed("network")) is not None
    assert next_attempt(RetryPolicy(retries=1), plan, failed("network"), again.attempt_of(run).earlier) is None
    of_memory = Attempts(plan.id, RetryPolicy(), None, Standing(failed("gpu_out_of_memory"), plan.variant))
    assert of_memory.first(run) is run, "without --oom-fallback it is no smaller one"


@each_row(
    ("cause", "changed", "goes_on"),
    [
        ("preempted", {}, True),
        ("nan_loss", {}, False),
        ("gpu_out_of_memory", {}, False),
        ("network", {"variant": Variant(model="m", micro_batch=4)}, False),
        ("engine_unreachable", {"settings": {"seq_len": 4096}}, False),  # planned anew, for it never began
    ],
)
def test_a_checkpoint_is_gone_on_from_by_the_same_training_and_with_sound_weights(plan, cause, changed, goes_on):
    before = replace(plan, id="r", folder=plan.folder.parent / "r", **changed)
    RunFolder.create(before, []).close()
    try:
        run = PlannedRun(plan=plan, backends=(), files=(), runtime=None)
        again = Attempts(plan.id, RetryPolicy(retries=1), None, Standing(failed(cause), before.variant))
        assert again.checkpointed(run) == (before.folder if goes_on else None)
    finally:
        shutil.rmtree(before.folder)
    assert again.checkpointed(run) is Attempts(plan.id, RetryPolicy(), None).checkpointed(run) is None
