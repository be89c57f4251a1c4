"""Batches of runs that start nothing: what is left is the cost of the batch itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from madlite.backends.loader import load_plugins
from madlite.batch.runner import Batch, BatchSettings
from madlite.model import Action, Card, Exit, ImageUsed, Machine, Place, Request, RunPlan, Traits
from madlite.plan.context import Context, Options
from madlite.plan.submission import PlannedRun
from madlite.run.planning import BatchInputs, plan_runs


class Nothing:
    """A session in which nothing starts."""

    nodes: tuple[str, ...] = ("",)
    shell = handle = ""
    notes: tuple[str, ...] = ()

    def run(self, action: Action, out: object) -> Exit:
        return Exit(code=0, duration_s=0.0)

    def stop(self, grace_s: float) -> None:
        pass

    def collect(self, patterns: object, into: Path) -> None:
        pass


class StartsNothing:
    """A runtime whose sessions are empty."""

    name = "nothing"
    traits = Traits(containerised=False, local=False, sees_processes=False)

    def supports(self, place: Place) -> bool:
        return True

    def available(self) -> None:
        return None

    def prepare(self, plan: RunPlan, say: object) -> ImageUsed:
        return ImageUsed()

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[Nothing]:
        yield Nothing()

    def outcome(self, handle: str) -> None:
        return None


class Finishing:
    """A screen that shows nothing, and says that a run has ended."""

    def __init__(self, finished: object) -> None:
        self.finished = finished

    def __getattr__(self, name: str) -> object:
        return lambda *arguments, **named: None


def batch_of(folder: Path, count: int, ended: Callable[[], None], at_once: int = 1) -> Batch:
    """Return a batch of so many runs in a folder; `ended` is called after each of them."""
    (folder / "go.sh").write_text("echo 'performance: 1 x'\n")
    environ = {"PATH": os.environ["PATH"]}
    options = Options(workspace=folder, output=folder / "perf.csv", runtime="nothing", environ=environ)
    plugins = load_plugins(only_built_in=True)
    inputs = BatchInputs(
        options=options,
        context=Context(),
        machine=Machine(),
        plugins=plugins,
        runtimes={"nothing": StartsNothing()},
        template_root=Path(),
        new_run_id=lambda name: f"20260101T000000-{name}",
    )
    cards = [Card(name=f"c{n:05d}", root=folder, source="models.json", scripts="go.sh") for n in range(count)]
    planned: Sequence[PlannedRun] = plan_runs([Request(card=card, tag=card.name) for card in cards], inputs)
    screen = Finishing(lambda plan, result: ended())
    return Batch(planned, options, plugins, screen, settings=BatchSettings(at_once=at_once))
