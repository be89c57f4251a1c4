"""A Trainer's log → steps: real logs of transformers 4 and 5, our own lines, and garbage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.types import Ended, Quantity, Step, Summary
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.hf.reader import HuggingFaceReader
from tests.plugins.logs import LOGS, events, lines, read, steps

OURS = (
    'madlite-step {"n": 7, "loss": 7.340150, "grad_norm": 0.7606292, "learning_rate": 0.0008947368, '
    '"tokens_per_s_per_gpu": 7820.872, "samples_per_s_per_gpu": 30.55028, "step_time_s": 0.1309317}'
)


@pytest.mark.parametrize(
    ("name", "count", "finals", "first_loss", "samples_per_s"),
    [
        ("hf-trainer-peft-transformers4.50-cpu-notqdm", 10, 2, 6.8856, "19.265"),
        ("hf-trainer-peft-transformers5.17-cpu-notqdm", 10, 2, 6.94, "183.896"),
        ("hf-trainer-peft-transformers5.17-cpu-tqdm", 10, 2, 6.94, "90.658"),
        ("hf-trainer-peft-transformers5.17-8b-lora-1xH200-tqdm", 15, 1, 12.59, "1.991"),
        ("hf-peft0.21-torchao0.14-conflict-FAIL", 0, 0, None, None),
    ],
)
def test_real_logs(name, count, finals, first_loss, samples_per_s):
    found = events(HuggingFaceReader(), f"{name}.log")
    trained = steps(found)
    assert [step.n for step in trained] == list(range(1, count + 1))
    assert [step.values[Quantity.LOSS] for step in trained[:1]] == ([first_loss] if count else [])
    summaries = [event for event in found if isinstance(event, Summary)]
    assert len(summaries) == finals == sum(isinstance(event, Ended) for event in found)
    assert (summaries[-1].values["train_samples_per_second"] if summaries else None) == samples_per_s


def test_numbers_and_quoted_numbers_are_the_same_step():
    plain = "{'loss': 6.8704, 'grad_norm': 0.23527313768863678, 'learning_rate': 0.0007, 'epoch': 0.075}"
    quoted = "{'loss': '6.8704', 'grad_norm': '0.23527313768863678', 'learning_rate': '0.0007', 'epoch': '0.075'}"
    assert read(HuggingFaceReader(), plain) == read(HuggingFaceReader(), quoted)
    (step,) = read(HuggingFaceReader(), plain)
    assert step.values == {
        Quantity.LOSS: 6.8704,
        Quantity.GRAD_NORM: 0.23527313768863678,
        Quantity.LEARNING_RATE: 0.0007,
    }


@pytest.mark.parametrize("text", ["{'loss': nan, 'grad_norm': nan}", "{'loss': 'nan', 'grad_norm': 'nan'}"])
def test_a_nan_loss_is_read_as_nan(text):
    (step,) = read(HuggingFaceReader(), text)
    assert math.isnan(step.values[Quantity.LOSS])


def test_our_own_lines_hold_the_step_and_its_speed():
    (step,) = read(HuggingFaceReader(), OURS)
    assert step.n == 7
    assert step.values[Quantity.TOKENS_PER_S_PER_GPU] == 7820.872
    assert step.values[Quantity.STEP_TIME_S] == 0.1309317
    assert step.values[Quantity.LOSS] == 7.34015


def test_a_real_log_of_our_own_lines():
    found = events(HuggingFaceReader(), "hf-madlite-llama3.1_8B_lora-1xH200.log")
    assert [(step.n, step.rank, step.span) for step in steps(found)] == [(n, 0, 1) for n in range(1, 21)]
    assert steps(found)[-1].values == {
        Quantity.LOSS: 11.68514,
        Quantity.GRAD_NORM: 5.285366,
        Quantity.LEARNING_RATE: 5.555556e-06,
        Quantity.TOKENS_PER_S_PER_GPU: 7323.384,
        Quantity.SAMPLES_PER_S_PER_GPU: 1.787936,
        Quantity.STEP_TIME_S: 1.118608,
        Quantity.MEMORY_RESERVED_GIB: 31.49414,
    }
    *_, last = (event for event in found if isinstance(event, Summary))
    assert last.values["train_samples_per_second"] == "1.621"


def test_our_own_lines_silence_the_trainer_s_but_not_its_summary():
    found = read(
        HuggingFaceReader(),
        OURS,
        "{'loss': '7.34', 'grad_norm': '0.7606', 'learning_rate': '0.0008947', 'epoch': '0.0004272'}",
        "{'train_runtime': '4.284', 'train_samples_per_second': '37.35', 'train_loss': '7.136', 'epoch': '0.002441'}",
        'madlite-summary {"train_runtime": 4.284, "train_samples_per_second": 37.349, "train_loss": 7.136263}',
    )
    assert [step.n for step in steps(found)] == [7]
    summaries = [event.values["train_samples_per_second"] for event in found if isinstance(event, Summary)]
    assert summaries == ["37.35", "37.349"]


def test_a_nan_in_our_own_line_is_read():
    (step,) = read(HuggingFaceReader(), 'madlite-step {"n": 2, "loss": NaN, "grad_norm": Infinity}')
    assert math.isnan(step.values[Quantity.LOSS]) and math.isinf(step.values[Quantity.GRAD_NORM])


def test_the_progress_bar_says_how_many_steps_a_line_covers():
    found = read(
        HuggingFaceReader(),
        " 20%|██        | 10/50 [00:02<00:08,  4.82it/s]",
        "{'loss': '6.9', 'learning_rate': '0.001'}",
        "100%|██████████| 4/4 [00:01<00:00,  3.50it/s]",
        " 40%|████      | 20/50 [00:04<00:06,  4.82it/s]",
        "{'loss': '6.8', 'learning_rate': '0.001'}",
    )
    assert [(step.n, step.span) for step in steps(found)] == [(10, 10), (20, 10)]


def test_a_line_cut_anywhere_is_no_step():
    assert read(HuggingFaceReader(), *(OURS[:length] for length in range(len(OURS)))) == []


def test_evaluation_is_no_training_step():
    assert read(HuggingFaceReader(), "{'eval_loss': 6.5, 'eval_runtime': 1.5, 'epoch': 1.0}") == []


@pytest.mark.parametrize(
    "text",
    [
        "madlite-step {" + '"n": ' + "9" * 5000 + "}",
        'madlite-step {"n": 1e999, "loss": 1}',
        'madlite-step {"n": -4, "loss": 1}',
        'madlite-step {"n": true}{',
        "madlite-step {" * 2000,
        "{'" * 20000,
    ],
)
def test_hostile_lines_give_nothing(text):
    assert read(HuggingFaceReader(), text) == []


@given(st.lists(st.text() | st.text(alphabet="{}'\"lossmadlitestep :,0123456789.eE+-nainf|%[]/"), max_size=5))
def test_no_line_raises(texts):
    for event in read(HuggingFaceReader(), *texts):
        assert not isinstance(event, Step) or event.n >= 0


@given(st.text(max_size=8), st.integers(0, len(OURS)))
def test_a_damaged_step_line_raises_nothing(noise, position):
    read(HuggingFaceReader(), OURS[:position] + noise + OURS[position:])


def test_only_trainer_logs_are_recognised():
    sure = {
        path.name
        for path in LOGS.glob("*.log")
        if HuggingFace().recognise([line.text for line in lines(path.read_bytes())]) > 0.5
    }
    assert sure == {path.name for kind in ("trainer", "madlite") for path in LOGS.glob(f"hf-{kind}-*.log")}
    assert HuggingFace().recognise([OURS]) == 1.0
