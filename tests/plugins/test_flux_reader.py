"""The diffusion benchmark's log: dictionaries of many versions, sweeps, statuses, and the summary of this run alone."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Expected, judge_steps
from madlite.model import EffectiveConfig, Ended, Line, Quantity, Status, Summary
from madlite_plugins.flux.backend import Flux
from madlite_plugins.flux.reader import FluxReader
from tests.monitors import monitored
from tests.plugins.logs import LOGS, events, read, steps
from tests.rows import each_row
from tests.tiers import examples

LOG = "fluxbenchmark-4eae48a-tinyflux-cpu.log"
FPS, LOSS, TIME = Quantity.IMAGES_PER_S_PER_GPU, Quantity.LOSS, Quantity.STEP_TIME_S
RUN = (
    "[2026-11-21 00:25:50,100][root][INFO] - Executing command for run {}: accelerate launch --config_file /tmp/a.yaml"
)
FAILED = "ERROR - Run 2 failed with return code 1. Check outputs/runs/2_logs.txt for details."


def step(n: int, **values: object) -> str:
    given = {"step_loss": 0.4, "step_time_gpu": 2.0, "fps_gpu": 5.0, "tflops/s": 276.18, "train_loss": 0.4, **values}
    text = ", ".join(f"'{key}': {value}" for key, value in given.items() if value is not None)
    return f"2026-11-21 00:26:03,018 - INFO - Step {n}: {{{text}}}"


def follow(*texts: str) -> LogMonitor:
    return monitored([FluxReader()], texts)


def test_steps_of_the_real_log_and_of_other_versions_are_read():
    # the real log has twelve steps of five quantities
    found = steps(events(FluxReader(), LOG))
    assert [one.n for one in found] == list(range(1, 13))
    assert found[1].values == {
        LOSS: 4.0456, Quantity.LEARNING_RATE: 1e-05, TIME: 0.60341, FPS: 6.629, Quantity.TFLOPS_PER_GPU: 0.0060574,
    }  # fmt: skip
    # a line of january 2025 has other keys in another order and more digits
    line = "Step 2: {'step_loss': 0.4012, 'step_time_total': 1.8575, 'fps_gpu': 4.3067, 'tflops/s': 276.1793374846529}"
    reader = FluxReader()
    (found,) = steps([*read(reader, f"2025-01-20 10:00:00,001 - INFO - {line}"), *reader.finish(Path("/nowhere"))])
    assert found.values == {LOSS: 0.4012, TIME: 1.8575, FPS: 4.3067, Quantity.TFLOPS_PER_GPU: 276.1793374846529}
    # hydra's own format of a line is read
    (found,) = steps(read(FluxReader(), step(3).replace(" - INFO - ", "][src.trainer][INFO] - ")))
    assert found.n == 3 and found.values[FPS] == 5.0
    # a version that counts from 0 has that step as well
    old = [step(n, train_loss=None) for n in range(4)]
    assert [one.n for one in steps(read(FluxReader(), *old))] == [0, 1, 2, 3]
    # a line of another node is the same step
    reader = FluxReader()
    found = [event for node in (0, 1) for event in reader.feed(Line(text=step(2), node=node))]
    assert [one.n for one in found] == [2, 2]


def test_the_real_log_s_median_and_mad_s_mean():
    log = monitored([FluxReader()], (LOGS / LOG).read_bytes())
    verdict = judge_steps(Expected(rule=Flux().result_rule(), warmup_steps=5, steps=12), log)
    told = {metric.metric: float(metric.text) for metric in verdict.metrics}
    after = [6.7313, 7.9568, 11.668, 13.056, 3.4956, 7.5527, 14.819]
    assert told["images_per_s_per_gpu"] == 7.9568
    assert told["FPS_per_GPU"] == pytest.approx(sum(after) / 7, rel=1e-5)


@each_row("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_none_is_told_and_fails_the_run(loss):
    log = follow(*[step(n, step_loss=loss if n == 9 else 0.4) for n in range(1, 13)])
    verdict = judge_steps(Expected(rule=Flux().result_rule(), steps=12), log)
    assert verdict.reason == "the loss is not finite" and f"'step_loss': {loss}" in verdict.evidence


def test_no_flops_and_a_garbled_number_are_left_out():
    # no flops with torch compile is no number
    (found,) = steps(read(FluxReader(), step(3, **{"tflops/s": 0.0})))
    assert Quantity.TFLOPS_PER_GPU not in found.values and found.values[FPS] == 5.0
    # a number that runs into another is left out
    (found,) = steps(read(FluxReader(), step(3, fps_gpu="5.0Step 4")))
    assert FPS not in found.values


@each_row("cut", [1, 5, 20, 60])
def test_a_line_that_was_cut_off_is_no_step(cut):
    assert steps(read(FluxReader(), step(3)[:-cut])) == []


def test_accumulated_gradients_make_one_step_of_their_micro_steps():
    """The optimizer runs in the last of them: their time is the step's, and its pictures are all of theirs."""
    early = step(0, step_time_gpu=1.0, fps_gpu=10.0, train_loss=None)
    found = steps(read(FluxReader(), early, step(1, step_time_gpu=3.0, fps_gpu=10 / 3)))
    assert [one.n for one in found] == [1]
    assert found[0].values[TIME] == 4.0 and found[0].values[FPS] == pytest.approx(20 / 4.0)
    more = steps(read(FluxReader(), step(1), step(1, train_loss=None, fps_gpu=2.5, step_time_gpu=4.0), step(2)))
    assert [one.n for one in more] == [1, 2] and more[1].values[FPS] == pytest.approx(20 / 6)


@each_row("n", [1, 7])
def test_accumulation_may_begin_at_any_step(n):
    early = step(n, step_time_gpu=1.0, fps_gpu=10.0, train_loss=None)
    found = steps(read(FluxReader(), early, early, step(n, step_time_gpu=2.0), step(n + 1)))
    assert [(one.n, one.values[TIME]) for one in found] == [(n, 4.0), (n + 1, 2.0)]


@each_row("loss", ["nan", "inf"])
@each_row("n", [0, 1])
def test_a_loss_that_is_none_in_a_part_of_a_step_is_the_step_s(loss, n):
    early = [step(n, train_loss=None, step_loss=loss), step(n, train_loss=None)]
    (found,) = steps(read(FluxReader(), *early, step(1)))
    assert found.n == 1 and not math.isfinite(found.values[LOSS])
    log = follow(*[step(n) for n in range(1, 12)], *early, step(12))
    verdict = judge_steps(Expected(rule=Flux().result_rule(), steps=12), log)
    assert verdict.reason == "the loss is not finite"


def test_a_part_of_a_step_that_the_log_s_end_cut_short_is_no_step_and_its_loss_counts(tmp_path):
    reader = FluxReader()
    found = steps([*read(reader, step(1), step(2), step(2, train_loss=None)), *reader.finish(tmp_path)])
    assert [one.n for one in found] == [1, 2]
    log = LogMonitor([FluxReader()], [])
    whole = [step(n) for n in range(1, 13)]
    log.feed("\n".join([*whole, step(12, train_loss=None, step_loss="nan")]).encode() + b"\n")
    log.finish(tmp_path)
    verdict = judge_steps(Expected(rule=Flux().result_rule(), steps=12), log)
    assert verdict.reason == "the loss is not finite"


def test_of_a_sweep_the_last_training_counts_and_none_is_mixed_into_it(tmp_path, capsys):
    first = [RUN.format(1) + " train.py --num_iterations 12", *[step(n, fps_gpu=9.0) for n in range(1, 13)]]
    second = [RUN.format(2) + " train.py --num_iterations 11", *[step(n, fps_gpu=5.0) for n in range(1, 12)]]
    log = follow(*first, "INFO - Run 1 completed successfully!", *second, "INFO - Run 2 completed successfully!")
    assert log.trainings == 2 and log.ended and log.config["steps"] == "11"
    verdict = judge_steps(Expected(rule=Flux().result_rule(), steps=11), log)
    assert verdict.status is Status.SUCCESS and (verdict.window.n, verdict.window.max) == (6, 5.0)
    # a sweep whose launcher is not in the log is not mixed either
    log = follow(*[step(n, fps_gpu=9.0) for n in range(1, 13)], *[step(n) for n in range(1, 12)])
    assert log.trainings == 2 and [one.n for one in log.steps] == list(range(1, 12))
    # the last training's failure is the log's and an earlier one's is not
    good = [RUN.format(3) + " train.py", *[step(n) for n in range(1, 12)]]
    rule = Expected(rule=Flux().result_rule())
    bad = [RUN.format(2) + " train.py", *[step(n) for n in range(1, 8)], FAILED]
    assert judge_steps(rule, follow(*bad, *good)).status is Status.SUCCESS
    failed = judge_steps(rule, follow(*good, *bad))
    assert failed.status is Status.FAILURE and failed.evidence == FAILED
    # parse says that a log has several trainings
    from madlite.cli.main import call

    texts = [RUN.format(1) + " train.py", *[step(n) for n in range(1, 21)]] * 2
    (tmp_path / "sweep.log").write_text("\n".join([*texts, "INFO - Run 1 completed successfully!"]) + "\n")
    assert call(["parse", str(tmp_path / "sweep.log")]) == 0
    assert "2 trainings one after another: this is the last one's result" in capsys.readouterr().out


@each_row(
    ("text", "code"),
    [
        ("2026-11-21 00:27:00,1 - INFO - Run 1 completed successfully!", 0),
        (f"2026-11-21 00:27:00,1 - {FAILED}", 1),
        ("[2026-11-21 00:27:00,1][root][ERROR] - Run 1 failed with return code -9. Check x for details.", -9),
        ("2026-11-21 00:27:00,1 - ERROR - Run 1 encountered an unexpected error: [Errno 2]", 1),
        ("INFO - OOM-SKIPPED: Skipping run 3 because a smaller batch size configuration OOMed previously.", 1),
    ],
)
def test_what_the_launcher_says_of_a_run_s_end_is_told(text, code):
    (found,) = read(FluxReader(), text)
    assert isinstance(found, Ended) and found.code == code


def test_the_trainer_s_last_steps_may_come_after_the_launcher_s_end():
    """An earlier launcher's trainer writes into a log, which is followed: the launcher itself may be faster."""
    steps_of_run = [step(n) for n in range(1, 13)]
    expected = Expected(rule=Flux().result_rule(), steps=12)
    for place in range(len(steps_of_run) + 1):
        log = follow(
            RUN.format(1) + " train.py --num_iterations 12",
            *steps_of_run[:place],
            "INFO - Run 1 completed successfully!",
            *steps_of_run[place:],
        )
        verdict = judge_steps(expected, log)
        assert (verdict.status, verdict.reason) == (Status.SUCCESS, ""), place
        assert log.ended and verdict.window.n == 7
    # one that goes back is another run's, whose end nobody told
    log = follow(*steps_of_run, "INFO - Run 1 completed successfully!", *steps_of_run[:8])
    assert log.trainings == 2 and not log.ended
    assert judge_steps(expected, log).reason == "step 8 was the last of 12 asked for"


def test_what_the_launcher_asked_for_is_known():
    found = read(
        FluxReader(),
        "  num_processes: 8",
        RUN.format(1) + " train.py --model flux-dev --train_batch_size 10 --num_iterations 100 --resolution 512",
    )
    config = {key: value for one in found if isinstance(one, EffectiveConfig) for key, value in one.values.items()}
    assert config == {"world_size": "8", "micro_batch": "10", "steps": "100"}


def summary(folder, text: str, name: str = "sweep_000/runs_summary.csv", age_s: float = 0.0):
    path = folder / "outputs/runs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8-sig"))
    at = path.stat().st_mtime - age_s
    os.utime(path, (at, at))


def figures(found) -> dict[str, str]:
    return {key: value for one in found if isinstance(one, Summary) for key, value in one.values.items()}


@each_row("columns", ["avg_fps_gpu,avg_tflops", "fps_gpu,tflops", "avg_fps,avg_tflops"])
def test_the_figures_are_the_last_row_s_whatever_their_columns_are_called(tmp_path, columns):
    summary(tmp_path, f"run_id,run_name,{columns},status\n1,a,2.03,140.5,success\n2,'b,4.340000,280.1,success\n")
    assert figures(FluxReader().finish(tmp_path)) == {"avg_fps_gpu": "4.340000", "avg_tflops": "280.1"}


def test_a_summary_of_an_earlier_run_is_not_read(tmp_path):
    reader = FluxReader()
    summary(tmp_path, "run_id,avg_fps_gpu,status\n1,99.0,error\n", "old/runs_summary.csv", age_s=3600)
    assert list(reader.finish(tmp_path)) == []
    summary(tmp_path, "run_id,avg_fps_gpu,status\n1,4.34,success\n", "new/runs_summary.csv")
    assert figures(reader.finish(tmp_path)) == {"avg_fps_gpu": "4.34"}


@each_row("status", ["oom", "oom-skipped", "error", "not_run", "notrun", "OOM", ""])
def test_every_status_but_success_is_a_failure(tmp_path, status):
    summary(tmp_path, f"run_id,status,avg_fps_gpu\n1,success,4.1\n2,{status},\n")
    found = list(FluxReader().finish(tmp_path))
    assert [one.code for one in found if isinstance(one, Ended)] == [1] and figures(found) == {}


@each_row(
    "text", ["", "\n", "run_id", "a,b\n\x00,2\n", 'a,"b\n1,2\n', "run_id,avg_fps_gpu,status\n1,0.000000,success\n"]
)
def test_a_summary_without_figures_has_none(tmp_path, text):
    summary(tmp_path, text)
    assert figures(FluxReader().finish(tmp_path)) == {}
    assert list(FluxReader().finish(tmp_path / "nowhere")) == []


WORDS = st.sampled_from(
    "INFO - Step 3: {|'fps_gpu': |5.0|nan|, |}|'step_loss': |Step |\n|\r|[rank1]:|Executing command for run 1: |"
    "accelerate launch train.py|--num_iterations 9|ERROR - Run 1 failed with return code |7|  num_processes: 8".split(
        "|"
    )
)


@settings(max_examples=examples(40))
@given(st.integers(0, 4000), st.lists(st.integers(0, 6000), max_size=9))
def test_a_log_that_was_cut_off_has_no_number_that_the_whole_has_not_in_any_chunks(length, cuts):
    data = "\n".join(step(n, fps_gpu=5.123 + n) for n in range(1, 25)).encode() + b"\n"
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    parts = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    whole, piecewise, cut = LogMonitor([FluxReader()]), LogMonitor([FluxReader()]), LogMonitor([FluxReader()])
    whole.feed(data)
    for part in parts:
        piecewise.feed(part)
    cut.feed(data[:length])
    cut.finish()
    assert [*piecewise.steps] == [*whole.steps] and all(one in [*whole.steps] for one in cut.steps if one.values)


def test_its_log_is_recognised_and_others_are_not():
    assert Flux().detect((LOGS / LOG).read_text().splitlines()) == 0.9
    assert Flux().detect([RUN.format(1) + " train.py --model flux-dev"]) == 0.7
    for name in ("torchtitan-0.2.2-debugmodel-cpu-1rank.log", "hf-trainer-peft-transformers5.17-cpu-notqdm.log"):
        assert Flux().detect((LOGS / name).read_text().splitlines()) == 0.0
