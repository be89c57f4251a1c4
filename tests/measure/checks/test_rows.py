"""Every row of the table happens: real logs with one fact altered, and what follows for the run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from madlite import step_format
from madlite.measure.checks import figures
from madlite.measure.checks.base import CheckInput, Number
from madlite.measure.monitor import LogMonitor
from madlite.measure.performance import FileResults, make_metric
from madlite.measure.verdict import CHECKS, Expected, Observation, Verdict, judge, judge_steps, warning_texts
from madlite.model import (
    Cause,
    Check,
    Compute,
    Event,
    Exit,
    Machine,
    Quantity,
    ResultRule,
    RunPlan,
    Status,
    Step,
    Summary,
    Variant,
)
from madlite.model.results import StopReason
from madlite.plan.place import load_architectures
from madlite_plugins.torchrun.reader import OwnReader
from tests.measure.checks.runs import (
    BACKENDS,
    DONE,
    LOGS,
    ROOT,
    SCAN,
    follow,
    judged,
    plan_of,
    script_plan,
    text_of,
    texts,
)
from tests.monitors import monitored
from tests.rows import each_row

TITAN = "torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log"
RETRY = "[rank0]:[titan] 2026-11-21 00:05:00,000 - root - WARNING - {} CUDA memory allocation retries.\n"
RAISED = "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: x\n"
OUT = "[rank1]: Traceback (most recent call last):\n[rank1]: torch.OutOfMemoryError: HIP out of memory. Tried to\n"
_INFO = "[rank0]:n1:410:583 [0] NCCL INFO "
USED, VIA = _INFO + "Using network {}\n", _INFO + "Channel 00/0 : 0[0] -> 8[0] [send] via NET/{}/0\n"
FOUND = _INFO + "NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
HCA = {"NCCL_IB_HCA": "=mlx5_0:1"}
RESULT = "performance: 5 tok/s\n"
FOOTER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def between_nodes(env: dict[str, str] = HCA) -> RunPlan:
    """Return the plan of one of two nodes with a rank each."""
    one = titan()
    return replace(one, place=replace(one.place, nodes=2, gpus_per_node=1), env=env)


def titan(**variant: object) -> RunPlan:
    values = {"precision": "BF16", "seq_len": 256, "micro_batch": 2, "global_batch": 4, "steps": 12, **variant}
    return plan_of("torchtitan", Variant(model="m", **values), gpus=2, settings={"log_ranks": "0,1", "tp": 1})


def run(alter: Callable[[str], str] = lambda text: text, plan: RunPlan | None = None, **seen: object) -> Verdict:
    return judged(plan or titan(), TITAN, alter, Observation(**{"exit": DONE, **seen}))  # type: ignore[arg-type]


def without_speed(text: str) -> str:
    return re.sub(r"tps: [\d,]+", "tps: 0", text)


def two_nodes() -> RunPlan:
    return replace(titan(), place=replace(titan().place, nodes=2))


def worker() -> Verdict:
    rule = replace(titan().result_rule, printed_on="first")
    return run(without(r"step: "), replace(two_nodes(), result_rule=rule, settings={"node_rank": "1"}))


def of_four(text: str) -> str:
    return swapped("dp_replicate=2", "dp_replicate=4")(text)


def ranked(gpus: int, quiet: set[int], told: dict[str, str] | None = None, **plan: object) -> Verdict:
    """Return the verdict of a run on whose ranks but the quiet ones print 20 steps; `told` is what its log says."""
    made = plan_of("megatron_lm", Variant(model="m", steps=20), gpus=gpus, **plan)
    log = LogMonitor([])
    log.ended, log.config = True, told or {}
    for rank in sorted(set(range(gpus or 4)) - quiet):
        for n in range(1, 21):
            log.steps.add(Step(n=n, values={Quantity.LOSS: 2.0, Quantity.TOKENS_PER_S_PER_GPU: 900.0}, rank=rank))
    return judge(made, Observation(exit=DONE), log)


def script(
    text: str, *, script_reader: bool = True, scan: bool = False, rule: dict[str, str] | None = None, **seen: object
):
    plan = script_plan(**(rule or {"kind": "performance_line"}))
    log = follow(plan, text, script_reader=script_reader, scan=SCAN if scan else None)
    return judge(plan, Observation(**{"exit": DONE, **seen}), log)  # type: ignore[arg-type]


def without(*patterns: str) -> Callable[[str], str]:
    return lambda text: "".join(
        line for line in text.splitlines(keepends=True) if not any(re.search(one, line) for one in patterns)
    )


def changed(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, new, text)


def added(lines: str) -> Callable[[str], str]:
    return lambda text: text + lines


def preceded(lines: str) -> Callable[[str], str]:
    return lambda text: lines + text


def swapped(old: str, new: str) -> Callable[[str], str]:
    def alter(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return alter


def losses(*values: float, norms: tuple[float, ...] = ()) -> Verdict:
    """Return the verdict of a training with these losses."""
    plan = titan(steps=len(values))
    log = LogMonitor([])
    log.ended = True
    for n, value in enumerate(values, 1):
        gradient = {Quantity.GRAD_NORM: norms[n - 1]} if norms else {}
        log.steps.add(Step(n=n, values={Quantity.LOSS: value, Quantity.TOKENS_PER_S_PER_GPU: 1000.0 + n, **gradient}))
    return judge(plan, Observation(exit=DONE), log)


def work(**values: object) -> Verdict:
    """Return the verdict of a run whose work was counted."""
    compute = Compute(architecture="dense", attention="full", flops_per_token=1e9, tflops_per_gpu=100.0, **values)
    log = follow(titan(), text_of(TITAN))
    known = CheckInput(expected=Expected(rule=ResultRule(kind="steps")), log=log, number=Number(), compute=compute)
    said = figures.compute(known)
    checks = (Check(name="compute", status=said.status, text=said.text),)
    return Verdict(status=Status.SUCCESS, checks=checks, suspect=warning_texts({"compute": said}))


def own(text: str, end_mark: str, decides: bool) -> Verdict:
    reader = OwnReader(OWN_STEP.reader(None), end_mark=end_mark, mark_decides=decides)
    log = monitored([reader], text, outputs=LOGS)
    rule = ResultRule(kind="steps", loss_expected=False, end_mark=end_mark)
    return judge(plan_of("torchtitan", Variant(model="m"), result_rule=rule), Observation(exit=DONE), log)


def megatron(alter: Callable[[str], str]) -> Verdict:
    """Return the verdict of a Megatron log that madlite did not make."""
    log = monitored([BACKENDS["megatron_lm"].reader(None)], alter(text_of("megatron-lm-core0.16.1-gpt-cpu-1rank.log")))
    return judge_steps(Expected(rule=ResultRule(kind="steps")), log)


def foreign(text: str, end_mark: str) -> Verdict:
    """Return the verdict of a log that madlite did not make."""
    log = monitored([OwnReader(OWN_STEP.reader(None), end_mark=end_mark)], text)
    return judge_steps(Expected(rule=ResultRule(kind="steps", loss_expected=False, end_mark=end_mark)), log)


def summed(**more: object) -> Verdict:
    """Return the verdict of a run whose framework sums it up, as its reader says."""

    class Summing(OwnReader):
        def finish(self, outputs: Path) -> list[Event]:
            return [Summary(values={"rate": "5"}, **more)]  # type: ignore[arg-type]

    log = monitored([Summing(OWN_STEP.reader(None))], OWN, outputs=LOGS)
    plan = plan_of("torchtitan", Variant(model="m"), result_rule=ResultRule(kind="steps", loss_expected=False))
    return judge(plan, Observation(exit=DONE), log)


def timed(speed: float, exit: Exit = DONE, **settings: object) -> Verdict:
    """Return the verdict of a run whose steps of 1000 tokens take 0.1 s by madlite's clock."""
    clock = [1.0]
    log = LogMonitor([OwnReader(OWN_STEP.reader(None))], now=lambda: clock[0])
    for n in range(1, 16):
        clock[0] += 0.1
        log.feed(f"step {n} tps {speed * 10_000:.0f}\n".encode())
    log.finish()
    variant = Variant(model="m", seq_len=100, micro_batch=10, global_batch=10)
    rule = ResultRule(kind="steps", loss_expected=False)
    return judge(plan_of("torchtitan", variant, result_rule=rule, settings=settings), Observation(exit=exit), log)


def twice(speed: float) -> Verdict:
    """Return the verdict of a run whose steps of 1000 tokens report their time, and a multiple of their speed."""
    pattern = step_format(r"step (?P<n>\d+) (?P<step_time_s>\S+) s (?P<tokens_per_s_per_gpu>\d+)")
    log = monitored([OwnReader(pattern.reader(None))], [f"step {n} 0.1 s {speed * 10_000:.0f}" for n in range(1, 16)])
    variant = Variant(model="m", seq_len=100, micro_batch=10, global_batch=10)
    rule = ResultRule(kind="steps", loss_expected=False)
    return judge(plan_of("torchtitan", variant, result_rule=rule), Observation(exit=DONE), log)


def comma(text: str) -> Verdict:
    """Return the verdict of a run whose steps are read by a pattern that stops within a number of another language."""
    log = LogMonitor(
        [
            OwnReader(
                step_format(r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d.]+)").reader(None)
            )
        ]
    )
    log.feed(text.encode())
    log.finish()
    rule = ResultRule(kind="steps")
    return judge(plan_of("torchtitan", Variant(model="m"), result_rule=rule), Observation(exit=DONE), log)


def training() -> str:
    return text_of(TITAN)


OWN = "".join(f"step {n} tps {100 + n % 3}\n" for n in range(1, 16))
OWN_STEP = step_format(r"step (?P<n>\d+) tps (?P<tokens_per_s_per_gpu>\d+)")
OF_COMMAS = "".join(f"step {n} loss 2,99 tps 5.121,5\n" for n in range(1, 16))
ENOUGH = StopReason(cause=Cause.NONE, text="its steps are enough")
BAD_FILE = {"kind": "multiple_results", "file": "r.csv"}
GOOD = FileResults(metrics=(make_metric("5", "tok/s", label="a"),))
RISING = [2.5] * 8 + [3.0, 5.0, 9.0, 11.0, 12.0, 12.0, 12.5]
CASES: list[tuple[tuple[str, str], Callable[[], Verdict]]] = [
    (("exit_code", "pass"), run),
    (("exit_code", "pass"), lambda: run(exit=Exit(code=-2, duration_s=1), stop=ENOUGH)),
    (("last_step", "pass"), lambda: run(without(r"step: 1[0-2] "), stop=ENOUGH)),
    (("exit_code", "fail"), lambda: run(stop=StopReason(cause=Cause.HANG, text="no step for 300 s"))),
    (("exit_code", "fail"), lambda: run(stop=StopReason(cause=Cause.TIMEOUT, text="timed out"))),
    (("exit_code", "fail"), lambda: run(exit=Exit(code=128, duration_s=1.0), failed_action="clone")),
    (("exit_code", "fail"), lambda: run(exit=Exit(code=-9, duration_s=1.0))),
    (
        ("exit_code", "unknown"),
        lambda: judge_steps(Expected(rule=ResultRule(kind="steps")), follow(titan(), training())),
    ),
    (("loss", "pass"), run),
    (("loss", "fail"), lambda: run(changed(r"(step:  5 +loss: +)[\d.]+", r"\g<1>nan"))),
    (("loss", "fail"), lambda: gone()),
    (
        ("loss", "warn"),
        lambda: script(re.sub(r"(step:  5 +loss: +)[\d.]+", r"\g<1>nan", training()) + "performance: 5 x\n"),
    ),
    (("loss", "warn"), lambda: run(added("iter 3: train loss: nan\n"))),
    (("loss", "fail"), lambda: run(changed(r"(step:  5 +loss: +)\S+( +grad_norm: +)\S+", r"\g<1>0\2nan"))),
    (("loss", "warn"), lambda: losses(6.2, 6.1, *[0.0] * 8)),
    (("loss", "warn"), lambda: losses(*[0.0] * 8)),
    (("loss", "warn"), lambda: losses(6.2, 6.1, 0.0, 0.0, 0.0, *[6.0] * 8)),
    (("loss", "warn"), lambda: comma(OF_COMMAS.replace("tps 5.121,5", "tps 5121.5"))),
    (("loss", "unknown"), lambda: script(RESULT, script_reader=False)),
    (("last_step", "pass"), run),
    (("last_step", "fail"), lambda: run(without(r"step: "))),
    (("last_step", "unknown"), lambda: worker()),
    (("last_step", "fail"), lambda: run(without(r"step: 12 "))),
    (
        ("last_step", "warn"),
        lambda: script(without(r"step: 12 ", "Training completed")(training()) + "performance: 5 x\n"),
    ),
    (("last_step", "fail"), lambda: run(changed(r"step:  ?(\d+) ", r"step: 10\1 "))),
    (("last_step", "pass"), lambda: run(without(r"step: +(?!1 |5 |10 )\d+ "))),
    (("last_step", "warn"), lambda: every_tenth(25)),
    (("last_step", "warn"), lambda: run(lambda text: text + without(r"step:  [12] |Starting|starts|Trainer is")(text))),
    (("last_step", "fail"), lambda: run(lambda text: f"{text}[rank0]:[titan] 2026 - Training starts at step 1\n")),
    (("last_step", "fail"), lambda: own(OWN + "all done\n" + OWN, "all done", False)),
    (("last_step", "warn"), lambda: foreign(OWN + "all done\n" + OWN, "all done")),
    (("last_step", "unknown"), lambda: own(OWN, "", False)),
    (("error_pattern", "pass"), lambda: script(RESULT, script_reader=False, scan=True)),
    (
        ("error_pattern", "fail"),
        lambda: script("RuntimeError: x\nperformance: 5 tok/s\n", script_reader=False, scan=True),
    ),
    (("error_pattern", "fail"), lambda: script(training() + "RuntimeError: x\nperformance: 5 tok/s\n", scan=True)),
    (("error_pattern", "unknown"), run),
    (("launcher", "pass"), run),
    (("launcher", "fail"), lambda: run(added(FOOTER))),
    (("launcher", "fail"), lambda: run(added("srun: error: n1: task 1: Exited with exit code 1\n"))),
    (("launcher", "fail"), lambda: run(added("srun: error: n1: task 1: Out Of Memory\n"))),
    (("launcher", "fail"), lambda: run(added("[ERROR] [launch.py:325:sig] a b exits with return code = 1\n"))),
    (("launcher", "fail"), lambda: script(training() + FOOTER + RESULT, scan=True)),
    (("launcher", "warn"), lambda: script(training() + FOOTER + RESULT)),
    (("launcher", "warn"), lambda: script(FOOTER + RESULT, script_reader=False, scan=True)),
    (("launcher", "fail"), lambda: run(lambda text: without("Training completed")(text) + "x: line 3:  17 Killed\n")),
    (("launcher", "fail"), lambda: run(lambda text: without("Training completed")(text) + RAISED)),
    (
        ("launcher", "warn"),
        lambda: run(lambda text: of_four(without("Training completed")(text)) + RAISED, two_nodes()),
    ),
    (("launcher", "warn"), lambda: own(OWN + RAISED, "", False)),
    (("end_mark", "pass"), run),
    (("end_mark", "fail"), lambda: own(OWN, "all done", True)),
    (("end_mark", "warn"), lambda: run(without("Training completed"))),
    (("end_mark", "warn"), lambda: own(OWN, "all done", False)),
    (("end_mark", "unknown"), lambda: run(without("Training completed"), two_nodes())),
    (("metric", "pass"), run),
    (("metric", "unknown"), lambda: worker()),
    (("metric", "warn"), lambda: run(changed(r"(step:  9 .*tps: )[\d,]+", r"\1inf"))),
    (("metric", "warn"), lambda: comma(OF_COMMAS.replace("tps 5.121,5", "tps 998,512", 12))),
    (("metric", "fail"), lambda: comma(OF_COMMAS)),
    (("metric", "fail"), lambda: script("bye\n", script_reader=False)),
    (("metric", "fail"), lambda: run(plan=replace(titan(), variant=replace(titan().variant, warmup_steps=12)))),
    (("metric", "fail"), lambda: script("performance: -5 tok/s\n", script_reader=False)),
    (("metric", "fail"), lambda: run(changed(r"tps: [\d,]+", "tps: 0"))),
    (("metric", "fail"), lambda: run(changed(r"tps: [\d,]+", "tps: 1e400"))),
    (("summary", "pass"), lambda: summed(doubt="")),
    (("summary", "pass"), lambda: summed(doubt="", computed={"rate": "3"})),
    (("summary", "warn"), lambda: summed(doubt="of other steps")),
    (("summary", "unknown"), lambda: summed()),
    (("summary", "unknown"), run),
    (("config", "pass"), run),
    (
        ("config", "fail"),
        lambda: run(swapped("local batch size 2, global batch size 4", "local batch size 4, global batch size 8")),
    ),
    (("config", "fail"), lambda: run(swapped("sequence length 256", "sequence length 128"))),
    (("config", "fail"), lambda: run(swapped("dp_replicate=2", "dp_replicate=1"))),
    (("config", "fail"), lambda: run(preceded("[rank0]:[titan] 2026 - Float8 training active\n"))),
    (("config", "warn"), lambda: run(swapped("total steps 12", "total steps 24"))),
    (("config", "warn"), lambda: run(plan=titan(precision="FP8"))),
    (("config", "unknown"), lambda: own(OWN, "", False)),
    (("ranks", "pass"), run),
    (("ranks", "warn"), lambda: run(without(r"^\[rank1\]"))),
    (("ranks", "warn"), lambda: ranked(8, {3})),
    (("ranks", "warn"), lambda: run(without(r"^\[rank1\].*step: 12 "))),
    (("ranks", "warn"), lambda: run(changed(r"(?m)^(\[rank1\].*tps: )[\d,]+", r"\g<1>10"))),
    (("launcher", "unknown"), lambda: run(added("KeyboardInterrupt\n"), stop=StopReason(cause=Cause.HANG, text="x"))),
    (("ranks", "warn"), lambda: on_cpu("8")),
    (("ranks", "unknown"), lambda: own(OWN, "", False)),
    (("loss_trend", "pass"), run),
    (("loss_trend", "warn"), lambda: losses(*RISING)),
    (("loss_trend", "warn"), lambda: losses(*[2.5] * 49, 9e9)),
    (("loss_trend", "warn"), lambda: megatron(swapped("skipped iterations:   0", "skipped iterations:   1"))),
    (("loss_trend", "warn"), lambda: losses(*[2.0] * 15, norms=(*[1.0] * 10, *[1e4] * 5))),
    (("loss_trend", "warn"), lambda: losses(*[2.0] * 15, norms=(0.0,) * 15)),
    (("loss_trend", "warn"), lambda: losses(*[2.0] * 15, norms=(*[1.0] * 10, *[float("nan")] * 5))),
    (("loss_trend", "unknown"), lambda: own(OWN, "", False)),
    (("memory", "pass"), run),
    (("memory", "warn"), lambda: run(preceded(RETRY.format(3)))),
    (("loss_trend", "warn"), lambda: run(changed(r"(step:  5 .*grad_norm: +)\S+", r"\g<1>nan"))),
    (("ranks", "warn"), lambda: run(changed(r"(?m)^\[rank\d\]:", ""))),
    (("memory", "warn"), lambda: run(preceded("|  CUDA OOMs: 0  |  cudaMalloc retries: 2  |\n"))),
    (("memory", "warn"), lambda: run(preceded("RuntimeError: CUDA out of memory. Tried\n"))),
    (("memory", "warn"), lambda: run(preceded("[titan] WARNING - 1 CUDA OOM errors thrown.\n"))),
    (("network", "pass"), lambda: run(preceded(USED.format("IB") + VIA.format("IB")), between_nodes())),
    (("network", "pass"), lambda: run(preceded(FOUND + USED.format("IB")), between_nodes())),
    (("network", "pass"), lambda: run(preceded(VIA.format("AWS Libfabric")), between_nodes())),
    (("network", "pass"), lambda: run(preceded(FOUND + VIA.format("RCCL-ANP")), between_nodes())),
    (("network", "warn"), lambda: run(preceded(USED.format("Socket")), between_nodes())),
    (("network", "warn"), lambda: run(preceded(FOUND), between_nodes())),
    # a rank that has no other way than the others
    (("network", "warn"), lambda: run(preceded(USED.format("IB") + VIA.format("Socket")), between_nodes())),
    (("network", "unknown"), lambda: run(plan=between_nodes())),
    (("network", "unknown"), lambda: run(preceded(USED.format("Socket")), between_nodes({}))),
    (
        ("network", "unknown"),
        lambda: run(preceded(USED.format("Socket")), between_nodes({"NCCL_IB_DISABLE": "1", **HCA})),
    ),
    (("network", "unknown"), lambda: run(preceded(VIA.format("Socket")), between_nodes({"NCCL_NET": "Socket", **HCA}))),
    (("network", "unknown"), lambda: run(preceded(USED.format("Socket")))),
    (("foreign_processes", "pass"), lambda: run(foreign_processes=())),
    (("foreign_processes", "warn"), lambda: run(foreign_processes=("python3 (pid 7) on GPU 1",))),
    (
        ("foreign_processes", "warn"),
        lambda: run(foreign_processes=(), unshared_lease="/run/lock/madlite: it is a link"),
    ),
    (("foreign_processes", "warn"), lambda: run(unshared_lease="/run/lock/madlite: it is a link")),
    (("foreign_processes", "unknown"), run),
    (("compute", "pass"), work),
    (("compute", "pass"), lambda: work(framework_tflops_per_gpu=101.0, apart=0.01)),
    (("compute", "warn"), lambda: work(peak_tflops=90.0, no_mfu="111 % of the peak of A100 BF16")),
    (("compute", "unknown"), lambda: work(framework_tflops_per_gpu=110.0, apart=0.1)),
    (("compute", "warn"), lambda: run(changed(r"mfu: [\d.]+%", "mfu: 310.00%"))),
    (("compute", "unknown"), lambda: own(OWN, "", False)),
    (("clock", "pass"), lambda: timed(1.0)),
    (("clock", "warn"), lambda: timed(100.0)),
    (("clock", "warn"), lambda: timed(0.5)),
    (("clock", "fail"), lambda: timed(0.1, Exit(code=0, duration_s=2.0))),
    (("clock", "unknown"), lambda: timed(0.5, packed=False)),
    (("clock", "unknown"), lambda: own(OWN, "", False)),
    (("clock", "unknown"), run),
    (("consistency", "pass"), lambda: twice(1.0)),
    (("consistency", "warn"), lambda: twice(8.0)),
    (("consistency", "unknown"), run),
]


def gone() -> Verdict:
    """Return the verdict of a training that reports no loss though its framework prints one."""
    log = LogMonitor([])
    for n in range(1, 13):
        log.steps.add(Step(n=n, values={Quantity.TOKENS_PER_S_PER_GPU: 1000.0 + n}))
    return judge(titan(), Observation(exit=DONE), log)


ROWS = [
    tuple(cell.strip("` ") for cell in line.strip("|").split("|"))
    for line in (ROOT / "docs/verdict.md").read_text().splitlines()
    if line.startswith("| `") and line.count("|") == 5
]
"""Check, status, when, and what follows, as the documentation has them."""


@each_row(("row", "case"), CASES, ids=[f"{'-'.join(row)}-{at}" for at, (row, _) in enumerate(CASES)])
def test_each_row_happens_and_has_its_outcome(row, case):
    verdict = case()
    (check,) = (one for one in verdict.checks if one.name == row[0])
    assert check.status == row[1] and check.text
    if check.status == "fail":
        assert verdict.status is Status.FAILURE and verdict.suspect == ()
        causes = {cause for *which, _, outcome in ROWS if tuple(which) == row for cause in re.findall(r"\w+", outcome)}
        assert verdict.cause.value in causes and verdict.reason
    if check.status == "warn":
        assert verdict.status is Status.SUCCESS and check.text in verdict.suspect
    if check.status in ("pass", "unknown"):
        assert check.text not in verdict.suspect


def test_the_documentation_has_what_happens_in_the_order_in_which_the_checks_run():
    assert {(check, status) for check, status, *_ in ROWS} == {row for row, _ in CASES}
    assert list(dict.fromkeys(check for check, *_ in ROWS)) == [one.name for one in run().checks] == list(CHECKS)
    outcomes = {"pass": "the number stands", "warn": "SUCCESS, suspect", "unknown": "nothing"}
    assert all(outcome == outcomes.get(status, outcome) for _, status, _, outcome in ROWS)


def test_a_difference_is_named_with_both_values():
    verdict = run(swapped("local batch size 2, global batch size 4", "local batch size 4, global batch size 8"))
    assert (verdict.cause, verdict.metrics) == (Cause.CONFIG, ())
    assert "micro_batch is 4 in the trainer's log, 2 was planned; global_batch is 8" in verdict.reason
    # a decimal comma is named with what it was to be
    refused = comma(OF_COMMAS)
    assert refused.cause is Cause.BAD_NUMBER and refused.metrics == ()
    assert refused.reason == "'5.121,5' is no number, which the steps report as tokens/s/GPU"
    mixed = comma(OF_COMMAS.replace("2,99", "2.99").replace("tps 5.121,5", "tps 998,512", 12))
    (doubt,) = mixed.suspect
    assert doubt.startswith("'5.121,5' of a step is no number")
    # speeds that are no numbers are told as that
    endless = run(changed(r"tps: [\d,]+", "tps: 1e400"))
    assert (endless.cause, endless.reason) == (
        Cause.BAD_NUMBER,
        "no tokens/s/GPU of the steps after the warm-up is a finite number",
    )
    assert "step: 12" in endless.evidence


def test_the_first_denial_explains_and_the_others_are_kept():
    verdict = run(
        lambda text: without(r"step: 1\d ", "Training completed")(text) + FOOTER, exit=Exit(code=1, duration_s=9)
    )
    assert verdict.cause is Cause.EXIT_CODE and "exit code 1" in verdict.reason
    denied = {one.name for one in verdict.checks if one.status == "fail"}
    assert denied == {"exit_code", "last_step", "launcher"}
    # of a run that never began only those speak who can know
    verdict = run(exit=Exit(code=1, duration_s=1), failed_action="prepare", foreign_processes=())
    assert {one.name: one.status for one in verdict.checks} == {"exit_code": "fail", "foreign_processes": "pass"}


def test_a_script_that_hides_a_failure_has_no_number_and_one_that_trains_twice_is_not_doubted():
    hidden = script(training() + FOOTER + RESULT, scan=True)
    assert (hidden.status, hidden.cause, hidden.metrics) == (Status.FAILURE, Cause.EXIT_CODE, ())
    failed = script(training() + FOOTER, scan=True, rule=BAD_FILE, results=GOOD)
    assert (failed.status, failed.metrics) == (Status.FAILURE, ())
    verdict = script(training() + training() + "performance: 1338 tok/s\n", scan=True)
    assert (verdict.status, verdict.suspect) == (Status.SUCCESS, ())


def test_ranks_that_are_apart_are_named_with_their_speeds_or_steps():
    slow = run(changed(r"(?m)^(\[rank1\].*tps: )[\d,]+", r"\g<1>1,000"))
    assert slow.suspect == ("rank 1 reports 1000 tokens/s/GPU, rank 0 1331",)
    once = run(changed(r"(?m)^(\[rank1\].*step: (?: 2|10) .*tps: )[\d,]+", r"\g<1>10"))
    assert once.suspect == ()  # in the warm-up, and one step of the window
    # a rank one of whose lines is lost is even
    assert run(without(r"^\[rank1\].*step:  7 ")).suspect == ()
    # a rank that stops before the last step is named
    assert run(without(r"^\[rank1\].*step: 1[12] ")).suspect == ("rank 1 stops at step 10, others go on to step 12",)


def test_of_ranks_that_print_all_have_to():
    assert ranked(8, {3}).suspect == ("of 8 ranks only ranks 0, 1, 2, 4, 5, 6, 7 report",)
    assert ranked(8, set(range(4))).suspect == ("of 8 ranks only ranks 4, 5, 6, 7 report",)
    assert ranked(0, {1}).suspect == ("of 4 ranks only ranks 0, 2, 3 report",)  # a CPU's
    assert ranked(0, {2, 3}, {"world_size": "4"}).suspect == ("of 4 ranks only ranks 0, 1 report",)
    # where each rank prints all of a node are waited for
    rule = replace(titan().result_rule, ranks="all", ranks_setting="")
    assert run(plan=replace(titan(), result_rule=rule)).suspect == ()
    eight = replace(titan(), result_rule=rule, place=replace(titan().place, gpus_per_node=8), variant=None)
    said = texts(run(plan=eight))
    assert said["ranks"] == "of 8 ranks that were to print ranks 0, 1 report"


@each_row(
    ("quiet", "more"),
    [
        (set(range(1, 8)), {}),  # one prints
        (set(range(7)), {}),
        (set(), {}),
        (set(range(4)), {"settings": {"pp": 2}}),
        (set(range(2, 8)), {"settings": {"log_ranks": "0,1"}}),
        (set(range(2, 8)), {"env": {"LOG_RANK": "0,1"}}),
        (set(range(2, 8)), {"args": "--local-ranks-filter 0,1"}),
        (set(range(4)), {"told": {"pp": "2"}}),
    ],
)
def test_where_some_ranks_are_to_print_the_others_are_not_missed(quiet, more):
    assert ranked(8, quiet, **more).suspect == ()


def on_cpu(asked: str, **plan: object) -> Verdict:
    """Return the verdict of a card that asks for GPUs, on a machine that has none."""
    made = script_plan(kind="performance_line")
    made = replace(made, card=replace(made.card, n_gpus=asked), machine=Machine(), **plan)
    return judge(made, Observation(exit=DONE), follow(made, RESULT, script_reader=False, scan=None))


def test_a_card_that_asks_for_gpus_is_doubted_on_a_cpu_unless_it_or_its_user_can_do_without():
    assert on_cpu("8").suspect == ("the card asks for 8 GPUs, and ran on the CPU: this machine has none",)
    assert on_cpu("8", origins={"n_gpus": "card, --gpus"}).suspect
    for asked, origins in (("1", {}), ("-1", {}), ("8", {"n_gpus": "--set"})):
        assert on_cpu(asked, origins=origins).suspect == ()


def every_tenth(asked: int, end_mark: str = "", nodes: int = 1, odd: int = 20) -> Verdict:
    """Return the verdict of a training with a line for steps 1, 10 and 20 whose framework may print an end mark."""
    log = LogMonitor([])
    for n in (1, 10, 20, odd):
        log.steps.add(Step(n=n, values={Quantity.LOSS: 2.0, Quantity.TOKENS_PER_S_PER_GPU: 900.0}))
    rule = ResultRule(kind="steps", end_mark=end_mark)
    made = plan_of("torchtitan", Variant(model="m", steps=asked), result_rule=rule, nodes=nodes)
    return judge(made, Observation(exit=DONE), log)


def test_steps_that_have_no_line_of_their_own_are_not_missed():
    sparse = without(r"step: +(?!1 |5 |10 )\d+ ")
    assert texts(run(sparse))["last_step"] == (
        "step 10 is the last line's of 12 steps, with a line for every 5, and the end mark follows"
    )
    assert run(without(r"step: +(?!1 |5 )\d+ ")).cause is Cause.INCOMPLETE  # the line of step 10 is missing
    for few in (r"step: +(?!1 |10 )\d+ ", r"step: +(?!10 )\d+ "):
        assert "with a line for every 10, and the end mark follows" in texts(run(without(few)))["last_step"]
    assert run(lambda text: without("Training completed")(sparse(text))).cause is Cause.INCOMPLETE
    assert run(without(r"step: 12 ")).cause is Cause.INCOMPLETE  # each step has a line
    # lines of several steps that went back are doubted all the same
    log = LogMonitor([])
    log.restarted_from, log.restarted_at, log.last_step, log.ended = 10, 5, 20, True
    for n in (1, 5, 10, 15, 20):
        log.steps.add(Step(n=n, values={Quantity.LOSS: 2.0, Quantity.TOKENS_PER_S_PER_GPU: 900.0}))
    assert "the steps went back to 5" in judge(titan(steps=22), Observation(exit=DONE), log).suspect[0]
    # a last line of several steps is doubted where no mark tells the end
    assert every_tenth(29).suspect == (
        "step 20 is the last line's of 29 steps, with a line for every 10: nothing shows that the steps after it were "
        "done",
    )
    assert every_tenth(30).cause is Cause.INCOMPLETE
    assert every_tenth(29, odd=90).suspect and every_tenth(31, odd=90).cause is Cause.INCOMPLETE
    assert every_tenth(25, "done").cause is Cause.INCOMPLETE
    assert every_tenth(25, "done", nodes=2).status is Status.SUCCESS  # another node prints it


@each_row("last", [[9e9], [1e6, 9e9], [40.0] * 3, [1e6] * 4])
def test_a_loss_that_explodes_at_the_very_end_is_doubted(last):
    values = [3.0 - 0.01 * n for n in range(50 - len(last))]
    (text,) = losses(*values, *last).suspect
    assert text.startswith(f"the last loss is {last[-1]:.4g}, far above the 2.9")


def test_gradients_and_zeros_are_doubted_only_where_no_trainer_prints_them_by_design():
    # a gradient that is not finite is told as that
    for bad in (float("nan"), float("inf")):
        assert losses(*[2.0] * 15, norms=(bad,) * 15).suspect == ("the gradient norm is not finite",)
    end = float("inf")
    assert losses(*[2.0] * 15, norms=(*[1.0] * 13, end, end)).suspect == ("the gradient norm is not finite",)
    assert losses(*[2.0] * 15, norms=(*[1.0] * 14, end)).suspect == (), "one alone is a step whose scale was too high"
    # zeros that trainers print by design are not doubted
    assert losses(*[0.0] * 20, norms=(0.1, 0.2) * 10).suspect == ()  # GRPO
    falling = [10.8 - 0.1 * n for n in range(20)]
    assert losses(*falling, norms=(0.0,) * 20).suspect == ()  # Megatron where no norm is computed
    # of few losses one above all others is doubted
    assert texts(losses(2.5, 2.4, 2.3, 2.2, 1e5))["loss_trend"] == "the last loss is 1e+05, far above the 2.5 before it"
    assert texts(losses(2.5, 1e5, 2.4, 2.3, 1e5))["loss_trend"] == "5 losses are too few"  # one as high before


def test_steps_that_the_optimizer_skipped_are_doubted_where_they_are_most():
    def some(every: int) -> Verdict:
        lines = text_of("megatron-lm-core0.16.1-gpt-cpu-1rank.log").splitlines(keepends=True)
        skipped = [at for at, line in enumerate(lines) if " iteration " in line][::every]
        for at in skipped:
            lines[at] = lines[at].replace("skipped iterations:   0", "skipped iterations:   1")
        return megatron(lambda text: "".join(lines))

    assert some(3).suspect == ()
    (text,) = some(1).suspect
    assert "skipped 20 of 20 steps" in text


def test_memory_that_ran_out_is_told_of_a_run_that_failed_too():
    said = texts(run(lambda text: RETRY.format(3) + text + RETRY.format(12)))
    assert "12 CUDA memory allocation retries" in said["memory"]
    failed = run(added(OUT), exit=Exit(code=1, duration_s=1.0))
    assert failed.cause is Cause.EXIT_CODE
    assert texts(failed)["memory"] == "GPU memory ran out: torch.OutOfMemoryError: HIP out of memory. Tried to"
    # a line on memory that says nothing happened is no mark
    harmless = (
        RETRY.format(0) + "|  CUDA OOMs: 0  |  cudaMalloc retries: 0  |\n"
        "PYTORCH_ALLOC_CONF=expandable_segments:True helps against running out of memory\n"
    )
    assert run(preceded(harmless)).suspect == ()


def test_an_exception_behind_a_pipe_fails_a_run_that_did_not_come_to_its_end():
    failed = run(lambda text: without("Training completed")(text) + RAISED)
    assert (failed.status, failed.cause, failed.metrics) == (Status.FAILURE, Cause.EXIT_CODE, ())
    assert failed.reason == "the log has no 'Training completed', and reports after its last step: RuntimeError: x"
    assert failed.evidence == "RuntimeError: x"
    assert run(added(RAISED)).status is Status.SUCCESS  # with its end mark


def test_what_is_not_known_is_told_with_its_reason():
    assert texts(script(RESULT, script_reader=False)) == {
        "exit_code": "exit code 0",
        "loss": "no step was read",
        "last_step": "no step was read in what the card's own script printed",
        "error_pattern": "not scanned: the scan is switched off",
        "launcher": "after the last step no launcher reports a failed process",
        "end_mark": "a card's own script has none",
        "metric": "5 tok/s",
        "summary": "there is none",
        "config": "a card's own script decides",
        "ranks": "a card's own script may train more than once",
        "loss_trend": "no step has a loss",
        "memory": "no line reports memory that ran out or an allocation that was retried",
        "network": "the run has one node",
        "foreign_processes": "the run has no GPU",
        "compute": "a card's own script prints its own result",
        "clock": "a card's own script prints its own result",
        "consistency": "no step was read",
    }
    unnamed = texts(run(changed(r"(?m)^\[rank1\].*\n|^\[rank0\]:", "")))
    assert (unnamed["ranks"], unnamed["compute"]) == ("no line names its rank", "the model's shape is not known")
    assert unnamed["foreign_processes"] == "the GPUs do not report their processes"
    shaped = replace(titan(seq_len=None), architecture=load_architectures()["Llama-3.1-8B"])
    assert texts(run(plan=shaped))["compute"] == "its sequence length is not known"
    timed = replace(titan().result_rule, headline=Quantity.LOSS, headline_metric="loss")
    untold = run(without_speed, replace(titan(), architecture=shaped.architecture, result_rule=timed))
    assert texts(untold)["compute"] == "its tokens per second are not known"
    unasked = texts(run(plan=replace(titan(), telemetry_s=0.0)))
    assert unasked["foreign_processes"] == "not sampled: GPU sampling is off"


@each_row(
    "values",
    [
        [7.62] * 20,  # constant
        [0.2, 1.9, 0.4, 1.1, 0.3, 1.5, 0.2, 0.9, 1.8, 0.5]
        + [0.4, 1.2, 0.6, 1.9, 1.1, 1.7, 0.9, 1.6, 1.2, 1.8],  # diffusion
        [12.0, 9.0, 7.0, 6.0, 5.5, 5.4, 5.3, 5.3, 5.2, 5.1],
        [1.10, 1.32, 0.95, 1.21, 1.05, 1.30, 0.99, 1.28, 1.15, 1.36, 1.19, 1.40],  # noisy and a little worse
        [-1.0, -0.5, 3.0, 5.0, 8.0, 9.0, 9.0],  # no cross entropy
        [2.5, 2.4, 9.0, 2.3, 2.2, 2.1, 2.0, 1.9, 1.9, 1.8],  # one spike
    ],
)
def test_a_loss_that_does_not_explode_is_not_doubted(values):
    assert losses(*values).suspect == ()


@each_row(
    "values", [[12.14, 12.2, 12.1, 12.3, 13.0, 14.2, 15.5, 16.4, 17.2, 17.4, 17.5], [2.0**n for n in range(1, 16)]]
)
def test_a_loss_that_climbs_is_doubted(values):
    (text,) = losses(*values).suspect
    assert "the loss rises from" in text
