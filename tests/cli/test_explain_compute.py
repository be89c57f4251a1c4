"""What `explain` and the end of a run say of a run's floating-point work."""

from __future__ import annotations

import msgspec

from madlite.cli.format import compute_lines
from madlite.cli.plan import compute_rows
from madlite.measure.compute import count_compute
from madlite.measure.steps import steady_window
from madlite.model import Result, Status
from madlite.plan.place import load_architectures
from tests.measure.test_compute import TPS, machine, plan, steps
from tests.rows import each_row


def rows(of):
    return {name: (value, origin) for name, value, origin in compute_rows(of)}


def said(of, speed: float) -> list[str]:
    run = steps(tokens_per_s_per_gpu=speed)
    found = count_compute(of, run, steady_window(run, TPS, 5))
    return list(compute_lines(Result(plan_id="r1", status=Status.SUCCESS, compute=found)))


def test_explain_shows_shape_formula_and_peak():
    assert rows(plan()) == {
        "architecture": ("layers 32, hidden 4096, heads 32, vocab 128256, ffn 14336, kv_heads 8", ""),
        "gflop_per_token": ("57.91 (full attention, sequences of 8192)", "docs/measurement.md"),
        "peak": ("989.4 TFLOP/s, H200 BF16", "NVIDIA H200 Tensor Core GPU data sheet, H200 SXM"),
    }


def test_explain_says_why_there_is_no_shape_and_no_peak():
    unknown = msgspec.structs.replace(plan(shape=None), origins={"architecture": "no shape is known of a model 'x'"})
    assert rows(unknown) == {"architecture": ("-", "no shape is known of a model 'x'")}
    assert rows(plan(machine("NVIDIA H20")))["peak"] == ("-", "no peak is known of NVIDIA H20")
    assert "gflop_per_token" not in rows(plan(seq_len=None))
    assert rows(msgspec.structs.replace(plan(), variant=None)) == {}


@each_row(
    ("model", "words"),
    [
        ("DeepSeek-V2-lite", "experts 64, active_experts 6, expert_ffn 1408, shared_ffn 2816, dense_layers 1"),
        ("Mixtral-8x7B", "heads 32, vocab 32000, ffn 14336, kv_heads 8, experts 8, active_experts 2"),
        ("GPT-OSS-20B", "window 128, full_every 2, experts 32, active_experts 4, expert_ffn 2880"),
        ("Mistral-7B", "kv_heads 8, window 4096"),
        ("Llama-2-7B", "layers 32, hidden 4096, heads 32, vocab 32000, ffn 11008"),
    ],
)
def test_a_shape_is_told_by_its_sizes(model, words):
    assert words in rows(plan(shape=load_architectures()[model]))["architecture"][0]


def test_explain_says_that_weights_are_frozen():
    assert rows(plan(mode="finetune_lora"))["gflop_per_token"][0] == (
        "42.9 (full attention, sequences of 8192, weights frozen)"
    )


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
