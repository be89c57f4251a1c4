"""Runs that Trackio follows: their steps while they train, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from madlite import Result, RunPlan, Step, hookimpl
from madlite_plugins.tracking import LiveRuns, final_metrics, plan_texts
from madlite_plugins.trackio.client import begin, project_name


class TrackioRun:
    """One run of Trackio that grows; its own thread writes what is logged."""

    _run: Any

    def begin(self, plan: RunPlan) -> None:
        """Make it, in the project of TRACKIO_PROJECT, in the local store or where Trackio's own variables say."""
        self._run = begin(project_name(), plan.id, plan_texts(plan))

    def steps(self, steps: Sequence[tuple[int, float, dict[str, float]]]) -> None:
        """Write steps."""
        for n, _, values in steps:
            self._run.log(values, step=n)

    def end(self, result: Result) -> None:
        """Write the result and end it."""
        self._run.log(final_metrics(result), step=result.steps)
        self._run.finish()


_RUNS = LiveRuns("Trackio", TrackioRun)


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
