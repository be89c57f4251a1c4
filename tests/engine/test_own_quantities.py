"""A plugin's own metrics go all the way: log, steps, window, row, record, screen and `parse`."""

from __future__ import annotations

import json
import os
import types

import pytest

from madlite import MadMetric, PluginError, Quantity, TemplateBackend, hookimpl, step_pattern
from madlite.backends.loader import load_plugins
from madlite.backends.step_lines import StepPattern
from madlite.batch.runner import Batch
from madlite.cli import setup
from madlite.cli.main import call
from madlite.cli.screens import PlainScreen, Sink
from madlite.model import Card, Machine, Request, Status, Variant
from madlite.plan.context import Context, Options
from madlite.platforms.host.runtime import HostRuntime
from madlite.run.planning import BatchInputs, plan_runs
from tests.csv_rows import csv_rows
from tests.rows import each_row

FRAMES = Quantity(name="frames_per_s", unit="frames/s", direction="higher")
LATENCY = Quantity(name="latency_ms", unit="ms", direction="lower")
LOG = "".join(f"it {n}: {100 + n % 2}.5 frames/s, {20 - n % 2} ms\n" for n in range(1, 31))


class Films(TemplateBackend):
    name = "films"
    template = "films/run.sh.j2"
    step = step_pattern(r"it (?P<n>\d+): (?P<frames_per_s>\S+) frames/s, (?P<latency_ms>\S+) ms", FRAMES, LATENCY)
    mad_metrics = (MadMetric(metric="least_latency", quantity=LATENCY),)

    def claim(self, card, checkout):
        return 10 if card.name == "film" else 0

    def variants(self, card, machine):
        yield Variant(model="film", steps=30)


@pytest.fixture
def run(tmp_path):
    """Run a log through the backend, and return its result, its row, its record and the screen."""
    (tmp_path / "templates" / "films").mkdir(parents=True)
    (tmp_path / "templates" / "films" / "run.sh.j2").write_text(f"cat {tmp_path}/log.txt\n")
    environ = {"PATH": os.environ["PATH"]}
    options = Options(workspace=tmp_path, output=tmp_path / "perf.csv", runtime="host", environ=environ)
    plugins = load_plugins(only_built_in=True)
    plugin = types.ModuleType("films")
    plugin.madlite_backends = hookimpl(lambda: [Films()])
    plugin.__file__ = str(tmp_path / "films.py")
    plugins.register("films", plugin, "films", "1")

    def done(log: str):
        (tmp_path / "log.txt").write_text(log)
        around = BatchInputs(
            options=options,
            context=Context(),
            machine=Machine(),
            plugins=plugins,
            runtimes={"host": HostRuntime(environ)},
            template_root=tmp_path / "templates",
            new_run_id=lambda name: f"own-{os.getpid()}-{tmp_path.name}",
        )
        card = Card(name="film", root=tmp_path, source="models.json", runtimes=("host",))
        plans = plan_runs([Request(card=card, tag="film")], around)
        with (tmp_path / "screen").open("wb") as file:
            sink = Sink(file.fileno())
            outcome = Batch(plans, options, plugins, PlainScreen(sink, live=False)).run()
            sink.close()
        record = json.loads((plans[0].plan.folder / "record.json").read_text())
        return outcome.results[0], csv_rows(options.output), record, (tmp_path / "screen").read_text()

    return done


def test_a_metric_of_a_plugin_reaches_row_record_and_screen(run):
    result, rows, record, screen = run(LOG)
    assert result.status is Status.SUCCESS, result.reason
    assert result.window.quantity == FRAMES and result.window.median == 100.5
    assert [(row["metric"], row["performance"]) for row in rows] == [("least_latency", "20"), ("frames_per_s", "100.5")]
    assert record["window"]["quantity"] == {
        "name": "frames_per_s",
        "unit": "frames/s",
        "direction": "higher",
        "label": "frames_per_s",
    }
    told = {metric["metric"]: (metric["unit"], metric["lower_is_better"]) for metric in record["metrics"]}
    assert told == {"least_latency": ("ms", True), "frames_per_s": ("frames/s", False)}
    assert "100.5 frames_per_s (median" in screen


def test_a_speed_of_a_plugin_that_is_zero_is_no_result_and_a_cost_may_be(run):
    result, rows, _, _ = run(LOG.replace("100.5", "0").replace("101.5", "0"))
    assert result.status is Status.FAILURE and "a throughput is above 0" in result.reason
    assert [(row["status"], row["performance"]) for row in rows] == [("FAILURE", "")]


def test_parse_tells_the_metrics_of_a_plugin(tmp_path, capsys, monkeypatch):
    real = setup.load

    def load(*args):
        plugins = real(*args)
        plugin = types.ModuleType("films")
        plugin.madlite_backends = hookimpl(lambda: [Films()])
        plugins.register("films", plugin, "films", "1")
        return plugins

    monkeypatch.setattr(setup, "load", load)
    (tmp_path / "a.log").write_text(LOG)
    assert call(["parse", str(tmp_path / "a.log"), "--json", "--backend", "films"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["window"]["quantity"] == "frames_per_s" and found["medians"] == {"latency_ms": 20.0}
    assert found["result"]["metrics"][-1] == {"metric": "frames_per_s", "text": "100.5", "value": 100.5}


@each_row(
    ("own", "words"),
    [
        (Quantity(name="loss", unit="nats"), "is a built-in quantity"),
        (Quantity(name="frames per s"), "is no identifier"),
    ],
)
def test_a_quantity_whose_name_is_taken_or_none_is_refused(own, words):
    with pytest.raises(PluginError, match=words):
        StepPattern(r"it (?P<n>\d+)", (own,))
