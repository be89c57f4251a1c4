"""Megatron's logs → steps: real logs of two versions, lines of GPU runs, and lines that must not shorten a number."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.measure.monitor import LogMonitor
from madlite.model import Card, EffectiveConfig, Ended, Line, Place, Quantity, RunPlan, Step, Summary, Variant
from madlite_plugins.megatron_lm.reader import MegatronReader, detect
from tests.plugins.logs import LOGS, events, gpu_machine, lines, read, steps
from tests.rows import each_row

Q = Quantity
ROCM, MEMORY, WARM, MEAN, TRAINER = (LOGS / "megatron-gpu-lines.txt").read_text().splitlines()
WHOLE = " | loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"


def eight_gpus(seq_len: int = 8192) -> RunPlan:
    return RunPlan(
        id="r1",
        card=Card(name="a card", root=Path(), source="a test"),
        backend="megatron_lm",
        place=Place(nodes=2, gpus_per_node=4),
        machine=gpu_machine(4),
        workspace=Path("/space"),
        inside="/space",
        folder=Path("/space/r1"),
        variant=Variant(model="m", seq_len=seq_len),
    )


def values(*texts: str, plan: RunPlan | None = None) -> dict[Quantity, float]:
    """Return the numbers of the last step."""
    return steps(read(MegatronReader(plan), *texts))[-1].values


@each_row(
    ("name", "ns", "ended"),
    [
        ("megatron-lm-rocm_dev-2b855baf-gpt-cpu-1rank", range(1, 21), True),
        ("megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2", range(1, 13), True),
        ("megatron-lm-rocm_dev-gpt-cpu-loginterval5", range(5, 21, 5), True),
        ("megatron-lm-rocm_dev-gpt-cpu-nan-abort-FAIL", [1], False),
        ("megatron-lm-rocm_dev-gpt-cpu-nan-continue", range(1, 21), True),
        ("megatron-lm-core0.16.1-gpt-cpu-1rank", range(1, 21), True),
        ("megatron-lm-core0.16.1-gpt-cpu-loginterval5", [1, 5, 10, 15, 20], True),
        ("megatron-lm-core0.16.1-gpt-cpu-nan-abort-FAIL", [1], False),
    ],
)
def test_real_logs_give_their_steps_and_their_end(name, ns, ended):
    found = events(MegatronReader(), f"{name}.log")
    assert [step.n for step in steps(found)] == list(ns)
    assert any(isinstance(event, Ended) for event in found) is ended


def test_every_number_of_a_line_and_the_tokens_that_follow_from_the_arguments():
    last = steps(events(MegatronReader(), "megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2.log"))[-1]
    assert last.values == pytest.approx(
        {
            Q.STEP_TIME_S: 2.2916,
            Q.TFLOPS_PER_GPU: 0.1,
            Q.LEARNING_RATE: 1e-4,
            Q.LOSS: 7.931818,
            Q.GRAD_NORM: 7.792,
            Q.TOKENS_PER_S_PER_GPU: 4 * 512 / 2.2916 / 2,  # global batch, sequence, seconds, ranks
        }
    )

    # a line covers the steps of the log interval
    def spans(name: str) -> list[tuple[int, int]]:
        return [(step.n, step.span) for step in steps(events(MegatronReader(), f"megatron-lm-{name}-loginterval5.log"))]

    assert spans("rocm_dev-gpt-cpu") == [(5, 5), (10, 5), (15, 5), (20, 5)]
    # here the second line's numbers are means over steps 1 to 5: its loss is that of the log above
    assert spans("core0.16.1-gpt-cpu") == [(1, 1), (5, 5), (10, 5), (15, 5), (20, 5)]
    # the memory of the fullest rank comes with the next step
    log = "megatron-lm-core0.16.1-gpt-cpu-1rank.log"
    first, second, third, fourth = steps(events(MegatronReader(), log))[:4]  # told after the first and the second
    assert second.values[Q.MEMORY_ALLOCATED_GIB] == pytest.approx(213.11 / 1024)
    assert second.values[Q.MEMORY_RESERVED_GIB] == pytest.approx(403.84 / 1024)
    told = [Q.MEMORY_RESERVED_GIB in step.values for step in (first, second, third, fourth)]
    assert told == [False, True, True, False]
    fuller = MEMORY.replace("Rank 0", "Rank 7").replace("max reserved: 137672.0", "max reserved: 140000.5")
    assert values(MEMORY, fuller, MEMORY, ROCM)[Q.MEMORY_RESERVED_GIB] == 140000.5 / 1024
    # a rocm line of 2025
    assert values(ROCM) == pytest.approx(
        {
            Q.STEP_TIME_S: 0.6583,
            Q.MEMORY_USED_PERCENT: 54.62,
            Q.TFLOPS_PER_GPU: 1441.4,
            Q.LEARNING_RATE: 1e-4,
            Q.LOSS: 12.50274,
            Q.GRAD_NORM: 2.772,
        }
    )


def test_what_the_arguments_say():
    for version, steps_asked in (("core0.16.1-gpt-cpu-1rank", "20"), ("rocm_dev-gpt-cpu-2ranks-dp2", "12")):
        (config,) = (
            e for e in events(MegatronReader(), f"megatron-lm-{version}.log") if isinstance(e, EffectiveConfig)
        )
        two = "dp2" in version
        assert config.values == {
            "steps": steps_asked,
            "seq_len": "512" if two else "128",
            "micro_batch": "2",
            "global_batch": "4",
            "world_size": "2" if two else "1",
            "warmup_steps": "2",
            "log_interval": "1",
            **dict.fromkeys(("tp", "pp", "cp", "ep"), "1"),
            "precision": "FP32",
        }
    # without arguments the iterations say how many steps there are
    (config,) = (event for event in read(MegatronReader(), MEAN, MEAN) if isinstance(event, EffectiveConfig))
    assert config.values == {"steps": "20", "global_batch": "16"}
    # the global batch is that of the iterations whatever the arguments say
    assert said_batches() == ["16", "32"]
    argument = "  global_batch_size ............................... {}"
    assert said_batches(argument.format(16)) == ["16", "32"] and said_batches(argument.format(8)) == ["16", "32"]
    torn = ROCM.replace("batch size:    16", "batch size:    1[rank3]: x")
    (config,) = (event for event in read(MegatronReader(), torn) if isinstance(event, EffectiveConfig))
    assert "global_batch" not in config.values
    # the plan gives the sizes that the log does not say
    speed = values(ROCM, plan=eight_gpus())[Q.TOKENS_PER_S_PER_GPU]
    assert speed == pytest.approx(16 * 8192 / 0.6583 / 8) == pytest.approx(24888, abs=1)
    arguments = ("  seq_length ...................................... 4096", "  world_size ...... 16")
    assert values(*arguments, ROCM, plan=eight_gpus())[Q.TOKENS_PER_S_PER_GPU] == pytest.approx(speed / 4)


@each_row(
    ("arguments", "precision"),
    [
        ({"bf16": "True", "fp16": "False", "fp8": "None"}, "BF16"),
        ({"bf16": "True", "fp16": "False", "fp8": "hybrid"}, "FP8"),
        ({"bf16": "True", "fp16": "False", "fp4": "e2m1", "fp8": "None"}, "FP4"),
        ({"bf16": "False", "fp16": "True"}, "FP16"),
        ({"bf16": "False"}, None),  # it may be FP16
    ],
)
def test_the_arguments_say_the_precision(arguments, precision):
    told = [f"  {name} ........................ {value}" for name, value in arguments.items()]
    (config,) = (event for event in read(MegatronReader(), *told, MEAN) if isinstance(event, EffectiveConfig))
    assert config.values.get("precision") == precision


def said_batches(*told: str, plan: RunPlan | None = None) -> list[str]:
    found = read(MegatronReader(plan), *told, ROCM, ROCM, ROCM.replace("batch size:    16", "batch size:    32"))
    return [event.values["global_batch"] for event in found if isinstance(event, EffectiveConfig)]


@each_row("value", ["['16', '16', '1000']", "[32, 32, 500]"])
def test_a_global_batch_that_is_planned_to_grow_is_not_said_by_the_iterations(value):
    told = ("  global_batch_size ............................... 64", f"  rampup_batch_size ............... {value}")
    assert said_batches(*told) == ["64"]
    by_args = replace(eight_gpus(), args="--rampup-batch-size 16 16 1000")
    assert said_batches(told[0], plan=by_args) == ["64"]
    assert said_batches(told[0], "  rampup_batch_size ............... None") == ["16", "32"]


def test_other_figures_of_a_line_are_told_apart():
    # instantaneous numbers and running means are told apart
    expected = {
        Q.STEP_TIME_S: 0.6545,
        Q.STEP_TIME_S_MEAN: 0.7351,
        Q.TFLOPS_PER_GPU: 1290.3,
        Q.TFLOPS_PER_GPU_MEAN: 1162.8,
        Q.TOKENS_PER_S_PER_GPU: 25032.8,
        Q.TOKENS_PER_S_PER_GPU_MEAN: 22288.1,
        Q.LEARNING_RATE: 9.698463e-06,
        Q.LOSS: 11.01008,
        Q.GRAD_NORM: 19.806,
    }
    assert values(MEAN) == pytest.approx(expected)
    compute = MEAN.replace("throughput per GPU", "compute per GPU").replace("1290.3/1162.8", "1290.3 (avg 1162.8)")
    assert values(compute) == values(MEAN)
    assert values(MEAN.replace("tokens/s/GPU inst/harmonic mean", "tokens per GPU (tokens/s/GPU)")) == values(MEAN)
    # a line without the rest of its fields
    short = (
        "iteration 100/200 | elapsed time per iteration (ms): 100.0 | compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1) "
        "| tokens/s/GPU inst/harmonic mean: 9640.7/9629.8 | global batch size: 32"
    )
    assert values(short) == {
        Q.STEP_TIME_S: 0.1,
        Q.TFLOPS_PER_GPU: 496.3,
        Q.TFLOPS_PER_GPU_MEAN: 496.1,
        Q.TOKENS_PER_S_PER_GPU: 9640.7,
        Q.TOKENS_PER_S_PER_GPU_MEAN: 9629.8,
    }
    # memory in use is not memory reserved
    found = values(TRAINER)
    assert (found[Q.MEMORY_USED_GIB], found[Q.MEMORY_USED_PERCENT]) == (227.35, 88.81)
    assert Q.MEMORY_RESERVED_GIB not in found
    assert (found[Q.TFLOPS_PER_GPU], found[Q.TOKENS_PER_S_PER_GPU]) == (210.5, 12130.4)
    assert values(TRAINER.replace("GB/", "GiB/")) == found
    rocm = " rocm mem usage/free/total/usage_ratio: 230.00GB/25.98GB/255.98GB/89.85% |"
    assert values(TRAINER + rocm) == found
    assert values(TRAINER.replace(" hip mem", f"{rocm} hip mem")) == found
    # numbers with commas and none
    found = values(MEAN.replace("25032.8/", "25,032.8/").replace("grad norm: 19.806", "grad norm: inf"))
    assert found[Q.TOKENS_PER_S_PER_GPU] == 25032.8 and math.isinf(found[Q.GRAD_NORM])
    # an enormous number is infinite
    assert values(MEAN.replace("25032.8/", "9" * 5000 + "/"))[Q.TOKENS_PER_S_PER_GPU] == math.inf


@each_row("line", [ROCM, WARM, MEAN, TRAINER])
def test_a_line_that_was_cut_off_loses_numbers_and_never_shortens_one(line):
    (whole,) = steps(read(MegatronReader(), line))
    for length in range(len(line)):
        for step in steps(read(MegatronReader(), line[:length])):
            assert step.n == whole.n
            assert step.values.items() <= whole.values.items()


def test_a_line_that_another_process_wrote_into_loses_numbers_and_never_shortens_one():
    (whole,) = steps(read(MegatronReader(), MEAN))
    for length in range(len(MEAN)):
        for step in steps(read(MegatronReader(), f"{MEAN[:length]}[rank1]: W1121 a warning{MEAN[length:]}")):
            changed = {key for key in step.values if step.values[key] != whole.values.get(key)}
            assert changed <= {Q.LOSS} and step.n == whole.n
            assert not changed or math.isnan(step.values[Q.LOSS])  # where the word loss itself was torn apart
    # a loss that another process wrote into is not known
    assert Q.LOSS not in values(WARM.replace("1.191648E+01", "1.19[rank1]: W1121 a warning1648E+01"))
    # iterations in one line are several steps
    (line,) = lines(f"[rank0]:{WARM}[rank1]:{MEAN[:150]}[rank3]:{TRAINER}".encode())
    found = steps(list(MegatronReader().feed(line)))
    assert [(step.n, step.rank) for step in found] == [(2, 0), (4, 1), (12125, 31)]
    assert found[0].values[Q.STEP_TIME_S] == 8.1467
    assert found[1].values == pytest.approx({Q.STEP_TIME_S: 0.6545, Q.STEP_TIME_S_MEAN: 0.7351})
    assert found[2].values[Q.STEP_TIME_S] == pytest.approx(2.7013)
    # ranks come from the label next to the iteration
    (step,) = steps(list(MegatronReader().feed(Line(text="[rank0]:" + TRAINER, rank=0))))
    assert isinstance(step, Step) and step.rank == 31


@each_row(
    "prefix",
    [
        "",
        " [2026-11-21 00:15:45.334662] ",
        "[rank7]: ",
        "(PrimusMaster  pid=4242) ",
        "ain_fp8_mx/0  [2025-12-22 15:18:33] ",
    ],
)
def test_whatever_stands_before_an_iteration(prefix):
    assert values(prefix + MEAN) == values(MEAN)


def test_an_iteration_without_loss_had_a_loss_that_is_none():
    log = "megatron-lm-rocm_dev-gpt-cpu-nan-continue.log"
    losses = [step.values[Q.LOSS] for step in steps(events(MegatronReader(), log))]
    assert losses[0] == 9.029356 and all(map(math.isnan, losses[1:]))
    monitor = LogMonitor([MegatronReader()])
    monitor.feed((LOGS / log).read_bytes())
    assert "iteration        2/      20" in monitor.nan_loss
    # an iteration that the scale of fp16 skipped is no failure
    skipped = WARM.replace(" lm loss: 1.191648E+01 |", "").replace("skipped iterations:   0", "skipped iterations:   1")
    assert Q.LOSS not in values(skipped)
    assert math.isnan(values(skipped.replace("nan iterations:   0", "nan iterations:   1"))[Q.LOSS])
    # a nan that is counted is not hidden by the mean over the others
    assert math.isnan(values(MEAN.replace("nan iterations:   0", "nan iterations:   1"))[Q.LOSS])
    # losses beside the loss do not stand for it
    beside = " load_balancing_loss: 1.02E+00 | z_loss: 1.0E-03 | mtp_1 loss: 9.1E+00 |"
    assert math.isnan(values(WARM.replace(" lm loss: 1.191648E+01 |", beside))[Q.LOSS])
    assert values(WARM.replace(" | loss scale", f" |{beside} loss scale"))[Q.LOSS] == 11.91648


@each_row("word", ["nan", "NaN", "NAN", "-nan", "inf", "INF", "-Inf"])
def test_a_loss_that_is_no_number_is_read_however_it_is_spelt(word):
    assert not math.isfinite(values(WARM.replace("1.191648E+01", word))[Q.LOSS])


@each_row("word", ["-nan(ind)", "None", "", "1.#QNAN"])
def test_a_loss_that_cannot_be_read_is_lost(word):
    assert math.isnan(values(WARM.replace("1.191648E+01", word))[Q.LOSS])
    cut = WARM.replace("1.191648E+01", word).split("loss scale")[0]
    assert math.isnan(values(cut)[Q.LOSS])


def test_diffusion_has_images_and_its_own_name_for_the_loss():
    line = (
        "iteration 3/ 50 | consumed samples: 96 | elapsed time per iteration (ms): 800.0/810.0 | "
        "compute per GPU (TFLOP/s/GPU): 310.5 (avg 305.1) | learning rate: 1.000000E-04 | global batch size:    32 | "
        f"reduced_train_loss: 1.100000E+00{WHOLE} "
        "hip mem usage/free/total/usage_ratio: 100.00GB/92.00GB/192.00GB/52.08% "
        "| images per GPU (images/s/GPU): 5.00/4.94 | latency per image (ms): 25.0 | image resolution: 256x256"
    )
    found = values(line, plan=eight_gpus())
    assert (found[Q.IMAGES_PER_S_PER_GPU], found[Q.LOSS], found[Q.MEMORY_USED_PERCENT]) == (5.0, 1.1, 52.08)
    without = line.replace("| images per GPU (images/s/GPU): 5.00/4.94 ", "")  # so the first iterations
    assert Q.TOKENS_PER_S_PER_GPU not in {**found, **values(without, plan=eight_gpus())}


BRIDGE_TIME = "Step Time : 0.79s GPU utilization: 2254.7MODEL_TFLOP/s/GPU"
BRIDGE = (
    " [2026-09-24 09:43:42] iteration        6/      20 | consumed samples:          768 | "
    "elapsed time per iteration (ms): 788.4 | tokens per GPU (tokens/s/GPU): 166234.4 | seq_length: 8192 | "
    f"learning rate: 1.000000E-05 | global batch size:   128 | lm loss: 2.100000E+00{WHOLE}"
)


def test_megatron_bridge_says_flops_and_sequence_length_before_the_iteration():
    found = read(MegatronReader(), BRIDGE_TIME, BRIDGE, BRIDGE)
    assert [step.n for step in steps(found)] == [6, 6]
    expected = {Q.TFLOPS_PER_GPU: 2254.7, Q.STEP_TIME_S: 0.7884, Q.TOKENS_PER_S_PER_GPU: 166234.4, Q.LOSS: 2.1}
    for step in steps(found):
        assert {key: step.values[key] for key in expected} == pytest.approx(expected)
    other = BRIDGE.replace("788.4", "912.0")
    assert Q.TFLOPS_PER_GPU not in values(BRIDGE_TIME, other)
    # a bridge line says the sequence length of its batch
    unreported = BRIDGE.replace(" tokens per GPU (tokens/s/GPU): 166234.4 |", "")
    assert values(unreported, plan=eight_gpus(4096))[Q.TOKENS_PER_S_PER_GPU] == pytest.approx(128 * 8192 / 0.7884 / 8)


def test_where_only_rank_0_is_in_the_log_each_of_bridges_times_is_a_step(tmp_path):
    reader = MegatronReader()
    found = steps(read(reader, *(BRIDGE_TIME.replace("2254.7", f"{tflops}.5") for tflops in (100, 200, 300))))
    assert [(step.n, step.values[Q.TFLOPS_PER_GPU]) for step in found] == [(1, 100.5), (2, 200.5), (3, 300.5)]
    assert list(reader.finish(tmp_path)) == []
    alone = MegatronReader()
    assert read(alone, BRIDGE_TIME) == []
    (step,) = alone.finish(tmp_path)
    assert (step.n, step.values) == (1, {Q.STEP_TIME_S: 0.79, Q.TFLOPS_PER_GPU: 2254.7})


def test_validation_is_never_training():
    (step,) = read(
        MegatronReader(),
        " validation loss at iteration 10 on validation set | lm loss value: 8.901234E+00 | lm loss PPL: 7.34E+03 | ",
    )
    assert (step.n, step.phase, step.values) == (10, "validate", {Q.LOSS: 8.901234})
    assert (
        read(MegatronReader(), "(min, max) time across ranks (ms):", " validation loss at the end | lm loss: 1 |") == []
    )


def test_after_a_restart_with_other_sizes_the_new_ones_count():
    def started(world: int, length: int) -> tuple[str, ...]:
        return (f"  world_size ..................................... {world}", f"  seq_length ...... {length}")

    line = ROCM.replace("[2026-", "[rank-{0}/{1}] [2026-", 1)
    found = read(MegatronReader(), *started(8, 8192), ROCM, *started(16, 4096), ROCM)
    assert [step.values[Q.TOKENS_PER_S_PER_GPU] for step in steps(found)] == pytest.approx(
        [16 * 8192 / 0.6583 / 8, 16 * 4096 / 0.6583 / 16]
    )
    assert [event.values["world_size"] for event in found if isinstance(event, EffectiveConfig)] == ["8", "16"]
    said = steps(read(MegatronReader(), *started(8, 8192), line.format(7, 8), line.format(15, 16)))
    assert said[1].values[Q.TOKENS_PER_S_PER_GPU] == pytest.approx(said[0].values[Q.TOKENS_PER_S_PER_GPU] / 2)

    # steps that go back are read with a sane span
    def line(n: int) -> str:
        return MEAN.replace("iteration        4/", f"iteration {n:8}/")

    found = steps(read(MegatronReader(), *map(line, (10, 20, 30, 30, 20, 30, 35))))
    assert [(step.n, step.span) for step in found] == [
        (10, 1),
        (20, 10),
        (30, 10),
        (30, 10),
        (20, 10),
        (30, 10),
        (35, 5),
    ]
    assert [step.span for step in steps(read(MegatronReader(), *map(line, (7, 3, 0, 0, 1))))] == [1, 1, 1, 1, 1]


def test_the_means_that_rocm_s_script_prints_at_the_end():
    found = read(
        MegatronReader(),
        "throughput per GPU: 589.331914893617",
        "elapsed time per iteration: 10250.497872340427",
        "tokens/GPU/s: 12786.891099",
        "mem usages: 0.7494000000000002",
        "tokens/GPU/s: 127 and more",
    )
    assert [event.values for event in found if isinstance(event, Summary)] == [
        {"throughput per GPU": "589.331914893617"},
        {"elapsed time per iteration": "10250.497872340427"},
        {"tokens/GPU/s": "12786.891099"},
        {"mem usages": "0.7494000000000002"},
    ]
    assert steps(found) == []


@each_row(
    "text",
    [
        "iteration 4/20 |",
        "iteration 4/20 | |||||",
        "iteration " + "9" * 5000 + "/ 20 | elapsed time per iteration (ms): 1.0 |",
        "iteration 4/20 | elapsed time per iteration (ms): | lm loss: word | :: | grad norm |",
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: |",
        "WARNING:megatron.core.rerun_state_machine:Unexpected result nan on rank 0 at iteration #2 | x",
    ],
)
def test_lines_without_numbers_are_no_steps(text):
    assert read(MegatronReader(), text) == []


def test_only_megatron_s_logs_are_recognised():
    sure = {
        path.name for path in LOGS.iterdir() if detect([line.text for line in lines(path.read_bytes())][:500]) > 0.5
    }
    # GPT-NeoX's iterations are Megatron's, with more in them by which its own format is surer
    assert sure == {path.name for path in LOGS.glob("megatron-*")} | {"gpt-neox-lm-loss.log"}
    # a log is recognised before its first iteration
    heads = [line.text for line in lines((LOGS / "megatron-lm-core0.16.1-gpt-cpu-1rank.log").read_bytes())][:60]
    assert not any("elapsed time" in text for text in heads) and detect(heads) == 0.8
    # a traceback of megatron is recognised weakly
    frame = '[rank3]:   File "/workspace/Megatron-LM/megatron/core/tensor_parallel/layers.py", line 7, in forward'
    assert detect([frame]) == 0.25
    assert detect(['  File "/usr/lib/python3/site-packages/accelerate/utils/megatron_lm.py", line 7']) == 0
    # what the run's own script says of torchrun
    (event,) = read(MegatronReader(), "madlite: torchrun ended with exit code 137, train_llama3.sh with 0")
    assert isinstance(event, Ended) and event.code == 137
