"""The lines that madengine writes into live logs: in its words, and left out by whoever reads such a log."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from madlite.measure import lines
from madlite.measure.lines import LineSplitter
from madlite.model import Image, ImageUsed, Metric, ResultRule, Status

COMMIT = "4f2a9c1b" * 5
NUMBER = Metric(metric="tok/s", text="12.5", status=Status.SUCCESS)
LINE, FILE = ResultRule(), ResultRule(kind="multiple_results", file="r.csv")


def result(status: Status, metrics=(NUMBER,), rule=LINE, by_patterns=False) -> tuple[str, ...]:
    return lines.result_lines("pyt_x", status, metrics, rule, by_patterns=by_patterns)


def every_line() -> list[str]:
    built = Image(ref="ci-x_base", dockerfile=Path("docker/base.Dockerfile"), base="rocm/pytorch:latest")
    return [
        *lines.image_lines(built, ImageUsed(build_duration_s=12.5, base_digest="sha256:0b1c")),
        lines.command_line("docker build -t ci-x_base -f docker/base.Dockerfile docker"),
        lines.limit_line(7200.0),
        lines.command_line("docker exec c bash -c 'echo performance: 1 tok'\n"),
        lines.RUNNING,
        lines.clone_line(COMMIT),
        lines.scripts_line(COMMIT),
        lines.scripts_line(""),
        *lines.duration_lines(0.10357356071472168),
        *lines.duration_lines(9e-05),
        *result(Status.SUCCESS),
        *result(Status.FAILURE, ()),
    ]


def test_the_words_are_madengines():
    assert every_line() == [
        "⏱️  Build Duration: 12.50 seconds",
        "🏷️  MAD_CONTAINER_IMAGE is ci-x_base",
        "BASE DOCKER is rocm/pytorch:latest",
        "BASE DOCKER SHA is sha256:0b1c",
        "> docker build -t ci-x_base -f docker/base.Dockerfile docker",
        "⏰ Setting timeout to 7200 seconds.",
        "> docker exec c bash -c 'echo performance: 1 tok'\\n",
        "Running model...",
        f"MODEL GIT COMMIT is {COMMIT}",
        f"MODEL REPO COMMIT:  {COMMIT}",
        "MODEL REPO COMMIT:  ",
        "Test Duration: 0.10357356071472168 seconds",
        "test_duration: 0.10s",
        "Test Duration: 9e-05 seconds",
        "test_duration: 0.00s",
        "Status: SUCCESS (performance metrics found, no errors)",
        "pyt_x performance is 12.5 tok/s",
        "Status: FAILURE (no performance metrics)",
        "pyt_x performance is None None",
    ]
    # an image that was not built for the run is named alone
    for image in (Image(ref="rocm/x:1"), Image(ref="rocm/x:1", dockerfile=Path("d"), prebuilt=True)):
        used = ImageUsed(build_duration_s=3.0, base_digest="sha256:1")
        assert lines.image_lines(image, used) == ("🏷️  MAD_CONTAINER_IMAGE is rocm/x:1",)
    # a status says what decided and a results file is named
    assert result(Status.SUCCESS, rule=FILE)[1] == "pyt_x performance is r.csv "
    patterns = result(Status.FAILURE, by_patterns=True)
    assert patterns == ("Status: FAILURE (error patterns detected in logs)", "pyt_x performance is 12.5 tok/s")
    assert result(Status.SKIPPED) == ()


@given(st.integers(1, 40))
def test_a_reader_leaves_them_out_however_the_bytes_come(size):
    said = ["step 1 loss 2.5", *every_line(), "performance: 12.5 tok/s", *every_line(), "the end"]
    data = "\n".join(said).encode()
    splitter, read = LineSplitter(), []
    for at in range(0, len(data), size):
        block = splitter.take(data[at : at + size])
        assert block.text.split("\n") == block.lines or not block.lines
        read += block.lines
    assert read + splitter.take_rest().lines == ["step 1 loss 2.5", "performance: 12.5 tok/s", "the end"]


def test_every_number_behind_a_status_is_left_out_and_no_line_after_them():
    several = (NUMBER, Metric(metric="TFLOP/s", text="3", status=Status.SUCCESS))
    told = [*result(Status.SUCCESS, several), "step 2 loss 2.0", "pyt_x performance is 12.5 tok/s"]
    assert len(told) == 5
    assert LineSplitter().take("".join(f"{line}\n" for line in told).encode()).lines == told[3:]
    # what a workload says in other words stays
    own = [
        "current performance is 12 tok/s",
        "Status: FAILURE (loss diverged)",
        "pyt_x performance is 12 tok/s",
        "Test Duration: long",
        "epoch 3, Test Duration: 5.0 seconds",
        "Setting timeout to 5 seconds. Then more",
        "MODEL GIT COMMIT is unknown",
        "docker run --rm x",
        "> docker ps",
        "Running model... and more",
    ]
    assert LineSplitter().take("".join(f"{line}\n" for line in own).encode()).lines == own


def test_grep_finds_them_as_scripts_do(tmp_path):
    log = tmp_path / "x.live.log"
    log.write_text("".join(f"{line}\n" for line in every_line()))

    def found(pattern: str) -> str:
        return subprocess.run(["grep", "-oP", pattern, log], capture_output=True, text=True, check=True).stdout

    assert found(r"MAD_CONTAINER_IMAGE is \K\S+") == "ci-x_base\n"
    assert found(r"^BASE DOCKER is \K\S+") == "rocm/pytorch:latest\n"
    assert found(r"pyt_x performance is \K[0-9.]+") == "12.5\n"
