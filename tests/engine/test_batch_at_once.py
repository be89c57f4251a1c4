"""Runs of one batch at the same time know nothing of each other: each has its stop, its truth and its lines."""

from __future__ import annotations

import json
import os
import threading

import pytest
from msgspec.structs import replace

from madlite.batch.runner import Batch, BatchSettings
from madlite.cli.screens import PlainScreen, Sink
from madlite.errors import ExitCode
from madlite.model import Cause, Status
from madlite.platforms.host.runtime import HostRuntime
from tests.csv_rows import csv_rows
from tests.engine.planning import plan_scripts

# none goes on before all three are there
TOGETHER = """
trap 'exit 9' INT TERM
: > "{here}/here.{name}"
until [ "$(ls "{here}" | grep -c '^here[.]')" = 3 ]; do sleep 0.02; done
echo {name} goes on
"""
SCRIPTS = {"good": "echo 'performance: 5 x'", "stopped": "while :; do sleep 0.05; done", "bad": "exit 7"}


class Listening(PlainScreen):
    """A screen that lets a test act once a run printed something."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink, live=True)
        self.when: dict[bytes, object] = {}

    def output(self, chunk, stream, run_id=""):
        super().output(chunk, stream, run_id)
        for text, act in self.when.items():
            if text in chunk:
                act(run_id)


@pytest.fixture
def screen(tmp_path):
    with (tmp_path / "screen").open("wb") as file:
        sink = Sink(file.fileno())
        yield Listening(sink)
        sink.close()


@pytest.fixture
def planned(tmp_path):
    scripts = {name: TOGETHER.format(here=tmp_path, name=name) + script for name, script in SCRIPTS.items()}
    return plan_scripts(tmp_path, scripts, HostRuntime({"PATH": os.environ["PATH"]}))


@pytest.mark.host
def test_of_three_at_once_one_is_stopped_and_one_fails_and_each_has_its_own_truth(tmp_path, screen, planned):
    plans, options, plugins = planned
    plans = [plans[0], replace(plans[1], plan=replace(plans[1].plan, timeout_s=8)), plans[2]]
    outcome = Batch(plans, options, plugins, screen, settings=BatchSettings(at_once=3)).run()
    assert [(result.status, result.cause, result.exit_code) for result in outcome.results] == [
        (Status.SUCCESS, Cause.NONE, 0),
        (Status.FAILURE, Cause.TIMEOUT, 9),
        (Status.FAILURE, Cause.EXIT_CODE, 7),
    ]
    assert outcome.results[1].reason.startswith("timed out after 8 s")
    assert outcome.exit_code is ExitCode.RUN_FAILED and outcome.not_started == ()
    rows = {row["model"]: (row["status"], row["performance"]) for row in csv_rows(options.output)}
    assert rows == {"good": ("SUCCESS", "5"), "stopped": ("FAILURE", ""), "bad": ("FAILURE", "")}
    for one in plans:
        others = [name for name in SCRIPTS if name != one.plan.card.name]
        log = (one.plan.folder / "run.log").read_text()
        assert f"{one.plan.card.name} goes on" in log and not any(f"{name} goes on" in log for name in others)
        assert json.loads((one.plan.folder / "record.json").read_text())["id"] == one.plan.id
    said = (tmp_path / "screen").read_text().splitlines()
    for number, name in enumerate(SCRIPTS, 1):
        assert f"[{number}/3] {name} goes on" in said, "of several runs each line has its run's number"
    assert any(line.startswith("[2/3]") and "stopping: timed out after 8 s" in line for line in said)


@pytest.mark.host
def test_a_stop_of_the_batch_ends_what_goes_on_and_starts_no_other(tmp_path, screen, planned):
    plans, options, plugins = planned
    (tmp_path / "here.1").touch(), (tmp_path / "here.2").touch()  # the first waits for nobody
    batch = Batch(plans[1:], options, plugins, screen)
    screen.when[b"stopped goes on"] = lambda run_id: threading.Thread(target=batch.stop).start()
    outcome = batch.run()
    assert [one.cause for one in outcome.results] == [Cause.INTERRUPTED] and outcome.not_started == ("bad",)
    assert [row["model"] for row in csv_rows(options.output)] == ["stopped"]
