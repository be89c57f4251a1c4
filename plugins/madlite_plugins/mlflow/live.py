"""Runs that MLflow follows: their steps while they train, and what they come to."""

from __future__ import annotations

import time
from collections.abc import Sequence

from madlite import Result, RunPlan, Status, Step, hookimpl
from madlite_plugins.mlflow.client import Experiment
from madlite_plugins.tracking import LiveRuns, final_metrics, plan_texts


class MlflowRun:
    """One run of MLflow that grows."""

    def begin(self, plan: RunPlan) -> None:
        """Make it, in the experiment of MLFLOW_EXPERIMENT_NAME on the server of MLFLOW_TRACKING_URI."""
        self._experiment, self._key = Experiment(), plan.id
        self._id = self._experiment.begin(plan.id, plan.id, plan_texts(plan), int(time.time() * 1000))

    def steps(self, steps: Sequence[tuple[int, float, dict[str, float]]]) -> None:
        """Write steps."""
        self._experiment.log(self._id, steps)

    def end(self, result: Result) -> None:
        """Write the result and end it."""
        self._experiment.log(self._id, [(result.steps, time.time(), final_metrics(result))])
        self._experiment.end(self._id, self._key, succeeded=result.status is Status.SUCCESS)


_RUNS = LiveRuns("MLflow", MlflowRun)


@hookimpl
def madlite_run_started(plan: RunPlan) -> None:
    """Follow a run."""
    _RUNS.started(plan)


@hookimpl
def madlite_run_step(plan: RunPlan, step: Step) -> None:
    """Pass a step on."""
    _RUNS.step(plan, step)


@hookimpl
def madlite_run_finished(plan: RunPlan, result: Result) -> None:
    """Pass the result on."""
    _RUNS.finished(plan, result)
