"""A throughput as floating-point work: by our formula, against the framework's, as a part of the peak."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from madlite.measure.compute import apart_text, count_compute, trains_adapters
from madlite.measure.monitor import LogMonitor
from madlite.measure.steps import Steps, steady_window
from madlite.model import (
    QUANTITIES,
    Architecture,
    Card,
    Compute,
    Gpu,
    Machine,
    Place,
    Quantity,
    ResultRule,
    RunPlan,
    Step,
    Variant,
)  # fmt: skip
from madlite.plan.place import load_architectures
from madlite_plugins.torchtitan.reader import TorchtitanReader
from tests.plugins.logs import LOGS
from tests.rows import each_row

TPS, SAMPLES, TFLOPS = Quantity.TOKENS_PER_S_PER_GPU, Quantity.SAMPLES_PER_S_PER_GPU, Quantity.TFLOPS_PER_GPU
LLAMA = load_architectures()["Llama-3.1-8B"]
GIB = 1 << 30


def findings_of(compute: Compute) -> tuple[str, ...]:
    above_peak = compute.no_mfu if compute.mfu is None and compute.peak_tflops is not None else ""
    return tuple(filter(None, (apart_text(compute), above_peak)))


def machine(product: str = "NVIDIA H200", count: int = 2, memory_gib: float = 140.4) -> Machine:
    gpus = tuple(Gpu(index=n, product=product, memory_bytes=int(memory_gib * GIB)) for n in range(count))
    return Machine(vendor="NVIDIA", gpus=gpus, product=product, device="H200") if count else Machine()


def plan(
    here: Machine | None = None, attention: str = "full", shape: Architecture | None = LLAMA, **variant
) -> RunPlan:
    here = machine() if here is None else here
    values = {"model": "Llama-3.1-8B", "seq_len": 8192, "precision": "BF16", "warmup_steps": 5, **variant}
    return RunPlan(
        id="r1",
        card=Card(name="a card", root=Path(), source="a test"),
        backend="b",
        place=Place(gpus_per_node=len(here.gpus), gpu_ids=tuple(gpu.index for gpu in here.gpus)),
        machine=here,
        workspace=Path("/space"),
        inside="/space",
        folder=Path("/space/madlite_runs/r1"),
        variant=Variant(**values),
        result_rule=ResultRule(kind="steps", attention=attention),
        architecture=shape,
    )


def steps(count: int = 20, **values: float) -> Steps:
    told = {QUANTITIES[name]: value for name, value in values.items()}
    return Steps(Step(n=n, values=told) for n in range(1, count + 1))


def count(of: RunPlan, found: Steps, headline: Quantity = TPS) -> Compute | None:
    window = steady_window(found, headline, of.variant.warmup_steps)
    return count_compute(of, found, window)


def test_a_real_training_of_llama_8b_on_two_h200_and_the_other_convention_of_attention():
    # The log says 509.68 TFLOP/s in the middle; 509.7 of 989.4 is 51.5 %
    monitor = LogMonitor([TorchtitanReader()])
    monitor.feed((LOGS / "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log").read_bytes())
    found = count(plan(), monitor.steps)
    assert found.tflops_per_gpu == pytest.approx(509, rel=0.01)
    assert found.framework_tflops_per_gpu == pytest.approx(509.68, abs=0.01)
    assert abs(found.apart) < 1e-3 and findings_of(found) == ()
    assert (found.peak_of, found.peak_tflops, found.no_mfu) == ("H200 BF16", 989.4, "")
    assert found.mfu == pytest.approx(0.515, abs=0.001)
    # the other convention of attention is found and named
    monitor = LogMonitor([TorchtitanReader()])
    monitor.feed((LOGS / "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log").read_bytes())
    (text,) = findings_of(count(plan(attention="causal"), monitor.steps))
    assert text == (
        "the framework reports 509.7 TFLOP/s/GPU, 12.5 % more than the 453 that its tokens come to: "
        "it counts full attention, where causal was expected"
    )


@each_row(("told", "attention"), [(1441.4, "full"), (1290.3, "causal")])
def test_lines_of_two_generations_of_images_follow_their_conventions(told, attention):
    """Of rocm/megatron-lm 16 sequences of 8192 on 8 GPUs in 658.3 ms; of Primus 26.5 what it says itself."""
    speed = 16 * 8192 / 0.6583 / 8 if attention == "full" else 25032.8
    found = count(plan(attention=attention), steps(tokens_per_s_per_gpu=speed, tflops_per_gpu=told))
    assert abs(found.apart) < 0.005 and found.attention == attention


def test_a_figure_of_another_model_is_a_finding_and_a_running_mean_is_not_compared():
    # a figure of another model is a finding with both figures
    found = count(plan(), steps(tokens_per_s_per_gpu=8800.0, tflops_per_gpu=400.0))
    (text,) = findings_of(found)
    assert text.startswith("the framework reports 400 TFLOP/s/GPU, 21.5 % less than the 509.6 ")
    assert "something else than Llama-3.1-8B with sequences of 8192" in text
    # a figure of zero beside hundreds is a finding
    found = count(plan(), steps(tokens_per_s_per_gpu=8800.0, tflops_per_gpu=0.0))
    assert found.apart == -1.0 and len(findings_of(found)) == 1
    found = count(plan(), steps(tokens_per_s_per_gpu=8800.0, tflops_per_gpu_mean=100.0))
    assert found.framework_tflops_per_gpu is None and findings_of(found) == ()
    # the framework's figure is that of the window alone
    slow = [Step(n=n, values={TPS: 100.0, TFLOPS: 5.0}) for n in range(1, 6)]
    rest = [Step(n=n, values={TPS: 8800.0, TFLOPS: 510.0}) for n in range(6, 9)]
    assert count(plan(), Steps([*slow, *rest])).framework_tflops_per_gpu == 510.0
    # odd figures of a framework raise nothing
    for told in (math.nan, math.inf, -1e300, 1e308):
        found = count(plan(), steps(tokens_per_s_per_gpu=8800.0, tflops_per_gpu=told))
        assert found.framework_tflops_per_gpu is None
    negative = count(plan(), steps(tokens_per_s_per_gpu=8800.0, tflops_per_gpu=-510.0))
    assert len(findings_of(negative)) == 1


@each_row(("told", "findings"), [(509.6 * 1.019, 0), (509.6 * 1.021, 1), (509.6 * 0.979, 1)])
def test_two_percent_is_the_limit(told, findings):
    assert len(findings_of(count(plan(), steps(tokens_per_s_per_gpu=8800.0, tflops_per_gpu=told)))) == findings


@each_row("told", [0.0, 0.1, 0.5])
def test_a_figure_of_one_printed_digit_is_not_compared(told):
    tiny = Architecture(name="tiny", layers=2, hidden=256, heads=8, ffn=768, vocab=2048)
    found = count(plan(shape=tiny, seq_len=256), steps(tokens_per_s_per_gpu=10_000.0, tflops_per_gpu=told))
    assert 0.1 < found.tflops_per_gpu < 0.5
    assert (found.framework_tflops_per_gpu, found.apart) == (told, None)
    assert findings_of(found) == ()


def test_samples_and_step_times_tell_their_tokens():
    # samples are as many tokens as a sequence has
    found = count(plan(), steps(samples_per_s_per_gpu=8800 / 8192), SAMPLES)
    assert found.tokens_per_s_per_gpu == pytest.approx(8800.0)
    assert found.tflops_per_gpu == pytest.approx(509.6, abs=0.1)
    # the time of a step tells its tokens in a pretraining
    run = steps(tflops_per_gpu=509.0, step_time_s=8 * 8192 / 8800 / 2)
    found = count(plan(global_batch=8), run, TFLOPS)
    assert found.tokens_per_s_per_gpu == pytest.approx(8800.0) and abs(found.apart) < 0.002
    assert count(plan(global_batch=8, mode="posttrain/sft"), run, TFLOPS) is None
    assert count(plan(), run, TFLOPS) is None
    # a run of a script has no figure
    of = msgspec.structs.replace(plan(), variant=None)
    window = steady_window(steps(tokens_per_s_per_gpu=1.0), TPS, 5)
    assert count_compute(of, steps(tokens_per_s_per_gpu=1.0), window) is None


@each_row(
    "of", [plan(shape=None), plan(seq_len=None), plan(seq_len=0), plan(seq_len=-5)], ids=["shape", "none", "0", "-5"]
)
def test_without_a_shape_or_a_length_there_is_no_figure(of):
    assert count(of, steps(tokens_per_s_per_gpu=8800.0)) is None


@each_row("speed", [0.0, -5.0])
def test_a_speed_that_is_none_has_no_figure(speed):
    assert count(plan(), steps(tokens_per_s_per_gpu=speed)) is None


def test_more_than_the_peak_is_refused_and_said():
    found = count(plan(), steps(tokens_per_s_per_gpu=96_180.0))
    assert found.mfu is None and found.peak_tflops == 989.4
    (text,) = findings_of(found)
    assert text == found.no_mfu
    assert "would be 563 % of the peak of H200 BF16: " in text and "is not what it seems" in text
    # fp8 is a part of the peak of fp8
    found = count(plan(precision="FP8"), steps(tokens_per_s_per_gpu=12_701.0))
    assert (found.peak_of, found.peak_tflops) == ("H200 FP8", 1978.9)
    assert found.mfu == pytest.approx(0.3717, abs=0.001)
    # an unknown gpu and a cpu have no mfu and no finding
    for here in (machine("NVIDIA H20"), machine(count=0)):
        found = count(plan(here), steps(tokens_per_s_per_gpu=8800.0))
        assert found.mfu is None and found.no_mfu and found.tflops_per_gpu > 500
        assert findings_of(found) == ()


def test_adapters_take_less_work_for_a_token():
    full, lora = (
        count(plan(mode=mode), steps(tokens_per_s_per_gpu=8800.0)) for mode in ("finetune_fw", "HF_finetune_lora")
    )
    assert not full.frozen and lora.frozen
    assert lora.flops_per_token == pytest.approx(57.91e9 - 2 * 7.505e9, rel=1e-3)
    modes = ["finetune_lora", "finetune_qlora", "HF_finetune_lora", "posttrain/lora"]
    assert all(trains_adapters(Variant(model="", mode=mode)) for mode in modes)
    assert not any(
        trains_adapters(Variant(model="", mode=mode)) for mode in ("pretrain", "finetune_fw", "posttrain/sft")
    )
