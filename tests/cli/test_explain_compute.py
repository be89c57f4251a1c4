"""What the end of a run says of its floating-point work."""

from __future__ import annotations

from madlite.cli.format import compute_lines
from madlite.measure.compute import count_compute
from madlite.measure.steps import steady_window
from madlite.model import Result, Status
from tests.measure.test_compute import TPS, machine, plan, steps


def said(of, speed: float) -> list[str]:
    run = steps(tokens_per_s_per_gpu=speed)
    found = count_compute(of, run, steady_window(run, TPS, 5))
    return list(compute_lines(Result(plan_id="r1", status=Status.SUCCESS, compute=found)))


def test_a_run_ends_with_its_work_and_the_part_of_the_peak():
    assert said(plan(), 9461.0) == ["547.9 TFLOP/s/GPU (full attention), 55.4 % of H200's 989 TFLOP/s in BF16"]
    assert said(plan(machine("NVIDIA H100 NVL", memory_gib=93.6), "causal"), 500.0) == [
        "25.74 TFLOP/s/GPU (causal attention), 3.08 % of H100 NVL's 836 TFLOP/s in BF16"
    ]


def test_a_run_without_mfu_says_why():
    assert said(plan(machine(count=0), mode="finetune_lora"), 100.0) == [
        "4.29 TFLOP/s/GPU (full attention, frozen weights); no MFU: a CPU has no peak here"
    ]


def test_a_run_of_which_nothing_is_known_says_nothing():
    assert said(plan(shape=None), 9461.0) == []
