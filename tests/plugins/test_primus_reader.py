"""Primus's logs → steps: real logs of four versions and both frameworks, on the screen and in its files."""

from __future__ import annotations

from collections import Counter

import pytest

from madlite.model import EffectiveConfig, Ended, Quantity, Step
from madlite_plugins.megatron_lm.reader import detect as detect_megatron
from madlite_plugins.primus.reader import PrimusReader, detect
from madlite_plugins.torchtitan.reader import detect as detect_torchtitan
from tests.plugins.logs import LOGS, events, lines, read, steps
from tests.rows import each_row

Q = Quantity
TRAINER = (LOGS / "megatron-gpu-lines.txt").read_text().splitlines()[4]


@each_row(
    ("name", "ns", "rank", "ends"),
    [
        ("torchtitan0.2.2-debug-cpu-1rank", range(1, 21), 0, 2),  # torchtitan's mark and Primus's own
        ("torchtitan0.2.2-debug-cpu-1rank.filesink-info", range(1, 21), 0, 2),
        ("megatron-tiny-cpu-1rank", range(1, 13), 0, 1),
        ("megatron-tiny-cpu-1rank.filesink-debug", range(1, 13), 0, 1),
        ("megatron-small-cpu-1rank-tflops", range(1, 8), 0, 1),
    ],
)
def test_real_logs_give_their_steps_and_their_end(name, ns, rank, ends):
    found = events(PrimusReader(), f"primus-main-{name}.log")
    assert [(step.n, step.rank, step.span) for step in steps(found)] == [(n, rank, 1) for n in ns]
    assert sum(isinstance(event, Ended) for event in found) == ends


def test_steps_of_all_ranks_are_read():
    # each rank prints torchtitan's steps
    trained = steps(events(PrimusReader(), "primus-main-torchtitan0.2.2-debug-cpu-2ranks.log"))
    assert Counter(step.n for step in trained) == dict.fromkeys(range(1, 11), 2)
    speed = {step.rank: step.values[Q.TOKENS_PER_S_PER_GPU] for step in trained if step.n == 10}
    assert speed == {0: 1121, 1: 1128}
    # the last rank's iterations are there twice and are the same step
    trained = steps(events(PrimusReader(), "primus-main-megatron-tiny-cpu-2ranks.log"))
    assert Counter((step.n, step.rank) for step in trained) == dict.fromkeys([(n, 1) for n in range(1, 9)], 2)
    assert all(step.span == 1 for step in trained)
    own = {step.n: step.values for step in trained}
    assert all(step.values.items() <= own[step.n].items() or Q.MEMORY_RESERVED_GIB in step.values for step in trained)
    # every number of an iteration of main
    found = steps(events(PrimusReader(), "primus-main-megatron-small-cpu-1rank-tflops.log"))
    assert found[3].n == 4 and found[3].values == pytest.approx(SMALL)
    # a line of the trainer of 2025 says its rank and the world
    (step,) = steps(read(PrimusReader(), "(PrimusMaster  pid=77) " + TRAINER))
    assert (step.n, step.rank, step.values[Q.TOKENS_PER_S_PER_GPU]) == (12125, 31, 12130.4)
    unreported = TRAINER.replace(" tokens per GPU (tokens/s/GPU): 12130.4/12525.5 |", "")
    option = "[20251121 12:00:00][rank-0/32][INFO ]   seq_length                          : 4096 (int)"
    assert step.values[Q.TOKENS_PER_S_PER_GPU] == pytest.approx(
        steps(read(PrimusReader(), option, unreported))[0].values[Q.TOKENS_PER_S_PER_GPU], rel=1e-4
    )


SMALL = {
    Q.STEP_TIME_S: 3.0991,
    Q.STEP_TIME_S_MEAN: 3.1111,
    Q.TFLOPS_PER_GPU: 0.1,
    Q.TFLOPS_PER_GPU_MEAN: 0.1,
    Q.TOKENS_PER_S_PER_GPU: 660.8,
    Q.TOKENS_PER_S_PER_GPU_MEAN: 658.3,
    Q.LEARNING_RATE: 6.545085e-04,
    Q.LOSS: 8.231403,
    Q.GRAD_NORM: 9.799,
    Q.MEMORY_USED_GIB: 16.0,
    Q.MEMORY_USED_PERCENT: 66.67,
}


@each_row(
    ("version", "speed", "mean", "seconds", "seconds_mean"),
    [("v26.4.0", 4839.3, 4258.7, 0.1058, 0.1225), ("v26.5.1", 4119.1, 4132.4, 0.1243, 0.1239)],
)
def test_older_dialects_say_the_same_in_other_words(version, speed, mean, seconds, seconds_mean):
    trained = steps(events(PrimusReader(), f"primus-{version}-megatron-tiny-cpu-1rank.log"))
    assert [step.n for step in trained] == list(range(1, 9))
    fourth = trained[3].values
    assert (fourth[Q.TOKENS_PER_S_PER_GPU], fourth[Q.TOKENS_PER_S_PER_GPU_MEAN]) == (speed, mean)
    assert (fourth[Q.STEP_TIME_S], fourth[Q.STEP_TIME_S_MEAN]) == pytest.approx((seconds, seconds_mean))
    assert fourth[Q.LOSS] == 8.811359


def config(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for event in events(PrimusReader(), f"primus-main-{name}.log"):
        found |= event.values if isinstance(event, EffectiveConfig) else {}
    return found


@each_row(("value", "batches"), [("None (NoneType)", ["64", "16"]), ("[16, 16, 500] (list)", ["64"])])
def test_the_global_batch_is_the_iterations_where_none_is_planned_to_grow(value, batches):
    begin = "[20251121 12:00:00][rank-0/8][INFO ]   "
    options = [f"{begin}global_batch_size      : 64 (int)", f"{begin}rampup_batch_size      : {value}"]
    line = (
        f"{begin}iteration 1/ 9 | elapsed time per iteration (ms): 658.3 | global batch size: 16 | lm loss: 1.0E+00 |"
    )
    told = [one.values for one in read(PrimusReader(), *options, line) if isinstance(one, EffectiveConfig)]
    assert [values["global_batch"] for values in told if "global_batch" in values] == batches


def test_what_primus_says_it_runs_with():
    sizes = {"steps": "10", "seq_len": "256", "micro_batch": "2", "global_batch": "4", "world_size": "2"}
    found = config("torchtitan0.2.2-debug-cpu-2ranks")
    assert {key: found[key] for key in sizes} == sizes and found["warmup_steps"] == "2"
    assert config("megatron-tiny-cpu-2ranks") == {
        **sizes,
        "steps": "8",
        "seq_len": "128",
        "warmup_steps": "2",
        "log_interval": "1",
        **dict.fromkeys(("tp", "pp", "cp", "ep"), "1"),
        "precision": "FP32",
    }


@each_row(
    "text",
    [
        "[2026-11-21 00:32:04] [NODE-0(vm)] [INFO] torchrun exited with code 0",
        "[NODE-0(vm)] [INFO] primus launcher exited with code 0",
        "[2026-11-21 00:32:04] [NODE-0(vm)] [INFO] [direct] torchrun finished successfully (code 0)",
    ],
)
def test_the_launcher_says_when_it_is_over(text):
    (event,) = read(PrimusReader(), text)
    assert isinstance(event, Ended)
    assert [e for e in read(PrimusReader(), TRAINER, text) if isinstance(e, Ended)] == [event]


@each_row(
    ("text", "code"),
    [
        ("[NODE-0(vm)] [INFO] torchrun exited with code 1", 1),
        ("[2026-11-21 00:32:04] [NODE-0(vm)] [ERROR] [direct] torchrun exited with code 137", 137),
        ("[NODE-0(vm)] [ERROR] primus launcher exited with code 1 ", 1),
        ("[NODE-0(vm)] [ERROR] primus launcher crashed due to signal 9", -9),
        ("[NODE-0(vm)] [ERROR] [entrypoint] torchrun crashed due to signal 11", -11),
    ],
)
def test_the_launcher_says_that_it_failed(text, code):
    (event,) = read(PrimusReader(), text)
    assert isinstance(event, Ended) and event.code == code
    assert read(PrimusReader(), TRAINER, text)[-1] == event
    assert read(PrimusReader(), f"LOG_ERROR '{text}'", text.replace(str(abs(code)), "$exit_code")) == []


def test_a_training_that_was_started_again_says_its_sizes_again():
    line = (
        "[20261121 00:17:16][rank-{0}/{1}][INFO] x :  iteration {2}/ 50 | elapsed time per iteration (ms): 1000.0 | "
        "global batch size:    16 | lm loss: 1.1E+01 | "
    )
    world = "[20261121 00:17:16][rank-0/{0}][INFO] [Primus:Env] rank=0, world_size={0}, x"
    length = "[20261121 00:17:16][rank-0/8][INFO]   seq_length                          : {0} (int)"
    first = (world.format(8), length.format(4096), line.format(7, 8, 1))
    again = (world.format(16), length.format(2048), line.format(15, 16, 1))
    found = read(PrimusReader(), *first, *again)
    assert [step.values[Q.TOKENS_PER_S_PER_GPU] for step in steps(found)] == [16 * 4096 / 8, 16 * 2048 / 16]
    told: dict[str, str] = {}
    for event in found:
        told |= event.values if isinstance(event, EffectiveConfig) else {}
    assert (told["world_size"], told["seq_len"]) == ("16", "2048")


def test_primus_is_surer_of_its_logs_than_anybody_else_and_claims_no_other():
    for path in LOGS.iterdir():
        head = [line.text for line in lines(path.read_bytes())][:300]
        others = max(detect_megatron(head), detect_torchtitan(head))
        if path.name.startswith("primus-"):
            assert detect(head) > max(others, 0.9), path.name
        elif path.name not in ("megatron-gpu-lines.txt", "maxtext-primus-prefix-cut.log"):  # which have lines of Primus
            assert detect(head) == 0, path.name
    # wrapped steps alone are recognised
    log = lines((LOGS / "primus-main-torchtitan0.2.2-debug-cpu-2ranks.log").read_bytes())
    last = [line.text for line in log if "tps: " in line.text]
    assert detect(last) > detect_torchtitan(last) > 0
    assert detect(["", "[rank0]:[titan] 2026-11-20 23:57:03,478 - root - INFO - x", "[rank-0/8] not its prefix"]) == 0
    # a traceback of primus is recognised where nothing else is
    frame = '  File "/workspace/Primus/primus/cli/main.py2", line 3'
    assert detect([frame]) == 0
    assert detect([frame.replace("main.py2", "subcommands/train.py")]) == 0.4
    # lines of the framework that is not there are not read
    titan = "step:  3  loss:  4.1  grad_norm:  1.0  memory: 60.05GiB(42.95%)  tps: 7,000  tflops: 400.00  mfu: 30.77%"
    assert [step.n for step in steps(read(PrimusReader(), titan, TRAINER))] == [3]
    assert [step.n for step in steps(read(PrimusReader(), TRAINER, titan))] == [12125]


def test_files_beside_the_log_are_read_where_it_has_no_steps(tmp_path):
    folder = tmp_path / "structured_logs"
    folder.mkdir()
    (folder / "training.global_rank_0.1.jsonl").write_text('{"log_type_name": "step_end", "step": 1, "value": 250.0}\n')
    (step,) = PrimusReader().finish(tmp_path)
    assert isinstance(step, Step) and step.values == {Q.STEP_TIME_S: 0.25}
    reader = PrimusReader()
    read(reader, TRAINER)
    assert list(reader.finish(tmp_path)) == []
