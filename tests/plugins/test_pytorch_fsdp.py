"""train_fsdp.py: windows of micro-steps in its log, its published runs, and what is refused."""

from __future__ import annotations

import re
import subprocess

import pytest

from madlite.cli.main import call
from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Expected, judge_steps
from madlite.model import EffectiveConfig, Ended, Quantity, Request, Status, Summary
from madlite.plan.plan_file import render
from madlite_plugins.pytorch_fsdp import madlite_cards
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from madlite_plugins.pytorch_fsdp.reader import TrainFsdpReader
from tests.monitors import monitored
from tests.plugins.logs import LOGS, TEMPLATES, events, gpu_machine, machine_of, plan, read, steps
from tests.plugins.test_torchtitan_tags import card_of
from tests.rows import each_row

LOG = "pytorch-training-benchmark-927d18f-llama-tiny-cpu.log"
LLAMA, MISTRAL = "pyt_train_fsdp_llama-3.1-8b", "pyt_train_fsdp_mistral-7b"


def micro(index: int, seconds: float = 0.5, tokens: int = 1000, early: bool = False) -> str:
    name = f"warming up iter: {index}/64.0" if early else f"Step: {index}"
    return f"{name}; TFLOP/s: {40 / seconds}; iteration time: {seconds}; token per second: {tokens / seconds}"


def test_the_real_log_has_four_windows_and_its_own_averages():
    # the real log has four windows of eight micro steps
    found = events(TrainFsdpReader(), LOG)
    windows = steps(found)
    assert [(step.n, step.span) for step in windows] == [(8, 8), (16, 8), (24, 8), (32, 8)]
    # lines 16 to 23 of the log: 8 micro-steps of 2 × 128 tokens in the sum of their times
    times = [0.011527776718139648, 0.01231837272644043, 0.015636920928955078, 0.18448233604431152,
             0.03983950614929199, 0.025445938110351562, 0.029264211654663086, 0.02963876724243164]  # fmt: skip
    assert windows[2].values[Quantity.TOKENS_PER_S_PER_GPU] == pytest.approx(8 * 256 / sum(times), rel=1e-9)
    assert windows[2].values[Quantity.TFLOPS_PER_GPU] == pytest.approx(8 * 0.000750256128 / sum(times), rel=1e-9)
    assert windows[2].values[Quantity.STEP_TIME_S] == pytest.approx(sum(times))
    config = {
        key: value for event in found if isinstance(event, EffectiveConfig) for key, value in event.values.items()
    }
    assert config == {"seq_len": "128", "steps": "32", "warmup_steps": "16", "micro_batch": "2"}
    # the real log's own averages are kept as printed
    found = events(TrainFsdpReader(), LOG)
    summary = {key: value for event in found if isinstance(event, Summary) for key, value in event.values.items()}
    assert summary["Avg token per second"] == "3292.2404146399494"
    assert summary["Avg TFLOP/s"] == "0.009648529476300323"
    assert summary["Peak memory use (MB)"] == "987.654321"
    assert isinstance(found[-1], Ended)


def test_mad_s_figure_is_the_average_and_not_a_line():
    log = monitored([TrainFsdpReader()], (LOGS / LOG).read_bytes())
    verdict = judge_steps(Expected(rule=PytorchFsdp().result_rule(), warmup_steps=16, steps=32), log)
    texts = {metric.metric: metric.text for metric in verdict.metrics}
    assert verdict.status is Status.SUCCESS
    assert texts["tok_per_s_per_gpu"] == "3292.2404146399494" and texts["TFLOPS_per_gpu"] == "0.009648529476300323"
    assert float(texts["tokens_per_s_per_gpu"]) < 10_805, "the median of the lines leaves the optimizer out"


def test_the_published_length_gives_whole_windows_after_the_warm_up():
    log = LogMonitor([TrainFsdpReader()], [])
    lines = [micro(n, 1.5 if n % 8 == 7 else 0.5, early=n <= 64) for n in range(128)]
    log.feed("\n".join([*lines, ""]).encode())
    log.finish()
    verdict = judge_steps(Expected(rule=PytorchFsdp().result_rule(), warmup_steps=64, steps=128), log)
    # the window that ends at 72 covers micro-steps 65 to 72, and the warm-up is the first 64
    assert (verdict.window.n, verdict.window.first_step, verdict.window.last_step) == (8, 72, 128)
    assert verdict.window.median == pytest.approx(8000 / 5.0)


@each_row("end", [b"Avg token per second: 32", b"TFLOP/s, 0.00964"])
def test_an_average_that_was_cut_off_is_none(end):
    data = (LOGS / LOG).read_bytes()
    log = monitored([TrainFsdpReader()], data[: data.index(end) + len(end)])
    metrics = judge_steps(Expected(rule=PytorchFsdp().result_rule(), warmup_steps=16, steps=32), log).metrics
    assert not any(float(metric.text) < 100 and metric.metric.startswith("tok") for metric in metrics)
    assert log.torn and not set(log.torn) & set(log.summary)


def test_what_is_no_whole_window_is_no_step():
    # a window that is not whole is no step
    late = [micro(n) for n in range(3, 16)]
    assert [step.n for step in steps(read(TrainFsdpReader(), *late))] == [16]
    torn = [micro(n) for n in range(8) if n != 5] + [micro(n) for n in range(8, 16)]
    assert [step.n for step in steps(read(TrainFsdpReader(), *torn))] == [16]
    assert steps(read(TrainFsdpReader(4), *[micro(n) for n in range(8)]))[0].n == 4
    # a line that was cut off is not read
    whole = micro(7)
    assert steps(read(TrainFsdpReader(), *[micro(n) for n in range(7)], whole[:-30])) == []
    assert len(steps(read(TrainFsdpReader(), *[micro(n) for n in range(7)], f"[rank0]:{whole}"))) == 1
    # a second training in the log begins again
    log = LogMonitor([TrainFsdpReader()])
    log.feed((LOGS / LOG).read_bytes() + "\n".join(micro(n) for n in range(8)).encode() + b"\n")
    assert log.trainings == 2 and [step.n for step in log.steps] == [8] and log.summary == {}


@each_row("speed", ["inf", "nan"])
def test_a_number_that_is_none_makes_no_step(speed):
    bad = f"Step: 3; TFLOP/s: 1.0; iteration time: 0.5; token per second: {speed}"
    assert steps(read(TrainFsdpReader(), *[bad if n == 3 else micro(n) for n in range(8)])) == []


def test_nul_bytes_before_each_newline_lose_nothing():
    data = (LOGS / LOG).read_bytes()
    plain, marked = LogMonitor([TrainFsdpReader()]), LogMonitor([TrainFsdpReader()])
    plain.feed(data)
    marked.feed(data.replace(b"\n", b"\0\n"))
    assert list(marked.steps) == list(plain.steps) and len(plain.steps) == 4
    assert marked.summary == plain.summary and marked.config == plain.config and marked.ended


def test_its_log_is_recognised_and_others_are_not():
    head = (LOGS / LOG).read_text().splitlines()
    assert PytorchFsdp().detect(head[:60]) == 0.9
    assert PytorchFsdp().detect(head[:5]) == 0.6
    other = (LOGS / "torchtitan-0.2.2-debugmodel-cpu-1rank.log").read_text().splitlines()
    assert PytorchFsdp().detect(other) == 0.0


@each_row(
    ("card", "device", "batches"),
    [
        (LLAMA, "MI300X", {("BF16", 8192): 3, ("FP8", 8192): 3, ("BF16", 4096): 6, ("FP8", 4096): 6}),
        (LLAMA, "MI325X", {("BF16", 8192): 3, ("FP8", 8192): 5, ("BF16", 4096): 8, ("FP8", 4096): 10}),
        (MISTRAL, "MI300X", {("BF16", 8192): 3, ("FP8", 8192): 4}),
        (MISTRAL, "MI325X", {("BF16", 8192): 5, ("FP8", 8192): 6}),
    ],
)
def test_batches_are_the_published_ones(card, device, batches):
    drafts = PytorchFsdp().expand(Request(card=card_of(card), tag=card), machine_of(device))
    assert {(one.variant.precision, one.variant.seq_len): one.variant.micro_batch for one in drafts} == batches
    assert {one.image for one in drafts} == {"rocm/pytorch-training:v25.2"}
    only = PytorchFsdp().expand(Request(card=card_of(card), tag=card, settings={"seq_len": "8192"}), machine_of(device))
    assert len(only) == 2


def script_of(recipe: str, **changes) -> str:
    made = plan(PytorchFsdp(), gpu_machine(8), recipe, **changes)
    (file,) = render(made, [TEMPLATES])
    return file.data.decode()


def test_the_command_is_the_readme_s():
    script = script_of("mistral-7b", precision="FP8", micro_batch=4)
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    command = command_of(script)
    assert command[:3] == ['"$root/train_fsdp.py"', '"$root/configs/"mistral-7b-v0.1.json', "mistral"]
    assert " --batch_size 4 --num_iteration 128 " in " ".join(command)
    assert command[-2:] == ["--enable_fp8", "True"]
    plain = command_of(script_of("llama-3.1-8b-4k"))
    assert plain[1:3] == ['"$root/configs/"llama-3.1-8b-4k.json', "llama"]
    assert not any(word.startswith("--enable_") for word in plain)
    assert command_of(script_of("llama-3.1-8b-4k", compile=False))[-2:] == ["--enable_compile", "False"]


def command_of(script: str) -> list[str]:
    return script[script.rindex('"$root/train_fsdp.py"') :].split()


@each_row(
    ("changes", "word"),
    [
        ({"precision": "FP32"}, "precision 'FP32'"),
        ({"seq_len": 2048}, "has sequences of 8192 tokens, not 2048"),
        ({"steps": 100}, "100 micro-steps are no whole number of steps of 8"),
        ({"accumulation": 0}, "accumulation is 0"),
        ({"global_batch": 24}, "global batch 24 is not micro batch × accumulation × GPUs = 192"),
    ],
)
def test_what_would_be_measured_under_a_wrong_name_is_refused(changes, word):
    made = plan(PytorchFsdp(), gpu_machine(8), "llama-3.1-8b-8k", **changes)
    assert [word in finding.message for finding in PytorchFsdp().check(made) if finding.fatal] == [True]


@each_row(
    ("asked", "warmup"),
    [({}, 64), ({"steps": "32"}, 16), ({"steps": "256"}, 128), ({"steps": "256", "warmup_steps": "64"}, 64)],
)
def test_half_of_the_steps_is_warm_up_unless_another_number_is_asked_for(asked, warmup):
    """`resolve` puts what was asked for over the draft's own."""
    (draft,) = PytorchFsdp().expand(
        Request(card=card_of(MISTRAL), tag=MISTRAL, settings={"precision": "BF16", **asked}), machine_of("MI300X")
    )
    assert draft.variant.warmup_steps == warmup


@pytest.mark.host
@each_row("words", ["--steps 8", "--steps 79", "--steps 16", "--set accumulation=6", "--set steps=0x8"])
@each_row("more", ["", "--set warmup_steps=64", "--set warmup_steps=0"])
def test_steps_that_are_told_to_be_enough_are_taken(capsys, tmp_path, monkeypatch, words, more):
    monkeypatch.chdir(tmp_path)
    code, told = explained(capsys, *words.split(), *more.split())
    hints = re.findall(r"--set steps=\d+", told)
    assert hints if code == 0 else "steps takes a whole number" in told
    for hint in hints[:1]:
        assert "micro-steps" not in explained(capsys, *words.split(), *more.split(), *hint.split())[1]


def explained(capsys, *words: str) -> tuple[int, str]:
    """Return the exit code of explain and what it says against a run."""
    code = call(["explain", MISTRAL, "--precision", "BF16", "--machine", "8xMI300X", *words])
    return code, "".join(capsys.readouterr())


@each_row("recipe", ["llama-3.1-8b-8k", "llama-3.1-8b-4k", "mistral-7b"])
def test_its_recipes_have_nothing_against_them(recipe):
    assert list(PytorchFsdp().check(plan(PytorchFsdp(), gpu_machine(8), recipe))) == []


def test_a_configuration_of_one_s_own_has_the_length_that_one_says():
    made = plan(PytorchFsdp(), gpu_machine(8), "llama-3.1-8b-8k", config="mine.json", seq_len=2048)
    assert list(PytorchFsdp().check(made)) == []


def test_its_cards_are_found_by_their_tags():
    import json

    (path,) = madlite_cards()
    cards = {card["name"]: card for card in json.loads(path.read_text())}
    assert set(cards) == {LLAMA, MISTRAL}
    assert all(card["n_gpus"] == "-1" and "pretrain" in card["tags"] for card in cards.values())
