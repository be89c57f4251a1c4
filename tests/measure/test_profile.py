"""Where a step's time goes, by traces of torch's profiler: of NVIDIA and AMD GPUs made up in kineto's format."""

from __future__ import annotations

import gzip
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from madlite.measure.profile import (
    exclusive_times,
    largest_loss,
    most_lost,
    most_saved,
    operator_flops,
    part_texts,
    read_profile,
)
from madlite.model import Knob, StepPart, StepProfile

Event = dict[str, Any]


def event(name: str, cat: str, ts: float, dur: float, **args: object) -> Event:
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 7, "ts": ts, "dur": dur, "args": args}


def written(folder: Path, *events: Event) -> Path:
    path = folder / "profile.json.gz"
    marks = [event(f"madlite.{name}", "user_annotation", at, 0.0) for name, at in (("begin", 1000), ("end", 3000))]
    noise = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "i", "name": "x", "ts": 0},
    ]
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": [*noise, *marks, *events]}).encode()))
    return path


# The kernels of one GPU over two steps of 1,000 us.  `nccl` has the name of either vendor's library's kernel.
def gpu_events(gemm: str, attention: str, nccl: str) -> list[Event]:
    sizes = {"Input Dims": [[1000, 1000], [1000, 2000]]}
    return [
        event("aten::mm", "cpu_op", 1000, 5, **{"External id": 1, **sizes}),
        event("aten::_flash_attention_forward", "cpu_op", 1010, 5, **{"External id": 2, "Input Dims": []}),
        event("aten::mul", "cpu_op", 1020, 5, **{"External id": 3}),
        event("Optimizer.step#AdamW.step", "user_annotation", 1100, 50),
        event("cudaLaunchKernel", "cuda_runtime", 1120, 5, correlation=40),
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 2700, 100),
        event(gemm, "kernel", 1100, 400, **{"External id": 1, "correlation": 10}),
        event(attention, "kernel", 1500, 200, **{"External id": 2, "correlation": 20}),
        event("elementwise_kernel", "kernel", 1700, 100, **{"External id": 3, "correlation": 30}),
        event("multi_tensor_apply_kernel", "kernel", 1800, 150, correlation=40),
        event("Memcpy HtoD", "gpu_memcpy", 1950, 50),
        # of 500 us of communication 200 are hidden behind the attention, and the last 100 are after the steps' end
        event(
            nccl,
            "kernel",
            1500,
            200,
            **{
                "Collective name": "allreduce",
                "In msg nelems": 1_000_000,
                "Out msg nelems": 1_000_000,
                "Group size": 2,
                "dtype": "BFloat16",
            },
        ),
        event(nccl, "kernel", 2700 + 100, 300),
        event(gemm, "kernel", 9000, 400),  # after the steps
    ]


@pytest.mark.parametrize(
    ("gemm", "attention", "nccl"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "flash_fwd_kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x256x32", "_ZN7ck_tile6kentryI13FmhaFwdKernel", "ncclDevKernel_Generic_4"),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8", "aiter::fmha_fwd_hd128_bf16_causal", "rcclGenericKernel"),
    ],
)
def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path, gemm: str, attention: str, nccl: str) -> None:
    found = read_profile(written(tmp_path, *gpu_events(gemm, attention, nccl)), 2, 20.0)

    assert found.on_gpu
    assert found.step_s == pytest.approx(1e-3)
    assert {part.name: round(part.time_s * 1e6) for part in found.parts} == {
        "GEMM": 200,
        "attention": 100,
        "other kernels": 50,
        "optimizer": 75,
        "copies": 25,
        "exposed communication": 100,
        "data": 50,
        "host gaps": 400,  # 100 us before the first kernel and 700 from 2000 to 2700
    }
    assert sum(part.time_s for part in found.parts) == pytest.approx(found.step_s)
    assert found.hidden_communication_s == pytest.approx(100e-6)
    assert [part.name for part in found.parts][0] == "host gaps"


def test_matrix_products_and_collectives_have_rates(tmp_path: Path) -> None:
    found = read_profile(written(tmp_path, *gpu_events("nvjet", "flash_fwd_kernel", "ncclDevKernel")), 2, 20.0)
    parts = {part.name: part for part in found.parts}

    # 2 x 1000 x 1000 x 2000 operations in 400 us
    assert parts["GEMM"].tflops == pytest.approx(10.0)
    assert parts["GEMM"].of_peak == pytest.approx(0.5)
    # an all-reduce of 2 MB over two GPUs moves 2 x 1/2 x 2 MB over each one's links, in 200 us
    assert parts["exposed communication"].bus_gb_per_s == pytest.approx(10.0)
    assert parts["attention"].tflops is None  # its sizes are not in the trace
    assert parts["other kernels"].of_peak is None


def test_a_real_trace_of_two_h200s_adds_up_to_the_step_of_its_log() -> None:
    """Llama 3.1 8B by torchtitan 0.2.2, micro batch 2, sequences of 8192: rank 0, without what the reader does not use.

    The log of that run has 9,322.5 tokens/s/GPU, its rank's NCCL kernels ran 160.3 ms of each of these steps.
    """
    path = Path(__file__).parents[1] / "data" / "profiles" / "torchtitan-0.2.2-llama3.1-8b-2xH200-3-steps.json.gz"
    found = read_profile(path, 3, 989.4)
    parts = {part.name: part for part in found.parts}

    assert found.step_s == pytest.approx(2 * 8192 / 9322.5, rel=0.03)
    assert sum(part.time_s for part in found.parts) == pytest.approx(found.step_s)
    communication_s = parts["exposed communication"].time_s + found.hidden_communication_s
    assert communication_s == pytest.approx(0.1603, rel=0.01)
    # causal attention of 32 layers, forward, once more where it is recomputed or not, and back
    forward_tflop = 32 * 4 * 2 * 32 * 8192 * 8192 * 128 / 2 / 1e12
    attention = parts["attention"]
    assert attention.tflops is not None and attention.of_peak == pytest.approx(attention.tflops / 989.4)
    done_tflop = attention.tflops * attention.time_s
    assert 3.5 * forward_tflop * 0.98 < done_tflop < 4.5 * forward_tflop * 1.02
    assert 0.6 < (parts["GEMM"].of_peak or 0) < 0.75
    assert largest_loss(found, [knob("activation_checkpoint", "GEMM")]).endswith("act on it: activation_checkpoint)")


def test_kernels_fused_by_inductor_are_no_products(tmp_path: Path) -> None:
    name = "triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy_view_3"
    found = read_profile(written(tmp_path, event(name, "kernel", 1000, 500)), 1, None)

    assert {part.name for part in found.parts} == {"other kernels", "host gaps"}


def test_without_a_peak_nothing_is_a_part_of_it(tmp_path: Path) -> None:
    found = read_profile(written(tmp_path, *gpu_events("nvjet", "flash_fwd_kernel", "ncclDevKernel")), 2, None)

    assert all(part.of_peak is None for part in found.parts)


def test_a_trace_of_a_cpu_is_of_its_operators(tmp_path: Path) -> None:
    operators = [
        event("aten::linear", "cpu_op", 1000, 600, **{"External id": 1}),
        event("aten::addmm", "cpu_op", 1100, 400, **{"External id": 2}),
        event("aten::gelu", "cpu_op", 1700, 300, **{"External id": 3}),
        event("Optimizer.step#SGD.step", "user_annotation", 2500, 500),
        event("aten::add_", "cpu_op", 2500, 400, **{"External id": 4}),
    ]
    found = read_profile(written(tmp_path, *operators), 1, 100.0)

    assert not found.on_gpu
    assert {part.name: round(part.time_s * 1e6) for part in found.parts} == {
        "GEMM": 600,
        "other kernels": 300,
        "optimizer": 400,
        "host gaps": 700,
    }
    assert all(part.tflops is None for part in found.parts)


def test_overlapping_spans_are_counted_once() -> None:
    spans = {"GEMM": [(0, 4), (2, 6)], "other kernels": [(5, 8)], "exposed communication": [(3, 9)]}
    alone, communicating = exclusive_times(spans, 1, 10)

    assert {name: value for name, value in alone.items() if value} == {
        "GEMM": 5,
        "other kernels": 2,
        "exposed communication": 1,
        "host gaps": 1,
    }
    assert communicating == 6


def test_operations_follow_from_the_sizes_of_an_operators_inputs() -> None:
    query, key = [2, 8, 128, 64], [2, 8, 256, 64]  # batch, heads, tokens, size of a head
    forward = 4 * 2 * 8 * 128 * 256 * 64
    cases = [
        ("aten::mm", [[3, 5], [5, 7]], [], 2 * 3 * 5 * 7),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], [], 2 * 3 * 5 * 7),
        ("aten::bmm", [[4, 3, 5], [4, 5, 7]], [], 2 * 4 * 3 * 5 * 7),
        ("aten::_scaled_dot_product_flash_attention", [query, key, key], ["", "", "", "0.", "False"], forward),
        ("aten::_scaled_dot_product_flash_attention", [query, key, key], ["", "", "", "0.", "True"], forward / 2),
        (
            "aten::_scaled_dot_product_cudnn_attention_backward",
            [query, query, key, key],
            ["" for _ in range(14)] + ["True"],
            2.5 * forward / 2,
        ),
        # here tokens come before heads
        ("aten::_flash_attention_forward", [[2, 128, 8, 64], [2, 256, 8, 64]], [""] * 8 + ["False"], forward),
        ("aten::gelu", [[3, 5]], [], 0),
        ("aten::mm", [], [], 0),
        ("aten::mm", "?", None, 0),
    ]
    for name, dims, concrete, count in cases:
        assert operator_flops(name, dims, concrete) == count, (name, dims)


def test_what_is_no_trace_is_said_to_be_none(tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.json.gz", tmp_path / "other.json.gz"
    broken.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": [1]}'))
    other.write_bytes(b"no gzip")
    empty = written(tmp_path)
    empty.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    for path, why in (
        (tmp_path / "none", "no torch optimizer"),
        (broken, "cannot be read"),
        (other, "cannot be read"),
        (empty, "no steps in it"),
    ):
        with pytest.raises(ValueError, match=why):
            read_profile(path, 3, None)


def knob(key: str, part: str) -> Knob:
    return Knob(key=key, values=(1, 2), acts_on=(part,))


def profile(*parts: StepPart) -> StepProfile:
    return StepProfile(steps=3, step_s=1.0, parts=parts, hidden_communication_s=0.2)


def test_the_largest_loss_is_named_with_the_settings_that_act_on_it() -> None:
    gemm = StepPart(name="GEMM", time_s=0.6, tflops=500.0, of_peak=0.9)
    attention = StepPart(name="attention", time_s=0.2, tflops=100.0, of_peak=0.2)
    waits = StepPart(name="exposed communication", time_s=0.11, bus_gb_per_s=100.0)
    idle = StepPart(name="host gaps", time_s=0.09)
    waiting = [knob(key, "exposed communication") for key in ("reshard", "nccl")]
    cases = [
        ((gemm, waits, idle), "11.0 % of the step waits for communication that no computation hides", "reshard, nccl"),
        ((gemm, attention, waits), "attention takes 20.0 % of the step at 20.0 % of the peak", ""),
        ((gemm, idle), "in 9.00 % of the step nothing runs", "compile"),
    ]
    for parts, words, settings in cases:
        text = largest_loss(profile(*parts), [*waiting, knob("compile", "host gaps")])
        assert words in text
        assert ("settings that act on it: " + settings in text) if settings else "settings" not in text


def test_parts_are_shown_with_time_share_and_rate() -> None:
    shown = dict(part_texts(profile(StepPart(name="GEMM", time_s=0.6, tflops=500.0, of_peak=0.5))))

    assert shown["GEMM"] == "600 ms, 60.0 % of the step, 500 TFLOP/s, 50.0 % of the peak"
    assert shown["hidden communication"].startswith("200 ms")


def test_what_settings_can_save_of_a_step_counts_hidden_communication() -> None:
    """The recipe of Llama 3.1 8B on two H200: 0.6 % of a step is exposed, and reshard=never gained 2 %."""
    parts = (
        StepPart(name="GEMM", time_s=1.210, tflops=679.0, of_peak=0.686),
        StepPart(name="attention", time_s=0.2769, tflops=444.8, of_peak=0.45),
        StepPart(name="exposed communication", time_s=0.01018),
    )
    found = StepProfile(steps=3, step_s=1.749, parts=parts, hidden_communication_s=0.1501)
    saved = most_saved(found)
    assert saved["GEMM"] == pytest.approx(0.692, abs=0.001)
    assert saved["exposed communication"] == pytest.approx(0.0916, abs=0.001)
    assert most_lost(found).name == "GEMM"


def test_a_trace_that_a_workload_made_up_ends_in_a_sentence(tmp_path: Path) -> None:
    pipe, bomb, torn, deep, infinite = (tmp_path / f"{name}.json.gz" for name in "pbtdi")
    os.mkfifo(pipe)
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + b"{}," * 6_000_000 + b"{}]}", 1))
    good = written(tmp_path, event("nvjet", "kernel", 1000, 500)).read_bytes()
    torn.write_bytes(good[:30] + b"\xff" * 20 + good[50:])
    nested = "[" * 100_000 + "]" * 100_000
    deep.write_bytes(gzip.compress(b'{"traceEvents": [{"args": {"Input Dims": %s}}]}' % nested.encode()))
    infinite.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": "inf"}, {"ts": 1e999}]}'))
    for path in (pipe, bomb, torn, deep, infinite):
        with pytest.raises(ValueError, match="trace"):
            read_profile(path, 3, 989.4)


def test_sizes_beyond_reason_are_no_rate(tmp_path: Path) -> None:
    huge = {"External id": 1, "Input Dims": [[2**62] * 20, [2**62, 2**62]]}
    events = [event("aten::mm", "cpu_op", 1000, 5, **huge), event("nvjet", "kernel", 1000, 500, **{"External id": 1})]
    odd = [event("aten::mm", "cpu_op", 1000, 5, **{"External id": 1, "Input Dims": [["a"], "b"]}), events[1]]
    for own in (events, odd):
        (gemm,) = (part for part in read_profile(written(tmp_path, *own), 1, 989.4).parts if part.name == "GEMM")
        assert gemm.tflops is None


def test_the_steps_of_deepspeed_alone_are_none_of_a_profile(monkeypatch, capsys) -> None:
    monkeypatch.delenv("MADLITE_PROFILE", raising=False)
    for name in ("torch", "torch.profiler", "deepspeed"):  # accelerate imports deepspeed wherever it is installed
        monkeypatch.setitem(sys.modules, name, MagicMock())
    template = runpy.run_path(str(Path(__file__).parents[2] / "templates/profile/sitecustomize.py"))

    def step(caller: str) -> str:
        recorder = template["Recorder"](5, 3, Path("none"))
        names = {"__name__": caller, "note": recorder.note}
        exec("note(1)\nnote(1)", names)
        return capsys.readouterr().err

    assert step("transformers.trainer") == ""
    assert step("deepspeed.runtime.zero.stage3").count("no profile: RuntimeError: DeepSpeed calls its optimizer") == 1
