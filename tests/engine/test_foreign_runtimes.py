"""What a plugin's runtime does beside its contract costs its own run a FAILURE row, and nothing else."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from madlite import CommandRuntime, RuntimeProblem, Traits
from madlite.batch.runner import Batch
from madlite.cli.planning import preview
from madlite.cli.screens import PlainScreen, Sink
from madlite.errors import ExitCode
from tests.csv_rows import csv_rows
from tests.engine.planning import plan_scripts

pytestmark = pytest.mark.host  # whole runs

MEMORY = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 192 GiB"


class Odd(CommandRuntime):
    name = "odd"


class Apart(Odd):
    """A runtime whose files are elsewhere, on a machine that is gone by the time they are wanted."""

    traits = Traits(containerised=False, shares_files=False)

    @contextmanager
    def open(self, plan):
        with super().open(plan) as session:
            session.collect = self.lost
            yield session

    def lost(self, patterns, into):
        raise RuntimeProblem("node a does not answer")


class Returns(Odd):
    @contextmanager
    def open(self, plan):
        with super().open(plan) as session:
            session.run = lambda action, out: 0
            yield session


class Prepares(Odd):
    def prepare(self, plan, say):
        return None


class Asks(Odd):
    def request(self, plan):
        raise ZeroDivisionError("no")


class Elsewhere(Odd):
    """A runtime of another machine without containers: of its processes only a mark tells which are the run's."""

    traits = Traits(containerised=False, local=False)

    def supports(self, place):
        return place.where == "odd"

    @contextmanager
    def open(self, plan):
        with super().open(plan) as session:
            real = session.run
            session.run = lambda action, out: self.seen.append(action) or real(action, out)
            yield session


class Exits(Odd):
    def outcome(self, handle):
        return "it failed"


@pytest.fixture
def run(tmp_path):
    """Run cards of these scripts on a runtime; return the outcome, the rows and the plans."""

    def done(runtime, *scripts: str, **fields):
        named = {f"c{number}": script for number, script in enumerate(scripts)}
        planned, options, plugins = plan_scripts(tmp_path, named, runtime, **fields)
        with (tmp_path / "screen").open("wb") as file:
            sink = Sink(file.fileno())
            outcome = Batch(planned, options, plugins, PlainScreen(sink, live=False)).run()
            sink.close()
        return outcome, csv_rows(options.output), planned

    return done


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        (Prepares(), "runtime 'odd' failed: prepare answered None, not a madlite.ImageUsed"),
        (Returns(), "runtime 'odd' failed: run answered 0, not a madlite.Exit"),
    ],
)
def test_an_answer_of_another_type_is_its_run_s_failure_and_the_batch_goes_on(run, runtime, said):
    outcome, rows, _ = run(runtime, "echo performance: 1 x", "echo performance: 2 x")
    assert [row["status"] for row in rows] == ["FAILURE", "FAILURE"] and outcome.not_started == ()
    assert [result.reason for result in outcome.results] == [said, said] and outcome.exit_code is ExitCode.RUN_FAILED


def test_a_request_that_cannot_be_shown_is_told_as_the_runtime_s(run):
    _, _, planned = run(Asks(), "echo performance: 1 x")
    with pytest.raises(RuntimeProblem, match="runtime 'odd' failed: ZeroDivisionError: no"):
        preview(planned[0], {})


def test_an_outcome_of_another_type_is_none(run):
    outcome, _, _ = run(Exits(), "exit 3")
    assert outcome.results[0].outcome is None and "exit code 3" in outcome.results[0].reason


@pytest.mark.host
def test_a_failure_is_explained_though_its_files_cannot_be_collected(run):
    outcome, rows, _ = run(Apart(), f"echo '{MEMORY}' >&2; exit 1", "echo performance: 2 x")
    failed, good = outcome.results
    assert failed.diagnosis.cause == "gpu_out_of_memory" and "exit code 1" in failed.reason
    lost = "what the run wrote was not collected: node a does not answer"
    assert lost in failed.findings and lost in good.findings
    assert [row["status"] for row in rows] == ["FAILURE", "SUCCESS"]


def test_results_that_cannot_be_collected_are_a_failure(run):
    outcome, rows, _ = run(Apart(), "printf 'model,performance,metric\\na,1,x\\n' > r.csv", multiple_results="r.csv")
    assert [row["status"] for row in rows] == ["FAILURE"] and "node a does not answer" in outcome.results[0].reason


def test_a_preview_names_the_folder_that_its_actions_run_in(run):
    _, _, planned = run(Odd(), "echo performance: 1 x")
    text = preview(planned[0], {})
    assert "{model_dir}" not in text and f'"cwd": "{planned[0].plan.workspace}/run_directory' in text


def test_what_runs_elsewhere_without_a_container_has_the_run_s_mark(run):
    runtime = Elsewhere()
    runtime.seen = []
    outcome, rows, planned = run(runtime, "echo performance: 1 x")
    assert [row["deployment_type"] for row in rows] == ["odd"] and outcome.exit_code is ExitCode.OK
    (own,) = (action for action in planned[0].plan.actions if action.kind == "run")
    assert [one.env for one in runtime.seen if one.argv == own.argv] == [{"MADLITE_RUN_ID": planned[0].plan.id}]
