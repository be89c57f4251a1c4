"""The number that stands for a run of several metrics is one and the same in every study and list."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from madlite.model import Metric, Result, Status, Study
from madlite.reports.runs import StoredRun
from madlite.store.record import Record
from madlite.study.bisect_runs import measurement_of
from madlite.study.scaling import scalings_of
from madlite.study.summary import Sample, summarise, sweep_lines
from madlite.study.tune import trial_of
from madlite.study.tune_models import Point, Space
from tests.factories import WINDOW
from tests.rows import each_row


def metric(name: str, value: float, *, less: bool = False) -> Metric:
    return Metric(metric=name, text=f"{value:g}", status=Status.SUCCESS, value=value, lower_is_better=less)


def result(throughput: float, latency: float) -> Result:
    """A run of a script whose table has two numbers, after one that it did not come to."""
    missing = Metric(metric="accuracy", text="", status=Status.FAILURE)
    metrics = (missing, metric("samples/s", throughput), metric("latency", latency, less=True))
    return Result(plan_id="r", status=Status.SUCCESS, metrics=metrics)


def sample(number: int, found: Result, key: str) -> Sample:
    study = Study(id="s", kind="sweep", varied={key: number}, series=number, index=1, count=1)
    return Sample(study=study, run="r", card="a", variant=None, image="", result=found, gpus_per_node=number)


FOUND = [result(100, 5), result(180, 9)]  # the second is faster, and its latency is worse


@each_row(("window", "name"), [(None, "samples/s"), (WINDOW, "latency")])
def test_the_headline_is_the_steady_window_s_number_else_the_first(window, name):
    headline = replace(FOUND[0], window=window).headline
    assert headline is not None and headline.metric == name
    assert replace(FOUND[0], status=Status.FAILURE).headline is None


def test_a_sweep_marks_the_best_by_it():
    *_, first, second = sweep_lines(summarise("s", "sweep", [sample(n, one, "x") for n, one in enumerate(FOUND, 1)]))
    assert first.split() == ["x=1", "100", "samples/s"] and "<- best" in second


def test_bisect_scaling_tune_and_the_list_of_runs_have_it():
    first, second = (sample(n, one, "micro_batch") for n, one in enumerate(FOUND, 1))
    assert measurement_of(first, "").metric == "samples/s" and measurement_of(first, "latency").value == 5
    (scaling,) = scalings_of([sample(n, one, "n_gpus") for n, one in enumerate(FOUND, 1)])
    assert scaling.metric == "samples/s" and [one.figure for one in scaling.points] == [100, 180]
    trial = trial_of(second, Space(default=Point(batch=1)), Path("/nonexistent"))
    assert trial is not None and (trial.speed, trial.point, trial.full) == (180, Point(batch=2), True)
    stored = StoredRun(
        folder=Path(), state="SUCCESS", record=Record(id="r", status=Status.SUCCESS, metrics=FOUND[0].metrics)
    )
    assert stored.headline is not None and stored.headline.metric == "samples/s"
