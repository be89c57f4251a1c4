"""A batch's borders: a bug of ours and a broken backend keep their rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from madlite.engine.gather import Surroundings, gather
from madlite.engine.many import check_plans, exit_code, run_many
from madlite.errors import ExitCode
from madlite.plan.context import Context
from madlite.plan.options import Options
from madlite.plugins import load_plugins
from madlite.run.host_runtime import HostRuntime
from madlite.types import Card, Cause, Machine, Request, Result, Status


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
    around = Surroundings(
        options=options,
        context=Context(),
        machine=Machine(),
        plugins=plugins,
        runtimes={"host": HostRuntime({"PATH": "/usr/bin:/bin"})},
        template_root=tmp_path,
        new_run_id=lambda name: f"id-{name}",
    )
    card = Card(name="m", root=tmp_path, source="models.json", scripts="run.sh")
    return gather([Request(card=card, tag="m")], around), options, plugins


def statuses(options):
    with options.output.open(newline="") as file:
        return [row["status"] for row in csv.DictReader(file)]


def test_a_bug_of_ours_still_writes_the_row(planned, monkeypatch):
    plans, options, plugins = planned

    def broken(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("madlite.engine.one.judge", broken)
    outcome = run_many([*plans, *plans], options, plugins, Quiet())
    assert isinstance(outcome.bug, ZeroDivisionError) and outcome.not_started == ("m",)
    assert statuses(options) == ["FAILURE"]


def test_a_record_that_cannot_be_written_costs_no_verdict(planned, monkeypatch):
    plans, options, plugins = planned
    real = Path.write_bytes

    def full(path, data):
        if "record.json" in path.name or "handle" in path.name:
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    outcome = run_many(plans, options, plugins, Quiet())
    assert statuses(options) == ["SUCCESS"] and outcome.exit_code is ExitCode.OK
    assert outcome.results[0].findings == ("record.json could not be written: No space left on device",)


def test_a_backend_whose_reader_and_check_fail_is_named_and_the_run_goes_on(planned, monkeypatch):
    plans, options, plugins = planned

    def broken(*args):
        raise ValueError("theirs")

    for member in ("reader", "check"):
        monkeypatch.setattr(type(plans[0].backends[0]), member, broken)
    assert check_plans(plans, plugins) == ()
    assert run_many(plans, options, plugins, Quiet()).exit_code is ExitCode.OK
    assert statuses(options) == ["SUCCESS"]
    assert [problem.what.split(" (")[0] for problem in plugins.problems] == [
        "check failed: ValueError: theirs",
        "reader failed: ValueError: theirs",
    ]


def test_a_run_folder_that_cannot_be_made_is_a_row(planned):
    plans, options, plugins = planned
    (options.workspace / "madlite_runs").write_text("a file")
    outcome = run_many(plans, options, plugins, Quiet())
    assert outcome.exit_code is ExitCode.RUN_FAILED and statuses(options) == ["FAILURE"]


def test_a_row_that_can_be_kept_nowhere_is_said(planned):
    plans, options, plugins = planned
    (options.workspace / "madlite_runs").write_text("a file")
    options.output.mkdir()
    screen = Quiet()
    assert run_many(plans, options, plugins, screen).exit_code is ExitCode.RUN_FAILED
    assert "cannot be kept either" in screen.said[0] and "'model': 'm'" in screen.said[0]


@pytest.mark.parametrize(
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
