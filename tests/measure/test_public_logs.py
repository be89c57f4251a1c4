"""Logs as people paste them: cut at either end, of a launcher alone, of two jobs, in other spellings of NaN."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from madlite.measure.lines import unwrap_numbers
from madlite.measure.monitor import LogMonitor
from madlite.measure.parse_log import read_log
from madlite.measure.training import is_nan_loss
from madlite.model import Cause, Status
from tests.cli.parsed_log import parsed
from tests.measure.test_diagnosis import PLUGINS, RULES, DiagnosisInput, diagnose, footer
from tests.monitors import monitored
from tests.rows import each_row
from tests.tiers import examples

CAUSES = Path(__file__).parents[1] / "data/causes"
# file, status, cause or metric, rank or its text, a part of the line, a part of the hint
ROWS = [line.split("\t") for line in (CAUSES / "expect.tsv").read_text().splitlines() if not line.startswith("#")]
FAILED = [row for row in ROWS if row[1] == "FAILURE"]


def read_text(text: str):
    return read_log("a.log", iter([text.encode()]), PLUGINS, None)


@each_row(("name", "status", "what", "which", "line", "hint"), ROWS, ids=[row[0] for row in ROWS])
def test_a_log_has_its_verdict_cause_rank_hint_and_exit_code(name, status, what, which, line, hint, capsys):
    found = parsed(capsys, CAUSES / name, code=3 if status == "FAILURE" else 0)
    result, diagnosis = found["result"], found["diagnosis"] or {}
    assert result["status"] == status
    if status == "SUCCESS":
        assert (result["metrics"][0]["metric"], result["metrics"][0]["text"]) == (what, which)
        return
    assert diagnosis.get("cause", result["cause"]) == what
    assert diagnosis.get("rank") == (int(which) if which != "-" else None)
    assert line in diagnosis.get("line", result["evidence"]) and hint in diagnosis.get("hint", "")
    causes = {cause.value for cause in Cause} - {"", "none", what}
    assert not any(f"({cause})" in result["reason"] for cause in causes), "one cause alone is told"


@each_row("row", FAILED, ids=[row[0] for row in FAILED])
@each_row("before", ["\x1b[31m", "gx1: ", "2026-03-05T09:10:11.123456789Z "])
def test_what_a_terminal_or_a_node_puts_before_each_line_changes_no_cause(row, before):
    name, _, cause, *_ = row
    if before != "\x1b[31m" and re.match("appended|slurm-app|srun|mpi|hydra|megatron|hf-", name):
        pytest.skip("a scheduler's own lines, and a reader's, begin a line")
    text = (CAUSES / name).read_text()
    lines = [f"{before}{line}{chr(27) + '[0m' if before[0] == chr(27) else ''}" for line in text.splitlines() if line]
    reading = read_text("\n".join(lines) + "\n")
    assert reading.verdict.status is Status.FAILURE
    assert (reading.diagnosis.cause if reading.diagnosis else reading.verdict.cause.value) == cause


BOX = (CAUSES / "rich-traceback.log").read_text().splitlines()[1:]
ASCII = str.maketrans("╭╮╰╯─│❱", "++++-|>")


@each_row(("label", "rank"), [("", None), ("[rank3]: ", 3), ("[default3]:", 3), ("(T pid=8) ", None)])
@each_row("first", [0, 1, 4, 7, 9, 10])
def test_the_exception_below_a_box_is_read_wherever_its_head_was_cut_off(label, rank, first):
    found = read_text("".join(f"{label}{line}\n" for line in BOX[first:])).diagnosis
    assert (found.cause, found.rank) == ("python_error", rank)
    assert found.line.startswith("RuntimeError: The size of tensor a (96)") and "at non-singleton" in found.line
    assert first > 7 or found.where == "/job/lib/loop.py:88 in step"


@each_row(("label", "rank"), [("", None), ("[rank3]: ", 3)])
@each_row("last", [3, 5, 8, 11])
def test_a_box_whose_end_was_cut_off_is_a_failure_at_its_place(label, rank, last):
    found = read_text("".join(f"{label}{line}\n" for line in BOX[:last])).diagnosis
    assert (found.cause, found.rank) == ("python_error", rank) and found.where.startswith("/job/")
    assert "the log ends within this traceback" in found.hint


def test_a_box_of_ascii_and_two_ranks_in_turns():
    found = read_text("\n".join(line.translate(ASCII) for line in BOX)).diagnosis
    assert (found.cause, found.where) == ("python_error", "/job/lib/loop.py:88 in step")
    found = read_text("".join(f"[rank{rank}]: {line}\n" for line in BOX for rank in (5, 2))).diagnosis
    assert (found.cause, found.rank, found.where) == ("python_error", 5, "/job/lib/loop.py:88 in step")


@each_row(
    "text",
    [
        # a stack in a warning, in a logger's call and in faulthandler's words ends nothing
        'step 1\n  File "/a.py", line 3, in f\n    g()\nUserWarning: this is slow\n',
        'Stack (most recent call last):\n  File "/a.py", line 3, in f\n    g()\nINFO going on\nValueError: no end\n',
        'Exception ignored in: <f>\nTraceback (most recent call last):\n  File "/a.py", line 3, in f\nKeyError: 1\n',
    ],
)
def test_a_stack_that_ended_nothing_is_no_traceback(text):
    log = monitored((), text, RULES)
    assert not log.failures.scan._tracebacks.raised


@each_row(
    ("text", "plain"),
    [
        ("{'grad_norm': tensor(nan, device='cuda:3', dtype=torch.float64), 'a': 1}", "{'grad_norm': nan, 'a': 1}"),
        ("np.float64(2.5) array(nan, dtype=float32) jnp.array([inf]) float('nan')", "2.5 nan inf nan"),
        ("train_loss=nan.0, x=-inf.0, tensor(1.5e-3)", "train_loss=nan, x=-inf, 1.5e-3"),
        ("mytensor(3) float(x) version 1.0 nan.05", "mytensor(3) float(x) version 1.0 nan.05"),
    ],
)
def test_a_number_is_read_without_what_its_library_put_around_it(text, plain):
    assert unwrap_numbers(text) == plain


@each_row("word", ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "nan.0", "tensor(nan)", "np.float64(inf)"])
def test_any_spelling_of_a_loss_that_is_not_finite_is_seen(word):
    assert is_nan_loss(f"step 3: loss {word}, lr 0.1") and is_nan_loss(f"12/90 [00:10<01:00, 1.0it/s, loss={word}]")
    assert not is_nan_loss(f"step 3: loss 2.5, best loss {word}") and not is_nan_loss("step 3: loss 2.5 INFO nan-free")


@each_row("name", ["lm_loss", "total_loss", "train_loss", "dpo_loss", "sft_loss", "loss", "lm loss"])
@each_row("more", ["", "load_balancing_loss: 1.0E+00 | z_loss: 2.0E-02 | "])
def test_a_loss_of_that_name_is_the_training_s(name, more):
    line = (
        " iteration {n:8d}/       9 | elapsed time per iteration (ms): 9.0 | throughput per GPU (TFLOP/s/GPU): 95.0 | "
        "global batch size:     8 | {more}{name}: {loss:.6E} | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |\n"
    )
    text = "".join(line.format(n=n, more=more, name=name, loss=10 - n / 10) for n in range(1, 10))
    reading = read_text(text + "[after training is done] datetime: 2026-01-01 00:00:00 \n")
    assert reading.verdict.status is Status.SUCCESS and not reading.verdict.suspect
    assert reading.medians and any(abs(value - 9.3) < 0.4 for value in reading.medians.values())


def test_an_auxiliary_loss_does_not_stand_for_one_that_is_nan():
    line = (
        " iteration {n:8d}/       9 | elapsed time per iteration (ms): 9.0 | throughput per GPU (TFLOP/s/GPU): 95.0 | "
        "load_balancing_loss: 1.0E+00 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )
    reading = read_text("".join(line.format(n=n) for n in range(1, 10)))
    assert reading.verdict.cause is Cause.NAN_LOSS


def traceback_of(rank: int, *, labelled: bool) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        '  File "/opt/torchtitan/train.py", line 9, in <module>',
        "    import triton.nosuch as nosuch",
        "ModuleNotFoundError: No module named 'triton.nosuch'",
    ]
    return [f"[rank{rank}]: {line}\n" if labelled else f"{line}\n" for line in lines]


def launcher_of(first: int, other: int | None) -> list[str]:
    return [
        "W1128 10:00:00.1 31 torch/elastic/api.py:897] Sending process 41 closing signal SIGTERM\n",
        f"E1128 10:00:00.2 31 elastic/api.py:869] failed (exitcode: 1) local_rank: {first} (pid: 4) of binary: p\n",
        "Traceback (most recent call last):\n",
        '  File "/opt/py/bin/torchrun", line 8, in <module>\n',
        "    sys.exit(main())\n",
        *(f"{line}\n" for line in footer(first, 1, {} if other is None else {1 - first: other})),
    ]


def written(line: str) -> list[str]:
    """Return the pieces in which `python -u` writes a line of a traceback."""
    if found := re.fullmatch(r"(\[rank\d\]: )?(\w+Error)(: )(.*)(\n)", line):
        return [piece for piece in found.groups() if piece]
    return [line[:4], line[4:-1], "\n"] if line.startswith("    ") else [line]


def in_turns(streams: list[list[str]], most: int, chance: random.Random) -> Iterator[str]:
    """Yield pieces of streams, each in its own order, up to `most` of one at a time."""
    left = [list(reversed(stream)) for stream in streams]
    while left := [stream for stream in left if stream]:
        stream = chance.choice(left)
        for _ in range(min(chance.randint(1, most), len(stream))):
            yield stream.pop()


@pytest.mark.host
@each_row("labelled", [True, False])
@each_row(("most", "in_pieces"), [(1, False), (6, False), (1, True)])
def test_the_traceback_of_two_ranks_is_the_cause_however_it_is_mixed_with_the_footer(labelled, most, in_pieces):
    for seed in range(examples(200)):
        chance = random.Random(seed)
        first, other = chance.choice((0, 1)), chance.choice((1, -15, None))
        ranks = [traceback_of(rank, labelled=labelled) for rank in (0, 1)]
        if other == -15:  # the other one was ended while it printed
            ranks[1 - first] = ranks[1 - first][: chance.randint(0, 5)]
        if in_pieces:
            ranks = [[piece for line in lines for piece in written(line)] for lines in ranks]
        text = "".join(in_turns([*ranks, launcher_of(first, other)], most, chance)).encode()
        log = LogMonitor((), RULES)
        while text:
            size = chance.randint(1, 200)
            log.feed(text[:size])
            text = text[size:]
        log.finish()
        found = diagnose(Cause.EXIT_CODE, log.best_error_line, log, DiagnosisInput(exit_code=1))
        assert found.cause == "missing_package", seed


def job(number: int, *lines: str) -> str:
    return "".join(f"{line}\n" for line in (f"job {number} on gx{number % 7}", *lines))


EXITED = "srun: error: gx1: task 0: Exited with exit code 1"
KEY_ERROR = ("Traceback (most recent call last):", '  File "/job/fit.py", line 9, in <module>', "KeyError: 'lr'")


@each_row(
    ("last", "cause"),
    [
        (("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.00 GiB.", EXITED), "gpu_out_of_memory"),
        (("slurmstepd: error: *** JOB 71 ON gx2 CANCELLED AT 2024-02-03T08:00:00 ***",), "killed"),
        (("begin", EXITED), "exit_code"),
        (("slurmstepd: error: *** JOB 71 ON gx2 CANCELLED AT 2024-02-03T08:00:00 DUE TO TIME LIMIT ***",), "timeout"),
    ],
)
@each_row("before", [1, 3])
def test_of_jobs_in_one_file_the_last_one_counts(last, cause, before):
    text = "".join(job(70 - n, *KEY_ERROR, EXITED) for n in range(before, 0, -1)) + job(71, *last)
    found = read_text(text)
    assert (found.diagnosis.cause if found.diagnosis else found.verdict.cause.value) == cause


@each_row(
    "lines",
    [
        # what other ranks and the scheduler print after the end is of the same job
        (*KEY_ERROR, EXITED, "srun: Terminating StepId=9.0", "slurmstepd: error: *** STEP 9.0 ON g CANCELLED AT x ***"),
        ("[rank0]: warm-up", "[rank1]: warm-up", *KEY_ERROR, EXITED, "[rank2]: warm-up"),
    ],
)
def test_what_comes_after_a_job_s_end_begins_no_other(lines):
    assert read_text(job(70, *lines)).diagnosis.line == "KeyError: 'lr'"
    assert read_text("".join(f"{line}\n" for line in lines)).diagnosis.line == "KeyError: 'lr'"


@each_row(("speed", "loss"), [("95,2", "9,81"), ("12.3K", "9.81"), ("95.2", "9,81"), ("1 004.8", "9.81")])
def test_a_decimal_comma_and_thousands_in_k_are_named_and_no_nan(speed, loss):
    line = (
        " iteration {n:8d}/       9 | elapsed time per iteration (ms): 9.0 | throughput per GPU (TFLOP/s/GPU): {speed}"
        " | lm loss: {loss} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )
    verdict = read_text("".join(line.format(n=n, speed=speed, loss=loss) for n in range(1, 10))).verdict
    if speed != "95.2":
        assert verdict.cause is Cause.BAD_NUMBER and f"'{speed}' is no number" in verdict.reason
    else:
        assert verdict.status is Status.SUCCESS and any(f"'{loss}', which is" in one for one in verdict.suspect)
