"""What experiment trackers share: results as their runs, and steps on their way to one while a run goes on."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from madlite import ExportRow, Metric, Result, RunPlan, Status, Step

RUN, KEY, PARTIAL = "madlite.run", "madlite.key", "madlite.partial"
_LOG = logging.getLogger("madlite")
_NO_NAME = re.compile(r"[^\w\-. /:]")  # of what MLflow takes in a name; others take more
_SIZES = ("seq_len", "micro_batch", "global_batch", "gpus", "nodes")
_TEXTS = ("model", "backend", "recipe", "mode", "precision", "device")
_EVERY_S = 1.0
_END_LIMIT_S = 30.0


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a tracker: the results of one run of madlite, or a single row of a file without runs.

    `key` is the run's id, or else the row's key; `texts` are what it ran with, `metrics` its finite numbers.
    """

    key: str
    name: str
    succeeded: bool
    started_ms: int | None
    texts: dict[str, str]
    metrics: dict[str, float]


def tracked_runs(rows: Iterable[ExportRow]) -> list[TrackedRun]:
    """Return the rows as runs of a tracker, in the order in which they first come."""
    found: dict[str, list[ExportRow]] = {}
    for row in rows:
        found.setdefault(row.run or row.key, []).append(row)
    return [_tracked(key, members) for key, members in found.items()]


def _tracked(key: str, rows: Sequence[ExportRow]) -> TrackedRun:
    first = rows[0]
    texts = {name: getattr(first, name) for name in (*_TEXTS, "status", "cause", "suspect", "source")}
    texts |= {name: str(getattr(first, name)) for name in _SIZES if getattr(first, name) is not None}
    texts |= {f"fact.{name}": text for name, text in first.facts.items()}
    names = [row.metric for row in rows]
    metrics = {
        clean_name(row.metric if names.count(row.metric) == 1 else f"{row.model}/{row.metric}"): row.value
        for row in rows
        if row.value is not None
    }
    succeeded = all(row.status == Status.SUCCESS.value for row in rows)
    return TrackedRun(
        key=key,
        name=first.run or f"{first.model} {first.key[:8]}",
        succeeded=succeeded,
        started_ms=int(first.started.timestamp() * 1000) if first.started is not None else None,
        texts={clean_name(name): text for name, text in texts.items() if text},
        metrics={**metrics, "success": float(succeeded)},
    )


def clean_name(text: str) -> str:
    """Return a name that every tracker takes for a metric or a parameter."""
    parts = (part.strip(". ") or "_" for part in _NO_NAME.sub("_", text).split("/"))
    return "/".join(parts)[:200]


def plan_texts(plan: RunPlan) -> dict[str, str]:
    """Return what a plan's run is, for a tracker; no variable, setting or argument, which could be a secret."""
    variant, place = plan.variant, plan.place
    known = {
        "model": plan.card.name,
        "backend": plan.backend,
        "mode": variant.mode if variant else "",
        "precision": variant.precision if variant else "",
        "seq_len": variant.seq_len if variant else None,
        "micro_batch": variant.micro_batch if variant else None,
        "global_batch": variant.global_batch if variant else None,
        "gpus": place.nodes * place.gpus_per_node,
        "nodes": place.nodes,
    }
    return {name: str(value) for name, value in known.items() if value not in (None, "")}


def final_metrics(result: Result) -> dict[str, float]:
    """Return the numbers that a run came to, and whether it succeeded."""
    names = [metric.metric for metric in result.metrics]

    def name(metric: Metric) -> str:
        return clean_name(metric.metric if names.count(metric.metric) == 1 else f"{metric.label}/{metric.metric}")

    found = {
        name(metric): metric.value
        for metric in result.metrics
        if metric.value is not None and math.isfinite(metric.value)
    }
    return {**found, "success": float(result.status is Status.SUCCESS)}


# While a run goes on.


class Tracker(Protocol):
    """One run in a tracker: `begin` once, then `steps` as (step, seconds since 1970, values), then `end`."""

    def begin(self, plan: RunPlan) -> None:
        """Make the tracker's run."""

    def steps(self, steps: Sequence[tuple[int, float, dict[str, float]]]) -> None:
        """Write steps."""

    def end(self, result: Result) -> None:
        """Write the result."""


class LiveRuns:
    """The runs of this process that a tracker follows: each has a thread, so that no run waits for a tracker."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name, self._make = name, make
        self._followers: dict[str, _Follower] = {}

    def started(self, plan: RunPlan) -> None:
        """Follow a run from now on."""
        follower = self._followers[plan.id] = _Follower(self._name, self._make(), plan)
        follower.start()

    def step(self, plan: RunPlan, step: Step) -> None:
        """Pass a step on; of several ranks those of the first that printed one."""
        if follower := self._followers.get(plan.id):
            follower.note(step)

    def finished(self, plan: RunPlan, result: Result) -> None:
        """Pass the result on and wait until it is written, not for ever."""
        if follower := self._followers.pop(plan.id, None):
            follower.finish(result)


class _Follower(threading.Thread):
    def __init__(self, name: str, tracker: Tracker, plan: RunPlan) -> None:
        super().__init__(name=f"{name} {plan.id}", daemon=True)
        self._where, self._tracker, self._plan = name, tracker, plan
        self._queue: SimpleQueue[tuple[int, float, dict[str, float]] | Result] = SimpleQueue()
        self._rank: tuple[int | None] | None = None

    def note(self, step: Step) -> None:
        self._rank = self._rank or (step.rank,)
        if step.rank == self._rank[0] and self.is_alive():
            before = "" if step.phase == "train" else f"{step.phase}/"
            values = {
                f"{before}{quantity.name}": value for quantity, value in step.values.items() if math.isfinite(value)
            }
            self._queue.put((step.n, time.time(), values))

    def finish(self, result: Result) -> None:
        self._queue.put(result)
        self.join(_END_LIMIT_S)
        if self.is_alive():
            _LOG.warning("%s did not take all of run %s within %g s", self._where, self._plan.id, _END_LIMIT_S)

    def run(self) -> None:
        try:
            self._tracker.begin(self._plan)
            while (result := self._pass_on()) is None:
                pass
            self._tracker.end(result)
        except Exception as error:  # noqa: BLE001 - a tracker's library raises what it likes, and no run depends on it
            words = " ".join(str(error).split())[:300]
            _LOG.warning("%s has not all of run %s: %s", self._where, self._plan.id, words)

    def _pass_on(self) -> Result | None:
        """Wait for steps, and write all that are there; return the result once it comes."""
        steps: list[tuple[int, float, dict[str, float]]] = []
        result: Result | None = None
        deadline = time.monotonic() + _EVERY_S
        while result is None and (left := deadline - time.monotonic()) > 0:
            try:
                item = self._queue.get(timeout=left)
            except Empty:
                break
            if isinstance(item, Result):
                result = item
            else:
                steps.append(item)
        if steps:
            self._tracker.steps(steps)
        return result
