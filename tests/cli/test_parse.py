"""`madlite parse`: numbers of real logs, checked by hand against them, and what it makes of nonsense."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import statistics
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.model import Cause, Result, Status, Variant
from madlite.model.results import Diagnosis
from tests.cli.parsed_log import parsed
from tests.cli.stored_runs import good, store
from tests.rows import each_row

LOGS = Path(__file__).parents[1] / "data/logs"
TITAN = LOGS / "torchtitan-0.2.2-debugmodel-cpu-1rank.log"
# the tps of its steps 6 to 20, as they stand in the log
TPS = (3072, 3830, 3928, 4005, 3747, 3148, 3044, 3210, 3295, 3140, 3203, 3534, 3687, 3831, 3256)


def test_a_training_that_went_well(capsys):
    found = parsed(capsys, TITAN)
    assert (found["backend"], found["lines"], found["ended"]) == ("torchtitan", 70, True)
    assert found["training"] == {
        "first_step": 1,
        "last_step": 20,
        "steps": 20,
        "asked_steps": 20,
        "ranks": [0],
        "validation_steps": 0,
    }
    window = found["window"]
    assert (window["quantity"], window["n"], window["first_step"], window["last_step"], window["dropped"]) == (
        *("tokens/s/GPU", 15, 6, 20, 5),
    )
    assert (window["median"], window["mean"], window["min"], window["max"]) == (3295, 3462, 3044, 4005)
    assert window["std"] == pytest.approx(statistics.stdev(TPS)) and window["cv"] == pytest.approx(window["std"] / 3462)
    assert found["medians"] == {
        "loss": 2.83226,
        "grad_norm": 1.5214,
        "TFLOP/s/GPU": 0.13,
        "GiB reserved": 0.63,
        "% of GPU memory": 2.67,
        "% MFU": 0.04,
    }
    assert {"steps": "20", "seq_len": "256", "micro_batch": "2", "global_batch": "2"}.items() <= found["config"].items()
    assert (found["result"]["status"], found["result"]["cause"], found["findings"]) == ("SUCCESS", "", [])
    metrics = {one["metric"]: one["text"] for one in found["result"]["metrics"]}
    assert metrics == {"tok_per_s_per_gpu": "3256", "TFLOPS_per_gpu": "0.13", "tokens_per_s_per_gpu": "3295"}


@each_row(
    ("name", "steps", "ranks", "median", "window"),
    [
        # tokens/s/GPU of iterations 6 to 12: 4946.9 4825.6 4633.5 4539.0 4410.0 4848.5 4890.2
        ("primus-main-megatron-tiny-cpu-1rank.filesink-debug.log", (1, 12, 12), [0], 4825.6, (6, 12, 7)),
        # 4 sequences of 128 tokens in 68.9, 69.3 and 72.3 ms
        ("megatron-lm-core0.16.1-gpt-cpu-loginterval5.log", (1, 20, 5), [], 4 * 128 / 0.0693, (10, 20, 3)),
    ],
)
def test_a_training_of_megatron(capsys, name, steps, ranks, median, window):
    found = parsed(capsys, LOGS / name)
    training = found["training"]
    assert (training["first_step"], training["last_step"], training["steps"]) == steps
    assert (training["asked_steps"], training["ranks"]) == (steps[1], ranks)
    assert found["window"]["median"] == pytest.approx(median)
    assert (found["window"]["first_step"], found["window"]["last_step"], found["window"]["n"]) == window


def test_validation_is_left_out(capsys, tmp_path):
    log = tmp_path / "x.log"
    line = b"validate step: 10  loss:  3.0886  memory:  0.67GiB(2.84%)  tps: 7,468\n"
    log.write_bytes(TITAN.read_bytes() + b"[titan] 2026-11-20 23:57:03,478 - root - INFO - " + line)
    found = parsed(capsys, log)
    assert found["training"]["validation_steps"] == 1 and found["window"]["median"] == 3295
    assert [step["values"]["loss"] for step in found["steps"] if step["phase"] == "validate"] == [3.0886]
    call(["parse", str(log)])
    assert "1 validation step left out" in capsys.readouterr().out


def test_the_steps_of_json(capsys):
    name = "torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log"
    found = parsed(capsys, LOGS / name)
    steps = found["steps"]
    assert [(step["n"], step["rank"]) for step in steps] == [(n, rank) for n in range(1, 13) for rank in (0, 1)]
    assert set(steps[0]) == {"n", "rank", "phase", "values"} and {step["phase"] for step in steps} == {"train"}
    assert (steps[-1]["values"]["tokens/s/GPU"], steps[-1]["values"]["loss"]) == (1407, 3.43924)
    last = [line for line in (LOGS / name).read_text().splitlines() if " tps: " in line][-1]
    metrics = {one["metric"]: one["text"] for one in found["result"]["metrics"]}
    assert " tps: 1,396 " in last and metrics["tok_per_s_per_gpu"] == "1396", "MAD's is the one that is printed last"


def test_the_steps_of_json_come_last_one_a_line(capsys):
    for logs in ([TITAN], [TITAN, TITAN]):
        assert call(["parse", *map(str, logs), "--json"]) == 0
        lines = capsys.readouterr().out.splitlines()
        steps = [json.loads(line.rstrip(",")) for line in lines if line.startswith('    {"n":')]
        assert [step["n"] for step in steps] == [*range(1, 21)] * len(logs)


def test_a_page_for_people(capsys):
    assert call(["parse", str(TITAN)]) == 0
    out = capsys.readouterr().out
    assert "SUCCESS   3295 tokens_per_s_per_gpu (median of 15 steps, 6 to 20, CV 9.92 %)" in out
    assert "steps     1 to 20 of 20, rank 0\n" in out
    assert "seq_len 256 · micro_batch 2" in out
    assert out.splitlines()[0] == f"{TITAN}  (backend torchtitan)"
    assert "  window    mean 3,462, std 343.4, min 3,044, max 4,005, last 3,256, drift +0.04 %, 0 outliers, 5 d" in out
    assert "  medians   loss 2.832, grad_norm 1.521, TFLOP/s/GPU 0.13, " in out


def test_the_first_steps_to_leave_out_can_be_said(capsys):
    window = parsed(capsys, TITAN, "--warmup", "0")["window"]
    assert (window["n"], window["dropped"], window["min"]) == (20, 0, 879)
    assert parsed(capsys, TITAN, "--warmup", "19")["window"]["median"] == 3256
    found = parsed(capsys, TITAN, "--warmup", "20", code=3)
    assert found["window"] is None and "after 20 steps of warm-up" in found["result"]["reason"]


@each_row(
    ("name", "cause", "why", "said", "evidence"),
    [
        ("torchtitan-0.2.2-debugmodel-cpu-nanloss.log", "nan_loss", "nan_loss", "not finite", "loss:      nan"),
        ("torchtitan-0.2.2-cpu-crash-after-step1-FAIL.log", "incomplete", "python_error", "step 1 was", "TypeError"),
        ("torchtitan-0.2.2-bad-option-2xH200-FAIL.log", "no_metric", "bad_option", "no training step", "Unrecognized"),
        ("hf-peft0.21-torchao0.14-conflict-FAIL.log", "error_pattern", "package_conflict", "no result", "incompatible"),
    ],
)
def test_a_failed_training_says_why(capsys, name, cause, why, said, evidence):
    found = parsed(capsys, LOGS / name, code=3)
    result = found["result"]
    assert (result["status"], result["cause"], found["diagnosis"]["cause"]) == ("FAILURE", cause, why)
    assert said in result["reason"] and evidence in result["evidence"]
    assert call(["parse", str(LOGS / name)]) == 3
    out = capsys.readouterr().out
    assert f"FAILURE   [{why}] " in out and f"> {result['evidence']}"[:80] in out


def rows_of(name: str, upto: str) -> str:
    """Return the steps of a real log without its head and its end: from the first to the one that holds `upto`."""
    rows = (LOGS / name).read_text().splitlines(keepends=True)
    first = next(at for at, row in enumerate(rows) if "step:" in row or "iteration " in row and "elapsed" in row)
    return "".join(rows[first : next(at for at, row in enumerate(rows) if upto in row) + 1])


TITAN_STEPS = rows_of(TITAN.name, "\x1b[31mstep: 20")
MEGATRON_STEPS = rows_of("primus-main-megatron-small-cpu-1rank-tflops.log", "iteration        7/       7")
RAISED = "Traceback (most recent call last):\n  File x\nRuntimeError: NCCL error: unhandled system error\n"
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n  exitcode  : 1 (pid: 123)\n"


@pytest.mark.host
@each_row(
    ("steps", "end", "cause", "evidence"),
    [
        (TITAN_STEPS, "[rank3]: torch.OutOfMemoryError: HIP out of memory\n", "error_pattern", "HIP out of memory"),
        (TITAN_STEPS, RAISED, "error_pattern", "RuntimeError: NCCL error"),
        (TITAN_STEPS, "run.sh: line 3: 77 Killed     torchrun\n", "error_pattern", "77 Killed"),
        (TITAN_STEPS, RAISED + CHILD, "exit_code", "RuntimeError: NCCL error"),
        (TITAN_STEPS, f"{RAISED}{CHILD}[titan] 2026 - root - INFO - Training completed\n", "exit_code", "NCCL error"),
        (TITAN_STEPS + "Training completed\n" + TITAN_STEPS, "CUDA out of memory\n", "error_pattern", "CUDA out of"),
        (MEGATRON_STEPS, CHILD + "tokens/GPU/s: 100.0\n", "exit_code", "ChildFailedError"),
        (MEGATRON_STEPS, "[NODE-0(h)] [ERROR] primus launcher exited with code 1\n", "exit_code", "exited with code 1"),
        (MEGATRON_STEPS, "[NODE-0(h)] [ERROR] [direct] torchrun exited with code 137\nbye\n", "exit_code", "code 137"),
        (MEGATRON_STEPS, "[NODE-0(h)] [ERROR] primus launcher crashed due to signal 9\n", "exit_code", "signal 9"),
    ],
)
def test_a_training_that_was_over_before_its_end_is_a_failure(capsys, tmp_path, steps, end, cause, evidence):
    log = tmp_path / "x.log"
    log.write_text(steps)
    assert parsed(capsys, log)["result"]["status"] == "SUCCESS"
    log.write_text(steps + end)
    result = parsed(capsys, log, code=3)["result"]
    assert (result["status"], result["cause"]) == ("FAILURE", cause) and evidence in result["evidence"]
    log.write_text(steps + end + steps)  # it was started again
    assert parsed(capsys, log)["result"]["status"] == "SUCCESS"


def test_a_line_that_looks_bad_beside_an_end_mark_is_told(capsys, tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(TITAN.read_bytes() + RAISED.encode())
    found = parsed(capsys, log)
    assert found["result"]["status"] == "SUCCESS" and "RuntimeError: NCCL error" in found["findings"][0]


def test_a_doubtful_number_is_said_to_be_one(capsys, tmp_path):
    two = (LOGS / "torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log").read_text()
    log = tmp_path / "slow.log"
    log.write_text(re.sub(r"(?m)^(\[rank1\].*tps: )[\d,]+", r"\g<1>10", two))
    found = parsed(capsys, log)
    assert found["result"]["status"] == "SUCCESS" and "rank 1 reports 10 tokens/s/GPU" in found["suspect"][0]
    assert call(["parse", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "  SUCCESS (suspect)   " in shown and "\n            suspect: rank 1 reports 10 tokens/s/GPU" in shown
    assert parsed(capsys, TITAN)["suspect"] == []


def test_a_log_of_a_start_that_failed_is_known_by_its_traceback(capsys):
    found = parsed(capsys, LOGS / "torchtitan-0.2.2-cpu-unpatched-FAIL.log", code=3)
    assert (found["backend"], found["result"]["cause"]) == ("torchtitan", "no_metric")
    assert found["result"]["evidence"] == "ModuleNotFoundError: No module named 'triton'"


@each_row(
    ("name", "metrics"),
    [
        ("megatron-lm-rocm_dev-2b855baf-gpt-cpu-1rank.log", set()),
        ("primus-main-torchtitan0.2.2-debug-cpu-1rank.log", {"tok_per_s_per_gpu", "TFLOPS_per_gpu"}),
    ],
)
def test_a_figure_of_mad_that_the_log_cannot_have_is_not_missed(capsys, name, metrics):
    found = parsed(capsys, LOGS / name)
    assert not any("no tok_per_s" in text or "no TFLOPS" in text for text in found["findings"])
    told = {one["metric"] for one in found["result"]["metrics"]}
    assert metrics <= told and not any(name.endswith("_avg") for name in told)


def test_a_traceback_before_the_first_step_is_no_failure_and_a_figure_that_is_no_result_is_told(capsys):
    log = LOGS / "primus-main-megatron-tiny-cpu-1rank.log"
    assert "Traceback (most recent call last):" in log.read_text()
    found = parsed(capsys, log)
    assert (found["result"]["status"], found["result"]["evidence"]) == ("SUCCESS", "")
    assert "no TFLOPS_per_gpu: '0' is no result" in found["findings"]
    assert "GPU_memory_usage (%)" not in {one["metric"] for one in found["result"]["metrics"]}  # MAD's for torchtitan


def test_a_summary_that_was_cut_off_is_no_number(capsys, tmp_path):
    log = tmp_path / "x.log"
    data = (LOGS / "megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2.log").read_bytes()
    log.write_bytes(data + b"throughput per GPU: 540.25\ntokens/GPU/s: 20")
    found = parsed(capsys, log)
    metrics = {one["metric"]: one["text"] for one in found["result"]["metrics"]}
    assert metrics["TFLOPS_per_gpu"] == "540.25" and "tok_per_s_per_gpu" not in metrics
    assert found["summary"] == {"throughput per GPU": "540.25"}
    assert "the last line was cut off: its tokens/GPU/s is left out" in found["findings"]


def test_a_rule_gives_its_hint(capsys):
    name = LOGS / "hf-peft0.21-torchao0.14-conflict-FAIL.log"
    why = parsed(capsys, name, code=3)["diagnosis"]
    assert why["cause"] == "package_conflict" and "torchao>=0.16" in why["hint"] and "incompatible" in why["line"]
    assert why["where"] == "/opt/bench/hf-run/t.py:6 in <module>" and why["rank"] is None
    call(["parse", str(name)])
    assert f"try: {why['hint']}" in capsys.readouterr().out


def test_a_log_without_throughput_has_the_frameworks_own_figure(capsys):
    found = parsed(capsys, LOGS / "hf-trainer-peft-transformers4.50-cpu-notqdm.log")
    assert found["backend"] == "hf" and found["window"] is None
    (metric,) = found["result"]["metrics"]
    assert (metric["text"], metric["metric"]) == ("19.265", "samples_per_second")
    assert found["summary"]["train_samples_per_second"] == "19.265"
    assert "no step reports tokens/s/GPU" in found["findings"][0]


def test_packed_files_and_stdin_are_the_same_log(capsys, tmp_path, monkeypatch):
    data = TITAN.read_bytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    (tmp_path / "b").write_bytes(lzma.compress(data))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(data)))))
    found = parsed(capsys, tmp_path / "a.gz", tmp_path / "b", "-", TITAN)
    assert [one.pop("log") for one in found] == [str(tmp_path / "a.gz"), str(tmp_path / "b"), "stdin", str(TITAN)]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("pieces", [1, 10])  # of the first, of 1 byte, the kind of file cannot be told
def test_a_packed_log_comes_through_a_pipe_in_pieces(capsys, monkeypatch, pieces):
    class Pieces(io.RawIOBase):
        """A pipe whose writer is slow: each read has few bytes, in the beginning."""

        def __init__(self) -> None:
            self.left = gzip.compress(TITAN.read_bytes())
            self.reads = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            self.reads += 1
            piece = self.left[: pieces if self.reads < 4 else len(buffer)]
            buffer[: len(piece)] = piece
            self.left = self.left[len(piece) :]
            return len(piece)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Pieces())))
    assert parsed(capsys, "-")["backend"] == "torchtitan"


def test_the_line_of_a_script(capsys, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("hello\nperformance: 1,234.5 tokens/s\nperformance: 7 tokens/s\n")
    found = parsed(capsys, log)
    assert found["backend"] is None and found["training"] is None and found["steps"] == []
    assert found["result"]["metrics"] == [{"metric": "tokens/s", "text": "1234.5", "value": 1234.5}]
    assert found["findings"] and "first one counts" in found["findings"][0]
    log.write_text("performance: nan tokens/s\n")
    assert parsed(capsys, log, code=3)["result"]["cause"] == "bad_number"
    log.write_text("RuntimeError: boom\nperformance: 5 tokens/s\n")
    found = parsed(capsys, log, code=3)["result"]
    assert found["cause"] == "error_pattern" and found["evidence"] == "RuntimeError: boom"
    assert found["metrics"][0]["text"] == "5"


def test_why_nobody_knows_a_log(capsys, tmp_path):
    log = tmp_path / "x.log"
    nothing = "has no line that a run printed"
    for text, said in (
        ("", nothing),
        ("Test Duration: 1.5 seconds\n", nothing),  # of a live log of a run that printed nothing
        ("x\n", "has nothing that a backend knows, and"),
    ):
        log.write_text(text)
        assert call(["parse", str(log)]) == 4 and f"error: {log} {said}" in capsys.readouterr().err
    log.write_text("x\n" * 20_001 + TITAN.read_text())
    assert call(["parse", str(log)]) == 4
    assert "nothing that a backend knows in its first 20,000 lines, and" in capsys.readouterr().err
    assert parsed(capsys, log, "--backend", "torchtitan")["training"]["steps"] == 20


@each_row("data", [b"", b"\n\n", bytes(range(256)) * 4000, b"hello\nworld\n", b"\x1f\x8b", b"\0" * 99999])
def test_what_is_no_log_of_a_training_is_one_sentence(capsys, tmp_path, data):
    log = tmp_path / "x.log"
    log.write_bytes(data)
    assert call(["parse", str(log)]) == 4
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {log} ") and "Traceback" not in err


def test_a_file_that_cannot_be_read(capsys, tmp_path):
    (tmp_path / "shut").touch(0o000)
    for name, said in (("none", "no such file"), (".", "directory"), ("x\0y", "null byte"), ("n" * 300, "too long")):
        assert call(["parse", str(tmp_path / name)]) == 4
        out, err = capsys.readouterr()
        assert out == "" and said in err and err.count("\n") == 1
    if os.geteuid():
        assert call(["parse", str(tmp_path / "shut")]) == 4


def test_a_packed_file_that_was_cut(capsys, tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(TITAN.read_bytes())[:500])
    (tmp_path / "b").write_bytes(lzma.compress(TITAN.read_bytes())[:80] + b"garbage" * 50)
    for name in ("a.gz", "b"):
        assert call(["parse", str(tmp_path / name)]) == 4
        assert f"{name} cannot be read: " in capsys.readouterr().err


@each_row("args", [[], ["--warmup", "-1", "x"], ["--warmup", "x", "x"], ["--nosuch", "x"]])
def test_wrong_usage(capsys, args):
    assert call(["parse", *args]) == 4
    assert "madlite parse --help" in capsys.readouterr().err


def test_of_several_logs_one_that_is_none_is_told_and_the_others_are_read(capsys, tmp_path):
    found = parsed(capsys, TITAN, tmp_path / "none", LOGS / "torchtitan-0.2.2-debugmodel-cpu-nanloss.log", code=4)
    assert [one.get("result", {}).get("status") for one in found] == ["SUCCESS", None, "FAILURE"]
    assert found[1] == {"log": str(tmp_path / "none"), "error": f"{tmp_path / 'none'}: no such file", "hint": ""}
    assert call(["parse", str(TITAN), str(LOGS / "torchtitan-0.2.2-debugmodel-cpu-nanloss.log")]) == 3
    assert "\n\n" in capsys.readouterr().out


def test_a_named_backend_wins_and_a_wrong_name_lists_the_known(capsys):
    assert parsed(capsys, TITAN, "--backend", "hf", code=3)["backend"] == "hf"
    assert parsed(capsys, TITAN, "--backend", "script", code=3)["result"]["cause"] == "no_metric"
    log = LOGS / "hf-trainer-peft-transformers5.17-cpu-tqdm.log"
    assert parsed(capsys, log)["result"]["status"] == "SUCCESS"
    found = parsed(capsys, log, "--backend", "torchtitan", code=3)  # the other one's figure is not its own
    assert found["result"]["reason"] == "the log has no training step"
    assert call(["parse", str(TITAN), "--backend", "titan"]) == 4
    err = capsys.readouterr().err
    assert (
        "--backend names backend 'titan', which no plugin brings (known: " in err and "did you mean torchtitan?" in err
    )


def test_a_log_shows_no_secret_and_steers_no_terminal(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-abcdef")
    log = tmp_path / "x.log"
    log.write_text("performance: 5 x\nValueError: HF_TOKEN=hf_123456\nRuntimeError: key wandb-abcdef\n")
    for args in ((), ("--json",)):
        assert call(["parse", str(log), *args]) == 3
        out = capsys.readouterr().out
        assert "hf_123456" not in out and "wandb-abcdef" not in out and "HF_TOKEN=***" in out
    log.write_bytes(b"performance: 5 x\nValueError: \x1b[2J\x07\x9b31m red\n")
    assert call(["parse", str(log)]) == 3
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_a_number_in_a_line_that_nothing_ended_is_no_result(tmp_path, capsys):
    text = (LOGS / "hf-trainer-peft-transformers4.50-cpu-notqdm.log").read_text()
    cut = text.index("'train_samples_per_second': 19.265") + len("'train_samples_per_second': 19")
    log = tmp_path / "a.log"
    log.write_text(text[:cut])
    assert parsed(capsys, log, code=3)["result"]["status"] == "FAILURE"
    log.write_text("performance: 12")
    result = parsed(capsys, log, code=3)["result"]
    assert result["reason"] == "the log ends within the line of its result: the number may be cut short"
    log.write_text("performance: 12 tokens\n")
    assert parsed(capsys, log)["result"]["status"] == "SUCCESS"


def test_a_second_training_that_stops_early_is_incomplete(tmp_path, capsys):
    text = (LOGS / "torchtitan-0.2.2-debugmodel-cpu-1rank.log").read_text()
    log = tmp_path / "a.log"
    log.write_text(text + text[: text.index("step:  9")])
    result = parsed(capsys, log, code=3)["result"]
    assert (result["cause"], result["reason"]) == ("incomplete", "step 8 was the last of 20 asked for")
    log.write_text(text + text)
    found = parsed(capsys, log)
    assert any("the log has 2 trainings one after another" in note for note in found["findings"])


def test_a_garbled_step_does_not_stand_for_the_last(tmp_path, capsys):
    text = (LOGS / "torchtitan-0.2.2-debugmodel-cpu-1rank.log").read_text()
    log = tmp_path / "a.log"
    log.write_text(text[: text.index("step: 14")].replace("step: 12", "step: 1299"))
    assert parsed(capsys, log, code=3)["result"]["reason"] == "step 13 was the last of 20 asked for"


def test_a_prefix_with_a_bar_hides_nothing_of_megatron(tmp_path, capsys):
    name = "megatron-lm-rocm_dev-2b855baf-gpt-cpu-1rank.log"
    plain = parsed(capsys, LOGS / name)
    log = tmp_path / "a.log"
    log.write_text("".join(f"trainer_1  | {line}\n" for line in (LOGS / name).read_text().splitlines()))
    found = parsed(capsys, log)
    assert found["window"] == plain["window"] and found["ended"] and found["config"] == plain["config"]


@pytest.fixture
def run_of_titan(tmp_path, monkeypatch):
    """The folder of a run that has the log of a training, whose card asked for a warm-up of 10 steps."""
    monkeypatch.chdir(tmp_path)
    variant = Variant(model="m", warmup_steps=10)
    changes = {"backend": "torchtitan", "variant": variant, "settings": {"recipe": "r"}}
    store(tmp_path, "20260102T030405-titan-0000aa", good("x"), log=TITAN.read_bytes(), **changes)
    return tmp_path


def test_the_log_of_a_run_is_read_by_its_id(run_of_titan, capsys):
    for name in ("last", "0000aa", "20260102"):
        found = parsed(capsys, name)
        assert (found["log"], found["backend"]) == ("run 20260102T030405-titan-0000aa", "torchtitan")
        assert (found["window"]["first_step"], found["window"]["dropped"]) == (11, 10), "its own warm-up"
    assert parsed(capsys, "last", "--warmup", "5")["window"]["median"] == 3295
    (run_of_titan / "last").write_bytes(gzip.compress(TITAN.read_bytes()))
    assert parsed(capsys, "last")["log"] == "last", "a file of that name comes first"


def test_a_run_of_another_folder_is_read_and_one_that_is_not_there_is_told(run_of_titan, capsys, monkeypatch):
    (run_of_titan / "elsewhere").mkdir()
    monkeypatch.chdir(run_of_titan / "elsewhere")
    assert call(["parse", "last"]) == 4 and "last: no such file" in capsys.readouterr().err
    assert parsed(capsys, "last", "--dir", "..")["backend"] == "torchtitan"
    store(run_of_titan, "20260102T030405-other-0000bb", good("y"))
    assert call(["parse", "2026", "--dir", ".."]) == 4 and "is part of 2 runs" in capsys.readouterr().err


def test_a_doubt_of_a_log_is_a_failure_where_it_is_asked_for(tmp_path, capsys):
    log = tmp_path / "x.log"
    log.write_bytes(TITAN.read_bytes().replace(b"Training completed", b"x").replace(b"Process group destroyed", b"x"))
    found = parsed(capsys, log)
    assert found["suspect"] and found["result"]["status"] == "SUCCESS"
    assert parsed(capsys, log, "--fail-on-suspect", code=3)["suspect"] == found["suspect"]
    assert parsed(capsys, TITAN, "--fail-on-suspect")["suspect"] == []


def test_a_failed_runs_log_is_read_without_madlites_own_word_and_with_its_hint(tmp_path, capsys):
    log = b"step one\nsomething of its own broke: code 7\nmadlite: FAILURE the workload failed: exit code 7\n"
    found = Diagnosis(cause="own_rule", line="something of its own broke: code 7", hint="mend it")
    failed = Result(plan_id="x", status=Status.FAILURE, cause=Cause.EXIT_CODE, diagnosis=found)
    store(tmp_path, "20260102T030405-bad-0000cc", failed, log=log)
    call(["parse", "last", "--dir", str(tmp_path), "--backend", "torchtitan"])
    text = "".join(capsys.readouterr())
    assert "madlite: FAILURE" not in text and "mend it" in text
