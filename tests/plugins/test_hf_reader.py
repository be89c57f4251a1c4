"""A Trainer's log → steps: real logs of transformers 4 and 5, our own lines, and garbage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.measure.follow import Follower
from madlite.types import EffectiveConfig, Ended, Quantity, Step, Summary
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


def finals(found) -> dict[str, str]:
    """Return what the log says of the whole run; what comes later goes over it."""
    return {name: text for event in found if isinstance(event, Summary) for name, text in event.values.items()}


BLOCK = """***** train metrics *****
  epoch                    =       0.25
  total_flos               =       13GF
  train_loss               =     6.9286
  train_runtime            = 0:00:00.21
  train_samples_per_second =    183.896
""".splitlines()


def test_the_block_of_log_metrics_has_the_figures_that_a_quoted_one_cuts():
    quoted = "{'train_runtime': '0.2175', 'train_samples_per_second': '183.9', 'train_loss': '6.92858'}"
    assert finals(read(HuggingFaceReader(), quoted, *BLOCK))["train_samples_per_second"] == "183.896"
    assert finals(read(HuggingFaceReader(), quoted, *BLOCK))["train_loss"] == "6.92858", "which has more digits"
    alone = read(HuggingFaceReader(), *BLOCK)
    assert finals(alone) == {"epoch": "0.25", "train_loss": "6.9286", "train_samples_per_second": "183.896"}
    assert steps(alone) == []


@pytest.mark.parametrize("text", ["train_loss = 1", "x train_loss = 3", "  eval_loss = 3.2", "  train_loss = 1.5 GB"])
def test_other_assignments_are_no_figures(text):
    assert finals(read(HuggingFaceReader(), text)) == ({"train_loss": "1"} if text == "train_loss = 1" else {})


def test_sizes_are_those_that_the_log_tells():
    told = [
        "***** Running training *****",
        "  Num examples = 207,865",
        "  Instantaneous batch size per device = 8",
        "  Total train batch size (w. parallel, distributed & accumulation) = 256",
        "  Gradient Accumulation steps = 4",
        "  Total optimization steps = 1,000",
    ]
    ours = 'madlite-config {"steps": 40, "seq_len": 256, "world_size": 2, "global_batch": 8, "micro_batch": 4}'

    def config(*texts: str) -> dict[str, str]:
        found = read(HuggingFaceReader(), *texts)
        return {k: v for event in found if isinstance(event, EffectiveConfig) for k, v in event.values.items()}

    assert config(*told) == {"micro_batch": "8", "global_batch": "256", "steps": "1000"}
    assert config(ours) == {
        "steps": "40", "seq_len": "256", "world_size": "2", "global_batch": "8", "micro_batch": "4"
    }  # fmt: skip


def test_lines_that_only_begin_like_ours_are_read_as_what_they_are():
    (step,) = read(HuggingFaceReader(), "/runs/madlite-x/out: {'loss': 6.5, 'learning_rate': 0.1}")
    assert step.values[Quantity.LOSS] == 6.5


STATE = """{"global_step": 10, "log_history": [
 {"epoch": 0.5, "grad_norm": 0.23527, "learning_rate": 0.0007, "loss": 6.870412345, "step": 5},
 {"eval_loss": 6.5, "step": 5},
 {"epoch": 1.0, "grad_norm": NaN, "learning_rate": 0.0002, "loss": 6.8604123, "step": 10},
 {"train_loss": 6.874449729919434, "train_runtime": 2.0764, "train_samples_per_second": 19.265123, "step": 10}]}"""


def test_a_state_file_has_the_steps_in_full_precision(tmp_path):
    (tmp_path / "outputs/checkpoint-5").mkdir(parents=True)
    (tmp_path / "outputs/checkpoint-5/trainer_state.json").write_text('{"log_history": [{"loss": 1.0, "step": 5}]}')
    (tmp_path / "outputs/trainer_state.json").write_text(STATE)
    log = Follower([HuggingFaceReader()])
    log.feed(b" 50%|#####     | 5/10 [00:01<00:01]\r{'loss': '6.87', 'learning_rate': '0.0007'}\n")
    log.feed(b"100%|##########| 10/10 [00:02<00:00]\r{'loss': '6.86', 'learning_rate': '0.0002'}\n")
    log.feed(b"{'train_runtime': '2.076', 'train_samples_per_second': '19.27'}\n")
    log.finish(tmp_path)
    assert list(log.steps.curve(Quantity.LOSS).values) == [6.870412345, 6.8604123]
    assert list(log.steps.numbers()) == [5, 10] and log.ended
    assert log.summary["train_samples_per_second"] == "19.265123"


def test_our_own_lines_need_no_state_file(tmp_path):
    (tmp_path / "trainer_state.json").write_text(STATE)
    reader = HuggingFaceReader()
    read(reader, OURS, "{'loss': '7.34', 'learning_rate': '0.0008947'}")
    assert list(reader.finish(tmp_path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "7", "null", '{"log_history": 3}', '{"log_history": [3, null, {"step": true, "loss": "x"}]}',
        '{"log_history": [{"loss": 1.0}, {"loss": 2, "step": 1e99}, {"loss": 2, "step": -4}]}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_state_file_that_is_none_is_passed_over(tmp_path, text):
    (tmp_path / "trainer_state.json").write_text(text)
    reader = HuggingFaceReader()
    read(reader, "{'loss': 6.5, 'learning_rate': 0.1}")
    assert [event for event in reader.finish(tmp_path) if not isinstance(event, Step) or event.values] == []


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
        "madlite-config {}",
        'madlite-config {"steps": [3]}',
        "train_loss = " + "9" * 20000 + "x",
        "Total optimization steps = " + "9" * 5000,
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
    kinds = ("trainer", "madlite", "train_llama")
    assert sure == {path.name for kind in kinds for path in LOGS.glob(f"hf-{kind}-*.log")}
    assert HuggingFace().recognise([OURS]) == 1.0
