"""Labels of launchers, Kubernetes and container engines name ranks wherever a line is read; what looks so is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite import step_format
from madlite.measure.lines import LineSplitter
from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import with_common
from madlite.measure.verdict import Expected, judge_steps
from madlite.model import Line, Quantity, ResultRule, Status
from madlite.rank_labels import RankLabels, without_label
from madlite_plugins.torchrun.reader import OwnReader
from tests.measure.training_logs import LABELS, parsed, ranked, titan, trainer
from tests.monitors import monitored
from tests.rows import each_row

LOGS = Path(__file__).parents[1] / "data/logs"
SMALL = (
    "hf-trainer-peft-transformers5.17-cpu-tqdm.log",
    "fluxbenchmark-4eae48a-tinyflux-cpu.log",
    "megatron-lm-core0.16.1-gpt-cpu-1rank.log",
    "torchtune-madlite-tiny_lora-cpu.log",
    "pytorch-training-benchmark-927d18f-llama-tiny-cpu.log",
)
FALLING = [12 - 0.1 * n for n in range(20)]


@pytest.mark.host
@each_row("name", SMALL)
@each_row("label", LABELS.values(), ids=LABELS)
def test_a_real_log_of_two_ranks_is_read_as_that_of_one(name, label):
    lines = [line for line in (LOGS / name).read_text(errors="replace").replace("\r", "\n").split("\n") if line]
    alone, both = parsed(lines), parsed(ranked(label, [lines, lines]))
    assert both.steps.ranks() == (0, 1) and both.steps.count() == alone.steps.count()
    assert (both.verdict.status, both.verdict.suspect) == (Status.SUCCESS, alone.verdict.suspect)
    assert [one.text for one in both.verdict.metrics] == [one.text for one in alone.verdict.metrics]
    assert (both.config, both.summary, both.ended) == (alone.config, alone.summary, alone.ended)


@each_row("label", LABELS.values(), ids=LABELS)
def test_a_rank_that_is_half_as_fast_is_doubted(label):
    logs = [titan(FALLING, speeds=[3500.0 if rank == 3 else 7000.0] * 20) for rank in range(4)]
    found = parsed(ranked(label, logs))
    assert found.steps.ranks() == (0, 1, 2, 3) and found.verdict.window.median == 6125
    assert found.verdict.suspect == ("rank 3 reports 3500 tokens/s/GPU, rank 0 7000",)


@each_row("label", LABELS.values(), ids=LABELS)
def test_a_failure_has_the_rank_of_its_label(label):
    lines = titan(FALLING)[:-8]
    failed = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 12, in main',
        "    main()",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 6.00 GiB.",
    ]
    logs = ranked(label, [lines, lines, lines]) + [label(2) + line for line in failed]
    found = parsed(logs).diagnosis
    assert (found.cause, found.rank, found.line) == ("gpu_out_of_memory", 2, failed[-1])
    assert found.where == "/w/train.py:12 in main"


@each_row("label", LABELS.values(), ids=LABELS)
def test_a_performance_line_is_read_behind_a_label(label):
    said = ["loading", "warm", "trained", "performance: 1,234.5 samples_per_second"]
    found = parsed(ranked(label, [said, said]))
    assert [(one.text, one.metric) for one in found.verdict.metrics] == [("1234.5", "samples_per_second")]


def test_ranks_without_a_label_are_doubted_and_a_line_that_is_there_twice_is_not():
    logs = [titan(FALLING, speeds=[7000.0 + 20 * rank] * 20) for rank in range(4)]
    mixed = [line for row in zip(*logs, strict=True) for line in row]
    (text,) = parsed(mixed).verdict.suspect
    assert "several ranks print without a label" in text
    assert parsed([line for line in logs[0] for _ in range(2)]).verdict.suspect == ()
    nodes = [f"[default0]:{line}" for row in zip(*logs[:2], strict=True) for line in row]
    assert parsed(nodes).verdict.suspect, "two nodes' ranks 0"
    # logs of ranks one after another without a label are doubted and a log that is there twice is not
    logs = [titan(FALLING, speeds=[7500.0 - 500 * rank + n for n in range(20)]) for rank in (1, 2)]
    (text,) = parsed([*logs[0], *logs[1]]).verdict.suspect
    assert "several ranks print without a label" in text
    assert parsed([*logs[0], *logs[0]]).verdict.suspect == ()
    later = [line.replace(" 10:", " 11:") for line in logs[1]]
    assert parsed([*logs[0], *later]).verdict.suspect == (), "another training of the same seed"
    other = titan([loss - 0.05 for loss in FALLING], speeds=[6000.0 + n for n in range(20)])
    assert parsed([*logs[0], *other]).verdict.suspect == (), "another training at the same time"
    # a bar that is drawn again and a training that went back a little are one rank
    reader = OwnReader(
        step_format(r"(?P<n>\d+)/40 .*?loss=(?P<loss>[\d.]+), tps=(?P<tokens_per_s_per_gpu>\d+)").reader(None)
    )
    log = LogMonitor([reader])
    bar = "  5%|#   | {}/40 [00:0{}<00:30, 1.2it/s, loss={}, tps={}]\r"
    log.feed("".join(bar.format(n, n % 10, 9 - n / 10 - d, 100 + d) for n in range(1, 41) for d in (0, 1)).encode())
    log.finish()
    assert not log.is_mixed and log.steps.count() == 40
    lines = titan(FALLING)
    assert parsed([*lines[:13], *titan([x - 0.01 for x in FALLING])[11:]]).verdict.suspect == ()
    # ranks that print one after the other are ranks all the same
    log = titan(FALLING)
    reading = parsed([f"{rank}: {line}" for rank in range(3) for line in log])
    assert reading.steps.ranks() == (0, 1, 2) and reading.steps.count() == 20


@each_row("mark", ["{}: ", "run-{}  | "])
def test_a_number_before_a_colon_that_is_an_epoch_is_no_rank(mark):
    lines = titan(FALLING)
    epochs = [line if "step:" not in line else mark.format(at // 8) + line for at, line in enumerate(lines)]
    found = parsed(epochs)
    assert (found.steps.ranks(), found.steps.count(), found.verdict.suspect) == ((), 20, ())


def test_a_step_that_stands_before_a_colon_is_no_rank():
    reader = OwnReader(step_format(r"^(?P<n>\d+): loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>\S+)").reader(None))
    log = monitored([reader], [f"{n}: loss {9 - n / 10} tps {400 + n}" for n in range(1, 31)], with_common(()))
    verdict = judge_steps(
        Expected(rule=ResultRule(kind="steps", headline=Quantity.TOKENS_PER_S_PER_GPU), steps=30), log
    )
    assert (verdict.status, verdict.suspect, log.steps.ranks()) == (Status.SUCCESS, (), ())


def test_labels_of_pods_and_containers_get_a_rank_each():
    def ranks(*lines: str) -> list[int | None]:
        return RankLabels().read(lines, "\n".join(lines)) or []

    assert ranks("[pod/a-master-0/m] x", "[pod/a-worker-0/m] x", "[pod/a-worker-1/m] x") == [0, 1, 2]
    assert ranks("[pod/a-worker-0/m] x", "[pod/a-worker-1/m] x") == [0, 1]
    assert ranks("[pod/a-3/m] x", "[pod/a-3-x7k2q/m] x") == [3, 0], "no two labels have one rank"
    assert ranks("[pod/a-7d9f8b6c5d-x2k4p/m] x", "[pod/a-7d9f8b6c5d-z9k4p/m] x") == [0, 1]
    assert ranks("web-1  | x", "web-2  | x", "db-1   | x") == [0, 1, 2]
    assert ranks("2026-11-22 10:00:01 3: x", "12:30:01 start", "7:30", "3", "- 3: x") == [3, None, None, None, None]
    # a service beside a training is no rank of it
    lines = [f"trainer-1  | {line}" for line in [*titan(FALLING)[:12], *RAISED]]
    failed = parsed(["redis-1    | ready", *lines])
    assert failed.diagnosis and (failed.diagnosis.rank, failed.diagnosis.line) == (None, RAISED[-1])
    several = parsed(["redis-1    | ready", "trainer-2  | x", *lines])
    assert several.diagnosis and several.diagnosis.rank is not None
    # a process's own label in the only pod is its rank
    found = parsed([f"[pod/train-0-x7k2q/main] [rank0]: {line}" for line in titan(FALLING)])
    assert found.steps.ranks() == (0,)
    # what a process wrote stands behind its label
    for label in LABELS.values():
        assert without_label(Line(text=f"{label(1)}step 3: x", rank=1)) == "step 3: x"
    assert without_label(Line(text="3: x")) == "3: x", "nobody says that it is a rank"
    splitter = LineSplitter()
    (line,) = splitter.number(splitter.take(b"0: [rank5]:  step 3\n"))
    assert line.rank == 5 and without_label(line) == " step 3"


RAISED = (
    "Traceback (most recent call last):",
    '  File "/opt/train.py", line 12, in <module>',
    "    main()",
    "KeyError: 'tok_embeddings'",
)
NO_FOREIGN_PROCESSES = (
    "[pod/finetune-llama-3-x7k2q/main] ",
    "trainer-1  | ",
    "llama-3_8b-2  | ",
    "[pod/train-3/main] ",
)


@each_row("label", NO_FOREIGN_PROCESSES)
def test_a_number_in_the_only_name_is_no_rank(label):
    found = parsed([label + line for line in titan(FALLING)])
    assert (found.steps.ranks(), found.steps.count(), found.verdict.suspect) == ((), 20, ())
    failed = parsed(label + line for line in [*titan(FALLING)[:12], *RAISED])
    assert failed.diagnosis and (failed.diagnosis.rank, failed.diagnosis.line) == (None, RAISED[-1])


@each_row("label", [LABELS["srun"], LABELS["pytorchjob"], LABELS["open mpi 4"]])
def test_a_trainers_lines_are_counted_for_each_rank(label):
    lines = trainer([6.2 - n / 10 for n in range(12)])
    found = parsed(ranked(label, [lines, lines]))
    assert found.steps.ranks() == (0, 1) and found.steps.count() == 12
