"""A log's figures of one thing are held against each other, and a script's own number against its steps."""

from __future__ import annotations

from msgspec.structs import replace

from madlite import step_format
from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Observation, Verdict, judge, judge_line
from madlite.model import Gpu, Machine, ResultRule, RunPlan, Variant
from madlite_plugins.torchrun.reader import OwnReader
from tests.measure.checks.runs import DONE, plan_of, says, script_plan
from tests.monitors import monitored
from tests.rows import each_row

SIZES = Variant(model="m", seq_len=2048, micro_batch=2, global_batch=16)
RULE = ResultRule(kind="steps", loss_expected=False)
TRAINING = plan_of("torchtitan", SIZES, gpus=8, result_rule=RULE)
H100 = Gpu(index=0, product="NVIDIA H100 80GB HBM3")
STEPS = r"step (?P<n>\d+) "


def followed(pattern: str, line: str, count: int = 20, after: str = "") -> LogMonitor:
    """Return the log of steps whose lines are made of their number, of 1 in the first."""
    return monitored(
        [OwnReader(step_format(STEPS + pattern).reader(None))],
        "".join(f"step {n} {line.format(n=n, total=n * 32768)}\n" for n in range(1, count + 1)) + after,
    )


def judged(pattern: str, line: str, plan: RunPlan = TRAINING) -> Verdict:
    return judge(plan, Observation(exit=DONE), followed(pattern, line))


def scripted(number: str, line: str = "1000 tok/s", pattern: str = r"(?P<tokens_per_s_per_gpu>\d+) tok") -> Verdict:
    """Return the verdict of a card's own script on 8 GPUs, whose steps have 1000 tokens/s on each."""
    plan = replace(script_plan(kind="performance_line"), place=TRAINING.place)
    return judge(plan, Observation(exit=DONE), followed(pattern, line, after=f"performance: {number}\n"))


@each_row(("seconds", "status"), [("0.5", "pass"), ("0.3", "warn"), ("0.8", "warn"), ("500", "warn")])
def test_a_speed_and_a_step_s_time_come_to_the_work_of_a_step(seconds, status):
    verdict = judged(r"(?P<tokens_per_s_per_gpu>\d+) tok/s (?P<step_time_s>\S+) s", f"8192 tok/s {seconds} s")
    assert says(verdict)["consistency"] == status
    assert bool(verdict.suspect) == (status == "warn")
    if status == "warn":
        assert "8,192 tokens/s/GPU and" in verdict.suspect[0] and "it has 4,096" in verdict.suspect[0]


@each_row(("speed", "status"), [("8192", "pass"), ("65536", "warn")])
def test_a_step_s_time_and_speed_fit_the_tokens_that_were_seen(speed, status):
    plan = plan_of("torchtitan", Variant(model="m"), gpus=8, result_rule=RULE)
    pattern = r"(?P<step_time_s>\S+) s/it (?P<tokens_per_s_per_gpu>\d+) tok/s, (?P<tokens_seen>\d+) seen"
    verdict = judged(pattern, f"0.5 s/it {speed} tok/s, {{total}} seen", plan)
    assert says(verdict)["consistency"] == status


@each_row(("mfu", "status"), [("40.5", "pass"), ("20.2", "pass"), ("4.05", "warn")])
def test_tflops_and_mfu_are_of_a_peak_that_the_gpu_has(mfu, status):
    """H100: 989 TFLOP/s in BF16, 1979 in FP8, 494 in TF32; 9876 is none of its."""
    plan = replace(TRAINING, machine=Machine(vendor="NVIDIA", gpus=(H100,)))
    verdict = judged(
        r"(?P<tokens_per_s_per_gpu>\d+) (?P<tflops_per_gpu>\S+) (?P<mfu_percent>\S+)%", f"9 400 {mfu}%", plan
    )
    assert says(verdict)["consistency"] == status, verdict.suspect


@each_row(
    ("number", "status"),
    [
        ("1000 tokens/s/gpu", "pass"),
        ("8000 tokens_per_second", "pass"),
        ("1010 tokens_per_second", "pass"),
        ("8000 tokens/s/gpu", "warn"),
        ("80000 tokens_per_second", "warn"),
        ("1.0 tokens_per_second", "warn"),
        ("12 samples_per_second", "unknown"),
        ("12 latency_s", "unknown"),
        ("650 tokens/s/gpu", "pass"),
        *((f"1.0 {name}", "unknown") for name in ("ktok/s", "tokens_per_step", "eval_tokens_per_second", "tok/s/W")),
    ],
)
def test_a_script_s_own_number_is_compared_with_the_steps_of_its_log(number, status):
    verdict = scripted(number)
    assert says(verdict)["consistency"] == status
    assert bool(verdict.suspect) == (status == "warn")


def test_a_number_that_may_be_of_another_part_of_the_run_is_not_compared():
    # a script's mean may include a slow first step
    log = followed(r"(?P<tokens_per_s_per_gpu>\d+) tok", "1000 tok/s", after="performance: 50 tokens/s/gpu\n")
    assert judge_line(log).suspect
    slow = LogMonitor([OwnReader(step_format(STEPS + r"(?P<tokens_per_s_per_gpu>\d+) tok").reader(None))])
    lines = "".join(f"step {n} {2 if n == 1 else 1000} tok/s\n" for n in range(1, 21))
    slow.feed(f"{lines}performance: 50 tokens/s/gpu\n".encode())
    slow.finish()
    assert not judge_line(slow).suspect
    # how many gpus a number is of may not be known
    pattern = r"(?P<tokens_per_s_per_gpu>\d+) tok"
    assert not judge_line(followed(pattern, "1000 tok/s", after="performance: 80000 tokens_per_second\n")).suspect
    assert judge_line(followed(pattern, "1000 tok/s", after="performance: 80000 tokens/s/gpu\n")).suspect
    # of several trainings none is compared with the number
    text = "1000 tok/s"
    log = followed(r"(?P<tokens_per_s_per_gpu>\d+) tok", text, after=f"step 1 {text}\nperformance: 3 tokens/s/gpu\n")
    assert log.trainings > 1 or says(judge_line(log)).get("consistency") != "pass"
