"""A Trainer's log → steps: real logs of transformers 4 and 5, our own lines, and garbage."""

from __future__ import annotations

import math

from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Expected, judge_steps
from madlite.model import Cause, EffectiveConfig, Ended, Line, Phase, Quantity, Step, Summary
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.hf.reader import HuggingFaceReader
from madlite_plugins.hf.rules import foreign_rule
from madlite_plugins.hf.step_numbers import Sizes, steps_by_rate
from tests.monitors import monitored
from tests.plugins.logs import LOGS, events, lines, read, steps
from tests.rows import each_row

OURS = (
    'madlite-step {"n": 7, "loss": 7.340150, "grad_norm": 0.7606292, "learning_rate": 0.0008947368, '
    '"tokens_per_s_per_gpu": 7820.872, "samples_per_s_per_gpu": 30.55028, "step_time_s": 0.1309317}'
)


@each_row(
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


@each_row("text", ["{'loss': nan, 'grad_norm': nan}", "{'loss': 'nan', 'grad_norm': 'nan'}"])
def test_a_nan_loss_is_read_as_nan(text):
    (step,) = read(HuggingFaceReader(), text)
    assert math.isnan(step.values[Quantity.LOSS])


def test_our_own_lines_hold_the_step_and_its_speed():
    (step,) = read(HuggingFaceReader(), OURS)
    assert step.n == 7
    assert step.values[Quantity.TOKENS_PER_S_PER_GPU] == 7820.872
    assert step.values[Quantity.STEP_TIME_S] == 0.1309317
    assert step.values[Quantity.LOSS] == 7.34015
    # a nan in our own line is read
    (step,) = read(HuggingFaceReader(), 'madlite-step {"n": 2, "loss": NaN, "grad_norm": Infinity}')
    assert math.isnan(step.values[Quantity.LOSS]) and math.isinf(step.values[Quantity.GRAD_NORM])
    # lines that only begin like ours are read as what they are
    (step,) = read(HuggingFaceReader(), "/runs/madlite-x/out: {'loss': 6.5, 'learning_rate': 0.1}")
    assert step.values[Quantity.LOSS] == 6.5


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
    # the trainer of another node prints no step beside our own lines
    log = LogMonitor([HuggingFaceReader()], nodes=2)
    log.feed(b'madlite-config {"steps": 2, "micro_batch": 4}\n')
    for n in (1, 2):  # each node's Trainer prints its line, that of the other one first
        log.feed(b"{'loss': '7.6', 'learning_rate': '0.0005', 'epoch': '0.1'}\n", 1, 1)
        log.feed(b'madlite-step {"n": %d, "loss": 7.6, "tokens_per_s_per_gpu": 100.0}\n' % n, 1, 0)
    log.finish()
    assert [(step.n, step.rank) for step in log.steps] == [(1, 0), (2, 0)]


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


@each_row("text", ["train_loss = 1", "x train_loss = 3", "  eval_loss = 3.2", "  train_loss = 1.5 GB"])
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


STATE = """{"global_step": 10, "log_history": [
 {"epoch": 0.5, "grad_norm": 0.23527, "learning_rate": 0.0007, "loss": 6.870412345, "step": 5},
 {"eval_loss": 6.5, "step": 5},
 {"epoch": 1.0, "grad_norm": NaN, "learning_rate": 0.0002, "loss": 6.8604123, "step": 10},
 {"train_loss": 6.874449729919434, "train_runtime": 2.0764, "train_samples_per_second": 19.265123, "step": 10}]}"""


def test_a_state_file_has_the_steps_in_full_precision(tmp_path):
    # our own lines need no state file
    (tmp_path / "trainer_state.json").write_text(STATE)
    reader = HuggingFaceReader()
    read(reader, OURS, "{'loss': '7.34', 'learning_rate': '0.0008947'}")
    assert list(reader.finish(tmp_path)) == []
    (tmp_path / "outputs/checkpoint-5").mkdir(parents=True)
    (tmp_path / "outputs/checkpoint-5/trainer_state.json").write_text('{"log_history": [{"loss": 1.0, "step": 5}]}')
    (tmp_path / "outputs/trainer_state.json").write_text(STATE)
    log = LogMonitor([HuggingFaceReader()])
    log.feed(b" 50%|#####     | 5/10 [00:01<00:01]\r{'loss': '6.87', 'learning_rate': '0.0007'}\n")
    log.feed(b"100%|##########| 10/10 [00:02<00:00]\r{'loss': '6.86', 'learning_rate': '0.0002'}\n")
    log.feed(b"{'train_runtime': '2.076', 'train_samples_per_second': '19.27'}\n")
    log.finish(tmp_path)
    assert list(log.steps.curve(Quantity.LOSS).values) == [6.870412345, 6.8604123]
    assert list(log.steps.numbers()) == [5, 10] and log.ended
    assert log.summary["train_samples_per_second"] == "19.265123"


@each_row(
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


def test_a_line_cut_anywhere_and_an_evaluation_are_no_step():
    assert read(HuggingFaceReader(), *(OURS[:length] for length in range(len(OURS)))) == []
    # evaluation is no training step
    assert read(HuggingFaceReader(), "{'eval_loss': 6.5, 'eval_runtime': 1.5, 'epoch': 1.0}") == []


@each_row(
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


def test_only_trainer_logs_are_recognised():
    sure = {
        path.name
        for path in LOGS.glob("*.log")
        if HuggingFace().detect([line.text for line in lines(path.read_bytes())]) > 0.5
    }
    kinds = ("trainer", "madlite", "train_llama")
    assert sure == {path.name for kind in kinds for path in LOGS.glob(f"hf-{kind}-*.log")}
    assert HuggingFace().detect([OURS]) == 1.0


def told(examples: int = 0, batch: int = 4, accumulation: int = 1, steps: int = 30) -> list[str]:
    """Return what the Trainer tells of a training, where its information is logged."""
    return [
        "***** Running training *****",
        *([f"  Num examples = {examples:,}"] if examples else []),
        f"  Total train batch size (w. parallel, distributed & accumulation) = {batch}",
        f"  Gradient Accumulation steps = {accumulation}",
        f"  Total optimization steps = {steps:,}",
    ]


def loss(value: float, epoch: object = None) -> str:
    more = "" if epoch is None else f", 'epoch': {epoch}"
    return f"{{'loss': {value}, 'grad_norm': 0.5, 'learning_rate': 0.001{more}}}"


def end(steps: int, runtime: float = 2.0764, epoch: object = None) -> str:
    more = "" if epoch is None else f", 'epoch': {epoch}"
    return f"{{'train_runtime': {runtime}, 'train_steps_per_second': {round(steps / runtime, 3)}{more}}}"


def followed(*texts: str) -> LogMonitor:
    return monitored([HuggingFaceReader()], texts)


def numbers(*texts: str) -> list[tuple[int, int]]:
    return [(step.n, step.span) for step in steps(read(HuggingFaceReader(), *texts))]


def test_a_training_that_came_to_its_end_is_complete_whatever_its_lines_cover():
    log = followed(*told(), loss(3.1), loss(3.0), loss(2.9), end(30))
    verdict = judge_steps(Expected(rule=foreign_rule(), warmup_steps=0, steps=int(log.config["steps"])), log)
    assert log.ended and list(log.steps.numbers()) == [1, 2, 3, 30]
    assert verdict.cause is Cause.NO_METRIC and "no step reports tokens" in verdict.reason, "no speed is made up"
    assert set(log.steps.quantities()) == {Quantity.LOSS, Quantity.GRAD_NORM, Quantity.LEARNING_RATE}
    cut = followed(*told(), loss(3.1), loss(3.0), loss(2.9))
    verdict = judge_steps(Expected(rule=foreign_rule(), warmup_steps=0, steps=30), cut)
    assert verdict.cause is Cause.INCOMPLETE and "step 3 was the last of 30" in verdict.reason


def test_an_epoch_names_its_step_where_the_sizes_were_told():
    lines = [loss(3.1, 0.33), loss(3.0, 0.67), loss(2.9, 1.0), end(30, epoch=1.0)]
    assert numbers(*told(120), *lines) == [(10, 10), (20, 10), (30, 10)]
    # 25 steps, of which no line comes after the 20th
    assert numbers(*told(100, steps=25), loss(3.1, 0.4), loss(3.0, 0.8), end(25, epoch=1.0))[-1] == (25, 5)
    # stopped before its end: transformers 4 counts all steps into its rate
    assert numbers(*told(120), *lines[:2], end(30, epoch=0.67))[-1] == (20, 10)
    # other steps of a rounded epoch are counted
    assert numbers(loss(3.1, 0.01), loss(3.0, 0.01), loss(3.0, 0.02), loss(2.9)) == [(n, 1) for n in range(1, 5)]
    assert numbers(loss(3.0), loss(3.0)) == [(1, 1), (2, 1)], "nothing says that these are one"
    exact = 0.012315270935960592
    assert numbers(loss(3.1, exact), loss(3.2, exact)) == [(1, 1)], "no two steps have this epoch"
    # lines of several nodes are the same steps
    reader = HuggingFaceReader()
    texts = [loss(3.1, 0.1), loss(3.0, 0.2)]
    found = [event for text in texts for node in (0, 1) for event in reader.feed(Line(text=text, node=node))]
    assert [step.n for step in steps(found)] == [1, 1, 2, 2]


@each_row(
    ("epoch", "examples", "batch", "accumulation", "steps", "n"),
    [
        ("0.025", 160, 4, 1, 10, 1),
        ("1.5", 96, 8, 2, 24, 18),
        ("0.012315270935960592", 207_865, 256, 4, 3000, 10),  # 40 of 3248 forward passes
        ("0.02", 207_865, 256, 4, 3000, 0),  # step 13 to 20
        ("0.5", 100, 4, 1, 5, 0),  # beyond the last
        ("nan", 100, 4, 1, 30, 0),
        ("-1", 100, 4, 1, 30, 0),
        ("0.5", 100, 0, 0, 30, 0),
    ],
)
def test_an_epoch_is_a_step_s_only_where_it_is_no_other_s(epoch, examples, batch, accumulation, steps, n):
    sizes = Sizes()
    for name, size in (("examples", examples), ("global_batch", batch), ("accumulation", accumulation)):
        sizes.note(name, size)
    sizes.note("steps", steps)
    sizes.note("examples", 7)  # of an evaluation
    assert sizes.step_at(epoch) == n


@each_row(
    ("rate", "runtime", "n"),
    [("4.816", "2.0764", 10), ("0.81", "24.68", 20), ("0.001", "3600", 0), ("x", "2", 0), ("inf", "2", 0)],
)
def test_rate_and_time_tell_the_steps_where_their_digits_do(rate, runtime, n):
    assert steps_by_rate({"train_steps_per_second": rate, "train_runtime": runtime}) == n


def test_a_bar_that_lags_a_moment_is_no_early_stop_and_one_far_behind_is():
    def last(done: int) -> int:
        return numbers(f" 9%|x  | {done}/30 [00:01<00:02, 15.1it/s]", loss(3.0), end(30, runtime=2.0))[-1][0]

    assert (last(28), last(5)) == (30, 5)


NAME = "hf-trainer-peft-transformers4.50-cpu-notqdm.log"


@each_row("labels", [("[rank0]:", "[rank1]:"), ("0: ", "1: "), ("", ""), ("[rank0]: ", "[rank1]: ", "")])
def test_lines_of_several_processes_are_the_same_steps(labels):
    data = "".join(f"{label}{text}\n" for text in (LOGS / NAME).read_text().splitlines() for label in labels)
    reader = HuggingFaceReader()
    found = [event for line in lines(data.encode()) for event in reader.feed(line)]
    assert {(step.n, step.span) for step in steps(found)} == {(n, 1) for n in range(1, 11)}
    assert not [event for event in found if isinstance(event, Phase)]
    log = followed(*data.splitlines())
    assert list(log.steps.numbers()) == list(range(1, 11)) and log.ended and log.trainings == 1


def test_a_second_training_has_steps_and_a_bar_of_its_own():
    # a second training counts from its own beginning
    once = (LOGS / NAME).read_text().splitlines()
    log = followed(*once, *once)
    assert list(log.steps.numbers()) == list(range(1, 11)) and log.trainings == 2 and log.ended
    short = [loss(3.1, 0.5), loss(3.0, 1.0), end(2)]
    assert followed(*short, *short).trainings == 2 and list(followed(*short, *short).steps.numbers()) == [1, 2]

    def bar(done: int, length: int) -> str:
        return f" 9%|x  | {done}/{length} [00:01<00:02,  4.82it/s]"

    first = [bar(10, 50), loss(3.1), bar(50, 50), end(50), bar(50, 50), bar(3, 4), bar(4, 4)]
    second = [bar(0, 20), bar(5, 20), loss(2.5), bar(10, 20), loss(2.4), bar(20, 20), end(20)]
    found = read(HuggingFaceReader(), *first, *second)
    at = next(place for place, event in enumerate(found) if isinstance(event, Phase))
    assert [step.n for step in steps(found[:at])] == [10, 50]
    assert [(step.n, step.span) for step in steps(found[at:])] == [(5, 5), (10, 5), (20, 10)]

    # a second training of our own begins again
    def own(n: int) -> str:
        return f'madlite-step {{"n": {n}, "loss": 7.0}}'

    once = [own(1), own(2), 'madlite-summary {"train_runtime": 4.284}']
    log = followed(*once, own(1), loss(7.0))
    assert log.trainings == 2 and list(log.steps.numbers()) == [1] and not log.ended
    assert followed(*once).trainings == 1
