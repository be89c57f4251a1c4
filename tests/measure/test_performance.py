"""MAD's result line: the union of what both madengine versions accept, and nothing that is no number."""

from __future__ import annotations

from madlite.measure.lines import make_block
from madlite.measure.performance import PerformanceScan, is_throughput, make_metric, read_performance, result_lines
from madlite.model import Cause, Status
from tests.rows import each_row


@each_row(
    ("line", "found"),
    [
        ("performance: 14164 samples_per_second", ("14164", "samples_per_second")),
        ("performance: 1.5e+3 tok", ("1.5e+3", "tok")),
        ("performance: 1.5E-4 y", ("1.5E-4", "y")),
        ("performance: -3.5 loss", ("-3.5", "loss")),
        ("performance: .5 z", (".5", "z")),
        ("performance: 12 tokens/s", ("12", "tokens/s")),
        ("performance: 12 samples per sec", ("12", "samples")),
        ("INFO performance: 7 x y", ("7", "x")),
        ("my_performance: 8 q", ("8", "q")),
        ("performance:12 a", ("12", "a")),
        ("performance: 5", None),
        ("performance: 12.5tok/s", ("12.5", "tok/s")),
        ("performance: 1,234 tok", ("1234", "tok")),
        ("performance: 2,872", None),
        ("performance: 100/s, samples", ("100", "samples")),
        ("performance: nan x", ("nan", "x")),
        ("performance: inf x", ("inf", "x")),
        ("performance: 0012 x", ("0012", "x")),
        ("performance: 12.5k tokens/s", ("12.5", "ktokens/s")),
        ("performance: 3M tokens_per_second", ("3", "Mtokens_per_second")),
        ("performance: 8k", None),
        ("performance: 1 234 tokens/s", None),
        ("performance: 1 234.5", None),
        ("performance: 12 3d_points/s", ("12", "3d_points/s")),
        ("Performance: 5 x", None),
        ("performance: 1,23 x", None),
        ("performance: fast", None),
        ("performance:", None),
    ],
)
def test_the_grammar(line, found):
    assert read_performance(line) == found


def scan(*lines: str) -> PerformanceScan:
    found = PerformanceScan()
    for line in lines:
        found.feed(make_block([line]))
    together = PerformanceScan()
    together.feed(make_block(lines))
    assert (together.result, together.findings) == (found.result, found.findings)
    return found


def test_the_first_line_counts_and_others_are_told():
    found = scan("performance: 344 tok", "x", "performance: 2872 tok", "performance: 344 tok")
    assert found.result == ("344", "tok")
    assert "1 more" in found.findings[0]
    # the trainers own figure is the fallback
    assert scan("{'train_samples_per_second': 19.265}").result == ("19.265", "samples_per_second")
    assert scan("{'train_samples_per_second': '183.9'}").result == ("183.9", "samples_per_second")
    assert scan("train_samples_per_second = 1,183.9", "performance: 5 x").result == ("5", "x")
    # throughputs are told from other metrics
    throughputs = "samples_per_second tokens/s tokens/s/GPU tok_per_s_per_gpu TFLOPS_per_gpu fps FPS_per_GPU qps"
    assert all(map(is_throughput, throughputs.split()))
    assert not any(map(is_throughput, "loss accuracy context seconds_per_step gpu_bound pass max_memory_alloc".split()))
    # text is kept as it was printed
    assert make_metric("1.5e+03", "tok").text == "1.5e+03"


def test_a_line_of_a_file_from_before_the_run_counts_where_there_is_no_other():
    earlier = result_lines(b"performance: 344 tok\nx\n[rank0] performance: 345 tok  \n")
    for lines, result, told in (
        (("performance: 344 tok", "performance: 345 tok", "performance: 350 tok"), "350", "left out: 2"),
        (("performance: 344 tok", "performance: 350 tok", "performance: 344 tok"), "350", "left out: 2"),
        (("performance: 350 tok", "performance: 351 tok"), "350", "1 more performance lines"),
        (("performance: 344 tok", "performance: 345 tok"), "344", "1 more performance lines"),
    ):
        found = PerformanceScan(earlier)
        found.feed(make_block(lines))
        assert found.result == (result, "tok") and told in found.findings[0] and len(found.findings) == 1


@each_row(
    ("text", "metric", "status"),
    [
        ("14164", "samples_per_second", Status.SUCCESS),
        ("0", "samples_per_second", Status.FAILURE),
        ("-1", "tokens/s/GPU", Status.FAILURE),
        ("0", "context", Status.SUCCESS),
        ("-3.5", "loss", Status.SUCCESS),
        ("nan", "loss", Status.FAILURE),
        ("inf", "loss", Status.FAILURE),
        ("FAILED", "tok", Status.FAILURE),
        ("", "tok", Status.FAILURE),
    ],
)
def test_what_is_a_result(text, metric, status):
    made = make_metric(text, metric)
    assert made.status is status
    assert made.text == (text if status is Status.SUCCESS else "")
    assert (made.cause is Cause.NONE) == (status is Status.SUCCESS)


@each_row(
    "metric", ["step_time_s", "time_to_train", "seconds_per_step", "s/it", "step_time_ms", "Train time (s)", "val_loss"]
)
def test_of_time_and_loss_less_is_better(metric):
    assert make_metric("1.5", metric).lower_is_better


@each_row(
    "metric",
    ["tokens_per_s_per_gpu", "images_per_s_per_gpu", "FPS_per_GPU", "samples/s", "tokens/s/GPU", "TFLOPS_per_GPU"]
    + ["train_samples_per_s", "max_memory_alloc", "accuracy", "steps", "MFU", "times_faster", ""],
)
def test_of_work_per_time_more_is_better(metric):
    assert not make_metric("1.5", metric).lower_is_better
