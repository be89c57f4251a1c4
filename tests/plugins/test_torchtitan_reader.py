"""torchtitan's logs → steps: real logs of every version, and lines that must not become steps."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from madlite.model import EffectiveConfig, Ended, Line, Phase, Quantity
from madlite_plugins.torchtitan.reader import TorchtitanReader, detect
from tests.plugins.logs import LOGS, events, lines, read, steps
from tests.rows import each_row

PREFIX = "[titan] 2026-11-20 23:58:19,740 - root - INFO - "
STEP_12 = "step: 12  loss:  3.43924  grad_norm:  1.1086  memory:  0.66GiB(2.82%)  tps: 1,407  tflops: 0.05  mfu: 0.02%"


@each_row(
    ("name", "count", "last", "ended"),
    [
        ("torchtitan-0.1.0-debugmodel-cpu-1rank", 20, 20, True),
        ("torchtitan-0.2.2-debugmodel-cpu-1rank", 20, 20, True),
        ("torchtitan-0.2.2-debugmodel-cpu-nanloss", 12, 12, True),
        ("torchtitan-0.2.2-debugmodel-1xH200", 20, 20, True),
        ("torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1", 25, 25, True),
        ("torchtitan-0.3.0-debugmodel-cpu-1rank", 20, 20, True),
        ("torchtitan-0.2.2-cpu-crash-after-step1-FAIL", 1, 1, False),
        ("torchtitan-0.3.0-torch2.13-no-set_timeout-FAIL", 1, 1, False),
        ("torchtitan-0.3.0-debugmodel-cpu-nanabort-FAIL", 2, 2, False),
        ("torchtitan-0.1.0-bad-cli-option-FAIL", 0, None, False),
        ("torchtitan-0.2.2-bad-option-2xH200-FAIL", 0, None, False),
        ("torchtitan-0.2.2-cpu-unpatched-FAIL", 0, None, False),
        ("torchtitan-0.2.2-cpu-2ranks-fsdp-gloo-premulsum-FAIL", 0, None, False),
        ("torchtitan-0.3.0-cpu-flexattention-FAIL", 0, None, False),
    ],
)
def test_real_logs_give_their_steps_and_their_end(name, count, last, ended):
    found = events(TorchtitanReader(), f"{name}.log")
    trained = steps(found)
    assert [step.n for step in trained] == list(range(1, count + 1))
    assert (trained[-1].n if trained else None) == last
    assert all(step.rank == 0 and step.span == 1 for step in trained)
    assert any(isinstance(event, Ended) for event in found) is ended


def test_every_field_is_read_of_each_rank():
    # every field of a gpu log is read
    last = steps(events(TorchtitanReader(), "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log"))[-1]
    assert last.values == {
        Quantity.LOSS: 2.20337,
        Quantity.GRAD_NORM: 6.4535,
        Quantity.MEMORY_RESERVED_GIB: 84.34,
        Quantity.MEMORY_PERCENT: 60.33,
        Quantity.TOKENS_PER_S_PER_GPU: 8805.0,
        Quantity.TFLOPS_PER_GPU: 509.95,
        Quantity.MFU_PERCENT: 51.56,
    }
    # version 0 1 prints no grad norm
    last = steps(events(TorchtitanReader(), "torchtitan-0.1.0-debugmodel-cpu-1rank.log"))[-1]
    assert Quantity.GRAD_NORM not in last.values
    assert last.values[Quantity.LOSS] == 2.2103 and last.values[Quantity.TOKENS_PER_S_PER_GPU] == 3759
    # two ranks print each step twice
    trained = steps(events(TorchtitanReader(), "torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log"))
    assert len(trained) == 24
    assert Counter(step.n for step in trained) == dict.fromkeys(range(1, 13), 2)
    speed = {step.rank: step.values[Quantity.TOKENS_PER_S_PER_GPU] for step in trained if step.n == 12}
    assert speed == {0: 1396, 1: 1407}
    # a nan loss is read as nan with its speed
    last = steps(events(TorchtitanReader(), "torchtitan-0.2.2-debugmodel-cpu-nanloss.log"))[-1]
    assert math.isnan(last.values[Quantity.LOSS]) and math.isnan(last.values[Quantity.GRAD_NORM])
    assert last.values[Quantity.TOKENS_PER_S_PER_GPU] == 747


@each_row("word", ["nan", "NaN", "NAN", "inf", "-Inf"])
def test_a_loss_that_is_none_is_read_however_it_is_spelt(word):
    (step,) = steps(read(TorchtitanReader(), PREFIX + STEP_12.replace("3.43924", word)))
    assert not math.isfinite(step.values[Quantity.LOSS]) and step.values[Quantity.TOKENS_PER_S_PER_GPU] == 1407


@each_row("name", ["torchtitan-0.2.2-cpu-unpatched-FAIL", "torchtitan-0.1.0-bad-cli-option-FAIL"])
def test_a_log_that_has_nothing_but_a_failed_start_is_recognised_weakly(name):
    assert detect((LOGS / f"{name}.log").read_text().splitlines()) == 0.3
    assert detect(["+ torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file x.toml"]) == 0.3
    assert detect(["pip install torchtitan", "cd /src/torchtitan/"]) == 0


def test_validation_is_never_training():
    line = PREFIX + "validate step: 10  loss:  3.0886  memory:  0.67GiB(2.84%)  tps: 7,468"
    found = read(TorchtitanReader(), line)
    assert steps(found) == []
    (validated,) = steps(found, "validate")
    assert validated.n == 10
    assert validated.values == {
        Quantity.LOSS: 3.0886,
        Quantity.MEMORY_RESERVED_GIB: 0.67,
        Quantity.MEMORY_PERCENT: 2.84,
    }
    # a validation line that was cut off never shortens a number
    line = PREFIX + "validate step: 10  loss:  3.0886  memory:  0.67GiB(2.84%)  tps: 7,468"
    (whole,) = read(TorchtitanReader(), line)
    for length in range(len(line)):
        assert read(TorchtitanReader(), line[:length]) in ([], [whole])


def test_a_line_covers_the_steps_since_the_one_before():
    texts = [PREFIX + STEP_12.replace("step: 12", f"step: {n:2}") for n in (1, 10, 20)]
    assert [(step.n, step.span) for step in steps(read(TorchtitanReader(), *texts))] == [(1, 1), (10, 9), (20, 10)]
    # a run that went back to a checkpoint keeps its spans
    texts = [PREFIX + STEP_12.replace("step: 12", f"step: {n:2}") for n in (1, 10, 20, 30, 20, 30, 1, 10, 10)]
    spans = [(step.n, step.span) for step in steps(read(TorchtitanReader(), *texts))]
    assert spans == [(1, 1), (10, 9), (20, 10), (30, 10), (20, 10), (30, 10), (1, 1), (10, 9), (10, 9)]


@each_row(
    ("field", "expected"),
    [
        ("tps: 1,234,567  tflops: 1,202.50  mfu: N/A", (1234567.0, 1202.5, None)),
        ("wps: 2,872  mfu: 31.02%", (2872.0, None, 31.02)),
        ("tps: 9  tflops: nan  mfu: inf%", (9.0, math.nan, math.inf)),
    ],
)
def test_commas_old_names_and_missing_numbers(field, expected):
    (step,) = steps(read(TorchtitanReader(), f"step:  3  loss:  4.1  memory: 60.05GiB(42.95%)  {field}"))
    wanted = (Quantity.TOKENS_PER_S_PER_GPU, Quantity.TFLOPS_PER_GPU, Quantity.MFU_PERCENT)
    assert tuple(step.values.get(quantity) for quantity in wanted) == pytest.approx(expected, nan_ok=True)


def test_a_line_cut_anywhere_broken_into_or_without_end_is_no_step():
    assert steps(read(TorchtitanReader(), *(PREFIX + STEP_12[:length] for length in range(len(STEP_12))))) == []
    # a line broken into by another rank is no step
    broken = f"[rank0]:{PREFIX}{STEP_12[:40]}[rank1]:{PREFIX}Training starts at step 1{STEP_12[40:]}"
    assert steps(read(TorchtitanReader(), broken)) == []
    # numbers without end are no step and no error
    nines = "9" * 5000
    read(TorchtitanReader(), STEP_12.replace("12 ", f"{nines} "), STEP_12.replace("1,407", nines))
    assert steps(list(TorchtitanReader().feed(Line(text=STEP_12.replace("step: 12", f"step: {nines}"))))) == []
    # the placeholder loss of other pipeline stages is left out
    (step,) = steps(read(TorchtitanReader(), PREFIX + STEP_12.replace(" 3.43924", "-1.00000")))
    assert Quantity.LOSS not in step.values and Quantity.TOKENS_PER_S_PER_GPU in step.values


@each_row("label", ["rank", "default"])
def test_two_ranks_in_one_line_are_two_steps(label):
    glued = f"[{label}0]:{PREFIX}{STEP_12}[{label}1]:{PREFIX}{STEP_12.replace('1,407', '1,396')}"
    (line,) = lines(glued.encode())
    found = steps(list(TorchtitanReader().feed(line)))
    assert [(step.rank, step.values[Quantity.TOKENS_PER_S_PER_GPU]) for step in found] == [(0, 1407), (1, 1396)]


def test_what_the_trainer_says_it_runs_with():
    found = events(TorchtitanReader(), "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log")
    config = {}
    for event in found:
        config |= event.values if isinstance(event, EffectiveConfig) else {}
    assert config["torchtitan"] == "0.2.2"
    assert {name: config[name] for name in ("micro_batch", "global_batch", "seq_len", "steps")} == {
        "micro_batch": "1",
        "global_batch": "2",
        "seq_len": "8192",
        "steps": "25",
    }
    assert config["warmup_steps"] == "200"  # of the learning rate
    phases = [(event.name, event.starts) for event in found if isinstance(event, Phase)]
    assert phases == [("setup", True), ("compile", False), ("compile", False), ("setup", True), ("train", True)]


def test_logs_are_recognised_by_their_head_alone():
    heads = {path.name: [line.text for line in lines(path.read_bytes())][:20] for path in LOGS.glob("*.log")}
    sure = {name for name, head in heads.items() if detect(head) > 0.5}
    started = {name for name in heads if name.startswith("torchtitan-")}
    assert sure == started - {"torchtitan-0.1.0-bad-cli-option-FAIL.log", "torchtitan-0.2.2-cpu-unpatched-FAIL.log"}


def structured(tmp_path):
    folder = tmp_path / "outputs/structured_logs"
    folder.mkdir(parents=True)
    log = LOGS / "torchtitan-0.3.0-debugmodel-cpu-1rank.structured_rank0.jsonl"
    (folder / "training.global_rank_0.2026-11-21T00-30-33.jsonl").write_bytes(
        log.read_bytes() + b'{"log_type_name": "st'
    )
    return folder


def test_the_files_of_version_0_3_stand_in_for_a_log_without_steps(tmp_path):
    structured(tmp_path)
    reader = TorchtitanReader()
    read(reader, PREFIX + "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=1, cp=1, tp=2, ep=1")
    found = list(reader.finish(tmp_path))
    assert [(step.n, step.rank) for step in found] == [(n, 0) for n in range(1, 21)]
    assert found[1].values == pytest.approx(
        {Quantity.STEP_TIME_S: 0.24723505, Quantity.TOKENS_PER_S_PER_GPU: 512 / 0.24723505 / 2}
    )


def test_what_the_files_do_not_show_is_not_made_up(tmp_path):
    structured(tmp_path)
    assert {key for step in TorchtitanReader().finish(tmp_path) for key in step.values} == {Quantity.STEP_TIME_S}


def test_of_several_runs_files_the_newest_counts(tmp_path):
    folder = structured(tmp_path)
    (folder / "training.global_rank_0.2026-11-22T00-00-00.jsonl").write_text(
        '{"log_type_name": "step_end", "step": 7, "value": 250}\nnonsense step_end\n[]\n{"step": "step_end"}\n'
    )
    (step,) = TorchtitanReader().finish(tmp_path)
    assert (step.n, step.values) == (7, {Quantity.STEP_TIME_S: 0.25})


def test_a_log_with_steps_needs_no_files(tmp_path):
    structured(tmp_path)
    reader = TorchtitanReader()
    read(reader, PREFIX + STEP_12)
    assert list(reader.finish(tmp_path)) == []
    assert list(TorchtitanReader().finish(tmp_path / "nowhere")) == []
