"""`madlite parse --step`, and a log that nothing knows."""

from __future__ import annotations

import shlex

import pytest

from madlite.backends.step_lines import step_pattern
from madlite.cli.main import call
from madlite.measure.parse_log import suggest_step
from madlite.model import Line
from tests.cli.parsed_log import parsed
from tests.rows import each_row

LINES = "".join(f"it {n} of 20: loss {4 - n / 10:.2f} speed 25.6 Ktok/s\n" for n in range(1, 21))
STEP = r"it (?P<n>\d+) of (?P<steps>\d+): loss (?P<loss>\S+) speed (?P<tokens_per_s>[\d.]+)"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "own.log"
    path.write_text(LINES)
    return path


def test_a_pattern_reads_a_log_of_ones_own_with_its_units(log, capsys):
    found = parsed(capsys, log, "--step", STEP)
    assert (found["window"]["quantity"], found["window"]["median"]) == ("tokens/s", 25600)
    assert found["training"]["asked_steps"] == 20


def test_a_pattern_that_matches_nothing_is_told_the_nearest_line(log, capsys):
    found = parsed(capsys, log, "--step", r"step (?P<n>\d+) loss (?P<loss>\S+)", code=3)
    assert "the line nearest to a step: it 1 of 20: loss 3.90" in found["diagnosis"]["hint"]


@each_row(
    ("args", "words"),
    [
        (["--step", r"it (?P<n>\d+) (?P<los>\S+)"], "did you mean loss?"),
        (["--step", "it"], "no pattern of a step has the group n"),
        (["--step", STEP, "--backend", "hf"], "two ways to read a log"),
    ],
)
def test_a_wrong_pattern_is_one_sentence(log, args, words, capsys):
    assert call(["parse", str(log), *args]) == 4
    err = capsys.readouterr().err
    assert words in err and err.count("error: ") == 1


def test_an_unknown_log_is_told_with_what_it_looks_like_and_a_command_that_reads_it(log, capsys):
    log.write_text("using DeepSpeed\n" + LINES)
    assert call(["parse", str(log)]) == 4
    err = capsys.readouterr().err
    assert "it mentions deepspeed" in err and "nearest to a step: it 1 of 20" in err and "readers.toml" in err
    words = shlex.split(err.partition("hint: ")[2].partition("; [NAME]")[0])
    suggested = words[words.index("--step") + 1]
    assert suggested == suggest_step(LINES.splitlines()[0])
    assert parsed(capsys, log, "--step", suggested)["window"]["median"] == 25600


@each_row(
    ("line", "number"),
    [
        (
            "epoch 1 step 7/90 | train loss: 2.5 | 512.5 ms | 2,000 tok/s",
            {"loss": 2.5, "step_time_ms": 512.5, "tokens_per_s": 2000},
        ),
        ("iter=7 loss=2.5 tokens/s/gpu=8192.5", {"loss": 2.5, "tokens_per_s_per_gpu": 8192.5}),
        ("Batch 7, loss 2.5, 1.50it/s", {"loss": 2.5, "steps_per_s": 1.5}),
        ("step 7 loss 1.2 throughput=5102.3 samples/sec", {"loss": 1.2, "samples_per_s": 5102.3}),
        ("[7/30] loss=1.5 imgs/s=812.5", {"loss": 1.5, "samples_per_s": 812.5}),
        ("step 7 seq/s/gpu 4.5 time: 0.512s", {"samples_per_s_per_gpu": 4.5, "step_time_s": 0.512}),
        ("step 7 elapsed time: 5.1 s 20.1 it/s", {"steps_per_s": 20.1}),
    ],
)
def test_a_suggested_pattern_reads_its_line(line, number):
    from madlite.backends.step_lines import StepPattern
    from madlite.model import Line

    (found,) = StepPattern(suggest_step(line)).read(Line(text=line))
    assert found.numbers["n"] == 7 and number.items() <= found.numbers.items()


@each_row(
    ("text", "outcome"),
    [
        ("8_516 tok/s", 8516),
        ("25.6k tokens/s", 25600),
        ("1.2M tok/s", 1.2e6),
        ("512 TFLOP/s", None),  # another unit
        ("12 GiB", None),
        ("25'601 tok/s", None),
        ("25 601 tok/s", None),
        ("25\u202f601 tok/s", None),
        ("25\u00a0601.5 tok/s", None),
    ],
)
def test_what_follows_a_number_makes_it_whole_or_none(tmp_path, text, outcome, capsys):
    log = tmp_path / "x.log"
    log.write_text("".join(f"step {n} tps {text} loss 2.{n}\n" for n in range(10, 30)))
    step = r"step (?P<n>\d+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)"
    found = parsed(capsys, log, "--step", step, code=3 if outcome is None else 0)
    if outcome is None:
        assert found["result"]["cause"] == "bad_number"
    else:
        assert found["window"]["median"] == outcome


@each_row(("name", "unit"), [("step_time_s", "ms"), ("step_time_ms", "s"), ("step_time_s", "it/s")])
def test_another_unit_than_the_group_says_is_no_number(tmp_path, name, unit, capsys):
    log = tmp_path / "x.log"
    log.write_text("".join(f"step {n} time 512.5 {unit} loss 2\n" for n in range(1, 20)))
    found = parsed(capsys, log, "--step", rf"step (?P<n>\d+) time (?P<{name}>[\d.]+)", code=3)
    assert found["result"]["cause"] == "bad_number" and f"512.5 {unit}" in found["result"]["reason"]


UNITS = {  # by the name of a group: what stands in a line, and the number that it is
    "tflops_per_gpu": {
        **dict.fromkeys(("512.3T", "512.3 T", "512.3 TFLOP/s", "512.3 TFLOPs/s/GPU", "512.3 TF/s"), 512.3),
        **dict.fromkeys(("512G", "512 Gflops", "512 GF", "1.2 PF/s", "1.2P", "512 k", "512 GFLOP/s"), None),
    },
    "step_time_s": {
        **dict.fromkeys(("2.5", "2.5s", "2.5 sec", "2.5 seconds", "2.5 s/it", "2.5 seconds per step"), 2.5),
        **dict.fromkeys(("2.5 of 8", "2.5 loss 3", "2.5 G 3", "2.5 ms=512", "2.5 max"), 2.5),  # no unit
        **dict.fromkeys(("512 k", "512 ms", "512 msec", "512 milliseconds", "1.5 minutes", "1.5 m", "1.5 h"), None),
        **dict.fromkeys(("2.5 iter/s", "2.5 steps/s", "2.5 it/s", "512 ms 3", "2.5 thousand", "512 \u00b5s"), None),
    },
    "step_time_ms": {"512 ms": 512, "512ms/step": 512, **dict.fromkeys(("0.5 sec", "0.5 seconds", "0.5 s"), None)},
    "steps_per_s": {
        **dict.fromkeys(("2.5 it/s", "2.5 steps/sec", "2.5 batches/s"), 2.5),
        **dict.fromkeys(("2.5 s/step", "2.5 it/min", "2.5 min/it", "2.5 sec", "2.5 k"), None),
    },
    "samples_per_s": {
        "25 samples/s": 25,
        "2.5 k samples/s": 2500,
        "25 tokens/s": None,
        **dict.fromkeys(("25 samples/min", "25 s/sample", "25 samples per minute"), None),
    },
    "tokens_per_s": {
        "800 G 3.2": 800,
        "800 tok/s": 800,
        "800 ms=3": 800,
        "800 samples/s 3": 800,
        "800 tok/s/gpu": None,
    },
    "tokens_per_s_per_gpu": {
        **dict.fromkeys(("25.6 kt/s", "25.6K", "25.6 K", "25.6 Ktok/s", "25.6 k tokens/s/GPU", "25.6ktps"), 25600),
        **dict.fromkeys(("25.6 kilo tokens/s", "25.6 thousand", "25.6 million", "25.6 samples/s"), None),
        **dict.fromkeys(("25.6 tok/ms", "25.6 k tok/ms", "25.6 tokens/min", "0.5 s/tok", "25.6 tokens/sec/node"), None),
    },
    "memory_reserved_gib": {"61.2G": 61.2, "61.2 GiB": 61.2, "61.2 GB": 61.2, "61.2M": None, "61200 MiB": None},
    "memory_reserved_gb": {"61.2 GB": 61.2, "61200 MB": None, "61.2 GiB": None},
    "memory_reserved_mib": {"61.2 MiB": 61.2, "61.2GiB": None},
    "memory_reserved_bytes": {"612 B": 612, "61.2GB": None, "61.2G": None},
    "loss": {"2.5 G": 2.5, "2.5 ms": 2.5},
}


def test_the_unit_behind_a_number_is_the_one_that_its_group_names():
    for name, texts in UNITS.items():
        pattern = step_pattern(rf"it (?P<n>\d+) x (?P<{name}>[\d.]+)")
        for text, number in texts.items():
            for end in ("", " | loss 3", ", x"):
                (found,) = pattern.read(Line(text=f"it 6 x {text}{end}"))
                assert found.numbers.get(name) == number, (name, text, end)
                assert bool(found.unread) == (number is None), (name, text, end)


def test_a_unit_within_a_group_is_read_like_one_behind_it():
    for name, text, number in (
        ("tflops_per_gpu", "512.3T", 512.3),
        ("tflops_per_gpu", "512G", None),
        ("tokens_per_s", "25.6Ktok/s", 25600),
        ("step_time_s", "0.5s", 0.5),
        ("step_time_s", "512ms", None),
        ("step_time_ms", "1.07K", 1070),  # as nanotron prints them
        ("memory_reserved_bytes", "52.1G", 52.1e9),
    ):
        (found,) = step_pattern(rf"it (?P<n>\d+) x (?P<{name}>\S+)").read(Line(text=f"it 6 x {text} | loss 2"))
        assert found.numbers.get(name) == number, (name, text)


def test_a_clock_is_read_in_its_own_unit_or_named(tmp_path, capsys):
    log = tmp_path / "x.log"
    for name, text, seconds in (("elapsed_s", "{} ms", None), ("elapsed_ms", "{} ms", 0.5), ("elapsed", "{}", None)):
        log.write_text("".join(f"it {n} t {text.format(500 * n)} x\n" for n in range(1, 30)))
        step = rf"it (?P<n>\d+) t (?P<{name}>[\d.:]+)"
        found = parsed(capsys, log, "--step", step, code=0 if seconds else 3)
        if seconds is None:
            assert found["result"]["cause"] == "bad_number" and text.format(14500) in found["result"]["evidence"]
        else:
            assert found["window"]["median"] == seconds


@each_row("last", ["25.", "25.6 ", "25.6", "25.6 K", "25.6 m"])
def test_no_number_of_a_last_line_without_an_end_is_used(log, last, capsys):
    log.write_text(LINES + f"it 21 of 20: loss 1.5 speed {last}")
    found = parsed(capsys, log, "--step", STEP)
    assert found["training"]["last_step"] == 21 and found["steps"][-1]["values"] == {}
    assert found["window"]["min"] == 25600


def test_steps_after_the_end_mark_do_not_count(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readers.toml").write_text("[mine]\nstep = 'it (?P<n>\\d+) tps (?P<tokens_per_s>\\S+)'\nend = 'done'\n")
    lines = [f"it {n} tps 100" for n in range(1, 21)] + ["done"] + [f"it {n} tps 900" for n in range(21, 80)]
    (tmp_path / "x.log").write_text("\n".join([*lines, ""]))
    found = parsed(capsys, "x.log")
    assert found["window"]["median"] == 100 and found["window"]["last_step"] == 20
    assert any("those steps do not count" in text for text in found["findings"])


def test_a_number_at_the_end_of_a_last_line_without_an_end_is_no_result(log, capsys):
    log.write_text("".join(f"it {n} tps {8000 + n}\n" for n in range(1, 8)) + "it 8 tps 80")
    found = parsed(capsys, log, "--step", r"it (?P<n>\d+) tps (?P<tokens_per_s_per_gpu>\S+)")
    assert found["training"]["last_step"] == 8 and found["window"]["min"] == 8006


@each_row("line", ["performance: 25.6 K tok/s", "performance: 25.6 K", "performance: 25.6"])
def test_a_metric_without_a_name_is_refused(log, line, capsys):
    log.write_text(line + "\n")
    found = parsed(capsys, log, code=3)
    assert found["result"]["cause"] == "bad_number" and "what it counts" in found["result"]["reason"]
    assert all(one["value"] is None for one in found["result"]["metrics"])
