"""The trainer's clock against madlite's, or against the log's own time stamps."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from madlite import step_format
from madlite.backends.log_formats import FormatBackend
from madlite.measure.checks.figures import Work, work_of_step
from madlite.measure.monitor import LogMonitor
from madlite.measure.training import stamp_s
from madlite.measure.verdict import Expected, Observation, Verdict, judge, judge_steps
from madlite.model import Cause, Exit, Quantity, ResultRule, RunPlan, Status, Variant
from madlite_plugins.torchrun.reader import OwnReader
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.measure.checks.runs import plan_of, says, texts
from tests.monitors import monitored
from tests.rows import each_row

STEP = step_format(r"step (?P<n>\d+) tps (?P<tokens_per_s_per_gpu>\S+)")
RULE = ResultRule(kind="steps", loss_expected=False)
TOKENS = 1000  # of a step
Timed = Iterable[tuple[float, str]]


def plan(**variant: object) -> RunPlan:
    sizes = {"seq_len": 100, "micro_batch": 10, "global_batch": 10, **variant}
    return plan_of("torchtitan", Variant(model="m", **sizes), result_rule=RULE)


def run(lines: Timed, made: RunPlan | None = None, pattern: FormatBackend = STEP, lived_s: float = 1e6) -> Verdict:
    """Return the verdict of a run whose lines arrive at these times."""
    clock = [0.0]
    log = LogMonitor([OwnReader(pattern.reader(None))], now=lambda: clock[0])
    for at, text in lines:
        clock[0] = at
        log.feed(f"{text}\n".encode())
    log.finish()
    return judge(made or plan(), Observation(exit=Exit(code=0, duration_s=lived_s)), log)


def steps(count: int = 30, seconds: float = 0.1, speed: float = 1.0, *, every: int = 1, begin: float = 5.0) -> Timed:
    """Yield a training's lines; its printed speed is `speed` times the true one."""
    for n in range(every, count + 1, every):
        yield begin + n * seconds, f"step {n} tps {speed * TOKENS / seconds:.1f}"


@each_row("speed", [100.0, 10.0, 2.0, 1.6])
@each_row(("seconds", "every", "count"), [(0.1, 1, 20), (2.0, 1, 12), (0.1, 10, 60)])
def test_a_speed_above_what_the_clock_allows_is_doubted(speed, seconds, every, count):
    verdict = run(steps(count, seconds, speed, every=every))
    assert verdict.status is Status.SUCCESS and len(verdict.suspect) == 1
    assert f" s by madlite's clock: {TOKENS / seconds:,.0f} tokens/s/GPU" in verdict.suspect[0]
    assert says(verdict)["clock"] == "warn"


@each_row("speed", [0.6, 0.5, 0.001])
@each_row(("seconds", "every", "count"), [(0.1, 1, 20), (2.0, 1, 12), (0.1, 10, 60)])
def test_a_speed_far_below_what_the_clock_shows_is_doubted(speed, seconds, every, count):
    verdict = run(steps(count, seconds, speed, every=every))
    assert verdict.status is Status.SUCCESS and len(verdict.suspect) == 1
    assert f" s by madlite's clock: {TOKENS / seconds:,.0f} tokens/s/GPU" in verdict.suspect[0]


def test_a_speed_below_the_clock_s_is_not_doubted_where_gpus_may_share_a_rank_s_tokens():
    shared = replace(plan(global_batch=None), settings={"accumulation": 1})
    assert run(steps(speed=0.1), shared).suspect == ()
    # phases between lines do not hide a speed that is none
    lines = [(at, line.replace("10000.0", "999999.0")) for at, line in between((10, 20, 30), 3.0, "eval: loss 2")]
    assert says(run(lines))["clock"] == "warn"
    # an mfu above 100 percent is doubted
    assert titan(mfu=99.0).suspect == ()
    assert titan(mfu=3098.0).suspect == ("the trainer reports an MFU of 3098 %, which is above 100 %",)


@each_row("speed", [4.0, 0.2])
def test_a_speed_of_texts_of_any_length_is_told_and_not_doubted(speed):
    verdict = run(steps(speed=speed), replace(plan(), settings={"packed": False}))
    assert verdict.suspect == () and any("by madlite's clock" in one for one in verdict.findings)


@each_row(("factor", "row"), [(1.0, "pass"), (1000.0, "warn"), (0.001, "warn"), (2.0, "warn")])
def test_a_step_s_time_is_compared_with_the_clock(factor, row):
    pattern = step_format(r"step (?P<n>\d+) took (?P<step_time_s>\S+)")
    rule = ResultRule(kind="steps", loss_expected=False, headline=Quantity.STEP_TIME_S, headline_metric="step_time_s")
    lines = ((5.0 + n * 0.2, f"step {n} took {0.2 * factor}") for n in range(1, 31))
    assert says(run(lines, replace(plan(), result_rule=rule), pattern))["clock"] == row


def test_steps_that_take_longer_than_the_process_lived_are_no_result():
    slow = replace(plan(), result_rule=RULE)
    verdict = run(steps(20, 10.0), slow, lived_s=9.0)
    assert (verdict.status, verdict.cause) == (Status.FAILURE, Cause.BAD_NUMBER)
    assert verdict.reason == "15 steps at 100 tokens/s/GPU take 150 s, and the training ran for 9 s"
    assert run(steps(20, 10.0), slow, lived_s=205.0).status is Status.SUCCESS


def between(after: Iterable[int], seconds: float, text: str = "") -> Timed:
    """Yield a training's lines with something else after some of its steps."""
    late = 0.0
    for n, (at, line) in enumerate(steps(40), 1):
        yield at + late, line
        if n in after:
            late += seconds
            if text:
                yield at + late - 0.001, text


LOOK_ALIKES = {
    "as it should be": steps(),
    "a third above": steps(speed=1.33),
    "a quarter below": steps(speed=0.75),
    "a validation longer than the training between two": between(range(1, 41), 1.0, "validation loss 2.1"),
    "a checkpoint every 10 steps": between(range(10, 41, 10), 20.0, "Saved the checkpoint in 20 s"),
    "the same without a word": between(range(10, 41, 10), 20.0),
    "an evaluation after every other step, without a word": between(range(2, 41, 2), 5.0),
    "all at the end": ((60.0, line) for _, line in steps()),
    "all at the end, in two blocks": ((60.0 if n < 20 else 90.0, line) for n, (_, line) in enumerate(steps(40))),
    "in blocks": ((5.0 + 0.8 * (1 + n // 8), line) for n, (_, line) in enumerate(steps(80))),
    "in blocks, and the last at the end": (
        (5.0 + 0.8 * (1 + n // 8) + (30 if n > 71 else 0), line) for n, (_, line) in enumerate(steps(80))
    ),
    "every tenth step": steps(100, every=10),
    "steps so short that printing takes as long": (
        (5.0 + n * 0.004, line) for n, (_, line) in enumerate(steps(50, 0.001))
    ),
    "a bar between the lines": (
        one for at, line in steps() for one in ((at, line), (at, " 5%|#    | 2/40 [00:01<00:19,  2.00it/s]"))
    ),
}


@each_row("name", LOOK_ALIKES)
def test_what_the_clock_does_not_speak_against_is_not_doubted(name):
    verdict = run(LOOK_ALIKES[name])
    assert verdict.status is Status.SUCCESS and verdict.suspect == ()


@each_row(
    "made", [plan(seq_len=None), plan(micro_batch=None, global_batch=None), plan_of("torchtitan", result_rule=RULE)]
)
def test_without_the_tokens_of_a_step_nothing_is_known(made):
    verdict = run(steps(speed=100.0), made)
    assert says(verdict)["clock"] == "unknown" and "not known" in texts(verdict)["clock"]


def test_the_log_s_own_sizes_go_before_the_plan_s():
    told = {"global_batch": "16", "world_size": "8", "seq_len": "8,192"}
    tokens = Quantity.TOKENS_PER_S_PER_GPU
    assert work_of_step(tokens, plan(), told) == Work(amount=16384) == work_of_step(tokens, None, told)
    assert work_of_step(Quantity.SAMPLES_PER_S_PER_GPU, None, told) == Work(amount=2)
    assert work_of_step(tokens, None, {**told, "world_size": ""}) is None
    assert work_of_step(Quantity.TFLOPS_PER_GPU, plan(), told) is None
    accumulated = replace(plan(global_batch=None), settings={"accumulation": 4})
    assert work_of_step(tokens, accumulated, {}) == Work(amount=4000, at_most=True)
    two = replace(plan(), place=replace(plan().place, gpus_per_node=2))
    assert work_of_step(tokens, two, {}) == Work(amount=500)
    assert work_of_step(tokens, replace(plan(), settings={"nproc_per_node": 2}), {}) == Work(amount=500)


@each_row("world", [{}, {"world_size": "unknown"}])
def test_without_the_ranks_of_a_global_batch_the_passes_of_one_rank_are_the_most(world):
    told = {"global_batch": "64", "micro_batch": "2", "seq_len": "8192", **world}
    passed = {**told, "gradient_accumulation_steps": "4"}
    assert work_of_step(Quantity.TOKENS_PER_S_PER_GPU, None, passed) == Work(amount=65536, at_most=True)
    assert work_of_step(Quantity.SAMPLES_PER_S_PER_GPU, None, passed) == Work(amount=8, at_most=True)
    assert work_of_step(Quantity.TOKENS_PER_S_PER_GPU, None, told) is None


HEAD = "[titan] 2026-11-22 10:00:00,000 - root - INFO - "
SIZES = (
    f"{HEAD}Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1, etp=1\n"
    f"{HEAD}Trainer is initialized with local batch size 2, global batch size 16, gradient accumulation steps 1, "
    "sequence length 8192, total steps 30 (warmup 2)\n"
)


def titan(speed: float = 1.0, mfu: float = 40.0, aside: str = "", pause_s: int = 0, sizes: str = SIZES) -> Verdict:
    """Return the verdict of a foreign log of torchtitan's, of 2 s a step by its own stamps."""
    text, now = sizes, 0
    for n in range(1, 31):
        now += 2
        stamp = f"[titan] 2026-11-22 10:{now // 60:02}:{now % 60:02},123 - root - INFO - "
        tps = f"{speed * 8192:,.0f}"
        text += f"{stamp}step: {n:2}  loss: 2.5  memory: 1.0GiB(1.0%)  tps: {tps}  tflops: 400.0  mfu: {mfu:.2f}%\n"
        if aside and n % 5 == 0:
            now += pause_s
            text += f"{stamp}{aside}\n"
    log = monitored([Torchtitan().reader(None)], f"{text}{HEAD}Training completed\n")
    return judge_steps(Expected(rule=Torchtitan().result_rule(), steps=30), log)


def test_a_foreign_log_is_compared_with_its_own_time_stamps():
    assert titan().suspect == () and says(titan())["clock"] == "pass"
    (doubt,) = titan(speed=100.0).suspect
    assert doubt == (
        "reported 819,200 tokens/s/GPU, but 25 steps × 16,384 tokens took 50 s by the log's own time stamps: "
        "8,192 tokens/s/GPU"
    )
    assert titan(aside="Saving the checkpoint (or staging if async is enabled).", pause_s=60).suspect == ()
    assert titan(speed=100.0, aside="Saving the checkpoint", pause_s=60).suspect
    # a log that names no ranks is compared with the most that one has
    assert titan(sizes=OF_ONE_RANK).suspect == ()
    assert titan(speed=0.01, sizes=OF_ONE_RANK).suspect == (), "of 100 GPUs that share a rank's sequences"
    (doubt,) = titan(speed=100.0, sizes=OF_ONE_RANK).suspect
    assert "25 steps × at most 16,384 tokens took 50 s" in doubt and doubt.endswith(": at most 8,192 tokens/s/GPU")
    twice = OF_ONE_RANK.replace(
        "batch size 16, gradient accumulation steps 1", "batch size 32, gradient accumulation steps 2"
    )
    assert titan(speed=2.5, sizes=OF_ONE_RANK).suspect and titan(speed=2.5, sizes=twice).suspect == ()


OF_ONE_RANK = SIZES.splitlines(keepends=True)[1]  # a log without the line of the device mesh


@each_row(
    ("value", "told"),
    [
        (21500.4, "21,500"),
        (1e6, "1,000,000"),
        (999.96, "1,000"),
        (12.345, "12.35"),
        (0.0512, "0.0512"),
        (1e5, "100,000"),
    ],
)
def test_a_speed_is_told_without_an_exponent(value, told):
    speed = value / TOKENS
    verdict = run([(5.0 + n / speed, f"step {n} tps {value}") for n in range(1, 20)])
    assert texts(verdict)["clock"].startswith(f"reported {told} tokens/s/GPU, and ")


@each_row(
    ("first", "second", "seconds"),
    [
        ("[titan] 2026-11-22 10:00:03,123 - root", "[titan] 2026-11-22 10:00:05,623 - root", 2.5),
        ("[20261122 23:59:59][rank-0/8]", "[20261123 00:00:01][rank-0/8]", 2.0),
        ("2026-11-22T10:00:03.5Z step 1", "2026-11-22T10:01:03.25Z step 2", 59.75),
        ("I1122 10:00:03.500000 7 x.py", "I1122 10:00:04.000000 7 x.py", 0.5),
        (" [2026-11-22 10:00:03] iteration 1/ 9 |", " [2026-11-22 10:00:13] iteration 2/ 9 |", 10.0),
    ],
)
def test_stamps(first, second, seconds):
    assert stamp_s(second) - stamp_s(first) == pytest.approx(seconds)


@each_row("text", ["step 3 tps 5", "5%| | 2/40 [00:01<00:19, 2it/s]", "2026-13-45 10:00:00", "1:02:03<"])
def test_what_is_no_stamp(text):
    assert math.isnan(stamp_s(text))
