"""torchtune's logs: real ones of 0.6.1, fields in any order, bars, files beside the log, and lines that were cut."""

from __future__ import annotations

import math
import shutil

import msgspec

from madlite.measure.number import mad_metrics
from madlite.measure.steps import Steps
from madlite.model import EffectiveConfig, Ended, Line, Phase, Quantity, Step, Summary
from madlite_plugins.hf.reader import detect as hf_detects
from madlite_plugins.torchtitan.reader import detect as torchtitan_detects
from madlite_plugins.torchtune.backend import Torchtune
from madlite_plugins.torchtune.reader import TorchtuneReader, detect
from tests.plugins.logs import LOGS, events, gpu_machine, lines, plan, read, steps
from tests.rows import each_row

TPS = Quantity.TOKENS_PER_S_PER_GPU
STDOUT = "torchtune-0.6.1-full-singledevice-cpu-stdoutlogger.log"
BARS = "torchtune-0.6.1-full-singledevice-cpu.log"
BAR = "1|3|Loss: 6.914547443389893:  38%|███▊      | 3/8 [00:02<00:03,  1.35it/s]"


def told(name: str) -> dict[str, str]:
    found = events(TorchtuneReader(), name)
    return {key: value for event in found if isinstance(event, EffectiveConfig) for key, value in event.values.items()}


@each_row(
    ("name", "count"),
    [
        (STDOUT, 8),
        (BARS, 20),
        ("torchtune-0.6.1-lora-singledevice-cpu.log", 20),
        ("torchtune-0.6.1-full-distributed-2rank-cpu.log", 12),
        ("torchtune-0.6.1-full-distributed-cpu-memstats-FAIL.log", 0),
        ("torchtune-0.6.1-full-singledevice-cpu.disklogger.txt", 20),
        ("torchtune-0.6.1-lora-singledevice-cpu.disklogger.txt", 20),
        ("torchtune-0.6.1-full-distributed-2rank-cpu.disklogger.txt", 12),
        ("torchtune-madlite-tiny_lora-cpu.log", 20),
        ("torchtune-madlite-tiny_full-2ranks-cpu.log", 20),
        ("torchtune-memory-made-up-numbers.txt", 20),
    ],
)
def test_every_step_of_a_real_log_is_read_once(name, count):
    found = steps(events(TorchtuneReader(), name))
    assert list(Steps(found).numbers()) == list(range(1, count + 1))
    assert all(math.isfinite(step.values[Quantity.LOSS]) for step in found)


def test_a_step_line_behind_a_bar_has_all_its_numbers():
    third = next(step for step in steps(events(TorchtuneReader(), STDOUT)) if step.n == 3)
    assert third.values == {
        Quantity.LOSS: 6.914547443389893,
        Quantity.LEARNING_RATE: 0.001,
        TPS: 942.6035766601562,
        Quantity.GRAD_NORM: 1.2508585453033447,
    }
    # fields come in any order and unknown ones are left out
    text = (
        "Step 7 | peak_memory_alloc:61.2 num_tokens:9 peak_memory_reserved:70.5 lr:2e-05 loss:1.5 "
        "peak_memory_active:61.9 tokens_per_second_per_gpu:2,942.6 "
    )
    (step,) = steps(read(TorchtuneReader(), text))
    assert step.n == 7 and step.values == {
        Quantity.MEMORY_ALLOCATED_GIB: 61.2,
        Quantity.MEMORY_RESERVED_GIB: 70.5,
        Quantity.MEMORY_USED_GIB: 61.9,
        Quantity.LEARNING_RATE: 2e-05,
        Quantity.LOSS: 1.5,
        TPS: 2942.6,
    }
    # a number that was cut is none
    reader = TorchtuneReader()
    whole = "Step 1 | loss:6.5 lr:0.001 tokens_per_second_per_gpu:4094.4 "
    first, second = steps(read(reader, whole, "Step 2 | loss:6.5 lr:0.001 tokens_per_second_per_gpu:40"))
    assert first.values[TPS] == 4094.4
    assert second.values == {Quantity.LOSS: 6.5, Quantity.LEARNING_RATE: 0.001}
    # a log without its trailing spaces keeps its speeds
    texts = (f"Step {n} | loss:6.5 lr:0.001 tokens_per_second_per_gpu:{n}00.5" for n in range(1, 5))
    assert [step.values.get(TPS) for step in steps(read(TorchtuneReader(), *texts))] == [None, 200.5, 300.5, 400.5]


@each_row("text", ["Step 2 | loss:nan lr:0.001 ", BAR.replace("6.914547443389893", "nan")])
def test_a_loss_that_is_no_number_is_told(text):
    (step,) = steps(read(TorchtuneReader(), text))
    assert math.isnan(step.values[Quantity.LOSS])


def test_the_file_that_the_log_names_gives_the_speeds_that_bars_lack(tmp_path):
    reader, folder = TorchtuneReader(), tmp_path / "output/logs"
    folder.mkdir(parents=True)
    shutil.copy(LOGS / "torchtune-0.6.1-full-singledevice-cpu.disklogger.txt", folder / "log_1795219405.txt")
    (folder / "log_1.txt").write_text("Step 1 | loss:1.0 tokens_per_second_per_gpu:1.0 \n")
    all_of = Steps([*steps(events(reader, BARS)), *reader.finish(tmp_path)])
    assert all_of.count() == 20
    assert all_of.curve(TPS).values[1] == 4094.466552734375 and len(all_of.curve(TPS).values) == 20


def test_a_file_is_not_read_where_the_log_has_the_speeds_or_names_none(tmp_path):
    (tmp_path / "log_1795219405.txt").write_text("Step 1 | loss:1.0 tokens_per_second_per_gpu:1.0 \n")
    complete, nameless = TorchtuneReader(), TorchtuneReader()
    read(complete, "Writing logs to /x/log_1795219405.txt", "Step 1 | loss:2.0 tokens_per_second_per_gpu:2.0 ")
    read(nameless, BAR)
    assert list(complete.finish(tmp_path)) == [] and list(nameless.finish(tmp_path)) == []
    missing = TorchtuneReader()
    read(missing, "Writing logs to /x/log_99.txt")
    assert list(missing.finish(tmp_path)) == [] and list(missing.finish(tmp_path / "nowhere")) == []


def test_what_a_run_is_given_comes_from_its_configuration_and_its_length_from_the_bar():
    assert told(STDOUT) == {
        "micro_batch": "4",
        "gradient_accumulation_steps": "1",
        "steps": "8",
        "epochs": "1",
        "log_freq": "1",
        "dtype": "fp32",
        "precision": "FP32",
        "seq_len": "256",  # the tokenizer's, not the model's 2048
        "packed": "false",
    }
    assert told("torchtune-0.6.1-full-distributed-2rank-cpu.log")["steps"] == "12", "asked for 20, the data had 12"
    assert told("torchtune-0.6.1-lora-singledevice-cpu.log")["warmup_steps"] == "5"
    # epochs make a run longer
    found = read(TorchtuneReader(), "Running XRecipe with resolved config:", "epochs: 3", "seed: null", BAR)
    assert [event.values for event in found if isinstance(event, EffectiveConfig)] == [{"epochs": "3"}, {"steps": "24"}]
    # the bar is silent once lines have every step and counts where they have not
    line = "Step 2 | loss:6.5 tokens_per_second_per_gpu:5.0 "
    assert [step.n for step in steps(read(TorchtuneReader(), line, BAR))] == [2]
    config = ("Running LoRAFinetuneRecipeDistributed with resolved config:", "log_every_n_steps: 2")
    assert [step.n for step in steps(read(TorchtuneReader(), *config, line, BAR))] == [2, 3]


@each_row("name", ["torchtune-madlite-tiny_lora-cpu.log", "torchtune-madlite-tiny_full-2ranks-cpu.log"])
def test_madlite_s_own_runs_have_every_speed_on_stdout(name):
    found = steps(events(TorchtuneReader(), name))
    assert len(Steps(found).curve(TPS).values) == 20
    assert told(name)["steps"] == "20" and told(name)["packed"] == "true"


def test_mad_s_figures_of_a_disk_log_are_its_script_s():
    all_of = Steps(steps(events(TorchtuneReader(), "torchtune-memory-made-up-numbers.txt")))
    metrics, _ = mad_metrics(Torchtune().result_rule().mad, all_of, {}, {})
    assert (
        {metric.metric: metric.text for metric in metrics}
        == {
            "max_memory_alloc": "117.59",  # the 11th step's; earlier ones are higher
            "avg_tokens_per_s_per_gpu": f"{sum(all_of.curve(TPS).values[10:]) / 10:.6g}",
        }
    )
    # the summary of mad's script is read
    texts = ("Max memory alloc (last half): 137.2001576423645", "Average tokens/s/gpu (last half): 92.0694")
    found = [event.values for event in read(TorchtuneReader(), *texts) if isinstance(event, Summary)]
    assert found == [{texts[0][:28]: "137.2001576423645"}, {texts[1][:32]: "92.0694"}]
    # the saved adapter ends a run too
    text = "Please note that you have set adapter_only=True, so only adapter weights will be saved."
    assert [type(event) for event in read(TorchtuneReader(), text)] == [Ended]


@each_row("name", [STDOUT, "torchtune-0.6.1-lora-singledevice-cpu.log"])
def test_the_saved_checkpoint_ends_a_run(name):
    assert sum(isinstance(event, Ended) for event in events(TorchtuneReader(), name)) == 1


def test_a_second_training_in_a_log_begins_anew():
    reader, text = TorchtuneReader(), (LOGS / STDOUT).read_bytes()
    found = [event for line in lines(text + b"\n" + text) for event in reader.feed(line)]
    begun = [place for place, event in enumerate(found) if isinstance(event, Phase) and event.begins]
    assert len(begun) == 1
    assert [{step.n for step in steps(part)} for part in (found[: begun[0]], found[begun[0] :])] == [
        set(range(1, 9))
    ] * 2
    # both ranks configurations are one training
    assert not any(
        isinstance(event, Phase)
        for event in events(TorchtuneReader(), "torchtune-0.6.1-full-distributed-2rank-cpu.log")
    )
    # a second training has a degree of its own
    texts = (OFTEN, CONFIG, "tensor_parallel_dim: 2", "", SPEEDS, CONFIG, "seed: 1", "", SPEEDS)
    assert [step.values[TPS] for step in steps(read(TorchtuneReader(), *texts))] == [300.0, 600.0]


@each_row("path", sorted(LOGS.glob("torchtune-*")), ids=lambda path: path.name)
def test_torchtune_s_logs_are_recognised_by_its_backend_alone(path):
    head = [line.text for line in lines(path.read_bytes())][:200]
    assert detect(head) >= 0.9 and hf_detects(head) == torchtitan_detects(head) == 0


@each_row("path", sorted(LOGS.glob("[!t]*")) + sorted(LOGS.glob("torchtitan-*")), ids=lambda path: path.name)
def test_other_logs_are_not(path):
    head = [line.text for line in lines(path.read_bytes()[:200_000])]
    assert detect(head) == 0


@each_row(
    "text",
    [
        "Step | loss:1",
        "Step 5 | ",
        "Step 99999999999999999999 | loss:1.0 ",
        "x: " * 500,
        "1|2|Loss: : 3%|",
        "Step 1 | a:b ",
    ],
)
def test_nonsense_is_no_step(text):
    assert steps(list(TorchtuneReader().feed(Line(text=text)))) == []


def test_ranks_have_no_part_in_it():
    assert {step.rank for step in steps(events(TorchtuneReader(), BARS)) if isinstance(step, Step)} == {None}


# Tokens that a tensor-parallel group shares

CONFIG = "Running FullFinetuneRecipeDistributed with resolved config:"
OFTEN = "madlite: this torchtune counts each token by every rank of a tensor-parallel group"
ONCE = "madlite: this torchtune counts each token once"
SPEEDS = "Step 2 | loss:6.5 lr:0.001 tokens_per_second_per_gpu:600.0 "


def speed(*texts: str, tp: str = "1") -> float | None:
    *_, last = steps(read(TorchtuneReader(tp), *texts, SPEEDS))
    assert last.n == 2 and last.values[Quantity.LOSS] == 6.5
    return last.values.get(TPS)


@each_row(
    ("texts", "expected"),
    [
        ((OFTEN, CONFIG, "tensor_parallel_dim: 4"), 150.0),
        ((OFTEN, CONFIG, "tensor_parallel_dim: 1"), 600.0),
        ((OFTEN, CONFIG, "seed: 1"), 600.0),
        ((OFTEN, CONFIG, "data_parallel_shard_dim: -1", "tensor_parallel_dim: 4"), 150.0),  # 0.6.1 ignores the key
        ((ONCE, CONFIG, "tensor_parallel_dim: 4"), 600.0),
        ((CONFIG, "context_parallel_dim: 1", "tensor_parallel_dim: 4"), 600.0),
        ((CONFIG, "data_parallel_shard_dim: -1", "tensor_parallel_dim: 4"), 600.0),
        ((CONFIG, "data_parallel_replicate_dim: 1", "tensor_parallel_dim: 4"), 600.0),
        ((CONFIG, "tensor_parallel_dim: 4"), None),
        ((OFTEN, CONFIG, "tensor_parallel_dim: four"), None),
        ((OFTEN, CONFIG, "tensor_parallel_dim: 0"), None),
        ((OFTEN, CONFIG, "tensor_parallel_dim: 99999999999"), None),
    ],
)
def test_a_speed_counts_each_token_once_and_is_left_out_where_nobody_knows(texts, expected):
    assert speed(*texts) == expected


def test_the_plan_tells_the_degree_where_the_log_does_not():
    assert speed(OFTEN, tp="2") == 300.0 and speed(tp="2") is None
    made = plan(Torchtune(), gpu_machine(2), "tiny_full", tp=2)
    (step,) = steps(read(Torchtune().reader(made), OFTEN, SPEEDS))
    assert step.values[TPS] == 300.0
    other = msgspec.structs.replace(made, backend="script")
    (step,) = steps(read(Torchtune().reader(other), SPEEDS))
    assert step.values[TPS] == 600.0
    # a summary of tokens is left out where its steps count them more than once
    summary = ("Max memory alloc (last half): 137.2", "Average tokens/s/gpu (last half): 92.0")
    config = (CONFIG, "tensor_parallel_dim: 2", "")
    found = [event.values for event in read(TorchtuneReader(), *config, *summary) if isinstance(event, Summary)]
    assert found == [{"Max memory alloc (last half)": "137.2"}]


def test_the_file_beside_the_log_is_corrected_too(tmp_path):
    (tmp_path / "log_7.txt").write_text(SPEEDS + "\n" + "Step 3 | tokens_per_second_per_gpu:80.0 \n")
    for texts, expected in (((OFTEN,), [300.0, 40.0]), ((), [None])):
        reader = TorchtuneReader()
        read(reader, *texts, CONFIG, "tensor_parallel_dim: 2", "", "Writing logs to /x/log_7.txt")
        found = [event for event in reader.finish(tmp_path) if isinstance(event, Step)]
        assert [step.values.get(TPS) for step in found] == expected
