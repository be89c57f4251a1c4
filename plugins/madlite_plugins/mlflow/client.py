"""Runs of an MLflow experiment by MLflow's client: made once, found again by the tag `madlite.key`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

from madlite import Exported, ExportRow, UsageProblem
from madlite_plugins.tracking import KEY, PARTIAL, TrackedRun, tracked_runs

T = TypeVar("T")

EXPERIMENT = "madlite"
_LONGEST = 500  # characters of a parameter's value that every server takes
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _RUNS_AT_ONCE = 1000, 100, 1000  # MLflow's own limits
_QUICK = {  # in place of some minutes in which it tries again, and of a report to its makers
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Experiment:
    """One experiment of one server."""

    def __init__(self, target: str = "", name: str = "") -> None:
        uri = target or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            raise UsageProblem("no MLflow server is named", "-o http://host:5000, or MLFLOW_TRACKING_URI")
        self.where = _without_login(uri)
        self.name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME", "") or EXPERIMENT
        for variable, value in _QUICK.items():
            os.environ.setdefault(variable, value)
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # else a warning for every attempt
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise UsageProblem("mlflow is not installed", "pip install 'madlite[mlflow]'") from None
        with self._sentences():
            self.client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri if "://" in uri[:8] else None)
            found = self.client.get_experiment_by_name(self.name)
            self.id = found.experiment_id if found is not None else self.client.create_experiment(self.name)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn what MLflow raises into one sentence."""
        try:
            yield
        except UsageProblem:
            raise
        except Exception as error:
            words = " ".join(str(error).split())
            if "Max retries exceeded" in words:
                raise UsageProblem(f"no MLflow server answers at {self.where}", "-o http://host:5000") from error
            raise UsageProblem(f"MLflow at {self.where}: {words[:300]}", "-o http://host:5000") from error

    def export(self, runs: Sequence[TrackedRun]) -> tuple[int, int]:
        """Write the runs that are not there; return how many results came new, and how many were there."""
        with self._sentences():
            there = self._tags(KEY)
            partial = self._tags(PARTIAL)
            new = 0
            for run in runs:
                if run.key in there:
                    continue
                for half in partial.get(run.key, ()):  # of an export that was killed
                    self.client.delete_run(half)
                self._write(run)
                new += 1
        return new, len(runs) - new

    def _tags(self, tag: str) -> dict[str, list[str]]:
        """Return the runs of the experiment by their value of a tag."""
        found: dict[str, list[str]] = {}
        token = None
        while True:
            page = self.client.search_runs([self.id], max_results=_RUNS_AT_ONCE, page_token=token)
            for run in page:
                if tag in run.data.tags:
                    found.setdefault(run.data.tags[tag], []).append(run.info.run_id)
            token = page.token
            if not token:
                return found

    def _write(self, run: TrackedRun) -> None:
        begun = self.begin(run.key, run.name, run.texts, run.started_ms)
        at = run.started_ms or int(time.time() * 1000)
        self.log(begun, [(0, at / 1000, run.metrics)])
        self.end(begun, run.key, succeeded=run.succeeded)

    def begin(self, key: str, name: str, texts: dict[str, str], started_ms: int | None = None) -> str:
        """Make a run, marked as not whole yet, and return MLflow's id of it."""
        from mlflow.entities import Param

        made = self.client.create_run(self.id, start_time=started_ms, run_name=name, tags={PARTIAL: key})
        for part in _parts([Param(param, text[:_LONGEST]) for param, text in texts.items()], _PARAMS_AT_ONCE):
            self.client.log_batch(made.info.run_id, params=part)
        return str(made.info.run_id)

    def log(self, run_id: str, steps: Iterable[tuple[int, float, dict[str, float]]]) -> None:
        """Write numbers of steps: their number, seconds since 1970, values."""
        from mlflow.entities import Metric

        metrics = [Metric(name, value, int(at * 1000), n) for n, at, values in steps for name, value in values.items()]
        for part in _parts(metrics, _METRICS_AT_ONCE):
            self.client.log_batch(run_id, metrics=part)

    def end(self, run_id: str, key: str, *, succeeded: bool) -> None:
        """End a run and mark it as whole."""
        self.client.set_tag(run_id, KEY, key)
        self.client.delete_tag(run_id, PARTIAL)
        self.client.set_terminated(run_id, "FINISHED" if succeeded else "FAILED")


def export(rows: Iterable[ExportRow], target: str, experiment: str) -> Exported:
    """Write each run that an experiment does not have."""
    runs = tracked_runs(rows)
    found = Experiment(target, experiment)
    new, present = found.export(runs)
    return Exported(new=new, present=present, target=f"experiment {found.name} of {found.where}")


def _parts(items: Sequence[T], most: int) -> Iterator[list[T]]:
    pending = iter(items)
    while part := list(islice(pending, most)):
        yield part


def _without_login(uri: str) -> str:
    """Return an address without user and password."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if parts.netloc else uri
