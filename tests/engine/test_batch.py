"""A batch's borders: a bug of ours and a broken backend keep their rows."""

from __future__ import annotations

import json
import os

import pytest
from msgspec.structs import replace

from madlite.backends.loader import load_plugins
from madlite.batch.attempts import exit_code
from madlite.batch.runner import Batch
from madlite.errors import ExitCode
from madlite.model import Card, Cause, Machine, Request, Result, ResultRule, Status
from madlite.plan.context import Context, Options
from madlite.platforms.host.runtime import HostRuntime
from madlite.run.planning import BatchInputs, check_plans, plan_runs
from madlite.store.folder import RunFolder
from tests.csv_rows import csv_rows
from tests.rows import each_row


class Quiet:
    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, text):
        self.said.append(text)

    def __getattr__(self, name):
        return lambda *args: None


@pytest.fixture
def planned(tmp_path):
    (tmp_path / "run.sh").write_text('echo "performance: 5 x"\n')
    options = Options(workspace=tmp_path, output=tmp_path / "perf.csv", runtime="host")
    plugins = load_plugins(only_built_in=True)
    around = BatchInputs(
        options=options,
        context=Context(),
        machine=Machine(),
        plugins=plugins,
        runtimes={"host": HostRuntime({"PATH": "/usr/bin:/bin"})},
        template_root=tmp_path,
        new_run_id=lambda name: f"id-{name}-{os.getpid()}",  # ids end processes: no other test has this one
    )
    card = Card(name="m", root=tmp_path, source="models.json", scripts="run.sh")
    return plan_runs([Request(card=card, tag="m")], around), options, plugins


def statuses(options):
    return [row["status"] for row in csv_rows(options.output)]


def test_a_bug_of_ours_still_writes_the_row(planned, monkeypatch):
    plans, options, plugins = planned

    def broken(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("madlite.run.executor.judge", broken)
    outcome = Batch([*plans, *plans], options, plugins, Quiet()).run()
    assert isinstance(outcome.bug, ZeroDivisionError) and outcome.not_started == ("m",)
    assert statuses(options) == ["FAILURE"]


def test_a_record_that_cannot_be_written_costs_no_verdict(planned, monkeypatch):
    plans, options, plugins = planned
    real = RunFolder.write

    def full(folder, name, data):
        if name in ("record.json", "handle"):
            raise OSError(28, "No space left on device")
        real(folder, name, data)

    monkeypatch.setattr(RunFolder, "write", full)
    outcome = Batch(plans, options, plugins, Quiet()).run()
    assert statuses(options) == ["SUCCESS"] and outcome.exit_code is ExitCode.OK
    assert outcome.results[0].findings == ("record.json could not be written: No space left on device",)


def test_a_backend_whose_reader_and_check_fail_is_named_and_the_run_goes_on(planned, monkeypatch):
    plans, options, plugins = planned

    def broken(*args):
        raise ValueError("theirs")

    for member in ("reader", "check"):
        monkeypatch.setattr(type(plans[0].backends[0]), member, broken)
    assert check_plans(plans, plugins) == (plans, ())
    assert Batch(plans, options, plugins, Quiet()).run().exit_code is ExitCode.OK
    assert statuses(options) == ["SUCCESS"]
    assert [problem.what.split(" (")[0] for problem in plugins.problems] == [
        "check failed: ValueError: theirs",
        "reader failed: ValueError: theirs",
    ]


def test_a_run_folder_that_cannot_be_made_is_a_row(planned):
    plans, options, plugins = planned
    (options.workspace / "madlite_runs").write_text("a file")
    outcome = Batch(plans, options, plugins, Quiet()).run()
    assert outcome.exit_code is ExitCode.RUN_FAILED and statuses(options) == ["FAILURE"]


def test_a_run_folder_that_a_full_disk_does_not_take_has_that_cause(planned, monkeypatch):
    plans, options, plugins = planned

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("madlite.store.folder.open_locked", full)
    (result,) = Batch(plans, options, plugins, Quiet()).run().results
    assert statuses(options) == ["FAILURE"] and result.code == "disk_full"
    assert "No space left on device" in result.reason


def test_a_row_that_can_be_kept_nowhere_is_said(planned):
    plans, options, plugins = planned
    (options.workspace / "madlite_runs").write_text("a file")
    options.output.mkdir()
    screen = Quiet()
    assert Batch(plans, options, plugins, screen).run().exit_code is ExitCode.RUN_FAILED
    said, _, text = screen.said[0].partition("cannot be saved either (")
    (row,) = json.loads(text[text.index("): ") + 3 :])
    assert said and (row["model"], row["status"]) == ("m", "FAILURE")


@each_row(
    ("causes", "code"),
    [
        ([], ExitCode.OK),
        ([None], ExitCode.OK),
        ([Cause.BUILD, None], ExitCode.BUILD_FAILED),
        ([Cause.BUILD, Cause.EXIT_CODE], ExitCode.RUN_FAILED),
        ([Cause.IMAGE], ExitCode.RUN_FAILED),
    ],
)
def test_exit_codes(causes, code):
    results = [
        Result(plan_id="x", status=Status.FAILURE if cause else Status.SUCCESS, cause=cause or Cause.NONE)
        for cause in causes
    ]
    assert exit_code(results) is code


def test_plugins_hear_of_a_run_while_it_goes_on(planned):
    """Removing any of these calls from the engine fails here, whatever the plugin room says of itself."""
    import types

    from madlite.hookspecs import hookimpl
    from madlite.model import FailureRule, Finding

    plans, options, plugins = planned
    heard: list[str] = []
    listener = types.ModuleType("listener")
    hooks = {
        "madlite_checks": lambda plan: heard.append("checks") or [Finding(message="odd", hint="do x")],
        "madlite_run_started": lambda plan: heard.append(f"started {plan.card.name}"),
        "madlite_run_finished": lambda plan, result: heard.append(f"finished {result.status.value}"),
        "madlite_failure_rules": lambda: [FailureRule(pattern=r"boom \d+", cause="x", hint="mind it"), "nonsense"],
    }
    for name, function in hooks.items():
        setattr(listener, name, hookimpl(function))
    plugins.register("listener", listener, "listener", "1")
    (options.workspace / "run.sh").write_text("echo boom 7\nexit 1\n")
    assert check_plans(plans, plugins) == (plans, ("odd (do x)",))
    outcome = Batch(plans, options, plugins, Quiet()).run()
    assert heard == ["checks", "started m", "finished FAILURE"]
    assert outcome.results[0].evidence == "boom 7" and "mind it" in outcome.results[0].reason
    assert "nonsense" in plugins.problems[0].what


def test_plugins_hear_of_steps(planned):
    import types

    from madlite.backends.base import TemplateBackend
    from madlite.backends.step_lines import step_pattern
    from madlite.hookspecs import hookimpl
    from madlite.plan.submission import PlannedRun

    plans, options, plugins = planned
    heard: list[int] = []
    listener = types.ModuleType("listener")
    listener.madlite_run_step = hookimpl(lambda step: heard.append(step.n))
    plugins.register("listener", listener, "listener", "1")

    class Steps(TemplateBackend):
        name = "steps"
        step = step_pattern(r"step=(?P<n>\d+) loss=(?P<loss>\S+)")

    (options.workspace / "run.sh").write_text("echo step=1 loss=2; echo step=2 loss=1; echo 'performance: 5 x'\n")
    (one,) = plans
    Batch(
        [PlannedRun(plan=one.plan, backends=(Steps(),), files=(), runtime=one.runtime)], options, plugins, Quiet()
    ).run()
    assert heard == [1, 2]


def test_a_study_goes_into_record_and_screen(planned, tmp_path):
    from madlite.cli.screens import PlainScreen, Sink
    from madlite.model import Study

    plans, options, plugins = planned
    one = replace(plans[0], plan=replace(plans[0].plan, study=Study(id="s-1", kind="repeat", varied={"seed": 7})))
    with (tmp_path / "screen").open("wb") as file:
        sink = Sink(file.fileno())
        Batch([one], options, plugins, PlainScreen(sink, live=False)).run()
        sink.close()
    record = json.loads((one.plan.folder / "record.json").read_text())
    study = {"id": "s-1", "kind": "repeat", "varied": {"seed": 7}}
    assert study.items() <= record["study"].items() and record["batch"]
    assert "      repeat s-1: seed=7" in (tmp_path / "screen").read_text().splitlines()


def test_the_row_comes_before_the_record(planned, monkeypatch):
    """A kill between the two leaves a row and a run that is told as cut off, never a record without a row."""
    plans, options, plugins = planned
    order: list[str] = []
    real = RunFolder.write

    def noted(folder, name, data):
        if name == "record.json":
            order.append(f"record, perf.csv {options.output.exists()}")
        return real(folder, name, data)

    monkeypatch.setattr(RunFolder, "write", noted)
    Batch(plans, options, plugins, Quiet()).run()
    assert order == ["record, perf.csv True"]


def test_side_files_follow_the_row_into_the_workspace_whatever_o_and_strict_header_say(planned, tmp_path):
    plans, options, plugins = planned
    (tmp_path / "elsewhere").mkdir()
    options = replace(options, output=tmp_path / "elsewhere/perf.csv", strict_header=True)
    (one,) = plans
    (tmp_path / "run.sh").write_text("printf 'model,performance,metric,heat\\na,5,x,61\\n' > ../r.csv\n")
    plan = replace(one.plan, result_rule=ResultRule(kind="multiple_results", file="r.csv"))
    Batch([replace(one, plan=plan)], options, plugins, Quiet()).run()
    assert statuses(options) == ["SUCCESS"] and "heat" not in options.output.read_text()
    (entry,) = json.loads((tmp_path / "perf_super.json").read_text())
    assert (entry["model"], entry["multi_results"]) == ("m_a", {"heat": 61})
    assert json.loads((tmp_path / "perf_entry.json").read_text())["heat"] == 61
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["perf.csv"]


def test_run_without_its_model_writes_no_side_files(planned, tmp_path):
    plans, options, plugins = planned
    (one,) = plans
    Batch([replace(one, plan=replace(one.plan, skip_model_run=True))], options, plugins, Quiet()).run()
    assert list(tmp_path.glob("perf*")) == []


def test_side_file_that_cannot_be_written_is_said_and_costs_no_row(planned, tmp_path):
    plans, options, plugins = planned
    (tmp_path / "perf_entry.csv").mkdir()
    screen = Quiet()
    assert Batch(plans, options, plugins, screen).run().exit_code is ExitCode.OK
    assert statuses(options) == ["SUCCESS"]
    assert len(screen.said) == 1 and "perf_entry.csv is a folder" in screen.said[0]


def test_a_bug_in_the_side_files_writes_no_second_row(planned, monkeypatch):
    plans, options, plugins = planned

    def broken(*args, **named):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("madlite.perfcsv.side_files.make_entries", broken)
    screen = Quiet()
    outcome = Batch(plans, options, plugins, screen).run()
    assert outcome.bug is None and statuses(options) == ["SUCCESS"]
    assert screen.said == ["internal error in the files beside perf.csv: ZeroDivisionError: ours"]
