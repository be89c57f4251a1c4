"""The logs of docs/results: their readers' medians are those of the rows, and come out of the text by hand."""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path

from madlite.measure.steps import steady_window
from madlite.model import Quantity
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.torchrun.backend import Torchrun
from madlite_plugins.torchtitan.reader import TorchtitanReader
from madlite_plugins.torchtune.backend import Torchtune
from tests.cli.parsed_log import parsed
from tests.monitors import monitored
from tests.plugins.logs import gpu_machine, plan
from tests.rows import each_row

RESULTS = Path(__file__).parents[2] / "docs" / "results"
H200 = RESULTS / "2xH200"
# log → steps that do not count, the row's performance; the rows are in the order of the runs
RUNS = {
    "debugmodel.log": (5, "436562"),
    "llama3.1_8B-fp8.log": (10, "12701"),
    "llama3.1_8B-bf16-madlite-1.log": (10, "9484"),
    "llama3.1_8B-bf16-madlite-2.log": (10, "9493"),
    "llama3.1_8B-bf16-madlite-3.log": (10, "9346"),
    "llama3.1_8B-bf16-madlite-4.log": (10, "9353"),
    "llama3.1_8B-bf16-madlite-5.log": (10, "9345"),
}
FOUR = RESULTS / "4xH200"
SCALING = {  # in the order of the runs: GPUs, the row's performance
    "llama3.1_8B-bf16-2gpus-1.log": ("2", "9304"),
    "llama3.1_8B-bf16-4gpus-1.log": ("4", "9342"),
    "llama3.1_8B-bf16-2gpus-2.log": ("2", "9289"),
    "llama3.1_8B-bf16-4gpus-2.log": ("4", "9345"),
}
ONE_GPU = {
    "alone.log": "9803",
    "beside-4.log": "9658",
    "beside-2.log": "9646",
    "beside-1.log": "9813",
    "beside-3.log": "9551",
}
BARE = {1: 9483.0, 2: 9488.0, 3: 9357.0, 4: 9352.0, 5: 9353.0}


def read(name, folder=H200):
    return monitored([TorchtitanReader()], (folder / name).read_bytes())


def by_hand(name, warmup, folder=H200):
    """The figures between `tps:` and `tflops:` of the lines after warm-up; none of this uses the reader."""
    text = re.sub(r"\x1b\[[\d;]*m", "", (folder / name).read_text())
    lines = re.findall(r"step: *(\d+) .*? tps: ([\d,]+) ", text)
    return statistics.median(float(tps.replace(",", "")) for n, tps in lines if int(n) > warmup)


@each_row("name", RUNS)
def test_the_median_of_a_run_is_the_one_of_its_log(name):
    warmup, performance = RUNS[name]
    window = steady_window(read(name).steps, Quantity.TOKENS_PER_S_PER_GPU, warmup)
    assert window.median == by_hand(name, warmup) == float(performance)


def test_the_rows_and_efficiency_are_those_of_the_logs():
    with (H200 / "perf.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "tokens_per_s_per_gpu"]
    assert [row["performance"] for row in rows] == [performance for _, performance in RUNS.values()]
    assert {(row["device"], row["num_gpus"], row["status"]) for row in rows} == {("H200", "2", "SUCCESS")}
    # the runs on four gpus are those of their logs
    rows = rows_of(FOUR / "perf.csv")
    assert [(row["num_gpus"], row["performance"]) for row in rows[: len(SCALING)]] == list(SCALING.values())
    one_gpu = rows_of(FOUR / "perf-one-gpu.csv")
    assert [row["performance"] for row in one_gpu] == list(ONE_GPU.values())
    for name, performance in {**{name: row[1] for name, row in SCALING.items()}, **ONE_GPU}.items():
        window = steady_window(read(name, FOUR).steps, Quantity.TOKENS_PER_S_PER_GPU, 10)
        assert window.median == by_hand(name, 10, FOUR) == float(performance), name
    # the efficiency of four gpus is that of the medians
    medians = {gpus: statistics.median(float(speed) for n, speed in SCALING.values() if n == gpus) for gpus in "24"}
    assert round(100 * medians["4"] / medians["2"], 1) == 100.5


def rows_of(path):
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["metric"] == "tokens_per_s_per_gpu"]


def test_a_fault_of_one_of_four_ranks_is_told_with_its_rank(capsys):
    memory = parsed(capsys, FOUR / "out-of-memory-on-one-rank-FAIL.log", code=3)["diagnosis"]
    assert (memory["cause"], memory["rank"]) == ("gpu_out_of_memory", 3)
    assert memory["hint"].startswith("other processes hold 111 GiB of this GPU: end them or take other GPUs; ")
    killed = parsed(capsys, FOUR / "killed-rank-FAIL.log", code=3)["diagnosis"]
    assert (killed["cause"], killed["rank"]) == ("killed", 2)


@each_row("pair", BARE)
def test_a_run_is_as_fast_as_its_bare_command(pair):
    """Recorded figures: what the page says of madlite's cost is what the logs say."""
    bare = by_hand(f"llama3.1_8B-bf16-bare-{pair}.log", 10)
    assert bare == BARE[pair]
    assert by_hand(f"llama3.1_8B-bf16-madlite-{pair}.log", 10) / bare >= 0.995


# log → its reader, where a step's number and speed stand in its text, steps that do not count, the row's performance
SPEED_OF = {
    "torchtune": re.compile(r"Step (\d+) \| .*?tokens_per_second_per_gpu:([\d.]+)"),
    "hf": re.compile(r'madlite-step \{"n": (\d+), .*?"tokens_per_s_per_gpu": ([\d.]+)'),
    "torchrun": re.compile(r'step \{"step": (\d+), .*?"tokens_per_s_per_gpu": ([\d.]+)'),
}
OTHERS = {
    "1xH200/torchtune-tiny_full.log": (5, "62543.8"),
    "1xH200/torchtune-tiny_lora.log": (5, "59406.4"),
    "1xH200/torchtune-tiny_qlora.log": (5, "44841.2"),
    "1xH200/torchtune-llama3.1_8B_lora.log": (5, "10738.3"),
    "1xH200/torchtune-llama3.1_8B_full.log": (5, "8949.01"),
    "2xH200/hf-llama3.1_8B_pretrain-fsdp2.log": (5, "6893.98"),
    "2xH200/hf-llama3.1_8B_lora-ddp.log": (5, "7435.38"),
    "2xH200/hf-llama3.1_8B_lora-fsdp2.log": (5, "7930.98"),
    "2xH200/hf-tiny_pretrain-fsdp1.log": (5, "43962.6"),
    "2xH200/torchrun-ddp_tiny-ddp.log": (5, "123548"),
    "2xH200/torchrun-ddp_tiny-fsdp2.log": (5, "51301.2"),
    "2xH200/hf-gpt_oss_20B_lora-fsdp2.log": (3, "8293.01"),
}


def reader_of(backend):
    if backend != "torchrun":
        return {"torchtune": Torchtune, "hf": HuggingFace}[backend]().reader(None)
    return Torchrun().reader(plan(Torchrun(), gpu_machine(2), "ddp_tiny"))


@each_row("name", OTHERS)
def test_the_median_of_another_trainer_is_the_one_of_its_log(name):
    warmup, performance = OTHERS[name]
    backend = Path(name).name.partition("-")[0]
    text = (RESULTS / name).read_text()
    monitor = monitored([reader_of(backend)], text)
    window = steady_window(monitor.steps, Quantity.TOKENS_PER_S_PER_GPU, warmup)
    speeds = {int(n): float(speed) for n, speed in SPEED_OF[backend].findall(text)}
    by_hand = statistics.median(speed for n, speed in speeds.items() if n > warmup)
    assert window.median == by_hand and f"{by_hand:.6g}" == performance


@each_row(("table", "folder"), [("1xH200/perf.csv", "1xH200"), ("2xH200/perf-hf-torchrun.csv", "2xH200")])
def test_the_rows_of_other_trainers_are_those_of_the_logs(table, folder):
    with (RESULTS / table).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "tokens_per_s_per_gpu"]
    wanted = [performance for name, (_, performance) in OTHERS.items() if name.startswith(folder)]
    assert [row["performance"] for row in rows] == wanted
    assert {row["status"] for row in rows} == {"SUCCESS"}


TUNED = {  # log → the table that has its row, steps that do not count, the row's performance
    "2xH200/every-16th-layer.log": ("2xH200/perf-grid.csv", 10, "10159"),
    "2xH200/every-16th-layer-2.log": ("2xH200/perf-grid-2.csv", 10, "10046"),
    "1xH200/torchtune-lora-no-checkpointing.log": ("1xH200/perf-torchtune-lora.csv", 5, "15101.5"),
    "1xH200/torchtune-lora-micro-batch-3.log": ("1xH200/perf-torchtune-lora-tune-2.csv", 5, "15281.2"),
    "1xH200/hf-no-checkpointing.log": ("1xH200/perf-hf-tune.csv", 5, "10305.7"),
}


@each_row("name", TUNED)
def test_the_median_of_a_tuned_run_is_the_one_of_its_log_and_its_row(name):
    table, warmup, performance = TUNED[name]
    text = (RESULTS / name).read_text()
    if table.startswith("2xH200"):
        median, reader = by_hand(name, warmup, RESULTS), TorchtitanReader()
    else:
        backend = "torchtune" if "torchtune" in name else "hf"
        speeds = {int(n): float(speed) for n, speed in SPEED_OF[backend].findall(text)}
        median, reader = statistics.median(speed for n, speed in speeds.items() if n > warmup), reader_of(backend)
    window = steady_window(monitored([reader], text).steps, Quantity.TOKENS_PER_S_PER_GPU, warmup)
    assert window.median == median and f"{median:.6g}" == performance
    assert performance in [row["performance"] for row in rows_of(RESULTS / table)]


def test_the_gain_of_a_study_is_that_of_its_rows():
    for table, gain in (
        ("2xH200/perf-tune.csv", 6.77),
        ("2xH200/perf-tune-2.csv", 7.40),
        ("1xH200/perf-hf-tune-2.csv", 40.67),
        ("1xH200/perf-torchtune-lora-tune.csv", 43.02),
        ("1xH200/perf-torchtune-lora-tune-2.csv", 1.71),
    ):
        rows = rows_of(RESULTS / table)
        points = [(row.get("varied", ""), row["batch_size"]) for row in rows]
        assert points[0] == points[3] != points[1] == points[2]
        base, first, second, again = (float(row["performance"]) for row in rows)
        assert round(100 * ((first + second) / (base + again) - 1), 2) == gain
